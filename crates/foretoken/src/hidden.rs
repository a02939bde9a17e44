//! Hidden states of texts, for training heads: the residual stream of a model at chosen layers, a row a token.
//!
//! Layers are numbered as EAGLE-3 numbers them: layer `i` is the stream at the *entry* of layer `i`, counted from 0, so
//! what the layers before it left; the number of layers itself is the stream behind the last one, before the final
//! norm. Texts run through the network as prompts do, as many rows a pass as it takes and several texts beside each
//! other. No logits are computed: who wants them has the last layer's rows. Since rows do not know their neighbours, a
//! text's rows are the same whatever company it has. Files of rows are [`shards`]. Left out: where texts come from.

pub mod shards;

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use foretoken_kernels::dtype::{bf16, f16};
use foretoken_model::{Batch, Cpu, Executor, Loaded, Options, PageId, PageTable, Span};
use foretoken_speculation::Token;
use foretoken_text::Tokenizer;
use foretoken_weights::Dtype;

use crate::Error;
use crate::error::Message;
use crate::models::Opened;
use crate::settings::ModelSettings;

/// A text as tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// All tokens.
    pub tokens: Vec<Token>,
    /// How many first ones are a prompt, behind which the model's own words begin; 0 of a text without one.
    pub prompt_len: usize,
}

/// The type in which rows are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowType {
    /// The upper halves of 32-bit floats: half the bytes, and no number is too large.
    #[default]
    Bf16,
    /// 16-bit floats of IEEE 754: finer than bf16, and up to 65504 only, which some networks exceed.
    F16,
    /// 32-bit floats, as they are computed.
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

    /// Bytes of a number.
    fn bytes(self) -> usize {
        self.dtype().layout().bytes
    }

    /// Appends numbers as bytes; the first number that the type does not hold, if there is one.
    fn append(self, numbers: &[f32], bytes: &mut Vec<u8>) -> Option<f32> {
        let mut lost = None;
        let mut note = |number: f32, stored: f32| lost = lost.or((!stored.is_finite()).then_some(number));
        for &number in numbers {
            match self {
                Self::Bf16 => {
                    let stored = bf16::from_f32(number);
                    note(number, stored.to_f32());
                    bytes.extend_from_slice(&stored.to_le_bytes());
                }
                Self::F16 => {
                    let stored = f16::from_f32(number);
                    note(number, stored.to_f32());
                    bytes.extend_from_slice(&stored.to_le_bytes());
                }
                Self::F32 => {
                    note(number, number);
                    bytes.extend_from_slice(&number.to_le_bytes());
                }
            }
        }
        lost
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

/// The layers whose rows are told of a network of so many: those that were asked for, else what EAGLE-3 reads (one near
/// the beginning, the middle and the end) and the stream behind the last layer.
///
/// # Errors
/// One is not there or comes twice, there is none, or none was asked for of a network of few layers.
fn chosen_layers(asked: Option<&[usize]>, layers: usize) -> Result<Vec<usize>, Error> {
    let wrong = |expected: &str, found: String| {
        Err(Error::Setting(Message::setting("layers").and(format!(": expected {expected}, found {found}"))))
    };
    let Some(asked) = asked else {
        let defaults = [[2, layers / 2, layers.saturating_sub(3)], [1, layers / 2, layers.saturating_sub(1)]];
        let all = defaults.into_iter().map(|[low, middle, high]| vec![low, middle, high, layers]);
        return match all.into_iter().find(|all| all.is_sorted_by(|one, next| one < next)) {
            Some(all) => Ok(all),
            None => wrong(&format!("some of 1 to {layers} (a model of few layers has no default)"), "none".to_string()),
        };
    };
    if asked.is_empty() {
        return wrong("at least one layer", "none".to_string());
    }
    if let Some(layer) = asked.iter().find(|layer| !(1..=layers).contains(layer)) {
        let range = format!("numbers from 1 (the entry of the second layer) to {layers} (behind the last)");
        return wrong(&range, layer.to_string());
    }
    match asked.iter().enumerate().find(|(i, layer)| asked[..*i].contains(layer)) {
        Some((_, layer)) => wrong("each layer once", format!("{layer} twice")),
        None => Ok(asked.to_vec()),
    }
}

/// A model that tells hidden states of texts.
pub struct Extractor {
    /// The model's files.
    pub target: Opened,
    /// Its tokenizer; `None` if it comes without one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Tokens that a text may have.
    pub context: usize,
    /// What a user should know, a line each.
    pub notes: Vec<Message>,
    executor: Box<dyn Executor>,
    /// As they are named here: one more than the executor's number of the layer that the stream is behind.
    layers: Vec<usize>,
    row_type: RowType,
    settings: ModelSettings,
    /// Of each cache group the pages that no text has.
    free: Vec<Vec<PageId>>,
}

/// A text on its way through the network.
struct Running<'a> {
    number: usize,
    tokens: &'a [Token],
    tables: Vec<PageTable>,
    /// Rows that were computed, and that the next pass computes.
    done: usize,
    next: usize,
    /// What was told of them so far.
    rows: Vec<u8>,
}

impl Running<'_> {
    /// The rows of the next pass. `all`: numbers from 0 up, of all rows that a pass may have.
    fn span<'a>(&'a self, all: &'a [u32]) -> Span<'a> {
        Span {
            sequence: self.number as u64,
            tables: &self.tables,
            start: self.done,
            tokens: &self.tokens[self.done..][..self.next],
            certain: self.next,
            hidden: &all[..self.next],
            ..Span::default()
        }
    }
}

impl Extractor {
    /// Opens and loads a model. `layers`: which, or what is usual. `progress` hears of each layer: how many are loaded,
    /// of how many.
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
        let layers = chosen_layers(layers, target.spec.layers)?;
        let tokenizer = target.tokenizer()?;
        let context = settings.context(&target);
        let mut notes = Vec::from_iter(settings.note(&target));
        let rows_max = settings.run_with(1).rows_max;
        // A text of full length, and room for others in the same pass, each of which has pages of its own.
        let options = Options { context: Some(context), ..settings.run_with(context + 2 * rows_max) };
        let Loaded { executor, threads, left_out, .. } = target.load(&Cpu, options, progress)?;
        notes.extend(settings.note_threads(threads));
        notes.extend(target.note_left_out(&left_out));
        let pages = |pages: usize| (0..pages as u32).rev().map(PageId).collect();
        let free = executor.capacity().groups.iter().map(|group| pages(group.pages)).collect();
        let settings = settings.clone();
        Ok(Self { target, tokenizer, context, notes, executor, layers, row_type, settings, free })
    }

    /// Cuts what is longer than the context; whether it was.
    pub fn cut(&self, text: &mut Text) -> bool {
        let is_longer = text.tokens.len() > self.context;
        text.tokens.truncate(self.context);
        text.prompt_len = text.prompt_len.min(text.tokens.len());
        is_longer
    }

    /// What keeps the network from running over a text: it has no tokens, or one that the network does not have.
    pub fn problem(&self, text: &Text) -> Option<String> {
        let vocabulary = self.executor.capacity().vocabulary;
        match text.tokens.iter().enumerate().find(|(_, token)| **token as usize >= vocabulary) {
            _ if text.tokens.is_empty() => Some("tokens: expected at least one, found none".to_string()),
            Some((at, token)) => {
                Some(format!("token {at}: expected a number below {vocabulary} (the vocabulary), found {token}"))
            }
            None => None,
        }
    }

    /// What rows depend on besides tokens, and their form: strings by their names, in which shards of a folder agree.
    fn about(&self) -> Vec<(&'static str, String)> {
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

    /// Numbers of a row.
    fn row_len(&self) -> usize {
        self.layers.len() * self.executor.capacity().hidden.width
    }

    /// Runs over the texts of these numbers, each of which is as [`cut`](Self::cut) and [`problem`](Self::problem) have
    /// it. `goes_on` hears of each pass, how many rows it had, and says whether another may follow; `done` gets each
    /// text's number and rows, in order of the numbers.
    ///
    /// # Errors
    /// The network fails, says no number or one that the rows' type does not hold; or `done` fails.
    pub(crate) fn run<E: From<Error>>(
        &mut self,
        texts: &[Text],
        range: Range<usize>,
        goes_on: &mut dyn FnMut(usize) -> bool,
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
            if !goes_on(rows) {
                return Ok(());
            }
        }
    }

    /// Lets texts in while a pass has rows for them and the cache has pages; the number of the first that waits.
    fn admit<'a>(
        &mut self,
        texts: &'a [Text],
        waiting: Range<usize>,
        running: &mut VecDeque<Running<'a>>,
    ) -> Result<usize, Error> {
        let mut rows = self.executor.capacity().rows_max;
        // Texts run in their order, so all but the last of a pass are run to their ends.
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
            running.push_back(Running { number, tokens, tables, done: 0, next, rows: Vec::new() });
        }
        Ok(waiting.end)
    }

    /// One pass over the next rows of all that run; how many these were.
    fn pass(&mut self, running: &mut VecDeque<Running<'_>>) -> Result<usize, Error> {
        let Self { executor, layers, row_type, .. } = self;
        let all: Vec<u32> = (0..executor.capacity().rows_max as u32).collect();
        let behind: Vec<usize> = layers.iter().map(|layer| layer - 1).collect();
        let spans: Vec<Span<'_>> = running.iter().map(|text| text.span(&all)).collect();
        executor.forward(&Batch { spans: &spans, hidden_layers: &behind })?;
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
    fn layers_are_those_that_were_asked_for_or_eagles() {
        let all = |layers| chosen_layers(None, layers).ok();
        assert_eq!(all(30), Some(vec![2, 15, 27, 30]));
        assert_eq!(all(7), Some(vec![2, 3, 4, 7]));
        assert_eq!([all(6), all(4)], [Some(vec![1, 3, 5, 6]), Some(vec![1, 2, 3, 4])]);
        assert_eq!(chosen_layers(Some(&[5, 1]), 5), Ok(vec![5, 1]));
        let refused = |asked: Option<&[usize]>, layers| chosen_layers(asked, layers).unwrap_err().to_string();
        let range = "layers: expected numbers from 1 (the entry of the second layer) to 5 (behind the last), found";
        assert_eq!(refused(Some(&[1, 0]), 5), format!("{range} 0"));
        assert_eq!(refused(Some(&[6]), 5), format!("{range} 6"));
        assert_eq!(refused(Some(&[2, 3, 2]), 5), "layers: expected each layer once, found 2 twice");
        assert_eq!(refused(Some(&[]), 5), "layers: expected at least one layer, found none");
        let none = "layers: expected some of 1 to 3 (a model of few layers has no default), found none";
        assert_eq!(refused(None, 3), none);
    }

    #[test]
    fn rows_have_the_bytes_of_their_type_and_name_what_it_does_not_hold() {
        let append = |row_type: RowType, numbers: &[f32]| {
            let mut bytes = Vec::new();
            let lost = row_type.append(numbers, &mut bytes);
            (bytes, lost)
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
