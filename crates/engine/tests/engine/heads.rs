//! Tests of heads, which draft from the target's hidden states: the states that they get, the tokens that they read,
//! and the heads that are refused.

use std::sync::{Arc, Mutex};

use foretoken_drafters::HeadDrafter;
use foretoken_engine::{BudgetKind, Engine, Event, ExecutorScorer, Race, Request, Stats};
use foretoken_model::{Executor, HiddenStates};
use foretoken_speculation::{
    Ask, Chance, Drafter, Needs, Opening, Promise, ReadAsk, Sampling, SequenceId, StepOutput, Token, Work,
};
use foretoken_testkit::head::{HeadFault, HeadScorer, TARGET_LAYERS, ToyHead, near};
use foretoken_testkit::oracle::decode;
use foretoken_testkit::table::{Table, mix};
use foretoken_testkit::toy::ToyExecutor;

fn head(table: &Table, rows_max: usize) -> HeadDrafter<HeadScorer> {
    HeadDrafter::new(HeadScorer::new(ToyHead::new(table.clone(), 4, 200, rows_max)))
}

fn prompt(len: u64) -> Vec<Token> {
    (0..len).map(|at| (mix(at / 3) % 7) as Token).collect()
}

/// A request whose drafter offers up to four tokens per pass.
fn request(prompt: Vec<Token>, promise: Promise, seed: u64) -> Request {
    Request {
        tokens_max: Some(30),
        promise,
        sampling: Sampling::default(),
        seed,
        budget: BudgetKind::Fixed { nodes: 4 },
        drafters: vec![0],
        ..Request::new(prompt)
    }
}

/// Runs an engine until it is idle. Returns the output and the statistics of each sequence; no drafter may fail.
fn run(engine: &mut Engine) -> Vec<(Vec<Token>, Stats)> {
    let mut all: Vec<(SequenceId, Vec<Token>, Option<Stats>)> = Vec::new();
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            match event {
                Event::Tokens { sequence, emitted } => {
                    let tokens = emitted.iter().map(|emitted| emitted.token);
                    match all.iter_mut().find(|(id, ..)| id == sequence) {
                        Some((_, output, _)) => output.extend(tokens),
                        None => all.push((*sequence, tokens.collect(), None)),
                    }
                }
                Event::Finished { sequence, stats, .. } => {
                    all.iter_mut().find(|(id, ..)| id == sequence).unwrap().2 = Some((**stats).clone());
                }
                Event::DrafterFailed { message, .. } => panic!("{message}"),
                _ => {}
            }
        }
        engine.check_pages().unwrap();
    }
    all.sort_by_key(|(id, ..)| *id);
    all.into_iter().map(|(_, output, stats)| (output, stats.expect("it ended"))).collect()
}

#[test]
fn every_draft_of_a_head_that_equals_the_target_is_accepted() {
    let table = Table::seeded(7, 40, 5);
    for (promise, rows_max) in [Promise::Exact, Promise::Rejection, Promise::Block].into_iter().zip([64, 3, 8]) {
        let mut engine = Engine::new(Box::new(ToyExecutor::new(table.clone(), 4, 200, 64)), 4, usize::MAX);
        engine.add_drafter(Box::new(head(&table, rows_max)));
        for seed in 0..4 {
            engine.submit(request(prompt(1 + 9 * seed), promise, seed)).unwrap();
        }
        for (seed, (output, stats)) in run(&mut engine).into_iter().enumerate() {
            let (seed, sampling) = (seed as u64, Sampling::default());
            if promise == Promise::Exact {
                let expected = decode(&table, &sampling, seed, &prompt(1 + 9 * seed), 30);
                assert_eq!(output, expected.into_iter().map(|(token, _)| token).collect::<Vec<_>>());
            }
            // The first token comes from the pass that reads the prompt, before the head has any states; then there are
            // five per pass. With few rows, one sequence needs a pass in which the head only reads.
            let expected = if seed == 2 { (22, 8) } else { (23, 7) };
            assert_eq!((stats.accepted, stats.passes), expected, "{promise:?}: seed {seed}");
            assert_eq!(stats.accepted, stats.drafted, "{promise:?}: seed {seed}");
        }
    }
}

#[test]
fn the_end_of_a_shared_prompt_is_computed_again_for_the_head() {
    let table = Table::seeded(7, 40, 5);
    let accepted = |len: u64| {
        let mut engine = Engine::new(Box::new(ToyExecutor::new(table.clone(), 4, 200, 64)), 1, usize::MAX);
        engine.add_drafter(Box::new(head(&near(&table, 4), 64)));
        for seed in 0..3 {
            engine.submit(request(prompt(len), Promise::Exact, seed)).unwrap();
        }
        run(&mut engine).into_iter().map(|(_, stats)| (stats.prompt_tokens_shared, stats.accepted)).collect::<Vec<_>>()
    };
    // Short prompts are computed in full: nothing is shared, and the head has the states of the whole prompt.
    for (shared, accepted) in accepted(20) {
        assert!(shared == 0 && accepted > 5, "{shared} shared, {accepted} accepted");
    }
    // The head has only the states of the end of a long shared prompt, and drafts as if the sequence began there.
    let all = accepted(150);
    assert_eq!(all.iter().map(|(shared, _)| *shared).collect::<Vec<_>>(), [0, 86, 86]);
    assert!(all[0].1 > 5, "{} accepted of the first request", all[0].1);
}

#[test]
fn a_sequence_that_was_preempted_is_drafted_for_as_before() {
    let table = Table::seeded(7, 40, 5);
    // Sixteen pages of four positions are too few for two sequences of fifty tokens.
    let mut engine = Engine::new(Box::new(ToyExecutor::new(table.clone(), 4, 16, 64)), 2, usize::MAX);
    engine.add_drafter(Box::new(head(&table, 64)));
    for seed in 0..2 {
        engine.submit(request(prompt(20 + seed), Promise::Exact, seed)).unwrap();
    }
    let all = run(&mut engine);
    assert!(all.iter().any(|(_, stats)| stats.preemptions > 0));
    for (_, stats) in all {
        assert_eq!(stats.accepted, stats.drafted);
        assert!(stats.accepted >= 22, "{} accepted, {} preemptions", stats.accepted, stats.preemptions);
    }
}

/// A head that records how many tokens each call read.
struct RecordedHead {
    head: HeadDrafter<HeadScorer>,
    read: Arc<Mutex<Vec<u64>>>,
}

impl Drafter for RecordedHead {
    fn name(&self) -> &str {
        self.head.name()
    }
    fn needs(&self) -> Needs {
        self.head.needs()
    }
    fn work(&self) -> Option<Work> {
        self.head.work()
    }
    fn unread(&self, sequence: SequenceId, len: usize) -> usize {
        self.head.unread(sequence, len)
    }
    fn open(&mut self, opening: &Opening<'_>) {
        self.head.open(opening);
    }
    fn read(&mut self, asks: &[ReadAsk<'_>]) {
        let before = self.head.work().unwrap().read;
        self.head.read(asks);
        self.read.lock().unwrap().push(self.head.work().unwrap().read - before);
    }
    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        self.head.draft(asks, chance);
    }
    fn observe(&mut self, outputs: &[StepOutput<'_>]) {
        self.head.observe(outputs);
    }
    fn close(&mut self, sequence: SequenceId) {
        self.head.close(sequence);
    }
}

#[test]
fn a_head_reads_each_chunk_of_a_prompt_one_pass_after_the_target() {
    let table = Table::seeded(7, 40, 5);
    let mut engine = Engine::new(Box::new(ToyExecutor::new(table.clone(), 4, 200, 8)), 4, usize::MAX);
    let read = Arc::<Mutex<Vec<u64>>>::default();
    engine.add_drafter(Box::new(RecordedHead { head: head(&table, 64), read: read.clone() }));
    engine.submit(request(prompt(30), Promise::Exact, 1)).unwrap();
    let (_, stats) = run(&mut engine).remove(0);
    // The chunks of the prompt have 8, 8, 8 and 6 tokens; the last pass writes the first token.
    assert_eq!(*read.lock().unwrap(), [8, 8], "the last chunk is read with the first draft");
    assert_eq!(stats.accepted, 23);
}

#[test]
fn a_head_of_another_target_is_refused_with_the_field_that_differs() {
    let (table, other) = (Table::seeded(7, 2, 5), Table::seeded(6, 2, 5));
    let target = ToyExecutor::new(table.clone(), 4, 20, 8);
    let refused = |head: Box<dyn Executor>, hidden: HiddenStates| {
        let target = foretoken_model::Capacity { hidden, ..target.capacity().clone() };
        ExecutorScorer::for_head(head, &target).map(drop).expect_err("another target").to_string()
    };
    let toy = |table: &Table| Box::new(ToyHead::new(table.clone(), 4, 20, 8));
    let hidden = target.capacity().hidden;
    assert!(ExecutorScorer::for_head(toy(&table), target.capacity()).is_ok());
    assert_eq!(
        [
            refused(toy(&table), HiddenStates { width: 2, ..hidden }),
            refused(toy(&table), HiddenStates { layers: TARGET_LAYERS[0], ..hidden }),
            refused(toy(&other), hidden),
            refused(Box::new(ToyExecutor::new(table.clone(), 4, 20, 8)), hidden),
        ],
        [
            "hidden_in.target_width: expected 2 (the target's hidden.width), found 3",
            "hidden_in.target_layers: expected layers below 7 (the target's), found 7",
            "vocabulary: expected 7 (the target's), found 6",
            "hidden_in: expected a network that reads hidden rows, found None",
        ]
    );
}

#[test]
#[should_panic(expected = "a target must read tokens alone, not hidden rows")]
fn a_head_is_refused_as_a_target() {
    drop(Engine::new(Box::new(ToyHead::new(Table::seeded(7, 2, 5), 4, 20, 8)), 1, 10));
}

#[test]
#[should_panic(expected = "hidden states of layers [0, 8] of 8")]
fn a_drafter_that_needs_layers_that_the_target_does_not_have_is_refused() {
    let mut engine = Engine::new(Box::new(ToyExecutor::new(Table::seeded(7, 2, 5), 4, 20, 8)), 1, 10);
    engine.add_drafter(Box::new(HiddenRecorder { layers: vec![8, 0], seen: HiddenSeen::default() }));
}

/// The position, the number and the width of the hidden states of each call.
type HiddenSeen = Arc<Mutex<Vec<(usize, usize, usize)>>>;

/// A drafter that records which hidden states it gets.
struct HiddenRecorder {
    layers: Vec<usize>,
    seen: HiddenSeen,
}

impl Drafter for HiddenRecorder {
    fn name(&self) -> &str {
        "recorder"
    }
    fn needs(&self) -> Needs {
        Needs { hidden_layers: self.layers.clone(), prompt_rows: true, ..Needs::default() }
    }
    fn work(&self) -> Option<Work> {
        Some(Work::default())
    }
    fn draft(&mut self, _asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {}
    fn observe(&mut self, outputs: &[StepOutput<'_>]) {
        let seen = outputs.iter().map(|output| (output.hidden_from, output.hidden.len(), output.hidden[0].len()));
        self.seen.lock().unwrap().extend(seen);
    }
}

#[test]
fn the_time_of_a_heads_step_is_measured_with_made_up_hidden_states() {
    let mut engine = Engine::new(Box::new(ToyExecutor::new(Table::seeded(7, 2, 5), 4, 200, 64)), 1, 100);
    let seen = HiddenSeen::default();
    engine.add_drafter(Box::new(HiddenRecorder { layers: vec![3, 0], seen: seen.clone() }));
    engine.measure_costs();
    let width = foretoken_testkit::toy::HIDDEN_WIDTH;
    let expected = [(0, 2, width), (1, 2, width), (2, 64, width)];
    assert_eq!(*seen.lock().unwrap(), expected, "for sequences of 2, 3 and 35 tokens");
}

#[test]
#[should_panic(expected = "hidden row 1, its own")]
fn a_head_that_reads_its_own_rows_of_the_pass_before_is_caught() {
    let table = Table::seeded(7, 40, 5);
    let mut engine = Engine::new(Box::new(ToyExecutor::new(table.clone(), 4, 200, 64)), 1, usize::MAX);
    let head = ToyHead::new(table.clone(), 4, 200, 64).with_fault(HeadFault::StaleOwnRows);
    engine.add_drafter(Box::new(HeadDrafter::new(HeadScorer::new(head))));
    engine.submit(request(prompt(5), Promise::Exact, 1)).unwrap();
    run(&mut engine);
}
