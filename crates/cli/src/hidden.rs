//! `foretoken hidden`: writes hidden states of texts to files or a stream, for training a draft head.
//!
//! Texts are records with tokens or texts, above all what `generate --json` writes; all are tokenized before the model
//! runs, so that an error in one is reported at once. The library has the format of the files ([`foretoken::hidden`]).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use foretoken::Tokenizer;
use foretoken::hidden::shards::{Folder, Sizes, Written, stream};
use foretoken::hidden::{Extractor, RowType, Text};
use foretoken_console::failure::Failure;
use foretoken_console::interrupts::Interrupts;
use foretoken_console::names::option;
use foretoken_console::options::ModelOptions;
use foretoken_console::progress::{Loading, bar, say};
use foretoken_console::records::{self, RecordPart};
use foretoken_console::terminal::standard_output;
use foretoken_console::{report, values};
use serde_json::Value;

/// Default sizes of a shard and of all shards.
const SHARD_SIZE: &str = "256MB";
const SIZE_MAX: &str = "5GB";

const AFTER_HELP: &str = "\
A row is the residual stream at the entry of each requested layer, one layer after another. Layers are numbered as
EAGLE-3 does it: 2 is what the third layer reads, and the number of layers is the stream after the last one, before the
final norm. Logits are not computed.

A shard is a safetensors file: tokens (I32, all texts one after another), starts (I64, the index of each text's first
token, and the end), prompt_lens (I32, tokens of each text before the model's own words) and hidden ([tokens, layers *
width]). Its metadata name the model, the layers, the width and the settings that rows depend on, and the texts
first..end. A shard is written whole or not at all. A run that finds shards in the folder checks them and continues
after their texts, so a run that was stopped is continued by the same line, also when there are more texts by then.

-o - writes to standard output instead: for each text a length in 8 bytes, little-endian, then a shard of that text
alone.";

/// Options of `foretoken hidden`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Hidden states")]
#[command(after_long_help = AFTER_HELP)]
pub struct Hidden {
    /// The texts: lines of JSON, as generate --json prints them; - is standard input
    ///
    /// Token ids are used as they are (prompt_ids and ids). Other lines have a "text", alone or after a "prompt", or
    /// whatever bench replay understands; they become tokens of the model. Texts longer than the context are cut.
    #[arg(long, value_name = "FILE", required = true)]
    texts: PathBuf,
    /// The layers at whose entry states are written [default: 2, the middle, the last but two, and after the last]
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = values::whole,
        allow_negative_numbers = true)]
    layers: Option<Vec<usize>>,
    /// The folder to write shards to, which may have shards of an earlier run; - is standard output
    #[arg(short, long, value_name = "DIR", required = true)]
    output: PathBuf,
    /// The type of the rows: bf16, f16 or f32
    #[arg(long, value_name = "TYPE", default_value = "bf16")]
    hidden_type: RowType,
    /// Largest shard [default: 256MB]
    #[arg(long, value_name = "SIZE", value_parser = values::size, allow_hyphen_values = true)]
    shard_size: Option<usize>,
    /// Most bytes of all shards of the folder: no text is added that would go beyond [default: 5GB]
    #[arg(long, value_name = "SIZE", value_parser = values::size, allow_hyphen_values = true)]
    size_max: Option<usize>,
    #[command(flatten)]
    model: ModelOptions,
}

impl Hidden {
    /// Runs the command.
    ///
    /// # Errors
    /// The model or a text cannot be used, the folder has shards of something else, or nothing can be written.
    pub fn run(&self) -> Result<(), Failure> {
        let is_stream = self.output == Path::new("-");
        let of_folder = [("--shard-size", self.shard_size), ("--size-max", self.size_max)];
        if let Some((option, _)) = of_folder.iter().find(|(_, size)| is_stream && size.is_some()) {
            return Err(Failure::Usage(format!("{option}: expected a folder (-o), which it belongs to, found -")));
        }
        let mut loading = Loading::default();
        let (settings, layers) = (self.model.settings()?, self.layers.as_deref());
        let load = &mut |done, of| loading.show(done, of);
        let mut extractor = Extractor::open(&settings, layers, self.hidden_type, load)?;
        drop(loading);
        extractor.notes.iter().for_each(|note| say(format_args!("note: {}", note.with_names(option))));
        let texts = self.read(&extractor)?;
        let interrupts = Interrupts::listen();
        interrupts.begin();
        match is_stream {
            true => {
                let all = texts.iter().map(|text| text.tokens.len()).sum();
                let mut out = std::io::stdout().lock();
                with_progress(all, interrupts, |watch| stream(&mut extractor, &texts, &mut out, watch))?;
            }
            false => self.fill(&mut extractor, &texts, interrupts)?,
        }
        interrupts.end_command()
    }

    /// Adds the missing texts to the folder, and prints what it has then.
    fn fill(&self, extractor: &mut Extractor, texts: &[Text], interrupts: Interrupts) -> Result<(), Failure> {
        let size = |given: Option<usize>, default| given.or_else(|| foretoken::parse_size(default)).unwrap_or(0) as u64;
        let sizes = Sizes { shard: size(self.shard_size, SHARD_SIZE), all: size(self.size_max, SIZE_MAX) };
        let mut folder = Folder::open(&self.output, extractor, texts)?;
        let (place, found) = (self.output.display(), folder.written());
        if found.texts > 0 {
            say(format_args!("note: {place}: {} of {} texts are there", found.texts, texts.len()));
        }
        let missing = folder.tokens_missing(texts, sizes);
        let fill = |watch: &mut dyn FnMut(usize) -> bool| Ok(folder.fill(extractor, texts, sizes, watch)?);
        let Written { shards, bytes, texts: there, tokens, is_full } = with_progress(missing, interrupts, fill)?;
        if is_full {
            let limit = self.size_max.map_or(SIZE_MAX.to_string(), |bytes| format!("{bytes} bytes"));
            let rest = texts.len() - there;
            say(format_args!("note: --size-max {limit}: the next text would go beyond, so {rest} texts are left out"));
        }
        let mut out = standard_output();
        writeln!(out, "{place}: {there} texts, {tokens} tokens, {shards} shards, {bytes} bytes")?;
        Ok(out.flush()?)
    }

    /// Reads all texts, as tokens that the model can run over.
    fn read(&self, extractor: &Extractor) -> Result<Vec<Text>, Failure> {
        let (name, text) = foretoken_console::prompts::text_of(&self.texts)?;
        let (mut texts, mut cut) = (Vec::new(), 0);
        for (i, object) in records::objects(&name, &text)?.into_iter().enumerate() {
            let place = format!("{name}: record {}", i + 1);
            for mut text in texts_of(&place, &records::parsed(&place, object)?, extractor)? {
                if let Some(problem) = extractor.problem(&text) {
                    return Err(Failure::Other(format!("{place}: {problem}")));
                }
                cut += usize::from(extractor.cut(&mut text));
                texts.push(text);
            }
        }
        if texts.is_empty() {
            return Err(Failure::Other(format!("{name}: expected texts, found none")));
        }
        if cut > 0 {
            let (all, context) = (texts.len(), extractor.context);
            say(format_args!("note: {cut} of {all} texts are longer than the context, {context} tokens, and are cut"));
        }
        Ok(texts)
    }
}

/// Runs over this many tokens with a progress bar until the end or Ctrl-C, and reports the speed, if reports are
/// wanted.
fn with_progress<T>(
    tokens: usize,
    interrupts: Interrupts,
    run: impl FnOnce(&mut dyn FnMut(usize) -> bool) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (bar, started, mut done) = (bar("tokens", tokens), Instant::now(), 0);
    let result = run(&mut |rows| {
        done += rows;
        bar.inc(rows as u64);
        interrupts.may_continue()
    })?;
    bar.finish_and_clear();
    if report::is_wanted() {
        let rate = done as f64 / started.elapsed().as_secs_f64().max(1e-9);
        say(format_args!("{done} tokens, {rate:.1} tokens/s"));
    }
    Ok(result)
}

/// The texts of a record. A "text" may have a prompt; all else is a continuation of a prompt.
fn texts_of(place: &str, object: &Value, extractor: &Extractor) -> Result<Vec<Text>, Failure> {
    let has = |field: &str| object.get(field).is_some_and(|value| !value.is_null());
    let parts = match has("text") && !has("prompt_ids") {
        true => {
            let prompt = if has("prompt") { Some(records::part(place, object, &["prompt"])?) } else { None };
            vec![(prompt, records::part(place, object, &["text"])?)]
        }
        false => records::parts(place, object)?.into_iter().map(|(prompt, own)| (Some(prompt), own)).collect(),
    };
    let tokenizer = extractor.tokenizer.as_deref();
    let tokens = |part, is_first| tokens(part, is_first, tokenizer, || extractor.target.missing_tokenizer());
    let text = |(prompt, own): (Option<RecordPart>, RecordPart)| {
        let mut text = Text::default();
        let is_first = prompt.is_none();
        if let Some(prompt) = prompt {
            text.tokens = tokens(prompt, true)?;
            text.prompt_len = text.tokens.len();
        }
        text.tokens.extend(tokens(own, is_first)?);
        Ok(text)
    };
    parts.into_iter().map(text).collect()
}

/// The tokens of a part of a text, with the special tokens around a text if it is the first part.
fn tokens(
    part: RecordPart,
    is_first: bool,
    tokenizer: Option<&Tokenizer>,
    missing: impl Fn() -> String,
) -> Result<Vec<foretoken::Token>, Failure> {
    match part {
        RecordPart::Ids(ids) => Ok(ids),
        RecordPart::Text(text) => {
            let tokenizer = tokenizer.ok_or_else(|| Failure::Other(missing()))?;
            Ok(tokenizer.encode_in_pieces(&text, is_first)?)
        }
    }
}
