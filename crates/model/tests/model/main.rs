//! Tests that compare networks with transformers and with themselves in passes of other shapes, and that try bad input.

mod backend;
mod bad_gguf;
mod bad_input;
mod blocks;
mod config_probe;
mod configurations;
mod draft_heads;
mod expert_memory;
mod experts;
mod files;
mod forms;
mod gemma4;
mod gguf_probe;
mod golden;
mod gpt_oss;
mod hidden_rows;
mod medusa;
mod offload;
mod quantized;
mod quantized_experts;
mod qwen1;
mod ranks;
mod renamed;
mod routing_isolation;
mod rows;
mod saved;
mod shared;
mod t5;
mod unused;
mod written;

use std::path::{Path, PathBuf};

use foretoken_model::{Batch, CacheType, Checkpoint, Executor, Group, Model, Options, PageId, PageTable, Source, Span};

/// A folder of the crate's tests.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Loads a model with room for `positions` in a cache that rounds nothing.
pub fn load(path: &Path, positions: usize, threads: usize) -> Model {
    load_with(path, Options::for_positions(positions, threads).with_cache(CacheType::F32))
}

/// Loads a model.
pub fn load_with(path: &Path, options: Options) -> Model {
    let checkpoint = Checkpoint::open(path).unwrap_or_else(|error| panic!("{error}"));
    Model::load(&checkpoint, options, &mut |_, _| ()).unwrap_or_else(|e| panic!("{e}"))
}

/// Removes the pages from the tables that no row sees once this many positions are committed.
pub fn give_back(groups: &[Group], tables: &mut [PageTable], committed: usize) {
    for (group, table) in groups.iter().zip(tables) {
        let gone = group.pages_gone(committed).min(table.len());
        table[..gone].fill(PageId::GONE);
    }
}

/// The source of all sequences of networks with an encoder, where a test does not give another one.
pub const SOURCE: [u32; 11] = [7, 31, 2, 2, 45, 19, 8, 60, 33, 5, 1];

/// Opens a sequence of a network with an encoder with this source, in the pages from `first` on, backwards.
pub fn open_source(model: &mut dyn Executor, sequence: u64, source: &[u32], first: u32) {
    let Some(sources) = model.capacity().sources.clone() else { return };
    let pages = sources.pages_for(source.len()) as u32;
    let table = (first..first + pages).rev().map(PageId).collect();
    let source = Source { tokens: source, table: &table, is_computed: false };
    model.release(sequence);
    model.open(sequence, Some(source)).unwrap_or_else(|error| panic!("{error}"));
}

/// The logits of every row of `tokens`, scored in passes of the given lengths (the last one repeats).
pub fn logits(model: &mut dyn Executor, tokens: &[u32], lengths: &[usize]) -> Vec<f32> {
    open_source(model, 0, &SOURCE, 0);
    score(model, tokens, lengths)
}

/// The same for a sequence that is open.
pub fn score(model: &mut dyn Executor, tokens: &[u32], lengths: &[usize]) -> Vec<f32> {
    let groups = model.capacity().groups.clone();
    let table = |group: &Group| (0..group.pages_for(tokens.len()) as u32).map(PageId).collect();
    let mut tables: Vec<PageTable> = groups.iter().map(table).collect();
    let (mut start, mut all, mut pass) = (0, Vec::new(), 0);
    while start < tokens.len() {
        let len = lengths[pass.min(lengths.len() - 1)].min(tokens.len() - start);
        let wanted: Vec<u32> = (0..len as u32).collect();
        let tokens = &tokens[start..start + len];
        let (parents, wanted, hidden) = (&[], &wanted[..], &[]);
        let span = Span { sequence: 0, tables: &tables, start, tokens, parents, wanted, hidden, ..Span::default() };
        model.forward(&Batch { spans: &[span], hidden_layers: &[] }).unwrap_or_else(|e| panic!("{e}"));
        (0..len).for_each(|row| all.extend_from_slice(model.outputs().row(row)));
        (start, pass) = (start + len, pass + 1);
        give_back(&groups, &mut tables, start);
    }
    all
}
