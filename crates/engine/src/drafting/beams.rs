//! Asks a draft model for the next hypotheses of a beam search, and isolates its faults.

use foretoken_speculation::{BeamAsk, BeamLeaf, Token};

use super::{Drafters, guarded};
use crate::beams::{DraftedSteps, Hypothesis};
use crate::clock::Clock;
use crate::output::Event;
use crate::sequence::{Sequence, SequenceBeams};

/// The limits of a draft for a beam search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BeamLimits {
    /// Maximum number of steps.
    pub(crate) depth_max: usize,
    /// Maximum number of hypotheses of each step.
    pub(crate) width: usize,
    /// Number of tokens.
    pub(crate) vocabulary: usize,
}

impl Drafters {
    /// Whether this drafter drafts for beam searches.
    pub(super) fn drafts_beams(&self, number: u8) -> bool {
        let member = &self.members[usize::from(number)];
        guarded(|| member.drafter.drafts_beams()).unwrap_or(false)
    }

    /// Tokens of the text of a beam search that its drafter has not read.
    pub(crate) fn unread_of_beams(&self, number: u8, sequence: &Sequence) -> usize {
        let drafter = &self.members[usize::from(number)].drafter;
        guarded(|| drafter.unread(sequence.id, sequence.text.tokens.len())).unwrap_or(0)
    }

    /// Lets a drafter add rows to the tree of a beam search. Returns the seconds of a step of it, if any was made and
    /// the clock is known. A drafter that panics or breaks a rule is dropped for the sequence.
    pub(crate) fn draft_beams(
        &mut self,
        number: u8,
        sequence: &mut Sequence,
        limits: BeamLimits,
        clock: &dyn Clock,
        events: &mut Vec<Event>,
    ) -> Option<f64> {
        let Sequence { id, request, text, beams, stats, .. } = sequence;
        let SequenceBeams { search, tree, drafted: steps, .. } = beams.as_mut()?;
        let running = search.running().iter();
        let leaves: Vec<BeamLeaf<'_>> = running.filter_map(leaf).collect();
        let mut drafted: Vec<(u32, Token)> = Vec::new();
        let mut ask = BeamAsk {
            sequence: *id,
            tokens: &text.tokens,
            prompt_len: request.prompt.len(),
            sampling: &request.sampling,
            rows: tree.tokens(),
            parents: tree.parents(),
            beams: &leaves,
            depth_max: limits.depth_max,
            beams_max: search.beams_max(),
            width: limits.width,
            drafted: &mut drafted,
        };
        let member = &mut self.members[usize::from(number)];
        let started = clock.now();
        let called = guarded(|| member.drafter.draft_beams(&mut ask));
        let time = clock.since(started);
        stats.drafters[usize::from(number)].time += time.unwrap_or_default();
        if let Some(message) = called.err().or_else(|| problem(&drafted, tree.len(), limits)) {
            self.drop_for(number, sequence, message, events);
            return None;
        }
        drafted.iter().for_each(|(row, token)| {
            tree.add(Some(*row), *token);
        });
        stats.beams.drafted += drafted.len();
        *steps = DraftedSteps::new(drafted.len(), limits.width, search.step_kind(), tree.len() - drafted.len());
        (steps.left() > 0).then_some(())?;
        time.map(|time| time.as_secs_f64() / steps.left() as f64)
    }
}

/// A hypothesis as drafters see it; `None` before its first token.
fn leaf(hypothesis: &Hypothesis) -> Option<BeamLeaf<'_>> {
    let Hypothesis { row, log_probability, scores, .. } = hypothesis;
    Some(BeamLeaf { row: (*row)?, log_probability: *log_probability, scores: scores.as_deref() })
}

/// The rule that proposals break, if any. `rows`: rows before them.
fn problem(drafted: &[(u32, Token)], rows: usize, limits: BeamLimits) -> Option<String> {
    let BeamLimits { depth_max, width, vocabulary } = limits;
    if drafted.len() > depth_max * width {
        return Some(format!("expected at most {depth_max} steps of {width} tokens, found {} tokens", drafted.len()));
    }
    let unknown = drafted.iter().find(|(_, token)| *token as usize >= vocabulary);
    if let Some((_, token)) = unknown {
        return Some(format!("expected tokens below {vocabulary} (the vocabulary), found {token}"));
    }
    let mut numbered = drafted.iter().enumerate();
    let (at, (row, _)) = numbered.find(|(at, (row, _))| *row as usize >= rows + at)?;
    Some(format!("expected a row before row {} to continue, found {row}", rows + at))
}
