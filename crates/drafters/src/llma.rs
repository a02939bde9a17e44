//! LLMA: spans of a reference are copied once the answer has begun to repeat it.
//!
//! Yang et al. 2023 ("Inference with Reference", arXiv 2304.04487): an answer from documents, or a corrected text,
//! repeats parts of its source. If the last n tokens of the answer occur in the reference, the k tokens after them are
//! proposed, as one chain. As in its authors' program the longest run is looked for first, from [`RUN_MAX`] down to n,
//! and of several equally long ones the earliest is copied.
//!
//! The reference is the request's prediction, if it has one, and its prompt. So it differs from prompt lookup
//! ([`crate::SuffixDrafter`], whose index and votes are used here): the answer is never copied from itself, and a run
//! never reaches back into the prompt, so nothing is proposed before n tokens of the answer are written.
//!
//! References of earlier requests, as in the authors' session cache, are not kept; suffix matching has those. As the
//! inner drafter of a draft model with another vocabulary, which is given no prompt, this drafter has nothing to copy.

use std::collections::BTreeMap;

use crate::continuations::{Bounds, Continuations, Source};
use crate::history::{END, History};
use foretoken_speculation::{Ask, Drafter, Opening};
use foretoken_speculation::{Chance, SequenceId};

/// Longest run of last tokens that is looked for, unless the shortest is longer.
const RUN_MAX: usize = 5;

/// A [`Drafter`] that copies what followed the answer's last tokens in the prompt, or in a prediction. Proposes point
/// masses; needs no model and no chance.
#[derive(Debug)]
pub struct LlmaDrafter {
    /// Maximum number of tokens copied per pass; k of Yang et al.
    pub copied_max: usize,
    /// Minimum number of tokens that must match; n of Yang et al.
    run_min: usize,
    references: BTreeMap<SequenceId, History>,
    continuations: Continuations,
}

impl Default for LlmaDrafter {
    fn default() -> LlmaDrafter {
        LlmaDrafter::new(1, 7)
    }
}

impl LlmaDrafter {
    /// A drafter that copies up to `copied_max` tokens after a match of `run_min` tokens or more.
    ///
    /// # Panics
    ///
    /// Panics if `run_min` is 0.
    pub fn new(run_min: usize, copied_max: usize) -> LlmaDrafter {
        assert!(run_min >= 1, "a run of 0 tokens matches everywhere");
        let (references, continuations) = (BTreeMap::new(), Continuations::default());
        LlmaDrafter { copied_max, run_min, references, continuations }
    }

    fn propose(&mut self, ask: &mut Ask<'_>) {
        let reference = self.references.get(&ask.sequence);
        let reference = reference.unwrap_or_else(|| panic!("{:?} was not opened", ask.sequence));
        let answer = &ask.tokens[ask.prompt_len..];
        // The first source is the running sequence, from which nothing is copied.
        let sources = [Source { tokens: ask.tokens, share: 1.0 }, Source { tokens: reference.tokens(), share: 1.0 }];
        let found = &mut self.continuations;
        found.clear();
        found.gather(1, reference, answer, (0.0, self.copied_max as f32), 1, true);
        let bounds = Bounds { nodes_max: self.copied_max, depth_max: self.copied_max, token_min: 0.0, gain_min: 0.0 };
        found.offer(ask, &sources, 0, bounds);
    }
}

impl Drafter for LlmaDrafter {
    fn name(&self) -> &str {
        "llma"
    }

    fn open(&mut self, opening: &Opening<'_>) {
        let mut reference = History::new(self.run_min..=self.run_min.max(RUN_MAX));
        let [prediction, source, prompt] = [opening.prediction, opening.source, opening.prompt].map(<[_]>::iter);
        let source = source.chain(if opening.source.is_empty() { &[][..] } else { &[END] });
        prediction.chain([&END]).chain(source).chain(prompt).for_each(|token| reference.push(*token));
        let before = self.references.insert(opening.sequence, reference);
        assert!(before.is_none(), "{:?} was opened twice", opening.sequence);
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        asks.iter_mut().for_each(|ask| self.propose(ask));
    }

    fn close(&mut self, sequence: SequenceId) {
        self.references.remove(&sequence);
    }
}

#[cfg(test)]
mod tests;
