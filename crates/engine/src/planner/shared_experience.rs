//! The experience with drafters over all requests of the engine, with which a new request begins.
//!
//! Every sequence learns its own experience, and the same observations are learned here. Requests share an experience
//! if they have the same promise, lenience, kind of budget, drafters and (by quarters) temperature, since acceptance
//! depends on these. Acceptance rates contain no text of a request, so all tenants share them.

use std::collections::VecDeque;
use std::mem::{Discriminant, discriminant};

use foretoken_speculation::{Experience, Promise};

use crate::request::{BudgetKind, Request};

/// Maximum number of kinds of requests whose experience is kept, a bound on memory; the least recently used is dropped.
const KEYS_MAX: usize = 64;

/// The settings of a request that decide how right its drafters are.
#[derive(Clone, Debug, PartialEq)]
struct ExperienceKey {
    promise: Promise,
    lenience: f32,
    /// The budget decides the speedup, by which every choice values time.
    budget: Discriminant<BudgetKind>,
    /// In quarters.
    temperature: f32,
    drafters: Vec<u8>,
}

impl ExperienceKey {
    fn of(request: &Request) -> Self {
        let (promise, lenience, drafters) = (request.promise, request.lossy_lenience, request.drafters.clone());
        let (budget, temperature) = (discriminant(&request.budget), temperature_quarters(request));
        Self { promise, lenience, budget, temperature, drafters }
    }

    fn is_of(&self, request: &Request) -> bool {
        let same = self.promise == request.promise && self.budget == discriminant(&request.budget);
        let same = same && self.lenience == request.lossy_lenience;
        same && self.temperature == temperature_quarters(request) && self.drafters == request.drafters
    }
}

/// The temperature in quarters, rounded up, so that only greedy requests have 0.
fn temperature_quarters(request: &Request) -> f32 {
    (4.0 * request.sampling.temperature).ceil()
}

/// The experience of each kind of request.
#[derive(Debug, Default)]
pub(super) struct SharedExperience {
    /// The most recently used last.
    entries: VecDeque<(ExperienceKey, Experience)>,
}

impl SharedExperience {
    /// The experience of requests of the same kind.
    pub(super) fn of(&mut self, request: &Request) -> &mut Experience {
        if let Some(at) = self.entries.iter().position(|(key, _)| key.is_of(request)) {
            let last = self.entries.len() - 1;
            (at..last).for_each(|at| self.entries.swap(at, at + 1));
            return &mut self.entries[last].1;
        }
        if self.entries.len() == KEYS_MAX {
            self.entries.pop_front();
        }
        self.entries.push_back((ExperienceKey::of(request), Experience::default()));
        let last = self.entries.len() - 1;
        &mut self.entries[last].1
    }
}
