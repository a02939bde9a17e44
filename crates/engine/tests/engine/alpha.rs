//! Tests that alpha, the mean overlap of the drafter's law with the target's, has one definition under every promise.
//!
//! A wrapper records what a drafter offers. Wherever a token was chosen and the drafter had offered children, it had a
//! law there, which must be in the mean, whether tokens were drawn from it or it is a point mass.

use std::sync::{Arc, Mutex};

use foretoken_drafters::{ModelDrafter, NgramDrafter, NgramSource, RandomDrafter};
use foretoken_engine::{BudgetKind, DrafterStats, Engine, Event, ExecutorScorer, Race, Request};
use foretoken_speculation::{
    Ask, Chance, Drafter, NodeId, Opening, Promise, Proposal, Sampling, SequenceId, StepOutput, Token,
};
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::ToyExecutor;

const PROMISES: [Promise; 3] = [Promise::Exact, Promise::Rejection, Promise::Block];
const PROMPT: [Token; 6] = [1, 2, 3, 1, 2, 3];

fn target() -> Table {
    Table::seeded(7, 4, 5)
}

/// The target's logits, flattened and with noise.
fn noisy_target() -> Table {
    let noise = Table::dense(7, 1, 8);
    Table::new(7, move |tokens| {
        target()
            .logits(tokens)
            .iter()
            .zip(noise.logits(tokens))
            .map(|(logit, noise)| 0.7 * logit + 0.2 * noise)
            .collect()
    })
}

fn toy(table: Table) -> Box<ToyExecutor> {
    Box::new(ToyExecutor::new(table, 4, 200, 64))
}

fn model() -> Box<dyn Drafter> {
    Box::new(ModelDrafter::new(ExecutorScorer::new(toy(noisy_target()))))
}

/// Counts of a drafter's offers.
#[derive(Default)]
struct Counts {
    /// Positions where a token was chosen and the drafter had offered children.
    positions: usize,
    /// Offers that were drawn, and offers that were not.
    drawn: usize,
    points: usize,
}

/// A drafter whose offers are counted.
struct CountedDrafter(Box<dyn Drafter>, Arc<Mutex<Counts>>);

impl Drafter for CountedDrafter {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn open(&mut self, opening: &Opening<'_>) {
        self.0.open(opening);
    }
    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        self.0.draft(asks, chance);
    }
    fn observe(&mut self, outputs: &[StepOutput<'_>]) {
        let mut counts = self.1.lock().unwrap();
        for output in outputs {
            let chosen_under = std::iter::once(None).chain(output.path.iter().map(|node: &NodeId| Some(*node)));
            counts.positions += chosen_under.filter(|node| output.tree.offers_under(*node).next().is_some()).count();
            for offer in output.tree.offers() {
                match offer.proposal {
                    Proposal::Point => counts.points += 1,
                    Proposal::Drawn(_) => counts.drawn += 1,
                }
            }
        }
        self.0.observe(outputs);
    }
    fn close(&mut self, sequence: SequenceId) {
        self.0.close(sequence);
    }
}

/// A drafter's statistics over an output of 400 tokens, by the engine and by our counts.
fn measured(drafter: Box<dyn Drafter>, sampling: &Sampling, promise: Promise) -> (DrafterStats, Counts) {
    let counts = Arc::new(Mutex::new(Counts::default()));
    let mut engine = Engine::new(toy(target()), 1, usize::MAX);
    engine.add_drafter(Box::new(CountedDrafter(drafter, Arc::clone(&counts))));
    let request = Request {
        tokens_max: Some(400),
        sampling: sampling.clone(),
        seed: 3,
        promise,
        budget: BudgetKind::Fixed { nodes: 4 },
        drafters: vec![0],
        measure: true,
        ..Request::new(PROMPT.to_vec())
    };
    engine.submit(request).unwrap();
    let mut stats = None;
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            if let Event::Finished { stats: found, .. } = event {
                stats = Some(found.drafters[0].clone());
            }
        }
    }
    (stats.unwrap(), std::mem::take(&mut *counts.lock().unwrap()))
}

#[test]
fn greedy_requests_have_the_same_alpha_under_every_promise() {
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let ngram = || -> Box<dyn Drafter> { Box::new(NgramDrafter::new(3, NgramSource::Text)) };
    for make in [model as fn() -> Box<dyn Drafter>, ngram] {
        let (exact, counts) = measured(make(), &greedy, Promise::Exact);
        assert!(
            counts.positions > 50 && exact.alpha().is_some_and(|alpha| alpha > 0.1 && alpha < 1.0),
            "{exact:?} {}",
            counts.positions
        );
        for promise in [Promise::Rejection, Promise::Block] {
            let (other, _) = measured(make(), &greedy, promise);
            assert_eq!((other.alpha(), other.overlap), (exact.alpha(), exact.overlap), "{promise:?}");
        }
    }
}

#[test]
fn laws_are_compared_wherever_a_token_was_chosen_and_the_drafter_had_a_law() {
    // Some laws are point masses, and some are not.
    let sampling = Sampling { top_k: 3, min_p: 0.5, ..Sampling::default() };
    let makes: [fn() -> Box<dyn Drafter>; 4] = [
        model,
        || {
            let mut drafter = ModelDrafter::new(ExecutorScorer::new(toy(noisy_target())));
            drafter.settings.p_split = Some(0.15);
            Box::new(drafter)
        },
        || Box::new(NgramDrafter::new(3, NgramSource::Text)),
        || {
            let mut drafter = RandomDrafter::new(7);
            drafter.support_max = 1;
            Box::new(drafter)
        },
    ];
    for (i, make) in makes.iter().enumerate() {
        for promise in PROMISES {
            let (stats, counts) = measured(make(), &sampling, promise);
            assert_eq!(stats.overlap.1, counts.positions, "{promise:?} drafter {i}");
            assert!(counts.points > 20, "{promise:?} drafter {i}: {} points", counts.points);
            let draws = promise != Promise::Exact && i < 3;
            assert_eq!(counts.drawn > 20, draws, "{promise:?} drafter {i}: {} draws", counts.drawn);
        }
    }
}

#[test]
fn alphas_of_all_promises_agree_within_a_tenth() {
    // The outputs differ, and so the compared laws; over 400 tokens the mean of numbers between 0 and 1 is accurate to
    // a few hundredths.
    let sampling = Sampling { top_k: 3, min_p: 0.5, ..Sampling::default() };
    let alphas = PROMISES.map(|promise| measured(model(), &sampling, promise).0.alpha().unwrap());
    let (low, high) = alphas.iter().fold((1.0_f64, 0.0_f64), |(low, high), alpha| (low.min(*alpha), high.max(*alpha)));
    assert!(high - low < 0.1, "{alphas:?}");
}
