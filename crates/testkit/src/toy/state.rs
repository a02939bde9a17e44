//! Recurrent states of a toy: what a state has passed, in order, so that whatever it passed wrongly is another text.
//!
//! A real state is a sum of everything that it has passed and cannot go back. This one only ever grows, too, and knows
//! by what: the rows of accepted guesses at the beginning of the next pass, certain rows with their own. Rows of
//! guesses lie behind it as inputs, where they are moved and dropped like keys and values. [`Fault`] lets it pass too
//! much.

use foretoken_model::Span;
use foretoken_speculation::Token;

use super::Fault;

/// One slot.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// Whose text it is of; `None` of a copy.
    sequence: Option<u64>,
    /// The tokens that it has passed.
    passed: Vec<Token>,
    /// Inputs of the rows behind it.
    inputs: Vec<Token>,
}

impl State {
    /// Takes in the rows of a span. A text that begins finds whatever the slot held before, and takes it over empty.
    pub(super) fn take(&mut self, span: &Span<'_>, fault: Fault) {
        if span.start == 0 && span.computed == 0 {
            *self = Self::default();
        }
        let sequence = *self.sequence.get_or_insert(span.sequence);
        assert_eq!(sequence, span.sequence, "a state of another text: {span:?}");
        // What lies before the start is the text by now; of what lies behind it the computed rows stay, unless they are
        // certain, and were passed.
        let accepted = span.start.saturating_sub(self.passed.len());
        let early = self.passed.len().saturating_sub(span.start);
        if fault == Fault::None {
            let (come, rows) = (span.start, self.inputs.len());
            assert!(accepted <= rows, "the text has come to {come}, its state to {}", self.passed.len());
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
        // What a state has passed too often lies at its end.
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

    /// The same as another text's.
    pub(super) fn taken_over(&self) -> Self {
        Self { sequence: None, ..self.clone() }
    }

    /// A copy that has come to this position.
    pub(super) fn up_to(&self, end: usize, fault: Fault) -> Self {
        let Self { passed, inputs, .. } = self;
        let room = passed.len()..=passed.len() + inputs.len();
        assert!(room.contains(&end) || fault != Fault::None, "a copy up to {end} of a state at {room:?}");
        let behind = end.saturating_sub(passed.len()).min(inputs.len());
        Self { sequence: None, passed: passed.clone(), inputs: inputs[..behind].to_vec() }
    }

    /// Appends it as bytes: what it has passed, filled up, then the inputs behind it.
    pub(super) fn save(&self, passed: usize, passed_max: usize, out: &mut Vec<u8>) {
        assert_eq!(self.passed.len(), passed, "a state that is saved");
        let filled = self.passed.iter().copied().chain(std::iter::repeat(0)).take(passed_max);
        filled.chain(self.inputs.iter().copied()).for_each(|token| out.extend_from_slice(&token.to_le_bytes()));
    }

    /// One that was saved.
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
