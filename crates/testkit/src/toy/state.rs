//! Recurrent states of a toy: the list of tokens that a state has advanced over, so that a wrong one changes the
//! output.
//!
//! A real state is a sum over all tokens so far, and cannot go back. This state only grows, too: it advances over
//! accepted drafted rows at the beginning of the next pass, and over certain rows in their own pass. Drafted rows are
//! kept after it as inputs, where they are moved and dropped like keys and values. A [`Fault`] lets it advance too far.

use foretoken_model::Span;
use foretoken_speculation::Token;

use super::Fault;

/// The state in one slot.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// The sequence that it belongs to; `None` for a copy.
    sequence: Option<u64>,
    /// The tokens that it has advanced over.
    passed: Vec<Token>,
    /// The inputs of the rows after it.
    inputs: Vec<Token>,
}

impl State {
    /// Processes the rows of a span. A sequence that begins clears the slot first.
    pub(super) fn take(&mut self, span: &Span<'_>, fault: Fault) {
        if span.start == 0 && span.computed == 0 {
            *self = Self::default();
        }
        let sequence = *self.sequence.get_or_insert(span.sequence);
        assert_eq!(sequence, span.sequence, "a state of another sequence: {span:?}");
        // Inputs before the start were accepted. Of the inputs after it those of computed rows stay, unless they are
        // certain and the state has advanced over them.
        let accepted = span.start.saturating_sub(self.passed.len());
        let early = self.passed.len().saturating_sub(span.start);
        if fault == Fault::None {
            let (start, rows) = (span.start, self.inputs.len());
            assert!(accepted <= rows, "the span starts at {start}, its state has passed {}", self.passed.len());
            assert!(early <= span.certain.min(span.computed), "the state has passed {early} rows of {span:?}");
        }
        self.passed.extend(self.inputs.drain(..accepted.min(self.inputs.len())));
        self.inputs.truncate(span.computed.saturating_sub(early));
        for (i, token) in span.tokens.iter().enumerate().skip(span.computed) {
            if i < span.certain {
                self.passed.push(*token);
            } else {
                self.inputs.push(*token);
            }
        }
        if fault == Fault::GuessPassed {
            self.passed.append(&mut self.inputs.clone());
        }
    }

    /// The tokens of row `i` of a span, all before it included.
    pub(super) fn context(&self, span: &Span<'_>, i: usize) -> Vec<Token> {
        // Tokens that a state has advanced over twice are at its end.
        let surplus = self.passed.len() - (span.start + span.certain).min(self.passed.len());
        if i < span.certain {
            return self.passed[..(span.start + i + 1 + surplus).min(self.passed.len())].to_vec();
        }
        let mut guesses: Vec<Token> = Vec::new();
        let mut at = Some(i);
        while let Some(row) = at.filter(|row| *row >= span.certain) {
            guesses.push(self.inputs[row - span.certain]);
            at = span.parent(row);
        }
        self.passed.iter().copied().chain(guesses.into_iter().rev()).collect()
    }

    /// A copy that may become another sequence's.
    pub(super) fn without_owner(&self) -> Self {
        Self { sequence: None, ..self.clone() }
    }

    /// A copy up to this position.
    pub(super) fn up_to(&self, end: usize, fault: Fault) -> Self {
        let Self { passed, inputs, .. } = self;
        let room = passed.len()..=passed.len() + inputs.len();
        assert!(room.contains(&end) || fault != Fault::None, "a copy up to {end} of a state at {room:?}");
        let behind = end.saturating_sub(passed.len()).min(inputs.len());
        Self { sequence: None, passed: passed.clone(), inputs: inputs[..behind].to_vec() }
    }

    /// Appends the state as bytes: its tokens, padded to `passed_max`, then the inputs after them.
    pub(super) fn save(&self, passed: usize, passed_max: usize, out: &mut Vec<u8>) {
        assert_eq!(self.passed.len(), passed, "a state that is saved");
        let filled = self.passed.iter().copied().chain(std::iter::repeat(0)).take(passed_max);
        filled.chain(self.inputs.iter().copied()).for_each(|token| out.extend_from_slice(&token.to_le_bytes()));
    }

    /// A state that was saved.
    pub(super) fn loaded(passed: &[Token], inputs: &[Token]) -> Self {
        Self { sequence: None, passed: passed.to_vec(), inputs: inputs.to_vec() }
    }

    /// Moves inputs of rows, by position.
    pub(super) fn move_rows(&mut self, from: &[usize], to: usize) {
        for (from, to) in from.iter().zip(to..) {
            let behind = self.passed.len();
            if let [Some(from), Some(to)] = [from, &to].map(|position| position.checked_sub(behind)) {
                self.inputs[to] = self.inputs[from];
            }
        }
    }
}
