//! Shrinks a run that fails to a smaller one that still fails.
//!
//! Requests are removed, then their settings are simplified; every change with which the run still fails is kept. The
//! executor's pages and rows are not changed.

use foretoken_speculation::Sampling;

use super::{Arrival, Run};

/// Simplifies a request; returns whether that changed it.
type Simplification = fn(&mut Arrival) -> bool;

/// All simplifications of a request.
const SIMPLIFICATIONS: [Simplification; 17] = [
    |one| std::mem::take(&mut one.step) > 0,
    |one| one.cancel_after.take().is_some(),
    |one| one.stop.take().is_some(),
    |one| std::mem::take(&mut one.constrained),
    |one| one.beams.take().is_some(),
    |one| one.beams.is_none() && !std::mem::replace(&mut one.log_probabilities, true),
    |one| std::mem::take(&mut one.scores_prompt),
    |one| !std::mem::take(&mut one.drafters).is_empty(),
    |one| {
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        std::mem::replace(&mut one.sampling, greedy.clone()) != greedy
    },
    |one| std::mem::take(&mut one.tenant.0) > 0,
    |one| std::mem::take(&mut one.public_prefix) > 0,
    |one| one.checkpoint.take().is_some(),
    |one| std::mem::take(&mut one.priority) != 0,
    |one| {
        let len = one.prompt.len();
        one.prompt.truncate(len.div_ceil(2));
        one.prompt.len() < len
    },
    |one| one.prompt.len() > 1 && one.prompt.pop().is_some(),
    |one| std::mem::replace(&mut one.source, vec![0]) != [0],
    |one| {
        let plainer = one.tokens_max.saturating_sub(1).max(usize::from(one.beams.is_some()));
        std::mem::replace(&mut one.tokens_max, plainer) > plainer
    },
];

impl Run {
    /// The smallest run that was found and still `fails`.
    pub fn shrunk(mut self, fails: impl Fn(&Run) -> bool) -> Run {
        while let Some(smaller) = self.shrink_once(&fails) {
            self = smaller;
        }
        self
    }

    /// The first smaller run that fails.
    fn shrink_once(&self, fails: impl Fn(&Run) -> bool) -> Option<Run> {
        let arrivals = self.arrivals.len();
        let shorter = (0..arrivals).map(|left_out| {
            let mut run = self.clone();
            run.arrivals.remove(left_out);
            run
        });
        let simpler = (0..arrivals).flat_map(|at| {
            SIMPLIFICATIONS.iter().filter_map(move |simplify| {
                let mut run = self.clone();
                simplify(&mut run.arrivals[at]).then_some(run)
            })
        });
        let none_drafts = || self.arrivals.iter().all(|arrival| arrival.drafters.is_empty());
        let undrafted =
            (!self.drafters.is_empty() && none_drafts()).then(|| Run { drafters: Vec::new(), ..self.clone() });
        shorter.chain(simpler).chain(undrafted).find(fails)
    }
}
