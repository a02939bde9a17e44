//! What the engine knows of its drafters from all its requests: where a new request begins.
//!
//! Every request learns for itself, and what it learns is learned here too, apart for requests that are judged in different
//! ways: by promise, by temperature, and by the drafters in whose company each is. Acceptance rates tell of drafters and not
//! of texts, so they are shared by all tenants.

use std::collections::VecDeque;

use foretoken_speculation::{Experience, Promise};

use crate::request::Request;

/// Of how many terms is remembered what is known.
const TERMS_MAX: usize = 64;

/// What decides how right drafters are: how they are judged, and in whose company. Temperatures by quarters.
#[derive(Clone, Debug, PartialEq)]
struct Terms {
    promise: Promise,
    temperature: f32,
    drafters: Vec<u8>,
}

impl Terms {
    fn is_of(&self, request: &Request) -> bool {
        self.promise == request.promise && self.temperature == quarters(request) && self.drafters == request.drafters
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
        let terms =
            Terms { promise: request.promise, temperature: quarters(request), drafters: request.drafters.clone() };
        self.known.push_back((terms, Experience::default()));
        let last = self.known.len() - 1;
        &mut self.known[last].1
    }
}
