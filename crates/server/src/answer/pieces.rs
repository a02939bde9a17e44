//! The parts of an answer: what the model thinks, what it says, and the tools that it calls.
//!
//! The idea: what a model writes is one text, and two readers part it, thoughts first. Text that may yet become a mark
//! or a call is held back until that is known, so an answer has the same parts whether it is told whole or streamed.
//! Left out: how parts are told.

use foretoken::{AnswerPiece, ThinkingPieces, ThinkingReader, ToolCall, ToolCallReader};

use super::Kind;

/// Parts an answer while it is written.
pub(crate) struct PieceReader {
    thinking: Option<ThinkingReader>,
    calls: Option<ToolCallReader>,
    /// Most calls that are told, and how many were.
    calls_max: usize,
    told: CallsTold,
    /// Whether the answer is calls and nothing else.
    is_forced: bool,
}

/// What is told of the calls in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallsTold {
    pub(crate) count: usize,
    /// The last that had to come was cut, and is not told.
    pub(crate) is_cut: bool,
}

/// What is new of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pieces {
    pub(crate) thoughts: String,
    pub(crate) text: String,
    /// Each with its number among those of the answer.
    pub(crate) calls: Vec<(usize, ToolCall)>,
}

impl PieceReader {
    pub(crate) fn new(kind: &Kind) -> Self {
        let Kind::Chat(chat) = kind else {
            let (thinking, calls, told) = Default::default();
            return Self { thinking, calls, calls_max: 0, told, is_forced: false };
        };
        let (thinking, calls) = (chat.thinking.clone(), chat.reader.clone());
        let (calls_max, is_forced) = (chat.calls_max(), chat.forces_calls());
        Self { thinking, calls, calls_max, told: CallsTold::default(), is_forced }
    }

    /// The parts of further text, as far as they are certain.
    pub(crate) fn push(&mut self, text: &str) -> Pieces {
        let parted = match &mut self.thinking {
            Some(reader) => reader.push(text),
            None => ThinkingPieces { thoughts: String::new(), answer: text.to_string() },
        };
        self.part(parted)
    }

    /// What was held back, once nothing more comes. Half of a call that had to come is no text.
    pub(crate) fn finish(&mut self) -> Pieces {
        let mut pieces = match self.thinking.take() {
            Some(mut reader) => self.part(reader.finish()),
            None => Pieces::default(),
        };
        if let Some(mut reader) = self.calls.take() {
            let (held, calls) = parted(reader.finish());
            self.told.is_cut = self.is_forced && !held.trim().is_empty();
            if !self.told.is_cut {
                pieces.text.push_str(&held);
            }
            pieces.calls.extend(self.numbered(calls));
        }
        pieces
    }

    /// Whether the answer is calls and nothing else.
    pub(crate) fn is_forced(&self) -> bool {
        self.is_forced
    }

    /// What was told of calls so far.
    pub(crate) fn told(&self) -> CallsTold {
        self.told
    }

    fn part(&mut self, ThinkingPieces { thoughts, answer }: ThinkingPieces) -> Pieces {
        let (text, calls) = match &mut self.calls {
            Some(reader) => parted(reader.push(&answer)),
            None => (answer, Vec::new()),
        };
        Pieces { thoughts, text, calls: self.numbered(calls) }
    }

    fn numbered(&mut self, calls: Vec<ToolCall>) -> Vec<(usize, ToolCall)> {
        let first = self.told.count;
        let numbered: Vec<_> = (first..self.calls_max).zip(calls).collect();
        self.told.count += numbered.len();
        numbered
    }
}

impl Pieces {
    pub(crate) fn is_empty(&self) -> bool {
        self.thoughts.is_empty() && self.text.is_empty() && self.calls.is_empty()
    }

    /// With what comes behind.
    pub(crate) fn extend(&mut self, more: Self) {
        self.thoughts.push_str(&more.thoughts);
        self.text.push_str(&more.text);
        self.calls.extend(more.calls);
    }
}

/// The text of pieces, and their calls.
fn parted(pieces: Vec<AnswerPiece>) -> (String, Vec<ToolCall>) {
    let (mut text, mut all) = (String::new(), Vec::new());
    for piece in pieces {
        match piece {
            AnswerPiece::Text(more) => text.push_str(&more),
            AnswerPiece::Calls { calls, .. } => all.extend(calls),
        }
    }
    (text, all)
}
