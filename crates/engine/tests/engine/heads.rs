//! Heads, which draft from the target's hidden states: what they are told, what they read, and which are refused.

use std::sync::{Arc, Mutex};

use foretoken_drafters::HeadDrafter;
use foretoken_engine::{BudgetKind, Engine, Event, ExecutorScorer, Race, Request, Stats};
use foretoken_model::{Executor, HiddenStates};
use foretoken_speculation::{
    Ask, Chance, Drafter, Needs, News, Opening, Promise, ReadAsk, Sampling, SequenceId, Token, Work,
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

/// A request of which the one drafter offers up to four tokens a pass.
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

/// Runs an engine dry; by sequence what it wrote, and its statistics. Nobody may fail.
fn run(engine: &mut Engine) -> Vec<(Vec<Token>, Stats)> {
    let mut all: Vec<(SequenceId, Vec<Token>, Option<Stats>)> = Vec::new();
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            match event {
                Event::Tokens { sequence, emitted } => {
                    let tokens = emitted.iter().map(|emitted| emitted.token);
                    match all.iter_mut().find(|(id, ..)| id == sequence) {
                        Some((_, text, _)) => text.extend(tokens),
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
    all.into_iter().map(|(_, text, stats)| (text, stats.expect("it ended"))).collect()
}

#[test]
fn a_head_that_says_what_the_target_says_is_always_right() {
    let table = Table::seeded(7, 40, 5);
    for (promise, rows_max) in [Promise::Exact, Promise::Rejection, Promise::Block].into_iter().zip([64, 3, 8]) {
        let mut engine = Engine::new(Box::new(ToyExecutor::new(table.clone(), 4, 200, 64)), 4, usize::MAX);
        engine.add_drafter(Box::new(head(&table, rows_max)));
        for seed in 0..4 {
            engine.submit(request(prompt(1 + 9 * seed), promise, seed)).unwrap();
        }
        for (seed, (text, stats)) in run(&mut engine).into_iter().enumerate() {
            let (seed, sampling) = (seed as u64, Sampling::default());
            if promise == Promise::Exact {
                let expected = decode(&table, &sampling, seed, &prompt(1 + 9 * seed), 30);
                assert_eq!(text, expected.into_iter().map(|(token, _)| token).collect::<Vec<_>>());
            }
            // The first token comes of a pass that nothing was told before; then five a pass. One head has to read
            // more than a piece while a prompt is read beside it, and does not draft in that pass.
            let expected = if seed == 2 { (22, 8) } else { (23, 7) };
            assert_eq!((stats.accepted, stats.passes), expected, "{promise:?}: seed {seed}");
            assert_eq!(stats.accepted, stats.drafted, "{promise:?}: seed {seed}");
        }
    }
}

#[test]
fn of_what_others_computed_of_a_prompt_the_end_is_told_again() {
    let table = Table::seeded(7, 40, 5);
    let accepted = |len: u64| {
        let mut engine = Engine::new(Box::new(ToyExecutor::new(table.clone(), 4, 200, 64)), 1, usize::MAX);
        engine.add_drafter(Box::new(head(&near(&table, 4), 64)));
        for seed in 0..3 {
            engine.submit(request(prompt(len), Promise::Exact, seed)).unwrap();
        }
        run(&mut engine).into_iter().map(|(_, stats)| (stats.prompt_tokens_shared, stats.accepted)).collect::<Vec<_>>()
    };
    // Short ones whole: nothing is shared, and the head knows the text.
    for (shared, accepted) in accepted(20) {
        assert!(shared == 0 && accepted > 5, "{shared} shared, {accepted} accepted");
    }
    // Of long ones the head knows the end alone, and its table says of this what it says of a text that begins there.
    let all = accepted(150);
    assert_eq!(all.iter().map(|(shared, _)| *shared).collect::<Vec<_>>(), [0, 86, 86]);
    assert!(all[0].1 > 5, "{} accepted of the first", all[0].1);
}

#[test]
fn a_text_that_was_preempted_is_drafted_for_as_before() {
    let table = Table::seeded(7, 40, 5);
    // Sixteen pages of four: two texts of fifty tokens each do not fit.
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

/// A head whose reading is noted: tokens that each call read.
struct Noted {
    head: HeadDrafter<HeadScorer>,
    read: Arc<Mutex<Vec<u64>>>,
}

impl Drafter for Noted {
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
    fn observe(&mut self, news: &[News<'_>]) {
        self.head.observe(news);
    }
    fn close(&mut self, sequence: SequenceId) {
        self.head.close(sequence);
    }
}

#[test]
fn a_head_reads_a_prompt_behind_the_target_a_pass_later() {
    let table = Table::seeded(7, 40, 5);
    let mut engine = Engine::new(Box::new(ToyExecutor::new(table.clone(), 4, 200, 8)), 4, usize::MAX);
    let read = Arc::<Mutex<Vec<u64>>>::default();
    engine.add_drafter(Box::new(Noted { head: head(&table, 64), read: read.clone() }));
    engine.submit(request(prompt(30), Promise::Exact, 1)).unwrap();
    let (_, stats) = run(&mut engine).remove(0);
    // Pieces of the prompt: 8, 8, 8, and 6 with the first token; of 8 tokens all states are told.
    assert_eq!(*read.lock().unwrap(), [8, 8], "the last piece is read with the first draft");
    assert_eq!(stats.accepted, 23);
}

#[test]
fn a_head_of_another_target_is_refused_by_field() {
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
#[should_panic(expected = "a target that reads hidden rows, which nobody tells it")]
fn a_head_is_no_target() {
    drop(Engine::new(Box::new(ToyHead::new(Table::seeded(7, 2, 5), 4, 20, 8)), 1, 10));
}

#[test]
#[should_panic(expected = "hidden states of layers [0, 8] of 8")]
fn layers_that_the_target_does_not_have_are_no_drafters_to_need() {
    let mut engine = Engine::new(Box::new(ToyExecutor::new(Table::seeded(7, 2, 5), 4, 20, 8)), 1, 10);
    engine.add_drafter(Box::new(Rehearsed { layers: vec![8, 0], told: Told::default() }));
}

/// Of each time that hidden states were told: from where, how many, and how wide.
type Told = Arc<Mutex<Vec<(usize, usize, usize)>>>;

/// Notes what it is told.
struct Rehearsed {
    layers: Vec<usize>,
    told: Told,
}

impl Drafter for Rehearsed {
    fn name(&self) -> &str {
        "rehearsed"
    }
    fn needs(&self) -> Needs {
        Needs { hidden_layers: self.layers.clone(), prompt_rows: true, ..Needs::default() }
    }
    fn work(&self) -> Option<Work> {
        Some(Work::default())
    }
    fn draft(&mut self, _asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {}
    fn observe(&mut self, news: &[News<'_>]) {
        let told = news.iter().map(|news| (news.hidden_from, news.hidden.len(), news.hidden[0].len()));
        self.told.lock().unwrap().extend(told);
    }
}

#[test]
fn what_a_heads_step_takes_is_measured_with_hidden_states_of_nothing() {
    let mut engine = Engine::new(Box::new(ToyExecutor::new(Table::seeded(7, 2, 5), 4, 200, 64)), 1, 100);
    let told = Told::default();
    engine.add_drafter(Box::new(Rehearsed { layers: vec![3, 0], told: told.clone() }));
    engine.measure_costs();
    let width = foretoken_testkit::toy::HIDDEN_WIDTH;
    assert_eq!(*told.lock().unwrap(), [(0, 2, width), (1, 2, width), (2, 64, width)], "of texts of 2, 3 and 35 tokens");
}

#[test]
#[should_panic(expected = "hidden row 1, its own")]
fn a_head_that_reads_its_own_rows_of_the_pass_before_is_seen() {
    let table = Table::seeded(7, 40, 5);
    let mut engine = Engine::new(Box::new(ToyExecutor::new(table.clone(), 4, 200, 64)), 1, usize::MAX);
    let head = ToyHead::new(table.clone(), 4, 200, 64).with_fault(HeadFault::OwnOfPassBefore);
    engine.add_drafter(Box::new(HeadDrafter::new(HeadScorer::new(head))));
    engine.submit(request(prompt(5), Promise::Exact, 1)).unwrap();
    run(&mut engine);
}
