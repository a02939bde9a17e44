//! Tests of encoder-decoders with their own networks as draft models: each reads the source of its sequence, which is
//! computed once, and no mistake about sources goes unnoticed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foretoken_drafters::{ModelDrafter, NgramDrafter, NgramSource, SuffixDrafter, TrieDrafter};
use foretoken_engine::{BudgetKind, Engine, ExecutorScorer, Race, Request, Token};
use foretoken_model::{
    Batch, CacheEdit, Capacity, Checkpoint, Executor, ExecutorError, Model, Options, Outputs, Source,
};
use foretoken_speculation::{Drafter, Promise, Sampling};

use crate::writing::{write, write_alone};

/// A network that counts the sources that it computes. Where the last field is true, it reads another source than it is
/// given, which is a mistake.
struct Counting(Model, Arc<AtomicUsize>, bool);

impl Executor for Counting {
    fn open(&mut self, sequence: u64, source: Option<Source<'_>>) -> Result<(), ExecutorError> {
        self.1.fetch_add(usize::from(source.is_some_and(|source| !source.is_computed)), Ordering::Relaxed);
        let Some(source) = source else { return self.0.open(sequence, None) };
        let other: Vec<Token> = source.tokens.iter().rev().copied().collect();
        let tokens = if self.2 { &other } else { source.tokens };
        self.0.open(sequence, Some(Source { tokens, ..source }))
    }

    fn release(&mut self, sequence: u64) {
        self.0.release(sequence);
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), ExecutorError> {
        self.0.forward(batch)
    }

    fn outputs(&self) -> &dyn Outputs {
        self.0.outputs()
    }

    fn rows(&mut self, edit: CacheEdit<'_>) -> Result<(), ExecutorError> {
        self.0.rows(edit)
    }

    fn capacity(&self) -> &Capacity {
        self.0.capacity()
    }
}

/// A golden network with room for sources of up to `longest` tokens.
fn load(name: &str, longest: usize) -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(name);
    let checkpoint = Checkpoint::open(&path).unwrap_or_else(|error| panic!("{error}"));
    let options = Options { page_len: 8, rows_max: 48, context: Some(longest), ..Options::for_positions(512, 2) };
    Model::load(&checkpoint, options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"))
}

/// An engine of a target and draft models, with the numbers of sources that they have computed.
fn engine(target: &str, drafts: &[(&str, usize)]) -> (Engine, Vec<Arc<AtomicUsize>>) {
    let mut counts = vec![Arc::<AtomicUsize>::default()];
    let mut engine = Engine::new(Box::new(Counting(load(target, 100), Arc::clone(&counts[0]), false)), 3, 100);
    for (draft, longest) in drafts {
        let count = Arc::<AtomicUsize>::default();
        let executor = Counting(load(draft, *longest), Arc::clone(&count), false);
        engine.add_drafter(Box::new(ModelDrafter::new(ExecutorScorer::new(Box::new(executor)))));
        counts.push(count);
    }
    (engine, counts)
}

fn request(source: &[Token], drafters: &[u8], promise: Promise, temperature: f32) -> Request {
    Request {
        source: Some(source.into()),
        tokens_max: Some(40),
        drafters: drafters.to_vec(),
        log_probabilities: true,
        sampling: Sampling { temperature, ..Sampling::default() },
        seed: 3,
        promise,
        budget: BudgetKind::Fixed { nodes: 4 },
        ..Request::new(vec![0])
    }
}

/// Two sources that the hash of one bit of a fault does not tell apart.
const SOURCES: [[Token; 6]; 2] = [[9, 44, 3, 17, 60, 1], [60, 3, 17, 9, 44, 1]];

#[test]
fn a_draft_model_reads_the_source_of_its_sequence() {
    let (mut engine, counts) = engine("t5-v1_1", &[("t5-v1_1", 100), ("mt5", 100)]);
    for (promise, temperature) in [(Promise::Exact, 0.8), (Promise::Rejection, 0.0), (Promise::Block, 0.0)] {
        let asked = |drafters: &[u8]| -> Vec<Request> {
            let sources = [&SOURCES[0], &SOURCES[1], &SOURCES[0]];
            sources.map(|source| request(source, drafters, promise, temperature)).to_vec()
        };
        let plain = write(&mut engine, &asked(&[]));
        assert!(plain[0] == plain[2] && plain[0] != plain[1], "{promise:?}");
        for drafters in [&[0][..], &[1], &[1, 0]] {
            assert!(write(&mut engine, &asked(drafters)) == plain, "{promise:?} with {drafters:?}");
        }
        engine.check_pages().unwrap();
    }
    // Sources stay cached after their sequences.
    assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 2), "{counts:?}");
    // The target as its own draft model foresees every token, and only with the same source.
    for source in SOURCES {
        let (output, stats) = write_alone(&mut engine, request(&source, &[0], Promise::Exact, 0.8), &mut Race);
        let drafter = &stats.drafters[0];
        assert_eq!(output.len(), 40);
        assert!(drafter.accepted > 20 && drafter.accepted + 4 >= drafter.drafted, "{drafter:?}");
    }
}

/// A draft model that cannot hold the source drafts nothing, and the text is the same.
#[test]
fn a_source_too_long_for_a_draft_model_costs_only_its_drafts() {
    let (mut engine, counts) = engine("t5-v1_1", &[("mt5", 5)]);
    let plain = write(&mut engine, &[request(&SOURCES[0], &[], Promise::Exact, 0.8)]);
    let drafted = request(&SOURCES[0], &[0], Promise::Exact, 0.8);
    assert!(write(&mut engine, std::slice::from_ref(&drafted)) == plain);
    let (_, stats) = write_alone(&mut engine, drafted, &mut Race);
    assert_eq!((stats.drafters[0].drafted, counts[1].load(Ordering::Relaxed)), (0, 0));
    engine.check_pages().unwrap();
}

/// Outputs that copy their source are foreseen by what looks tokens up, without having been written before.
#[test]
fn drafters_find_tokens_in_the_source() {
    let (mut engine, _) = engine("t5-v1_1", &[]);
    let all: [Box<dyn Drafter>; 3] = [
        Box::new(SuffixDrafter::lookup(1, 3, 4)),
        Box::new(TrieDrafter::default()),
        Box::new(NgramDrafter::new(4, NgramSource::Text)),
    ];
    let numbers = all.map(|drafter| engine.add_drafter(drafter));
    let first = request(&SOURCES[0], &[], Promise::Exact, 0.0);
    let (output, _) = write_alone(&mut engine, first, &mut Race);
    // The output that belongs to this source is not known, but it begins with one of these tokens.
    let source: Vec<Token> = [&output[..20], &[1]].concat();
    let (plain, _) = write_alone(&mut engine, request(&source, &[], Promise::Exact, 0.0), &mut Race);
    for number in numbers {
        let (found, stats) = write_alone(&mut engine, request(&source, &[number], Promise::Exact, 0.0), &mut Race);
        assert_eq!(found, plain);
        assert!(stats.drafters[usize::from(number)].drafted > 0, "{:?}", stats.drafters);
    }
}

/// Tests the tests: a network that reads another source writes another text, and drafts worse.
#[test]
fn a_source_that_is_taken_for_another_shows() {
    let model = |is_wrong| Box::new(Counting(load("t5-v1_1", 100), Arc::default(), is_wrong));
    let asked = |drafters: &[u8]| request(&SOURCES[0], drafters, Promise::Exact, 0.8);
    let mut engine = Engine::new(model(false), 1, 100);
    engine.add_drafter(Box::new(ModelDrafter::new(ExecutorScorer::new(model(true)))));
    let expected = write(&mut engine, &[asked(&[])]);
    assert!(write(&mut Engine::new(model(true), 1, 100), &[asked(&[])]) != expected);
    assert!(write(&mut engine, &[asked(&[0])]) == expected, "drafts never change a text");
    let (_, stats) = write_alone(&mut engine, asked(&[0]), &mut Race);
    let drafter = &stats.drafters[0];
    assert!(drafter.accepted + 4 < drafter.drafted, "{drafter:?}");
}
