//! How many tokens draft models read without drafting: the chunked prefill of draft models.
//!
//! A draft model must have read a sequence before it can draft for it. If other sequences wait for the pass, it reads
//! in chunks: a prompt in the same passes as the target, and tokens that it missed while it was not asked over as many
//! passes as they need. Until then it is not asked for drafts. A drafter that is not worth asking does not read either.
//!
//! Decided elsewhere: how long the other sequences may wait (`rows`). The reading itself is in `drafting/reading.rs`.

use super::meter::READ_FREE_TOKENS;
use super::pass::{DrafterCandidate, PassPlan};
use super::rows::Scheduled;
use crate::sequence::Sequence;

/// Tokens of a chunk while the time of reading a token is unknown, and the least of the first chunk of a pass, so that
/// every sequence is read to its end.
const CHUNK_TOKENS_MIN: usize = 16;

/// A chunk of a sequence that a draft model reads: from where it stopped up to the position `until`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadChunk {
    /// The drafter's number.
    pub(crate) number: u8,
    /// The sequence's index among the running ones.
    pub(crate) index: usize,
    pub(crate) until: usize,
}

impl PassPlan<'_> {
    /// Plans that a draft model reads a prompt as far as the target does in this pass, if the draft model is worth
    /// asking. Returns the seconds that it takes per token, 0 if it reads nothing.
    pub(crate) fn read_along(&mut self, entry: &Scheduled, candidate: DrafterCandidate, sequence: &Sequence) -> f64 {
        let DrafterCandidate { number, has_network, reads_hidden, unread, .. } = candidate;
        // A head reads the target's hidden states that it has observed before this pass.
        let readable = if reads_hidden { sequence.hidden_observed() + 1 } else { usize::MAX };
        // The rows of a beam search go beyond the text.
        let until = readable.min(sequence.cache.cached + entry.token_rows).min(sequence.text.tokens.len());
        let done = sequence.text.tokens.len() - unread;
        if !has_network || until <= done {
            return 0.0;
        }
        let others: Vec<u8> = sequence.draft.drafters.iter().copied().filter(|other| *other != number).collect();
        let is_worth = || self.baseline.is_worth_asking(sequence, self.meter.costs(), candidate, &others);
        if sequence.request.budget.is_auto() && !is_worth() {
            return 0.0;
        }
        let until = until.min(done.saturating_add(self.chunk_tokens(number)));
        self.add_chunk(ReadChunk { number, index: entry.index, until }, until - done);
        self.meter.costs().drafter(number).catch_up
    }

    /// Whether a drafter has so many tokens to read that it reads a chunk instead of drafting, or nothing if other
    /// chunks take the time of the pass.
    pub(super) fn reads_chunk_instead(
        &mut self,
        index: usize,
        candidate: DrafterCandidate,
        sequence: &Sequence,
    ) -> bool {
        let DrafterCandidate { number, has_network, unread, .. } = candidate;
        let is_free = self.read_seconds == f64::INFINITY || sequence.draft.read_stalled.contains(&number);
        if is_free || !has_network || unread <= READ_FREE_TOKENS {
            return false;
        }
        let chunk = self.chunk_tokens(number);
        if unread <= chunk {
            // It reads the rest when it drafts.
            self.charge_reading(number, unread);
            return false;
        }
        let until = sequence.text.tokens.len() - unread + chunk;
        self.add_chunk(ReadChunk { number, index, until }, chunk);
        true
    }

    /// Tokens that a drafter may read in the time that is left in the pass. The first chunk of a pass is never empty.
    pub(super) fn chunk_tokens(&self, number: u8) -> usize {
        let token = self.meter.costs().drafter(number).catch_up;
        let least = if self.read_chunks.is_empty() { CHUNK_TOKENS_MIN } else { 0 };
        match self.read_seconds {
            f64::INFINITY => usize::MAX,
            seconds if token > 0.0 => ((seconds / token) as usize).max(least),
            _ => CHUNK_TOKENS_MIN,
        }
    }

    /// Adds a chunk of this many tokens to the plan, if it is not empty.
    fn add_chunk(&mut self, chunk: ReadChunk, tokens: usize) {
        self.charge_reading(chunk.number, tokens);
        self.read_chunks.extend((tokens > 0).then_some(chunk));
    }

    /// Subtracts the time of reading this many tokens from the time that is left.
    fn charge_reading(&mut self, number: u8, tokens: usize) {
        self.read_seconds -= tokens as f64 * self.meter.costs().drafter(number).catch_up;
        self.read_seconds = self.read_seconds.max(0.0);
    }
}
