//! Tests of predictions in the engine: the output does not change, and accepted tokens are counted once.

use foretoken_drafters::{PredictionDrafter, SuffixDrafter};
use foretoken_engine::{BudgetKind, Emitted, Engine, Event, Order, Origin, Race, Request, Stats};
use foretoken_speculation::{Ask, Chance, Drafter, Opening, Promise, Sampling, SequenceId, StepOutput, Token};
use foretoken_testkit::oracle::decode;
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::ToyExecutor;

const LEN: usize = 120;
const PROMPT: [Token; 2] = [3, 1];

fn table() -> Table {
    Table::seeded(40, 3, 8)
}

/// The greedy output, and a prediction of it in which every tenth token is wrong.
fn output_and_prediction() -> (Vec<Token>, Vec<Token>) {
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    let output: Vec<Token> = decode(&table(), &sampling, 0, &PROMPT, LEN).iter().map(|(token, _)| *token).collect();
    let predicted = |(i, token): (usize, &Token)| if i % 10 == 9 { (token + 1) % 40 } else { *token };
    let prediction = output.iter().enumerate().map(predicted).collect();
    (output, prediction)
}

/// Writes the output with these drafters.
fn write(drafters: Vec<Box<dyn Drafter>>, promise: Promise, prediction: &[Token]) -> (Vec<Emitted>, Stats) {
    let mut engine = Engine::new(Box::new(ToyExecutor::new(table(), 4, 100, 64)), 1, usize::MAX);
    let drafters = drafters.into_iter().map(|drafter| engine.add_drafter(drafter)).collect();
    let request = Request {
        tokens_max: Some(LEN),
        prediction: prediction.to_vec(),
        budget: BudgetKind::Fixed { nodes: 12 },
        order: Order::LearnedBehindFirst,
        promise,
        drafters,
        ..Request::new(PROMPT.to_vec())
    };
    engine.submit(request).unwrap();
    let (mut all, mut stats) = (Vec::new(), Stats::default());
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            match event {
                Event::Tokens { emitted, .. } => all.extend_from_slice(emitted),
                Event::Finished { stats: found, .. } => stats = (**found).clone(),
                _ => {}
            }
        }
    }
    (all, stats)
}

fn prediction_drafter() -> Box<dyn Drafter> {
    Box::new(PredictionDrafter::default())
}

fn suffix_drafter() -> Box<dyn Drafter> {
    Box::new(SuffixDrafter::default())
}

#[test]
fn nodes_that_two_drafters_offer_are_counted_once_for_the_first() {
    let (expected, prediction) = output_and_prediction();
    for promise in [Promise::Exact, Promise::Rejection] {
        let mut accepted = Vec::new();
        // The suffix drafter reads the same prediction, and drafts many of the same tokens.
        for (first, drafters) in
            [(0, vec![prediction_drafter(), suffix_drafter()]), (1, vec![suffix_drafter(), prediction_drafter()])]
        {
            let (emitted, stats) = write(drafters, promise, &prediction);
            assert_eq!(emitted.iter().map(|emitted| emitted.token).collect::<Vec<_>>(), expected);
            let [prediction, suffix] = [&stats.drafters[first], &stats.drafters[1 - first]];
            assert_eq!(prediction.drafted + suffix.drafted, stats.drafted, "every node is counted for one drafter");
            assert_eq!(prediction.accepted + suffix.accepted, stats.accepted);
            let origins = emitted.iter().filter(|emitted| emitted.origin == Origin::Drafted(first as u8));
            assert_eq!(prediction.accepted, origins.count(), "{promise:?}");
            accepted.push([prediction.accepted, suffix.accepted]);
        }
        // Nodes that both offer are counted for the first.
        let is_first_better = accepted[0][0] > 10 * accepted[0][1] && accepted[0][0] > accepted[1][0] + 10;
        assert!(is_first_better, "{promise:?}: {accepted:?}");
        assert!(accepted[1][1] > accepted[0][1] + 10, "{promise:?}: {accepted:?}");
    }
}

/// A drafter that must not be called.
struct Uncalled;

impl Drafter for Uncalled {
    fn name(&self) -> &str {
        "uncalled"
    }
    fn open(&mut self, _opening: &Opening<'_>) {
        panic!("opened");
    }
    fn draft(&mut self, _asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        panic!("asked");
    }
    fn observe(&mut self, _outputs: &[StepOutput<'_>]) {
        panic!("observing");
    }
    fn close(&mut self, _sequence: SequenceId) {
        panic!("closed");
    }
}

#[test]
fn a_drafter_that_no_request_names_is_not_called() {
    let (_, prediction) = output_and_prediction();
    let mut engine = Engine::new(Box::new(ToyExecutor::new(table(), 4, 100, 64)), 2, usize::MAX);
    engine.add_drafter(Box::new(Uncalled));
    let named = engine.add_drafter(prediction_drafter());
    engine.measure_costs();
    for drafters in [vec![], vec![named]] {
        let request =
            Request { tokens_max: Some(30), prediction: prediction.clone(), drafters, ..Request::new(vec![1]) };
        engine.submit(request).unwrap();
    }
    while !engine.is_idle() {
        let failed = engine.step(&mut Race).iter().any(|event| matches!(event, Event::DrafterFailed { .. }));
        assert!(!failed, "the drafter was called and panicked");
    }
}

#[test]
fn a_prediction_that_is_nine_tenths_right_is_written_in_few_passes() {
    let (output, prediction) = output_and_prediction();
    let (emitted, stats) = write(vec![prediction_drafter()], Promise::Exact, &prediction);
    assert!(emitted.iter().map(|emitted| emitted.token).eq(output.iter().copied()));
    // One pass for each wrong token, which the target corrects, and one for the tokens after it.
    assert!(stats.passes <= 2 * LEN / 10, "{} passes", stats.passes);
    assert!(stats.accepted >= LEN * 4 / 5, "{} accepted", stats.accepted);
    let (emitted, stats) = write(vec![prediction_drafter()], Promise::Exact, &[]);
    assert!(emitted.iter().map(|emitted| emitted.token).eq(output));
    assert_eq!((stats.drafted, stats.passes), (0, LEN));
}
