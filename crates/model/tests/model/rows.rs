//! Rows do not know their neighbours, through the whole forward pass.
//!
//! The plain reading of a sequence is one row a pass, one thread, its own pages in order. Against it, bit for bit:
//! passes of any lengths, any page size and order of pages, any number of threads, any instruction set, strangers in
//! the same batch, draft trees instead of chains, and going on after an accepted path has closed its ranks.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use foretoken_kernels::Isa;
use foretoken_model::CacheType::{self, BF16, F16, F32, Q8_0};
use foretoken_model::{
    Batch, CacheEdit, Checkpoint, Executor, Model, Options, Outputs, PageId, PageTable, Span, WeightType,
};
use foretoken_testkit::rows::{Numbers, first_difference};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::fixture;

/// Positions of the cache of every model under test; scenes are far smaller.
const POSITIONS: usize = 256;

/// What one row says: its logits, then the residual stream behind every layer.
type Said = Vec<f32>;

/// One checkpoint in all the ways of running it, and what the plain way said so far.
pub(crate) struct Subject {
    name: String,
    checkpoint: Checkpoint,
    /// Types of keys and values.
    types: [CacheType; 2],
    /// Type that the weights are brought to.
    weights: Option<WeightType>,
    vocabulary: usize,
    layers: Vec<usize>,
    plain: RefCell<Model>,
    known: RefCell<HashMap<Vec<u32>, Said>>,
}

impl Subject {
    pub(crate) fn new(path: &Path, types: [CacheType; 2]) -> Self {
        Self::with(path, types, None)
    }

    fn with(path: &Path, types: [CacheType; 2], weights: Option<WeightType>) -> Self {
        let checkpoint = Checkpoint::open(path).unwrap_or_else(|error| panic!("{error}"));
        let options = Options { page_len: POSITIONS, pages: 1, rows_max: 1, ..Options::for_positions(POSITIONS, 1) };
        let [key_type, value_type] = types;
        let plain = load(&checkpoint, Options { key_type, value_type, weight_type: weights, ..options });
        Self {
            name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            vocabulary: plain.spec().vocabulary,
            layers: (0..plain.spec().layers).collect(),
            checkpoint,
            types,
            weights,
            plain: RefCell::new(plain),
            known: RefCell::default(),
        }
    }

    fn tokens(&self, numbers: &mut Numbers, len: usize) -> Vec<u32> {
        (0..len).map(|_| numbers.below(self.vocabulary) as u32).collect()
    }

    /// What the last row of `tokens` says in the plain reading.
    fn plainly(&self, tokens: &[u32]) -> Said {
        if let Some(known) = self.known.borrow().get(tokens) {
            return known.clone();
        }
        let tables = [vec![PageId(0)]];
        let (mut plain, mut known) = (self.plain.borrow_mut(), self.known.borrow_mut());
        let mut outputs = Outputs::default();
        for start in 0..tokens.len() {
            let one = &tokens[start..=start];
            let span =
                Span { sequence: 0, tables: &tables, start, tokens: one, parents: &[], computed: 0, wanted: &[0] };
            forward(&mut plain, &[span], &self.layers, &mut outputs);
            known.insert(tokens[..=start].to_vec(), said(&outputs, 0));
        }
        known[tokens].clone()
    }

    #[track_caller]
    fn check(&self, tokens: &[u32], found: &[f32], what: &str) {
        let expected = self.plainly(tokens);
        if let Some(at) = first_difference(found, &expected) {
            let name = &self.name;
            panic!("{name}: {what}: token {}, element {at}: {:e}, plainly {:e}", tokens.len(), found[at], expected[at]);
        }
    }
}

fn load(checkpoint: &Checkpoint, options: Options) -> Model {
    Model::load(checkpoint, options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"))
}

fn forward(model: &mut Model, spans: &[Span<'_>], hidden_layers: &[usize], outputs: &mut Outputs) {
    model.forward(&Batch { spans, hidden_layers }, outputs).unwrap_or_else(|error| panic!("{error}"));
}

/// Everything that the `row`th wanted row of a pass says.
fn said(outputs: &Outputs, row: usize) -> Said {
    let rows = outputs.logits.len() / outputs.vocabulary;
    let mut all = outputs.row(row).to_vec();
    for layer in &outputs.hidden {
        let width = layer.len() / rows;
        all.extend_from_slice(&layer[row * width..][..width]);
    }
    all
}

/// A sequence in the cache of the model under test.
struct Sequence {
    number: u64,
    tables: [PageTable; 1],
    /// Tokens whose rows are cached.
    tokens: Vec<u32>,
}

/// A piece of a sequence that takes part in a pass.
struct Piece {
    tokens: Vec<u32>,
    /// Rows that earlier passes have computed.
    computed: usize,
    parents: Vec<Option<u32>>,
    wanted: Vec<u32>,
}

impl Piece {
    /// New tokens as a chain; sometimes spelled as a tree without forks, which is the same thing.
    fn chain(numbers: &mut Numbers, tokens: Vec<u32>) -> Self {
        let rows = tokens.len() as u32;
        let parents = if numbers.below(3) == 0 { (0..rows).map(|i| i.checked_sub(1)).collect() } else { vec![] };
        let wanted = (0..rows).filter(|_| numbers.below(3) > 0).collect();
        Self { tokens, computed: 0, parents, wanted }
    }

    fn tree(numbers: &mut Numbers, tokens: Vec<u32>) -> Self {
        // 0 stands for the cached positions, so a tree may have several roots.
        let parents = (0..tokens.len()).map(|i| (numbers.below(i + 1) as u32).checked_sub(1)).collect();
        let wanted = (0..tokens.len() as u32).filter(|_| numbers.below(4) > 0).collect();
        Self { tokens, computed: 0, parents, wanted }
    }

    /// The rows up to `to`, of which those before `from` are computed.
    fn part(&self, from: usize, to: usize) -> Self {
        let wanted = self.wanted.iter().filter(|row| (from..to).contains(&(**row as usize)));
        Self {
            tokens: self.tokens[..to].to_vec(),
            computed: from,
            parents: self.parents.iter().take(to).copied().collect(),
            wanted: wanted.copied().collect(),
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
        }
    }

    /// Rows from the root of the tree down to `row`.
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
    outputs: Outputs,
}

impl<'a> Scene<'a> {
    fn random(subject: &'a Subject, numbers: &mut Numbers) -> Self {
        let page_len = [1, 2, 16, 32][numbers.below(4)];
        let threads = 1 + numbers.below(4);
        let available = Isa::available();
        // The plain path takes the best instruction set; the portable one is slow in large models.
        let isas = if subject.layers.len() * subject.vocabulary > 1000 { &available[1..] } else { &available[..] };
        let isa = if isas.is_empty() { Isa::PORTABLE } else { isas[numbers.below(isas.len())] };
        let options = Options {
            page_len,
            pages: POSITIONS / page_len,
            rows_max: 128,
            key_type: subject.types[0],
            value_type: subject.types[1],
            weight_type: subject.weights,
            ..Options::for_positions(POSITIONS, threads)
        };
        let model = load(&subject.checkpoint, options).with_isa(isa);
        // Pages are dealt out of a shuffled pack, so tables of different sequences interleave.
        let mut pack = numbers.permutation(options.pages).into_iter().map(|page| PageId(page as u32));
        let sequences = (0..1 + numbers.below(3))
            .map(|number| Sequence {
                number: number as u64,
                tables: [pack.by_ref().take(80usize.div_ceil(page_len).min(options.pages / 3)).collect()],
                tokens: Vec::new(),
            })
            .collect();
        let what = format!("pages of {page_len}, {threads} threads, {}", isa.name());
        Self { subject, what, model, sequences, outputs: Outputs::default() }
    }

    /// One pass over pieces of some sequences, in the order given; every wanted row must say what it says plainly.
    fn pass(&mut self, pieces: &[(usize, Piece)]) {
        let spans: Vec<Span<'_>> = pieces.iter().map(|(who, piece)| piece.span(&self.sequences[*who])).collect();
        forward(&mut self.model, &spans, &self.subject.layers, &mut self.outputs);
        let mut row_of_pass = 0;
        for (who, piece) in pieces {
            let sequence = &self.sequences[*who];
            for row in &piece.wanted {
                let path = piece.path(sequence, *row as usize);
                let mut tokens = sequence.tokens.clone();
                tokens.extend(path.iter().map(|row| piece.tokens[*row]));
                let what = format!("row {row} of {} of sequence {who}, {}", piece.tokens.len(), self.what);
                self.subject.check(&tokens, &said(&self.outputs, row_of_pass), &what);
                row_of_pass += 1;
            }
        }
    }

    /// The same pieces, each grown over several passes.
    fn grow(&mut self, pieces: &[(usize, Piece)], numbers: &mut Numbers) {
        let mut done = vec![0; pieces.len()];
        while pieces.iter().zip(&done).any(|((_, piece), done)| *done < piece.tokens.len()) {
            let mut parts = Vec::new();
            for ((who, piece), done) in pieces.iter().zip(&mut done) {
                let to = *done + numbers.below(piece.tokens.len() - *done + 1);
                parts.push((*who, piece.part(*done, to)));
                *done = to;
            }
            self.pass(&parts);
        }
    }

    /// Keeps the path to a random row of a piece: moves its rows to the positions that they stand for.
    fn accept(&mut self, who: usize, piece: &Piece, numbers: &mut Numbers) {
        if piece.tokens.is_empty() || numbers.below(5) == 0 {
            return; // nothing accepted: the rows are forgotten where they lie
        }
        let sequence = &mut self.sequences[who];
        let row = if piece.parents.is_empty() { piece.tokens.len() - 1 } else { numbers.below(piece.tokens.len()) };
        let path = piece.path(sequence, row);
        let start = sequence.tokens.len();
        let from: Vec<usize> = path.iter().map(|row| start + row).collect();
        self.model.rows(CacheEdit::Move { tables: &sequence.tables, from: &from, to: start });
        sequence.tokens.extend(path.iter().map(|row| piece.tokens[*row]));
    }

    /// A few passes in which every sequence takes part now and then, with a chain or a tree.
    fn play(&mut self, numbers: &mut Numbers) {
        for _ in 0..2 + numbers.below(4) {
            let mut pieces = Vec::new();
            for who in numbers.permutation(self.sequences.len()) {
                let len = [0, 1, 1, 7, 1 + numbers.below(12)][numbers.below(5)];
                let room = self.model.capacity().groups[0].page_len * self.sequences[who].tables[0].len();
                let tokens = self.subject.tokens(numbers, len.min(room - self.sequences[who].tokens.len()));
                let forks = numbers.below(2) == 0;
                pieces.push((who, if forks { Piece::tree(numbers, tokens) } else { Piece::chain(numbers, tokens) }));
            }
            if numbers.below(2) == 0 {
                self.pass(&pieces);
            } else {
                self.grow(&pieces, numbers);
            }
            for (who, piece) in &pieces {
                self.accept(*who, piece, numbers);
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

fn demo() -> PathBuf {
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

#[test]
fn a_real_model_in_bf16_scores_rows_as_if_alone() {
    play_many(&demo(), [F16, F16], 8);
    play_many(&demo(), [Q8_0, Q8_0], 8);
}

/// In every form of weights that the instruction sets multiply differently.
#[test]
fn quantized_models_score_rows_as_if_alone() {
    for weights in ["f16", "bf16", "q8_0", "q4_0", "q4_k", "q6_k"] {
        let weights: WeightType = weights.parse().unwrap();
        // Rows of 128 weights take q8_0 for the k-quants; the wide rows of the second matrix do not.
        play_subject(&Subject::with(&demo(), [F16, F16], Some(weights)), 4);
        play_subject(&Subject::with(&fixture("llama"), [F16, F16], Some(weights)), 4);
    }
}

/// One sequence, cut up in every simple way: the smallest form of the same statement.
#[test]
fn a_sequence_may_be_cut_anywhere() {
    let mut numbers = Numbers::new(3);
    for path in [fixture("llama"), fixture("gpt2"), demo()] {
        let subject = Subject::new(&path, [F16; 2]);
        let tokens = subject.tokens(&mut numbers, 40);
        for (page_len, threads) in [(1, 2), (2, 1), (16, 4), (32, 3)] {
            let pages = 40usize.div_ceil(page_len);
            let options = Options { page_len, pages, rows_max: 40, ..Options::for_positions(40, threads) };
            let mut model = load(&subject.checkpoint, options);
            let alone = crate::logits(&mut model, &tokens, &[1]);
            for lengths in [&[40][..], &[7], &[33, 1], &[1, 39], &[16, 2, 5, 3, 14]] {
                let found = crate::logits(&mut model, &tokens, lengths);
                let at = first_difference(&found, &alone);
                assert_eq!(at, None, "{}: passes of {lengths:?}, pages of {page_len}", subject.name);
            }
        }
    }
}

/// The same over the border of a split of attention's positions, where a row may be computed by several threads.
#[test]
fn a_long_sequence_may_be_cut_anywhere() {
    let tokens: Vec<u32> = (0..1100).map(|i| i * 37 % 500).collect();
    for types in [[F16, F16], [Q8_0, BF16]] {
        let load = |threads| {
            let options = Options { rows_max: 1100, ..Options::for_positions(1100, threads) };
            let checkpoint = Checkpoint::open(&demo()).unwrap_or_else(|error| panic!("{error}"));
            load(&checkpoint, Options { key_type: types[0], value_type: types[1], ..options })
        };
        let whole = crate::logits(&mut load(1), &tokens, &[1100]);
        for (threads, lengths) in [(2, &[509, 1, 1, 1, 1, 1, 512, 8][..]), (3, &[64]), (2, &[500, 1, 30, 490, 7, 1])] {
            let found = crate::logits(&mut load(threads), &tokens, lengths);
            assert_eq!(first_difference(&found, &whole), None, "passes of {lengths:?}, {threads} threads");
        }
    }
}

/// The instrument itself: a scene that reads the wrong row of the cache is seen.
#[test]
#[should_panic(expected = "plainly")]
fn a_path_that_was_not_moved_is_seen() {
    let subject = Subject::new(&fixture("llama"), [F16; 2]);
    let mut numbers = Numbers::new(5);
    let mut scene = Scene::random(&subject, &mut numbers);
    let fork = Piece { tokens: vec![3, 4, 5], computed: 0, parents: vec![None, None, Some(1)], wanted: vec![] };
    scene.pass(&[(0, fork)]);
    // The path 4, 5 was accepted, but its rows still lie one place too far.
    scene.sequences[0].tokens = vec![4, 5];
    scene.pass(&[(0, Piece { tokens: vec![6], computed: 0, parents: vec![], wanted: vec![0] })]);
}

/// The same for a tree that grows: a computed row that is not where the span says is seen.
#[test]
#[should_panic(expected = "plainly")]
fn a_grown_tree_over_another_computed_row_is_seen() {
    let subject = Subject::new(&fixture("llama"), [F16; 2]);
    let mut numbers = Numbers::new(5);
    let mut scene = Scene::random(&subject, &mut numbers);
    let tree =
        |second| Piece { tokens: vec![3, second, 5], computed: 0, parents: vec![None, None, Some(1)], wanted: vec![2] };
    scene.pass(&[(0, tree(4).part(0, 2))]);
    scene.pass(&[(0, tree(7).part(2, 3))]);
}
