//! Tests of the independence of rows, through the whole forward pass: a row's bits do not depend on the other rows of
//! the batch.
//!
//! The reference for a sequence is computed with one row per pass, on one thread, with its pages in order. It is
//! compared, bit for bit, with passes of any lengths, any page size and order of pages, any number of threads, any
//! instruction set, other sequences in the same batch, draft trees instead of chains, and passes after an accepted path
//! was compacted. (`expert_memory.rs` does the same with memory for few experts.) The simplest form, one sequence in
//! passes of several lengths, is in `rows/cuts.rs`.

mod cuts;

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use foretoken_kernels::Isa;
use foretoken_model::CacheType::{self, BF16, F16, F32, Q8_0};
use foretoken_model::{Batch, CacheEdit, Checkpoint, Executor, Model, Options, PageId, PageTable, Span, WeightType};
use foretoken_testkit::rows::{Numbers, first_difference};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::fixture;
use crate::golden::goldens;

/// Number of positions of the cache of every model under test; scenes are far smaller.
const POSITIONS: usize = 256;

/// The output of one row: its logits, then the residual stream after every layer.
pub(crate) type RowOutput = Vec<f32>;

/// One checkpoint under test, and the reference outputs computed so far.
pub(crate) struct Subject {
    name: String,
    checkpoint: Checkpoint,
    /// The options of all runs, except for those that are varied.
    options: Options,
    vocabulary: usize,
    layers: Vec<usize>,
    plain: RefCell<Model>,
    known: RefCell<HashMap<Vec<u32>, RowOutput>>,
}

impl Subject {
    pub(crate) fn new(path: &Path, types: [CacheType; 2]) -> Self {
        let [key_type, value_type] = types;
        Self::with(path, Options { key_type, value_type, ..Options::for_positions(POSITIONS, 1) })
    }

    pub(crate) fn with(path: &Path, options: Options) -> Self {
        let checkpoint = Checkpoint::open(path).unwrap_or_else(|error| panic!("{error}"));
        let plain = Options { page_len: POSITIONS, pages: 1, rows_max: 1, expert_bytes: None, threads: 1, ..options };
        let plain = load(&checkpoint, plain);
        Self {
            name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            vocabulary: plain.spec().vocabulary,
            layers: (0..plain.spec().layers).collect(),
            checkpoint,
            options,
            plain: RefCell::new(plain),
            known: RefCell::default(),
        }
    }

    fn tokens(&self, numbers: &mut Numbers, len: usize) -> Vec<u32> {
        (0..len).map(|_| numbers.below(self.vocabulary) as u32).collect()
    }

    /// The reference output of the last row of `tokens`.
    fn reference(&self, tokens: &[u32]) -> RowOutput {
        if let Some(known) = self.known.borrow().get(tokens) {
            return known.clone();
        }
        let (mut plain, mut known) = (self.plain.borrow_mut(), self.known.borrow_mut());
        let tables = vec![vec![PageId(0)]; plain.capacity().groups.len()];
        for start in 0..tokens.len() {
            let one = &tokens[start..=start];
            let (parents, wanted, hidden) = (&[], &[0], &[0]);
            let span = Span { tables: &tables, start, tokens: one, parents, wanted, hidden, ..Span::default() };
            forward(&mut plain, &[span], &self.layers);
            let output = [plain.outputs().row(0).to_vec(), hidden_states(&plain, &self.layers, 0)].concat();
            known.insert(tokens[..=start].to_vec(), output);
        }
        known[tokens].clone()
    }

    /// Compares the output of a row with the reference, from element `from` of [`RowOutput`] on.
    #[track_caller]
    fn check(&self, tokens: &[u32], from: usize, found: &[f32], what: &str) {
        let expected = &self.reference(tokens)[from..][..found.len()];
        if let Some(at) = first_difference(found, expected) {
            let name = &self.name;
            panic!(
                "{name}: {what}: token {}, element {at}: {:e}, in the reference {:e}",
                tokens.len(),
                found[at],
                expected[at]
            );
        }
    }
}

pub(crate) fn load(checkpoint: &Checkpoint, options: Options) -> Model {
    let mut model = Model::load(checkpoint, options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"));
    // All sequences of an encoder-decoder have one source, in different pages if there are enough.
    let pages = model.capacity().sources.as_ref().map_or(0, |sources| sources.pages_for(crate::SOURCE.len()));
    let apart = if 3 * pages <= options.pages { pages as u32 } else { 0 };
    (0..3).for_each(|sequence| crate::open_source(&mut model, sequence, &crate::SOURCE, apart * sequence as u32));
    model
}

pub(crate) fn forward(model: &mut Model, spans: &[Span<'_>], hidden_layers: &[usize]) {
    model.forward(&Batch { spans, hidden_layers }).unwrap_or_else(|error| panic!("{error}"));
}

/// The residual stream after these layers, for the `row`th row of the pass whose hidden states are wanted.
pub(crate) fn hidden_states(model: &Model, layers: &[usize], row: usize) -> RowOutput {
    (0..layers.len()).flat_map(|layer| model.outputs().hidden(layer, row)).copied().collect()
}

/// A sequence in the cache of the model under test.
struct Sequence {
    number: u64,
    /// The page tables, one per cache group.
    tables: Vec<PageTable>,
    /// Tokens whose rows are cached.
    tokens: Vec<u32>,
}

/// A span of a test with its own data.
struct TestSpan {
    tokens: Vec<u32>,
    /// Rows that earlier passes have computed.
    computed: usize,
    parents: Vec<Option<u32>>,
    wanted: Vec<u32>,
    hidden: Vec<u32>,
}

impl TestSpan {
    /// Makes a span of new tokens as a chain, sometimes written as a tree without forks, which is equivalent.
    fn chain(numbers: &mut Numbers, tokens: Vec<u32>) -> Self {
        let rows = tokens.len() as u32;
        let parents = if numbers.below(3) == 0 { (0..rows).map(|i| i.checked_sub(1)).collect() } else { vec![] };
        let mut some = || (0..rows).filter(|_| numbers.below(3) > 0).collect();
        let (wanted, hidden) = (some(), some());
        Self { tokens, computed: 0, parents, wanted, hidden }
    }

    fn tree(numbers: &mut Numbers, tokens: Vec<u32>) -> Self {
        // 0 stands for the cached positions, so a tree may have several roots.
        let parents = (0..tokens.len()).map(|i| (numbers.below(i + 1) as u32).checked_sub(1)).collect();
        let mut some = |one_in| (0..tokens.len() as u32).filter(|_| numbers.below(one_in) > 0).collect();
        let (wanted, hidden) = (some(4), some(2));
        Self { tokens, computed: 0, parents, wanted, hidden }
    }

    /// The part of the span up to row `to`, in which the rows before `from` are already computed.
    fn part(&self, from: usize, to: usize) -> Self {
        let new = |rows: &[u32]| rows.iter().copied().filter(|row| (from..to).contains(&(*row as usize))).collect();
        Self {
            tokens: self.tokens[..to].to_vec(),
            computed: from,
            parents: self.parents.iter().take(to).copied().collect(),
            wanted: new(&self.wanted),
            hidden: new(&self.hidden),
        }
    }

    fn span<'a>(&'a self, sequence: &'a Sequence) -> Span<'a> {
        Span {
            sequence: sequence.number,
            tables: &sequence.tables,
            start: sequence.tokens.len(),
            tokens: &self.tokens,
            computed: self.computed,
            parents: &self.parents,
            wanted: &self.wanted,
            hidden: &self.hidden,
            ..Span::default()
        }
    }

    /// The rows from the root of the tree down to `row`.
    fn path(&self, sequence: &Sequence, row: usize) -> Vec<usize> {
        let span = self.span(sequence);
        let mut path: Vec<usize> = std::iter::successors(Some(row), |row| span.parent(*row)).collect();
        path.reverse();
        path
    }
}

/// A model under test with some sequences in it.
struct Scene<'a> {
    subject: &'a Subject,
    what: String,
    model: Model,
    sequences: Vec<Sequence>,
}

impl<'a> Scene<'a> {
    fn random(subject: &'a Subject, numbers: &mut Numbers) -> Self {
        let page_len = [1, 2, 16, 32][numbers.below(4)];
        let threads = 1 + numbers.below(4);
        let available = Isa::available();
        // The reference takes the best instruction set; the portable one is slow in large models.
        let isas = if subject.layers.len() * subject.vocabulary > 1000 { &available[1..] } else { &available[..] };
        let isa = if isas.is_empty() { Isa::PORTABLE } else { isas[numbers.below(isas.len())] };
        let options = Options { page_len, pages: POSITIONS / page_len, rows_max: 128, threads, ..subject.options };
        let model = load(&subject.checkpoint, options).with_isa(isa);
        // Pages are taken from a shuffled list, so tables of different sequences interleave.
        let mut pack = || numbers.permutation(options.pages).into_iter().map(|page| PageId(page as u32));
        let mut packs: Vec<_> = model.capacity().groups.iter().map(|_| pack()).collect();
        let pages = 80usize.div_ceil(page_len).min(options.pages / 3);
        let sequences = (0..1 + numbers.below(3))
            .map(|number| Sequence {
                number: number as u64,
                tables: packs.iter_mut().map(|pack| pack.take(pages).collect()).collect(),
                tokens: Vec::new(),
            })
            .collect();
        let what = format!("pages of {page_len}, {threads} threads, {}", isa.name());
        Self { subject, what, model, sequences }
    }

    /// Runs one pass over spans of some sequences, in the order given, and compares every wanted row with the
    /// reference.
    fn pass(&mut self, test_spans: &[(usize, TestSpan)]) {
        let spans: Vec<Span<'_>> =
            test_spans.iter().map(|(who, test_span)| test_span.span(&self.sequences[*who])).collect();
        forward(&mut self.model, &spans, &self.subject.layers);
        let (mut logits, mut hidden) = (0.., 0..);
        for (who, test_span) in test_spans {
            let sequence = &self.sequences[*who];
            let tokens_to = |row: &u32| {
                let path = test_span.path(sequence, *row as usize);
                let mut tokens = sequence.tokens.clone();
                tokens.extend(path.iter().map(|row| test_span.tokens[*row]));
                tokens
            };
            let what = |row| format!("row {row} of {} of sequence {who}, {}", test_span.tokens.len(), self.what);
            for (row, at) in test_span.wanted.iter().zip(logits.by_ref()) {
                self.subject.check(&tokens_to(row), 0, self.model.outputs().row(at), &what(row));
            }
            for (row, at) in test_span.hidden.iter().zip(hidden.by_ref()) {
                let found = hidden_states(&self.model, &self.subject.layers, at);
                self.subject.check(&tokens_to(row), self.subject.vocabulary, &found, &what(row));
            }
        }
    }

    /// Runs the same spans, each grown over several passes.
    fn grow(&mut self, spans: &[(usize, TestSpan)], numbers: &mut Numbers) {
        let mut done = vec![0; spans.len()];
        while spans.iter().zip(&done).any(|((_, test_span), done)| *done < test_span.tokens.len()) {
            let mut parts = Vec::new();
            for ((who, test_span), done) in spans.iter().zip(&mut done) {
                let to = *done + numbers.below(test_span.tokens.len() - *done + 1);
                parts.push((*who, test_span.part(*done, to)));
                *done = to;
            }
            self.pass(&parts);
        }
    }

    /// Accepts the path to a random row of a span: moves its rows to their logical positions.
    fn accept(&mut self, who: usize, test_span: &TestSpan, numbers: &mut Numbers) {
        if test_span.tokens.is_empty() || numbers.below(5) == 0 {
            return; // nothing is accepted, so the rows stay and are overwritten later
        }
        let sequence = &mut self.sequences[who];
        let row = if test_span.parents.is_empty() {
            test_span.tokens.len() - 1
        } else {
            numbers.below(test_span.tokens.len())
        };
        let path = test_span.path(sequence, row);
        let start = sequence.tokens.len();
        let from: Vec<usize> = path.iter().map(|row| start + row).collect();
        let edit = CacheEdit::Move { tables: &sequence.tables, from: &from, to: start };
        self.model.rows(edit).unwrap_or_else(|error| panic!("{error}"));
        sequence.tokens.extend(path.iter().map(|row| test_span.tokens[*row]));
        crate::give_back(&self.model.capacity().groups, &mut sequence.tables, sequence.tokens.len());
    }

    /// Runs a few passes, in each of which some sequences take part with a chain or a tree.
    fn play(&mut self, numbers: &mut Numbers) {
        for _ in 0..2 + numbers.below(4) {
            let mut spans = Vec::new();
            for who in numbers.permutation(self.sequences.len()) {
                let len = [0, 1, 1, 7, 1 + numbers.below(12)][numbers.below(5)];
                let room = self.model.capacity().groups[0].page_len * self.sequences[who].tables[0].len();
                let tokens = self.subject.tokens(numbers, len.min(room - self.sequences[who].tokens.len()));
                let forks = numbers.below(2) == 0;
                spans.push((
                    who,
                    if forks { TestSpan::tree(numbers, tokens) } else { TestSpan::chain(numbers, tokens) },
                ));
            }
            if numbers.below(2) == 0 {
                self.pass(&spans);
            } else {
                self.grow(&spans, numbers);
            }
            for (who, test_span) in &spans {
                self.accept(*who, test_span, numbers);
            }
        }
    }
}

fn play_many(path: &Path, types: [CacheType; 2], cases: u32) {
    play_subject(&Subject::new(path, types), cases);
}

pub(crate) fn play_subject(subject: &Subject, cases: u32) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let result = TestRunner::new(config).run(&any::<u64>(), |seed| {
        let mut numbers = Numbers::new(seed);
        Scene::random(subject, &mut numbers).play(&mut numbers);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

pub(crate) fn demo() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo-draft"))
}

#[test]
fn llama_scores_rows_as_if_alone() {
    play_many(&fixture("llama"), [F16, F16], 40);
    play_many(&fixture("llama"), [F32, BF16], 20);
    play_many(&fixture("llama3-rope"), [F32, F32], 15);
}

#[test]
fn gpt2_scores_rows_as_if_alone() {
    play_many(&fixture("gpt2"), [F32, F32], 40);
    play_many(&fixture("gpt2"), [BF16, F16], 20);
}

/// Tests every golden network, and therefore every form of block, mask and position. Their windows have 32 positions,
/// and sequences are longer, so trees cross a window's edge, and paths are accepted and rejected there.
#[test]
fn every_family_scores_rows_as_if_alone() {
    for (i, name) in goldens().iter().enumerate() {
        play_many(&fixture(name), [[F32, F32], [F16, BF16], [F16, F16]][i % 3], 5);
    }
}

#[test]
fn a_real_model_in_bf16_scores_rows_as_if_alone() {
    play_many(&demo(), [F16, F16], 8);
    play_many(&demo(), [Q8_0, Q8_0], 8);
}

/// Tests every form of weights that the instruction sets multiply differently.
#[test]
fn quantized_models_score_rows_as_if_alone() {
    for weights in ["f16", "bf16", "q8_0", "q4_0", "q4_k", "q6_k"] {
        let weight_type: Option<WeightType> = weights.parse().ok();
        assert!(weight_type.is_some(), "{weights}");
        let options = Options { weight_type, ..Options::for_positions(POSITIONS, 1) };
        // Rows of 128 weights get q8_0 instead of k-quants; the wide rows of the second matrix do not.
        play_subject(&Subject::with(&demo(), options), 4);
        play_subject(&Subject::with(&fixture("llama"), options), 4);
    }
}

/// Two sequences continue from a prefix, one that computed it and one to whose pages it was copied.
#[test]
fn a_copied_prefix_is_a_computed_one() {
    for (path, types) in [(fixture("llama"), [F16, F32]), (fixture("gpt2"), [F32, BF16]), (demo(), [Q8_0, F16])] {
        let subject = Subject::new(&path, types);
        let mut numbers = Numbers::new(8);
        for len in [1, 2, 17, 33] {
            let mut scene = Scene::random(&subject, &mut numbers);
            scene.sequences.truncate(1);
            let page_len = scene.model.capacity().groups[0].page_len;
            let pages = scene.sequences[0].tables[0].len() as u32;
            let others = |own: &PageTable| {
                let others = (0..(POSITIONS / page_len) as u32).map(PageId).filter(|page| !own.contains(page));
                others.take(pages as usize).collect()
            };
            let tables = scene.sequences[0].tables.iter().map(others).collect();
            scene.sequences.push(Sequence { number: 1, tables, tokens: Vec::new() });
            let tokens = subject.tokens(&mut numbers, len + 3);
            let prefix = TestSpan::chain(&mut numbers, tokens);
            scene.pass(&[(0, prefix.part(0, len + 3))]);
            scene.sequences[0].tokens.clone_from(&prefix.tokens);
            let [from, to] = [0, 1].map(|who: usize| scene.sequences[who].tables.clone());
            let edit = CacheEdit::Copy { from: &from, to: &to, positions: 0..len };
            scene.model.rows(edit).unwrap();
            scene.sequences[1].tokens = prefix.tokens[..len].to_vec();
            scene.play(&mut numbers);
        }
    }
}

/// Tests the test itself: a pass that reads the wrong row of the cache is detected.
#[test]
#[should_panic(expected = "in the reference")]
fn a_path_that_was_not_moved_is_detected() {
    let subject = Subject::new(&fixture("llama"), [F16; 2]);
    let mut numbers = Numbers::new(5);
    let mut scene = Scene::random(&subject, &mut numbers);
    let parents = vec![None, None, Some(1)];
    let fork = TestSpan { tokens: vec![3, 4, 5], computed: 0, parents, wanted: vec![], hidden: vec![] };
    scene.pass(&[(0, fork)]);
    // The path 4, 5 was accepted, but its rows are still stored one position too far.
    scene.sequences[0].tokens = vec![4, 5];
    scene.pass(&[(0, TestSpan { tokens: vec![6], computed: 0, parents: vec![], wanted: vec![0], hidden: vec![] })]);
}

/// Tests the test itself with a tree that grows: a computed row with another token than in the span is detected.
#[test]
#[should_panic(expected = "in the reference")]
fn a_grown_tree_over_another_computed_row_is_detected() {
    let subject = Subject::new(&fixture("llama"), [F16; 2]);
    let mut numbers = Numbers::new(5);
    let mut scene = Scene::random(&subject, &mut numbers);
    let tree = |second| {
        let parents = vec![None, None, Some(1)];
        TestSpan { tokens: vec![3, second, 5], computed: 0, parents, wanted: vec![2], hidden: vec![] }
    };
    scene.pass(&[(0, tree(4).part(0, 2))]);
    scene.pass(&[(0, tree(7).part(2, 3))]);
}
