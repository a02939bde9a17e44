//! alpha, the mean overlap of the drafter's law with the target's, has one definition under every promise.
//!
//! A drafter is watched: where it offered something at a place at which a token was chosen, it had a law there, and
//! that place must be in the mean, whether the law was drawn from or is a point mass.

use std::sync::{Arc, Mutex};

use foretoken_drafters::{ModelDrafter, NgramDrafter, NgramSource, RandomDrafter};
use foretoken_engine::{BudgetKind, DrafterStats, Engine, Event, ExecutorScorer, Race, Request};
use foretoken_speculation::{
    Ask, Chance, Drafter, News, NodeId, Opening, Promise, Proposal, Sampling, SequenceId, Token,
};
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::ToyExecutor;

const PROMISES: [Promise; 3] = [Promise::Exact, Promise::Rejection, Promise::Block];
const PROMPT: [Token; 6] = [1, 2, 3, 1, 2, 3];

fn target() -> Table {
    Table::seeded(7, 4, 5)
}

/// The target, less sure of itself and with opinions of its own.
fn likeness() -> Table {
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
    Box::new(ModelDrafter::new(ExecutorScorer::new(toy(likeness()))))
}

/// What was seen of a drafter.
#[derive(Default)]
struct Seen {
    /// Places where a token was chosen and it had offered something.
    places: usize,
    /// Offers that were drawn, and offers that were not.
    drawn: usize,
    points: usize,
}

/// A drafter that is watched.
struct Watched(Box<dyn Drafter>, Arc<Mutex<Seen>>);

impl Drafter for Watched {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn open(&mut self, opening: &Opening<'_>) {
        self.0.open(opening);
    }
    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        self.0.draft(asks, chance);
    }
    fn observe(&mut self, news: &[News<'_>]) {
        let mut seen = self.1.lock().unwrap();
        for news in news {
            let chosen_at = std::iter::once(None).chain(news.path.iter().map(|node: &NodeId| Some(*node)));
            seen.places += chosen_at.filter(|place| news.tree.offers_under(*place).next().is_some()).count();
            for offer in news.tree.offers() {
                match offer.proposal {
                    Proposal::Point => seen.points += 1,
                    Proposal::Drawn(_) => seen.drawn += 1,
                }
            }
        }
        self.0.observe(news);
    }
    fn close(&mut self, sequence: SequenceId) {
        self.0.close(sequence);
    }
}

/// What a drafter did over a text of 400 tokens, by the engine's count and by ours.
fn measured(drafter: Box<dyn Drafter>, sampling: &Sampling, promise: Promise) -> (DrafterStats, Seen) {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let mut engine = Engine::new(toy(target()), 1, usize::MAX);
    engine.add_drafter(Box::new(Watched(drafter, Arc::clone(&seen))));
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
    (stats.unwrap(), std::mem::take(&mut *seen.lock().unwrap()))
}

#[test]
fn greedy_texts_have_one_alpha_under_every_promise() {
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let ngram = || -> Box<dyn Drafter> { Box::new(NgramDrafter::new(3, NgramSource::Text)) };
    for make in [model as fn() -> Box<dyn Drafter>, ngram] {
        let (exact, seen) = measured(make(), &greedy, Promise::Exact);
        assert!(
            seen.places > 50 && exact.alpha().is_some_and(|alpha| alpha > 0.1 && alpha < 1.0),
            "{exact:?} {}",
            seen.places
        );
        for promise in [Promise::Rejection, Promise::Block] {
            let (other, _) = measured(make(), &greedy, promise);
            assert_eq!((other.alpha(), other.overlap), (exact.alpha(), exact.overlap), "{promise:?}");
        }
    }
}

#[test]
fn every_place_where_a_token_was_chosen_and_the_drafter_had_a_law_is_compared() {
    // Some laws are point masses, and some are not.
    let sampling = Sampling { top_k: 3, min_p: 0.5, ..Sampling::default() };
    let makes: [fn() -> Box<dyn Drafter>; 4] = [
        model,
        || {
            let mut drafter = ModelDrafter::new(ExecutorScorer::new(toy(likeness())));
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
            let (stats, seen) = measured(make(), &sampling, promise);
            assert_eq!(stats.overlap.1, seen.places, "{promise:?} drafter {i}");
            assert!(seen.points > 20, "{promise:?} drafter {i}: {} points", seen.points);
            let draws = promise != Promise::Exact && i < 3;
            assert_eq!(seen.drawn > 20, draws, "{promise:?} drafter {i}: {} draws", seen.drawn);
        }
    }
}

#[test]
fn alphas_of_all_promises_are_near_each_other() {
    // The texts differ, so the places do; over 400 tokens a mean of numbers between 0 and 1 is known to a few
    // hundredths.
    let sampling = Sampling { top_k: 3, min_p: 0.5, ..Sampling::default() };
    let alphas = PROMISES.map(|promise| measured(model(), &sampling, promise).0.alpha().unwrap());
    let (low, high) = alphas.iter().fold((1.0_f64, 0.0_f64), |(low, high), alpha| (low.min(*alpha), high.max(*alpha)));
    assert!(high - low < 0.1, "{alphas:?}");
}
