//! What rank 0 tells the other ranks, and what they answer: JSON, one message each.
//!
//! A command is a call of an executor or of a backend with everything that decides its result. Messages are small
//! beside the exchanges of the pass that they begin, and a message that can be read is worth more than its bytes.

use foretoken_model::checkpoint::Sample;
use foretoken_model::{
    Batch, CacheEdit, CacheRows, CacheType, HiddenInput, Options, PageId, PageTable, Source, Span, Token, WeightType,
};
use serde::{Deserialize, Serialize};

/// What a rank is told to do. Models and executors are numbered by rank 0.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Open a model's files, compare them and answer. Nothing is loaded yet.
    Open { model: u64, name: String, sample: Sample },
    /// Load this rank's part of an open model, make an executor of it and answer.
    Load { model: u64, executor: u64, options: OptionsMessage },
    /// Make a further executor over a loaded model and answer.
    Executor { model: u64, executor: u64, options: OptionsMessage },
    /// Forget a model; its executors stay.
    Forget { model: u64 },
    /// Call an executor.
    Call { executor: u64, call: Call },
    /// End the job.
    Stop,
}

/// A call of an executor. None is answered: what fails fails alike on all ranks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    Open {
        sequence: u64,
        source: Option<SourceMessage>,
    },
    Release {
        sequence: u64,
    },
    Forward {
        spans: Vec<SpanMessage>,
        hidden_layers: Vec<usize>,
    },
    Move {
        tables: Tables,
        from: Vec<usize>,
        to: usize,
    },
    Copy {
        from: Tables,
        to: Tables,
        start: usize,
        end: usize,
    },
    SaveRows {
        group: usize,
        table: Vec<u32>,
        start: usize,
        end: usize,
    },
    /// The bytes of the rows follow as a message of their own.
    LoadRows {
        group: usize,
        table: Vec<u32>,
        start: usize,
        end: usize,
    },
    /// Drop the executor.
    Close,
}

/// What a rank answers.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// It is not done yet; it still answers.
    Working,
    Done,
    /// It could not be done, and why.
    Failed(String),
}

/// Page tables, one a cache group.
pub(crate) type Tables = Vec<Vec<u32>>;

fn table(table: &PageTable) -> Vec<u32> {
    table.iter().map(|page| page.0).collect()
}

fn tables(all: &[PageTable]) -> Tables {
    all.iter().map(table).collect()
}

/// A page table of a message.
pub(crate) fn page_table(pages: &[u32]) -> PageTable {
    pages.iter().map(|page| PageId(*page)).collect()
}

/// Page tables of a message.
pub(crate) fn page_tables(all: &[Vec<u32>]) -> Vec<PageTable> {
    all.iter().map(|pages| page_table(pages)).collect()
}

impl Call {
    pub(crate) fn open(sequence: u64, source: Option<Source<'_>>) -> Self {
        let source = source.map(|Source { tokens, table: pages, is_computed }| SourceMessage {
            tokens: tokens.to_vec(),
            table: table(pages),
            is_computed,
        });
        Self::Open { sequence, source }
    }

    pub(crate) fn forward(batch: &Batch<'_>) -> Self {
        let spans = batch.spans.iter().map(SpanMessage::of).collect();
        Self::Forward { spans, hidden_layers: batch.hidden_layers.to_vec() }
    }

    pub(crate) fn edit(edit: &CacheEdit<'_>) -> Self {
        match edit {
            CacheEdit::Move { tables: all, from, to } => {
                Self::Move { tables: tables(all), from: from.to_vec(), to: *to }
            }
            CacheEdit::Copy { from, to, positions } => {
                Self::Copy { from: tables(from), to: tables(to), start: positions.start, end: positions.end }
            }
        }
    }

    pub(crate) fn save_rows(rows: &CacheRows<'_>) -> Self {
        let CacheRows { group, table: pages, positions } = rows;
        Self::SaveRows { group: *group, table: table(pages), start: positions.start, end: positions.end }
    }

    pub(crate) fn load_rows(rows: &CacheRows<'_>) -> Self {
        let CacheRows { group, table: pages, positions } = rows;
        Self::LoadRows { group: *group, table: table(pages), start: positions.start, end: positions.end }
    }
}

/// [`Source`], owned.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SourceMessage {
    pub(crate) tokens: Vec<Token>,
    pub(crate) table: Vec<u32>,
    pub(crate) is_computed: bool,
}

/// [`Span`], owned. Networks that read hidden states are not run by ranks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SpanMessage {
    sequence: u64,
    pub(crate) tables: Tables,
    start: usize,
    tokens: Vec<Token>,
    certain: usize,
    computed: usize,
    parents: Vec<Option<u32>>,
    wanted: Vec<u32>,
    hidden: Vec<u32>,
}

impl SpanMessage {
    fn of(span: &Span<'_>) -> Self {
        let Span { sequence, tables: all, start, tokens, certain, computed, parents, wanted, hidden, hidden_in } =
            *span;
        assert_eq!(hidden_in, HiddenInput::None, "a network that reads hidden states is not run by ranks");
        Self {
            sequence,
            tables: tables(all),
            start,
            tokens: tokens.to_vec(),
            certain,
            computed,
            parents: parents.to_vec(),
            wanted: wanted.to_vec(),
            hidden: hidden.to_vec(),
        }
    }

    /// The span with these page tables, which are its own.
    pub(crate) fn span<'a>(&'a self, tables: &'a [PageTable]) -> Span<'a> {
        let Self { sequence, start, tokens, certain, computed, parents, wanted, hidden, .. } = self;
        let (sequence, start, certain, computed) = (*sequence, *start, *certain, *computed);
        let hidden_in = HiddenInput::None;
        Span { sequence, tables, start, tokens, certain, computed, parents, wanted, hidden, hidden_in }
    }
}

/// [`Options`] with types by name.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OptionsMessage {
    /// Number of threads; `None` if rank 0 has one for each of its cores, as then have the others.
    threads: Option<usize>,
    page_len: usize,
    pages: usize,
    sequences_max: Option<usize>,
    rows_max: usize,
    key_type: String,
    value_type: String,
    weight_type: Option<String>,
    expert_bytes: Option<usize>,
    layer_bytes: Option<usize>,
    context: Option<usize>,
    checkpoint_bytes: usize,
    layers: Option<usize>,
    tokens: Option<usize>,
}

/// Number of threads for which this process has cores.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl From<&Options> for OptionsMessage {
    fn from(options: &Options) -> Self {
        Self {
            threads: Some(options.threads).filter(|threads| *threads != cores()),
            page_len: options.page_len,
            pages: options.pages,
            sequences_max: options.sequences_max,
            rows_max: options.rows_max,
            key_type: options.key_type.name().to_string(),
            value_type: options.value_type.name().to_string(),
            weight_type: options.weight_type.map(|kind| kind.to_string()),
            expert_bytes: options.expert_bytes,
            layer_bytes: options.layer_bytes,
            context: options.context,
            checkpoint_bytes: options.checkpoint_bytes,
            layers: options.layers,
            tokens: options.tokens,
        }
    }
}

impl OptionsMessage {
    /// The options; `None` if a type has a name that this rank does not know.
    pub(crate) fn options(&self) -> Option<Options> {
        let cache = |name: &str| CacheType::ALL.into_iter().find(|kind| kind.name() == name);
        let weight_type = match &self.weight_type {
            None => None,
            Some(name) => Some(name.parse::<WeightType>().ok()?),
        };
        Some(Options {
            threads: self.threads.unwrap_or_else(cores),
            page_len: self.page_len,
            pages: self.pages,
            sequences_max: self.sequences_max,
            rows_max: self.rows_max,
            key_type: cache(&self.key_type)?,
            value_type: cache(&self.value_type)?,
            weight_type,
            expert_bytes: self.expert_bytes,
            layer_bytes: self.layer_bytes,
            context: self.context,
            checkpoint_bytes: self.checkpoint_bytes,
            layers: self.layers,
            tokens: self.tokens,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_cross_as_they_are() {
        let mut options = Options::for_positions(999, cores() + 1);
        for (key_type, weight_type) in [(CacheType::Q8_0, None), (CacheType::BF16, "q4_k".parse().ok())] {
            options = Options { key_type, weight_type, expert_bytes: Some(7), tokens: Some(5), ..options };
            let bytes = serde_json::to_vec(&OptionsMessage::from(&options)).expect("it is JSON");
            let message: OptionsMessage = serde_json::from_slice(&bytes).expect("it is read");
            assert_eq!(format!("{:?}", message.options()), format!("{:?}", Some(options)));
        }
        let of_cores = OptionsMessage::from(&Options { threads: cores(), ..options });
        assert_eq!(of_cores.threads, None);
    }
}
