//! What the engine knows of its drafters from all its requests: where a new request begins.
//!
//! Every request learns for itself, and what it learns is learned here too, apart for requests that are judged in
//! different ways: by promise, by budget, by temperature, and by the drafters in whose company each is. Acceptance
//! rates tell of drafters and not of texts, so they are shared by all tenants.

use std::collections::VecDeque;
use std::mem::{Discriminant, discriminant};

use foretoken_speculation::{Experience, Promise};

use crate::request::{BudgetKind, Request};

/// Of how many terms is remembered what is known.
const TERMS_MAX: usize = 64;

/// What decides how right drafters are: how they are judged, and in whose company. Temperatures by quarters.
#[derive(Clone, Debug, PartialEq)]
struct Terms {
    promise: Promise,
    /// Another budget is worth something else, which is the price of time in every choice.
    budget: Discriminant<BudgetKind>,
    temperature: f32,
    drafters: Vec<u8>,
}

impl Terms {
    fn of(request: &Request) -> Self {
        let (promise, drafters) = (request.promise, request.drafters.clone());
        Self { promise, budget: discriminant(&request.budget), temperature: quarters(request), drafters }
    }

    fn is_of(&self, request: &Request) -> bool {
        let same = self.promise == request.promise && self.budget == discriminant(&request.budget);
        same && self.temperature == quarters(request) && self.drafters == request.drafters
    }
}

/// The temperature in quarters, rounded up: only 0 is 0.
fn quarters(request: &Request) -> f32 {
    (4.0 * request.sampling.temperature).ceil()
}

/// What is known, the terms that were used last at the end.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    known: VecDeque<(Terms, Experience)>,
}

impl Shared {
    /// What requests on the same terms have learned.
    pub(crate) fn of(&mut self, request: &Request) -> &mut Experience {
        if let Some(at) = self.known.iter().position(|(terms, _)| terms.is_of(request)) {
            let last = self.known.len() - 1;
            (at..last).for_each(|at| self.known.swap(at, at + 1));
            return &mut self.known[last].1;
        }
        if self.known.len() == TERMS_MAX {
            self.known.pop_front();
        }
        self.known.push_back((Terms::of(request), Experience::default()));
        let last = self.known.len() - 1;
        &mut self.known[last].1
    }
}
