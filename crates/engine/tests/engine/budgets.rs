//! Tests of budgets in the engine: which nodes an oracle keeps, where it is refused, and in which order drafters are
//! asked.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use foretoken_drafters::{ModelDrafter, SuffixDrafter};
use foretoken_engine::{BudgetKind, Engine, Event, ExecutorScorer, Order, Race, Request, Stats};
use foretoken_speculation::{Ask, Chance, Drafter, Promise, Proposal, Sampling, SequenceId, Token};
use foretoken_testkit::oracle::decode;
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::ToyExecutor;

const LEN: usize = 60;

fn table() -> Table {
    Table::seeded(7, 2, 5)
}

fn engine() -> Engine {
    let toy = |table: Table| Box::new(ToyExecutor::new(table, 4, 100, 64));
    let mut engine = Engine::new(toy(table()), 1, usize::MAX);
    engine.add_drafter(Box::new(SuffixDrafter::lookup(1, 3, 10)));
    let flatter = Table::new(7, |tokens| {
        let mut row = table().logits(tokens);
        row.iter_mut().for_each(|logit| *logit *= 0.5);
        row
    });
    engine.add_drafter(Box::new(ModelDrafter::new(ExecutorScorer::new(toy(flatter)))));
    engine
}

fn request(prompt: &[Token], budget: BudgetKind, drafters: &[u8]) -> Request {
    Request {
        tokens_max: Some(LEN),
        sampling: Sampling::default(),
        seed: 3,
        budget,
        drafters: drafters.to_vec(),
        ..Request::new(prompt.to_vec())
    }
}

/// Runs one request to its end. Returns its output and its statistics.
pub fn generate(engine: &mut Engine, request: Request) -> (Vec<Token>, Stats) {
    engine.submit(request).unwrap();
    let (mut tokens, mut stats) = (Vec::new(), None);
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            match event {
                Event::Tokens { emitted, .. } => tokens.extend(emitted.iter().map(|emitted| emitted.token)),
                Event::Finished { stats: found, .. } => stats = Some(found.clone()),
                _ => {}
            }
        }
    }
    (tokens, *stats.unwrap())
}

fn plain(prompt: &[Token], sampling: &Sampling) -> Vec<Token> {
    decode(&table(), sampling, 3, prompt, LEN).into_iter().map(|(token, _)| token).collect()
}

#[test]
fn an_oracle_keeps_exactly_the_nodes_that_are_accepted() {
    let prompt = [1, 2, 3, 1, 2];
    let expected = plain(&prompt, &Sampling::default());
    for drafters in [&[0][..], &[1], &[0, 1]] {
        let (_, fixed) = generate(&mut engine(), request(&prompt, BudgetKind::Fixed { nodes: 6 }, drafters));
        let oracle = BudgetKind::Oracle { text: expected.clone().into(), nodes_max: 6 };
        let (output, stats) = generate(&mut engine(), request(&prompt, oracle, drafters));
        assert_eq!(output, expected);
        assert!(stats.accepted > 5 && stats.drafted == stats.accepted, "{stats:?}");
        assert!(fixed.drafted > fixed.accepted);
        // With one drafter both accept the same nodes; with several, a fixed budget may drop nodes that an oracle
        // keeps.
        assert!(stats.passes == fixed.passes || drafters.len() > 1, "{} and {} passes", stats.passes, fixed.passes);
        assert!(stats.passes <= fixed.passes, "{} and {} passes", stats.passes, fixed.passes);
    }
}

#[test]
fn a_wrong_oracle_does_not_change_the_output() {
    let prompt = [1, 2, 3, 1, 2];
    let expected = plain(&prompt, &Sampling::default());
    let mut wrong = expected.clone();
    wrong.truncate(LEN / 2);
    wrong.iter_mut().skip(9).step_by(2).for_each(|token| *token = (*token + 1) % 7);
    let oracle = BudgetKind::Oracle { text: Arc::from(wrong), nodes_max: 6 };
    assert_eq!(generate(&mut engine(), request(&prompt, oracle, &[0, 1])).0, expected);
}

#[test]
fn an_oracle_is_refused_where_the_output_depends_on_the_draft() {
    let prompt = [1, 2];
    let oracle = BudgetKind::Oracle { text: Arc::from([]), nodes_max: 6 };
    let request = Request { promise: Promise::Rejection, ..request(&prompt, oracle, &[1]) };
    let error = engine().submit(request.clone()).unwrap_err().to_string();
    assert_eq!(error, "budget: an oracle expects exact or temperature 0, found Rejection at 1");
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    let expected = plain(&prompt, &sampling);
    let oracle = BudgetKind::Oracle { text: expected.clone().into(), nodes_max: 6 };
    // Drafts are drawn and draws are dropped, but the output is that of greedy decoding.
    let mut greedy = Request { sampling, budget: oracle, ..request };
    greedy.draft.temperature = Some(1.5);
    let (found, stats) = generate(&mut engine(), greedy);
    assert_eq!(found, expected);
    assert_eq!(stats.accepted, stats.drafted);
}

/// A drafter that always drafts the same token, takes a given time, and records the order of calls.
struct OneToken {
    token: Token,
    time: Duration,
    number: u8,
    asked: Arc<Mutex<Vec<u8>>>,
}

impl Drafter for OneToken {
    fn name(&self) -> &str {
        "one token"
    }
    fn draft(&mut self, asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        let started = Instant::now();
        self.asked.lock().unwrap().push(self.number);
        for ask in asks.iter_mut().filter(|ask| ask.has_room()) {
            ask.tree.offer(None, self.token, Proposal::Point, ask.source);
        }
        while started.elapsed() < self.time {
            std::hint::spin_loop();
        }
    }
    fn close(&mut self, _sequence: SequenceId) {}
}

#[test]
fn a_learned_order_asks_the_most_valuable_drafter_first() {
    // A model that counts to three. Every pass writes two tokens, so each drafter is right in every third pass.
    let counts = Table::new(3, |tokens| {
        let mut row = vec![f32::NEG_INFINITY; 3];
        row[tokens.last().map_or(0, |last| (*last as usize + 1) % 3)] = 0.0;
        row
    });
    for (order, promise, expected) in [
        (Order::Given, Promise::Exact, [0, 1, 2]),
        (Order::Learned, Promise::Exact, [2, 0, 1]),
        (Order::Learned, Promise::Rejection, [2, 0, 1]),
        (Order::LearnedBehindFirst, Promise::Exact, [0, 2, 1]),
    ] {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let mut engine = Engine::new(Box::new(ToyExecutor::new(counts.clone(), 4, 100, 64)), 1, usize::MAX);
        for (number, token, millis) in [(0, 2, 2), (1, 1, 8), (2, 0, 0)] {
            let time = Duration::from_millis(millis);
            engine.add_drafter(Box::new(OneToken { token, time, number, asked: asked.clone() }));
        }
        let budget = BudgetKind::Fixed { nodes: 8 };
        let (output, _) = generate(&mut engine, Request { order, promise, ..request(&[1, 0], budget, &[0, 1, 2]) });
        assert!(output.chunks(3).all(|three| three == [1, 2, 0]), "{output:?}");
        let asked = asked.lock().unwrap();
        assert_eq!(asked[..3], [0, 1, 2], "no drafter has been measured yet");
        assert_eq!(asked[asked.len() - 3..], expected, "{order:?} under {promise:?}");
    }
}
