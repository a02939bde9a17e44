//! Hidden states of texts, for training draft heads: the residual stream of a model at chosen layers, one row for each
//! token.
//!
//! Layers are numbered as in EAGLE-3: layer `i` is the stream at the *input* of layer `i`, counted from 0; the number
//! of layers itself is the stream after the last layer, before the final norm. Texts run through the network like
//! prompts, in passes of as many rows as possible, several texts in a pass. No logits are computed; they can be
//! computed from the rows of the last layer. Since a row does not depend on the other rows of its batch, a text's rows
//! are the same in any batch. Files of rows are in [`shards`].

pub mod shards;

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use foretoken_kernels::dtype::{bf16, f16};
use foretoken_model::{Batch, Executor, Loaded, Options, PageId, PageTable, Span};
use foretoken_speculation::Token;
use foretoken_text::Tokenizer;
use foretoken_weights::Dtype;

use crate::Error;
use crate::backend::chosen_backend;
use crate::error::Message;
use crate::models::Opened;
use crate::settings::ModelSettings;

/// A text as tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// All tokens.
    pub tokens: Vec<Token>,
    /// Tokens of the prompt, after which the model's own output begins; 0 if there is no prompt.
    pub prompt_len: usize,
}

/// The type in which rows are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowType {
    /// bfloat16, the upper halves of 32-bit floats: half the bytes, and the same range.
    #[default]
    Bf16,
    /// 16-bit floats of IEEE 754: finer than bf16, but only up to 65504, which some networks exceed.
    F16,
    /// 32-bit floats, as computed.
    F32,
}

impl RowType {
    const NAMES: [(Self, &str); 3] = [(Self::Bf16, "bf16"), (Self::F16, "f16"), (Self::F32, "f32")];

    /// The type of the tensor.
    fn dtype(self) -> Dtype {
        match self {
            Self::Bf16 => Dtype::BF16,
            Self::F16 => Dtype::F16,
            Self::F32 => Dtype::F32,
        }
    }

    /// Bytes of an element.
    fn bytes(self) -> usize {
        self.dtype().layout().bytes
    }

    /// Appends numbers as bytes; returns the first number that the type cannot represent, if there is one.
    fn append(self, numbers: &[f32], bytes: &mut Vec<u8>) -> Option<f32> {
        let mut overflow = None;
        let mut push = |number: f32, is_finite: bool, stored: &[u8]| {
            overflow = overflow.or((!is_finite).then_some(number));
            bytes.extend_from_slice(stored);
        };
        for &number in numbers {
            match self {
                Self::Bf16 => {
                    let stored = bf16::from_f32(number);
                    push(number, stored.is_finite(), &stored.to_le_bytes());
                }
                Self::F16 => {
                    let stored = f16::from_f32(number);
                    push(number, stored.is_finite(), &stored.to_le_bytes());
                }
                Self::F32 => push(number, number.is_finite(), &number.to_le_bytes()),
            }
        }
        overflow
    }
}

impl fmt::Display for RowType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAMES.iter().find(|(row_type, _)| row_type == self).map_or("", |(_, name)| name))
    }
}

impl FromStr for RowType {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let known = Self::NAMES.iter().find(|(_, name)| *name == word).map(|(row_type, _)| *row_type);
        known.ok_or_else(|| "expected one of bf16, f16, f32".to_string())
    }
}

/// The layers whose rows are written, of a network with `layers` layers: the `wanted` ones, else those that EAGLE-3
/// reads (one near the beginning, the middle and the end) and the stream after the last layer.
///
/// # Errors
/// A layer does not exist or is named twice, the list is empty, or the network has too few layers for the default.
fn chosen_layers(wanted: Option<&[usize]>, layers: usize) -> Result<Vec<usize>, Error> {
    let wrong =
        |expected: &str, found: String| Err(Error::setting("layers", format!(": expected {expected}, found {found}")));
    let Some(wanted) = wanted else {
        let defaults = [[2, layers / 2, layers.saturating_sub(3)], [1, layers / 2, layers.saturating_sub(1)]];
        let all = defaults.into_iter().map(|[low, middle, high]| vec![low, middle, high, layers]);
        return match all.into_iter().find(|all| all.is_sorted_by(|one, next| one < next)) {
            Some(all) => Ok(all),
            None => wrong(&format!("some of 1 to {layers} (a model of few layers has no default)"), "none".to_string()),
        };
    };
    if wanted.is_empty() {
        return wrong("at least one layer", "none".to_string());
    }
    if let Some(layer) = wanted.iter().find(|layer| !(1..=layers).contains(layer)) {
        let range = format!("numbers from 1 (the entry of the second layer) to {layers} (behind the last)");
        return wrong(&range, layer.to_string());
    }
    match wanted.iter().enumerate().find(|(i, layer)| wanted[..*i].contains(layer)) {
        Some((_, layer)) => wrong("each layer once", format!("{layer} twice")),
        None => Ok(wanted.to_vec()),
    }
}

/// A model whose hidden states are extracted.
pub struct Extractor {
    /// The model's files.
    pub target: Opened,
    /// Its tokenizer; `None` if it comes without one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// The most tokens of a text.
    pub context: usize,
    /// Notes for users, one line each.
    pub notes: Vec<Message>,
    executor: Box<dyn Executor>,
    /// The layers whose input is extracted. The executor numbers the output of the layer before, so its number is one
    /// less.
    layers: Vec<usize>,
    row_type: RowType,
    settings: ModelSettings,
    /// The free pages of each cache group.
    free: Vec<Vec<PageId>>,
}

/// A text that is running through the network.
struct RunningText<'a> {
    number: usize,
    tokens: &'a [Token],
    tables: Vec<PageTable>,
    /// Rows that are computed.
    done: usize,
    /// Rows of the next pass.
    next: usize,
    /// The bytes of the computed rows.
    rows: Vec<u8>,
}

impl RunningText<'_> {
    /// The span of the next pass. `indices`: the numbers from 0 up to the most rows of a pass.
    fn span<'a>(&'a self, indices: &'a [u32]) -> Span<'a> {
        Span {
            sequence: self.number as u64,
            tables: &self.tables,
            start: self.done,
            tokens: &self.tokens[self.done..][..self.next],
            certain: self.next,
            hidden: &indices[..self.next],
            ..Span::default()
        }
    }
}

impl Extractor {
    /// Opens and loads a model. `layers`: the layers to extract, `None` for EAGLE-3's. `progress` is called for each
    /// layer: how many are loaded, of how many.
    ///
    /// # Errors
    /// The model cannot be used, needs more memory than may be taken, or does not have these layers.
    pub fn open(
        settings: &ModelSettings,
        layers: Option<&[usize]>,
        row_type: RowType,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, Error> {
        let target = settings.open()?;
        if target.spec.encoder.is_some() {
            let expected = "expected a model without an encoder, found an encoder-decoder";
            return Err(Error::input(format!("{}: hidden states: {expected}", target.name)));
        }
        let layers = chosen_layers(layers, target.spec.layers)?;
        let tokenizer = target.tokenizer()?;
        let context = settings.context(&target);
        let mut notes = Vec::from_iter(settings.note_context(&target));
        let rows_max = settings.run_with(1).rows_max;
        // Room for a text of full length and others in the same pass, each of which has its own pages.
        let options = Options { context: Some(context), ..settings.run_with(context + 2 * rows_max) };
        let Loaded { executor, threads, left_out, .. } = target.load(chosen_backend(), options, progress)?;
        notes.extend(settings.note_threads(threads));
        notes.extend(target.note_unused_tensors(&left_out));
        let pages = |pages: usize| (0..pages as u32).rev().map(PageId).collect();
        let free = executor.capacity().groups.iter().map(|group| pages(group.pages)).collect();
        let settings = settings.clone();
        Ok(Self { target, tokenizer, context, notes, executor, layers, row_type, settings, free })
    }

    /// Truncates a text to the context; returns whether it was longer.
    pub fn cut(&self, text: &mut Text) -> bool {
        let is_longer = text.tokens.len() > self.context;
        text.tokens.truncate(self.context);
        text.prompt_len = text.prompt_len.min(text.tokens.len());
        is_longer
    }

    /// The error of a text that cannot run through the network: it has no tokens, or one that is not in the vocabulary.
    pub fn problem(&self, text: &Text) -> Option<String> {
        if text.tokens.is_empty() {
            return Some("tokens: expected at least one, found none".to_string());
        }
        let vocabulary = self.executor.capacity().vocabulary;
        let (at, token) = text.tokens.iter().enumerate().find(|(_, token)| **token as usize >= vocabulary)?;
        Some(format!("token {at}: expected a number below {vocabulary} (the vocabulary), found {token}"))
    }

    /// The metadata of files: everything that rows depend on besides tokens, and the format. It is the same in all
    /// shards of a folder.
    fn metadata(&self) -> Vec<(&'static str, String)> {
        let ModelSettings { dtype, cache_type_k, cache_type_v, .. } = &self.settings;
        let layers: Vec<String> = self.layers.iter().map(usize::to_string).collect();
        vec![
            ("format", shards::FORMAT.to_string()),
            ("model", self.target.place()),
            ("layers", layers.join(",")),
            ("width", self.executor.capacity().hidden.width.to_string()),
            ("vocabulary", self.executor.capacity().vocabulary.to_string()),
            ("hidden_type", self.row_type.to_string()),
            ("dtype", dtype.map_or("as they are".to_string(), |dtype| dtype.to_string())),
            ("cache_type_k", cache_type_k.name().to_string()),
            ("cache_type_v", cache_type_v.name().to_string()),
            ("ctx_size", self.context.to_string()),
        ]
    }

    /// The length of a row.
    fn row_len(&self) -> usize {
        self.layers.len() * self.executor.capacity().hidden.width
    }

    /// Runs the texts of these numbers, each of which has passed [`cut`](Self::cut) and [`problem`](Self::problem).
    /// `keep_going` is called after each pass with its rows and returns whether to continue; `done` gets each text's
    /// number and rows, in order of the numbers.
    ///
    /// # Errors
    /// The network fails, a hidden state is NaN or not representable in the rows' type; or `done` fails.
    pub(crate) fn run<E: From<Error>>(
        &mut self,
        texts: &[Text],
        range: Range<usize>,
        keep_going: &mut dyn FnMut(usize) -> bool,
        done: &mut dyn FnMut(usize, Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut running = VecDeque::new();
        let mut next = range.start;
        loop {
            next = self.admit(texts, next..range.end, &mut running)?;
            if running.is_empty() {
                assert!(next >= range.end, "text {next} of {} tokens has no room", texts[next].tokens.len());
                return Ok(());
            }
            let rows = self.pass(&mut running)?;
            while let Some(text) = running.pop_front_if(|text| text.done == text.tokens.len()) {
                self.executor.release(text.number as u64);
                for (free, table) in self.free.iter_mut().zip(text.tables) {
                    free.extend(table);
                }
                done(text.number, text.rows)?;
            }
            if !keep_going(rows) {
                return Ok(());
            }
        }
    }

    /// Admits waiting texts while the pass has rows and the cache has pages; returns the number of the first that still
    /// waits.
    fn admit<'a>(
        &mut self,
        texts: &'a [Text],
        waiting: Range<usize>,
        running: &mut VecDeque<RunningText<'a>>,
    ) -> Result<usize, Error> {
        let mut rows = self.executor.capacity().rows_max;
        // Texts run in order, so all but the last of a pass are completed by it.
        for text in running.iter_mut() {
            text.next = rows.min(text.tokens.len() - text.done);
            rows -= text.next;
        }
        for number in waiting.clone() {
            let tokens = &texts[number].tokens[..];
            let groups = &self.executor.capacity().groups;
            let pages: Vec<usize> = groups.iter().map(|group| group.pages_for(tokens.len())).collect();
            if rows == 0 || self.free.iter().zip(&pages).any(|(free, pages)| free.len() < *pages) {
                return Ok(number);
            }
            self.executor.open(number as u64, None)?;
            let take = |(free, pages): (&mut Vec<PageId>, &usize)| free.split_off(free.len() - pages);
            let tables = self.free.iter_mut().zip(&pages).map(take).collect();
            let next = rows.min(tokens.len());
            rows -= next;
            running.push_back(RunningText { number, tokens, tables, done: 0, next, rows: Vec::new() });
        }
        Ok(waiting.end)
    }

    /// Runs one pass over the next rows of all running texts; returns how many rows it had.
    fn pass(&mut self, running: &mut VecDeque<RunningText<'_>>) -> Result<usize, Error> {
        let Self { executor, layers, row_type, .. } = self;
        let indices: Vec<u32> = (0..executor.capacity().rows_max as u32).collect();
        let hidden_layers: Vec<usize> = layers.iter().map(|layer| layer - 1).collect();
        let spans: Vec<Span<'_>> = running.iter().map(|text| text.span(&indices)).collect();
        executor.forward(&Batch { spans: &spans, hidden_layers: &hidden_layers })?;
        let outputs = executor.outputs();
        let mut row = 0;
        for text in running {
            for at in text.done..text.done + text.next {
                for (place, layer) in layers.iter().enumerate() {
                    if let Some(found) = row_type.append(outputs.hidden(place, row), &mut text.rows) {
                        let place = format!("text {}: token {at}: layer {layer}", text.number + 1);
                        let hint = if found.is_finite() { "; bf16 holds larger ones" } else { "" };
                        let expected = format!("numbers that {row_type} holds, found {found}{hint}");
                        return Err(Error::input(format!("{place}: expected {expected}")));
                    }
                }
                row += 1;
            }
            text.done += text.next;
        }
        Ok(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_the_chosen_ones_or_those_of_eagle_3() {
        let all = |layers| chosen_layers(None, layers).ok();
        assert_eq!(all(30), Some(vec![2, 15, 27, 30]));
        assert_eq!(all(7), Some(vec![2, 3, 4, 7]));
        assert_eq!([all(6), all(4)], [Some(vec![1, 3, 5, 6]), Some(vec![1, 2, 3, 4])]);
        assert_eq!(chosen_layers(Some(&[5, 1]), 5), Ok(vec![5, 1]));
        let refused = |wanted: Option<&[usize]>, layers| chosen_layers(wanted, layers).unwrap_err().to_string();
        let range = "layers: expected numbers from 1 (the entry of the second layer) to 5 (behind the last), found";
        assert_eq!(refused(Some(&[1, 0]), 5), format!("{range} 0"));
        assert_eq!(refused(Some(&[6]), 5), format!("{range} 6"));
        assert_eq!(refused(Some(&[2, 3, 2]), 5), "layers: expected each layer once, found 2 twice");
        assert_eq!(refused(Some(&[]), 5), "layers: expected at least one layer, found none");
        let none = "layers: expected some of 1 to 3 (a model of few layers has no default), found none";
        assert_eq!(refused(None, 3), none);
    }

    #[test]
    fn rows_have_the_bytes_of_their_type_and_overflow_is_reported() {
        let append = |row_type: RowType, numbers: &[f32]| {
            let mut bytes = Vec::new();
            let overflow = row_type.append(numbers, &mut bytes);
            (bytes, overflow)
        };
        assert_eq!(append(RowType::F32, &[1.0, -2.0]), ([1.0f32, -2.0].map(f32::to_le_bytes).concat(), None));
        assert_eq!(append(RowType::Bf16, &[1.0, 7e4]), (vec![0x80, 0x3f, 0x89, 0x47], None));
        assert_eq!(append(RowType::F16, &[1.0, 7e4, 8e4]), (vec![0, 0x3c, 0, 0x7c, 0, 0x7c], Some(7e4)));
        assert!(append(RowType::F32, &[0.0, f32::NAN]).1.is_some_and(f32::is_nan));
        let names = ["bf16", "f16", "f32"];
        assert_eq!(names.map(|name| name.parse::<RowType>().unwrap().to_string()), names);
        assert_eq!("q8_0".parse::<RowType>(), Err("expected one of bf16, f16, f32".to_string()));
    }
}
