//! A request that runs: what it has written so far, compared with what is expected of it.

use foretoken_engine::Beam;
use foretoken_speculation::{Tenant, Token};

use super::{Arrival, Expected, ScoredToken};
use crate::beams::Found;

/// The parts of a request that others may share: its tenant, its source, the length of its public prefix, and all of
/// its tokens; of a beam search the prompt, which hypotheses that were dropped may have continued.
pub(super) struct Sharable {
    pub(super) tenant: Tenant,
    pub(super) source: Vec<Token>,
    pub(super) public_prefix: usize,
    pub(super) tokens: Vec<Token>,
    pub(super) is_search: bool,
}

/// A request that has not ended.
pub(super) struct OpenRequest<'a> {
    pub(super) arrival: &'a Arrival,
    /// The request's encoder source.
    pub(super) source: &'a [Token],
    /// The index of the request among those that arrived.
    pub(super) at: usize,
    pub(super) expected: Expected,
    pub(super) tokens: Vec<(Token, u32)>,
    /// The tokens of the prompt as they were scored.
    pub(super) scored: Vec<ScoredToken>,
    pub(super) text: String,
    pub(super) has_beams: bool,
    /// Number of steps until the request is cancelled.
    pub(super) cancel_after: Option<usize>,
}

impl<'a> OpenRequest<'a> {
    pub(super) fn new((arrival, source): (&'a Arrival, &'a [Token]), expected: Expected, at: usize) -> OpenRequest<'a> {
        OpenRequest {
            arrival,
            source,
            at,
            expected,
            tokens: Vec::new(),
            scored: Vec::new(),
            text: String::new(),
            has_beams: false,
            cancel_after: arrival.cancel_after,
        }
    }

    /// What other requests may share of the request, its whole output included.
    pub(super) fn sharable(&self) -> Sharable {
        let Arrival { tenant, public_prefix, prompt, .. } = self.arrival;
        let answer = self.expected.tokens.iter().map(|(token, _)| *token);
        let tokens = prompt.iter().copied().chain(answer).collect();
        // With a source no prefix is public.
        let public_prefix = if self.source.is_empty() { *public_prefix } else { 0 };
        let is_search = self.arrival.beams.is_some();
        Sharable { tenant: *tenant, source: self.source.to_vec(), public_prefix, tokens, is_search }
    }

    /// Checks that no more of the prompt was shared than its tenant may share with other requests.
    pub(super) fn compare_shared(&self, shared: usize, sharable: &[Sharable]) -> Result<(), String> {
        let Arrival { prompt, tenant, .. } = self.arrival;
        let others = sharable.iter().enumerate().filter(|(at, other)| *at != self.at && other.source == self.source);
        let most = others.map(|(_, other)| {
            let agree = other.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
            let agree = if other.is_search && agree == other.tokens.len() { prompt.len() } else { agree };
            if other.tenant == *tenant { agree } else { agree.min(other.public_prefix) }
        });
        let most = if self.arrival.scores_prompt { 0 } else { most.max().unwrap_or(0) };
        if shared > most {
            return Err(format!("{}: {shared} tokens of the prompt were shared, of {most}", self.arrival));
        }
        Ok(())
    }

    /// Compares the hypotheses of a beam search, which are reported once.
    pub(super) fn compare_beams(&mut self, beams: &[Beam]) -> Result<(), String> {
        let (expected, found) = (&self.expected.beams, Found::all(beams));
        match found == *expected && !std::mem::replace(&mut self.has_beams, true) {
            true => Ok(()),
            false => Err(format!("{}: expected {expected:?}, found {found:?}", self.arrival)),
        }
    }

    /// Whether the naive decoder found no possible token before the output was complete.
    pub(super) fn tokens_are_impossible(&self) -> bool {
        if self.arrival.beams.is_some() {
            return self.expected.beams.is_empty();
        }
        self.expected.tokens.len() < self.arrival.tokens_max && !self.expected.stopped
    }

    /// Compares the scored tokens of the prompt: all of them if `complete`, else those so far.
    pub(super) fn compare_scored(&self, complete: bool) -> Result<(), String> {
        let (found, expected) = (&self.scored, &self.expected.scored);
        if if complete { found == expected } else { expected.starts_with(found) } {
            return Ok(());
        }
        let at = expected.iter().zip(found).take_while(|(a, b)| a == b).count();
        let (expected_len, found_len) = (expected.len(), found.len());
        let (expected, found) = (expected.get(at), found.get(at));
        Err(format!(
            "{}: prompt token {at}: expected {expected:?} of {expected_len}, found {found:?} of {found_len}",
            self.arrival
        ))
    }

    /// Compares the output: all of it if `complete`, else the tokens so far.
    pub(super) fn compare(&self, complete: bool) -> Result<(), String> {
        let (found, expected) = (&self.tokens, &self.expected);
        let same = if complete { *found == expected.tokens } else { expected.tokens.starts_with(found) };
        if !same {
            let at = expected.tokens.iter().zip(found).take_while(|(a, b)| a == b).count();
            return Err(format!(
                "{}: token {at}: expected {:?} of {}, found {:?} of {}",
                self.arrival,
                expected.tokens.get(at),
                expected.tokens.len(),
                found.get(at),
                found.len()
            ));
        }
        if complete && self.text != expected.text {
            return Err(format!("{}: expected the text {:?}, found {:?}", self.arrival, expected.text, self.text));
        }
        Ok(())
    }
}
