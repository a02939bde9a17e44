//! `foretoken lookup`: builds a store of texts that drafters learn from before the first prompt.
//!
//! `build` tokenizes a corpus into a store; at start every drafter that learns across texts is filled from it. (A
//! server also has a store of its own, which grows while it runs.)

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use foretoken::Tokenizer;
use foretoken::store::{Document, Store, TOKENS_MAX, Vocabulary};
use foretoken_console::failure::Failure;
use foretoken_console::output::{OutputOptions, refuse_stream};
use foretoken_console::progress::{self, say};
use foretoken_console::records;
use foretoken_console::terminal::standard_output;
use foretoken_console::values;
use foretoken_console::vocabulary::VocabularyOptions;
use serde_json::Value;

/// Options of `foretoken lookup`.
#[derive(Args, Debug)]
pub struct Lookup {
    #[command(subcommand)]
    command: Option<LookupCommand>,
}

#[derive(Subcommand, Debug)]
enum LookupCommand {
    /// Write a file of texts, in the tokens of a model
    Build(Build),
}

impl Lookup {
    /// Runs the command.
    ///
    /// # Errors
    /// No subcommand is given, or as [`Build::run`].
    pub fn run(&self) -> Result<(), Failure> {
        match &self.command {
            Some(LookupCommand::Build(build)) => build.run(),
            None => Err(Failure::Usage("lookup: expected what to do (build), found none".into())),
        }
    }
}

const AFTER_HELP: &str = "\
A .txt file is one text. A .jsonl (or .ndjson) file has one object a line and a .json file a list of
them: \"text\", or \"prompt\" with \"output\" or \"completion\", or what bench replay understands besides.
Of a folder all these files are read, in order of their names, folders inside it too.

The file holds tokens of one vocabulary and is refused for any other. It is written whole or not at all.";

/// Options of `foretoken lookup build`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Texts")]
#[command(after_long_help = AFTER_HELP)]
pub struct Build {
    /// Texts: .txt, .jsonl or .json files, or folders of them
    #[arg(value_name = "CORPUS", required = true)]
    corpora: Vec<PathBuf>,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Most tokens that are kept: those of the last texts [default: 2^30]
    #[arg(long, value_name = "N", value_parser = values::one_up, allow_negative_numbers = true)]
    capacity: Option<usize>,
    #[command(flatten)]
    vocabulary: VocabularyOptions,
    #[command(flatten)]
    writing: OutputOptions,
}

/// The format of a corpus file, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CorpusFormat {
    Text,
    Objects,
    Compressed,
    Other,
}

impl CorpusFormat {
    fn of(path: &Path) -> Self {
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
        match ending.as_deref() {
            Some("txt") => Self::Text,
            Some("jsonl" | "ndjson" | "json") => Self::Objects,
            Some("xz" | "gz" | "zst" | "bz2" | "zip") => Self::Compressed,
            _ => Self::Other,
        }
    }
}

impl Build {
    /// Runs the command.
    ///
    /// # Errors
    /// A file cannot be read or understood, there is no text in any, or the store cannot be written.
    pub fn run(&self) -> Result<(), Failure> {
        refuse_stream("--output", &self.output)?;
        let tokenizer = self.vocabulary.open()?;
        let mut files = Vec::new();
        for corpus in &self.corpora {
            add_files(corpus, true, &mut BTreeSet::new(), &mut files)?;
        }
        let read: Vec<PathBuf> = files.iter().cloned().chain(self.vocabulary.path()?).collect();
        let output = self.writing.begin(&self.output, &read)?;
        let mut store = Store::new(Vocabulary::from(&*tokenizer), self.capacity.unwrap_or(TOKENS_MAX));
        let (mut read, mut refused) = (0, 0);
        let bar = progress::bar("reading", files.len());
        for file in &files {
            for document in documents(file, &tokenizer)? {
                read += 1;
                refused += usize::from(!store.add(document));
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        if store.tokens() == 0 {
            let corpora: Vec<String> = self.corpora.iter().map(|corpus| corpus.display().to_string()).collect();
            let found = if read == 0 { "none".to_string() } else { format!("{read} longer than the capacity") };
            return Err(Failure::Other(format!("{}: expected texts, found {found}", corpora.join(", "))));
        }
        store.write_to(output)?;
        let kept = store.documents().len();
        if kept < read {
            let longer = if refused > 0 { format!(" ({refused} longer than the capacity)") } else { String::new() };
            say(format_args!(
                "note: --capacity {}: {} of {read} texts left out{longer}",
                self.capacity.unwrap_or(TOKENS_MAX),
                read - kept
            ));
        }
        let mut out = standard_output();
        writeln!(
            out,
            "{}: {kept} documents, {} tokens, {} bytes",
            self.output.display(),
            store.tokens(),
            store.bytes()
        )?;
        Ok(out.flush()?)
    }
}

/// Adds the files of a corpus, in the order of their names. `named`: the user named this path, so it is not skipped.
fn add_files(path: &Path, named: bool, above: &mut BTreeSet<PathBuf>, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let failed = |error| Failure::file(path, &error);
    if std::fs::metadata(path).map_err(failed)?.is_dir() {
        // A link to a folder above would be followed for ever.
        let real = std::fs::canonicalize(path).map_err(failed)?;
        if !above.insert(real.clone()) {
            return Ok(());
        }
        let entries: Result<Vec<PathBuf>, _> =
            std::fs::read_dir(path).map_err(failed)?.map(|entry| entry.map(|entry| entry.path())).collect();
        let mut entries = entries.map_err(failed)?;
        entries.sort();
        entries.iter().try_for_each(|entry| add_files(entry, false, above, files))?;
        above.remove(&real);
        return Ok(());
    }
    match CorpusFormat::of(path) {
        CorpusFormat::Text | CorpusFormat::Objects => files.push(path.to_owned()),
        CorpusFormat::Compressed => {
            let expected = "a file that is not packed";
            let message = format!("{}: expected {expected} (unpack it first), found a packed one", path.display());
            return Err(Failure::Other(message));
        }
        CorpusFormat::Other if named => {
            let message = format!("{}: expected a .txt, .jsonl or .json file, or a folder", path.display());
            return Err(Failure::Other(format!("{message}, found another kind")));
        }
        CorpusFormat::Other => {}
    }
    Ok(())
}

/// The texts of one file.
fn documents(path: &Path, tokenizer: &Tokenizer) -> Result<Vec<Document>, Failure> {
    let place = path.display().to_string();
    let text = records::read_text(path)?;
    if CorpusFormat::of(path) == CorpusFormat::Text {
        return Ok(document(&text, tokenizer)?.into_iter().collect());
    }
    let mut documents = Vec::new();
    for (i, object) in records::objects(&place, &text)?.into_iter().enumerate() {
        let place = format!("{place}: record {}", i + 1);
        let object = records::parsed(&place, object)?;
        match object.get("text") {
            Some(Value::String(text)) => documents.extend(document(text, tokenizer)?),
            _ => documents.extend(records::of_object(&place, &object, tokenizer)?.into_iter().map(|record| Document {
                tokens: record.tokens,
                prompt_len: record.prompt_len,
                tenant: None,
            })),
        }
    }
    Ok(documents)
}

/// The document of a text without a prompt; `None` if it is empty.
fn document(text: &str, tokenizer: &Tokenizer) -> Result<Option<Document>, Failure> {
    let tokens = tokenizer.encode_in_pieces(text, false)?;
    Ok((!tokens.is_empty()).then_some(Document { tokens, prompt_len: 0, tenant: None }))
}
