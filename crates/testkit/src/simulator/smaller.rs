//! A run that fails, made smaller for as long as it fails.
//!
//! Requests are left out, then what each asks for is made plainer; whatever still fails is kept. Left out: the
//! executor, whose pages and rows are what they are.

use foretoken_speculation::Sampling;

use super::{Arrival, Run};

/// A plainer request, if it is not that plain already.
type Plainer = fn(&mut Arrival) -> bool;

/// Ways in which a request can be plainer.
const WAYS: [Plainer; 16] = [
    |one| std::mem::take(&mut one.step) > 0,
    |one| one.patience.take().is_some(),
    |one| one.stop.take().is_some(),
    |one| std::mem::take(&mut one.constrained),
    |one| !std::mem::replace(&mut one.told, true),
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
        let plainer = one.tokens_max.saturating_sub(1);
        std::mem::replace(&mut one.tokens_max, plainer) > plainer
    },
];

impl Run {
    /// The smallest run that this one could be made into and that still `fails`.
    pub fn smallest(mut self, fails: impl Fn(&Run) -> bool) -> Run {
        while let Some(smaller) = self.smaller(&fails) {
            self = smaller;
        }
        self
    }

    /// A smaller run that fails.
    fn smaller(&self, fails: impl Fn(&Run) -> bool) -> Option<Run> {
        let arrivals = self.arrivals.len();
        let shorter = (0..arrivals).map(|left_out| {
            let mut run = self.clone();
            run.arrivals.remove(left_out);
            run
        });
        let plainer = (0..arrivals).flat_map(|at| {
            WAYS.iter().filter_map(move |way| {
                let mut run = self.clone();
                way(&mut run.arrivals[at]).then_some(run)
            })
        });
        let nobody_drafts = || self.arrivals.iter().all(|arrival| arrival.drafters.is_empty());
        let alone =
            (!self.drafters.is_empty() && nobody_drafts()).then(|| Run { drafters: Vec::new(), ..self.clone() });
        shorter.chain(plainer).chain(alone).find(fails)
    }
}
