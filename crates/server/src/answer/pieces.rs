//! The parts of an answer: what the model thinks, what it says, and the tools that it calls.
//!
//! The idea: what a model writes is one text, and two readers part it, thoughts first. Text that may yet become a mark
//! or a call is held back until that is known, so an answer has the same parts whether it is told whole or streamed.
//! White space before a call is no text, or a stream would tell some that the whole answer does not have.
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
    /// White space with which the text begins where calls may come; `None` once more than that was said. It is text
    /// where no call follows.
    leading: Option<String>,
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
            let (thinking, calls, told, leading) = Default::default();
            return Self { thinking, calls, calls_max: 0, told, is_forced: false, leading };
        };
        let (thinking, calls) = (chat.thinking.clone(), chat.reader.clone());
        let (calls_max, is_forced) = (chat.calls_max(), chat.forces_calls());
        let leading = calls.is_some().then(String::new);
        Self { thinking, calls, calls_max, told: CallsTold::default(), is_forced, leading }
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
                pieces.text.push_str(&self.behind_white_space(held));
            }
            pieces.calls.extend(self.numbered(calls));
        }
        if let Some(space) = self.leading.take().filter(|_| self.told.count == 0 && !self.is_forced) {
            pieces.text.push_str(&space);
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
        let text = self.behind_white_space(text);
        Pieces { thoughts, text, calls: self.numbered(calls) }
    }

    /// Further text, with the white space that waited for it; nothing while there is nothing else.
    fn behind_white_space(&mut self, text: String) -> String {
        let Some(mut held) = self.leading.take() else { return text };
        held.push_str(&text);
        if held.trim().is_empty() {
            self.leading = Some(held);
            return String::new();
        }
        held
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

#[cfg(test)]
mod tests {
    use foretoken::ToolFormat;

    use super::*;

    /// What is told of an answer that comes in pieces of so many bytes: its text, and how many calls.
    fn told(text: &str, size: usize, is_forced: bool) -> (String, usize) {
        let calls = Some(ToolCallReader::new(ToolFormat::Hermes, &[]));
        let (told, leading) = (CallsTold::default(), Some(String::new()));
        let mut reader = PieceReader { thinking: None, calls, calls_max: 9, told, is_forced, leading };
        let mut pieces = Pieces::default();
        for piece in text.as_bytes().chunks(size) {
            pieces.extend(reader.push(std::str::from_utf8(piece).unwrap()));
        }
        pieces.extend(reader.finish());
        (pieces.text, pieces.calls.len())
    }

    #[test]
    fn white_space_before_a_call_is_no_text_however_it_comes() {
        let call = r#"<tool_call>{"name": "f", "arguments": {}}</tool_call>"#;
        for (text, is_forced, expected) in [
            (format!(" \n{call}\n{call}\n"), false, ("", 2)),
            (format!("\n\n {call}"), true, ("", 1)),
            (format!("\n so: {call}"), false, ("\n so: ", 1)),
            (" \n".to_string(), false, (" \n", 0)),
            (" \n".to_string(), true, ("", 0)),
            ("  <tool_call>{".to_string(), false, ("  <tool_call>{", 0)),
            ("  <tool_call>{".to_string(), true, ("", 0)),
            (" a ".to_string(), false, (" a ", 0)),
        ] {
            for size in [1, 3, text.len()] {
                assert_eq!(told(&text, size, is_forced), (expected.0.to_string(), expected.1), "{text:?} by {size}");
            }
        }
    }
}
