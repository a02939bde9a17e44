//! The parts of an answer: the model's reasoning, its text, and its tool calls.
//!
//! The model generates one text, which two readers split: first the reasoning, then the calls. Text that may be the
//! beginning of a tag or a call is buffered until that is certain, so complete and streamed answers have the same
//! parts. White space before a call is dropped, since a stream cannot take it back once the call follows.

use foretoken::{AnswerPiece, ThinkingPieces, ThinkingReader, ToolCall, ToolCallReader};

use super::RequestKind;

/// Splits an answer into its parts while it is generated.
pub(crate) struct AnswerParser {
    thinking: Option<ThinkingReader>,
    calls: Option<ToolCallReader>,
    /// Maximum number of calls that are returned.
    calls_max: usize,
    reported: ReportedCalls,
    /// Whether the answer consists of calls only.
    is_forced: bool,
    /// White space at the beginning of the text, if calls may follow; `None` once other text was returned. It is
    /// returned if no call follows.
    leading: Option<String>,
}

/// The calls of an answer that were returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReportedCalls {
    pub(crate) count: usize,
    /// Whether a required call was cut, so that it is not returned.
    pub(crate) is_cut: bool,
}

/// Parts of an answer; of a stream, those that are new.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AnswerParts {
    pub(crate) reasoning: String,
    pub(crate) text: String,
    /// The calls, each with its index in the answer.
    pub(crate) calls: Vec<(usize, ToolCall)>,
}

impl AnswerParser {
    pub(crate) fn new(kind: &RequestKind) -> Self {
        let RequestKind::Chat(chat) = kind else {
            let (thinking, calls, reported, leading) = Default::default();
            return Self { thinking, calls, calls_max: 0, reported, is_forced: false, leading };
        };
        let (thinking, calls) = (chat.thinking.clone(), chat.reader.clone());
        let (calls_max, is_forced) = (chat.calls_max(), chat.forces_calls());
        let leading = calls.is_some().then(String::new);
        Self { thinking, calls, calls_max, reported: ReportedCalls::default(), is_forced, leading }
    }

    /// The parts of further text that are certain.
    pub(crate) fn push(&mut self, text: &str) -> AnswerParts {
        let split = match &mut self.thinking {
            Some(reader) => reader.push(text),
            None => ThinkingPieces { thoughts: String::new(), answer: text.to_string() },
        };
        self.split(split)
    }

    /// The buffered parts, at the end of the answer. A required call that is incomplete is dropped.
    pub(crate) fn finish(&mut self) -> AnswerParts {
        let mut parts = match self.thinking.take() {
            Some(mut reader) => self.split(reader.finish()),
            None => AnswerParts::default(),
        };
        if let Some(mut reader) = self.calls.take() {
            let (buffered, calls) = text_and_calls(reader.finish());
            self.reported.is_cut = self.is_forced && !buffered.trim().is_empty();
            if !self.reported.is_cut {
                parts.text.push_str(&self.after_white_space(buffered));
            }
            parts.calls.extend(self.number_calls(calls));
        }
        if let Some(space) = self.leading.take().filter(|_| self.reported.count == 0 && !self.is_forced) {
            parts.text.push_str(&space);
        }
        parts
    }

    /// Whether the answer consists of calls only.
    pub(crate) fn is_forced(&self) -> bool {
        self.is_forced
    }

    /// The calls that were returned so far.
    pub(crate) fn reported_calls(&self) -> ReportedCalls {
        self.reported
    }

    fn split(&mut self, ThinkingPieces { thoughts, answer }: ThinkingPieces) -> AnswerParts {
        let (text, calls) = match &mut self.calls {
            Some(reader) => text_and_calls(reader.push(&answer)),
            None => (answer, Vec::new()),
        };
        let text = self.after_white_space(text);
        AnswerParts { reasoning: thoughts, text, calls: self.number_calls(calls) }
    }

    /// Further text, after the buffered white space; empty while there is only white space.
    fn after_white_space(&mut self, text: String) -> String {
        let Some(mut buffered) = self.leading.take() else { return text };
        buffered.push_str(&text);
        if buffered.trim().is_empty() {
            self.leading = Some(buffered);
            return String::new();
        }
        buffered
    }

    fn number_calls(&mut self, calls: Vec<ToolCall>) -> Vec<(usize, ToolCall)> {
        let first = self.reported.count;
        let numbered: Vec<_> = (first..self.calls_max).zip(calls).collect();
        self.reported.count += numbered.len();
        numbered
    }
}

impl AnswerParts {
    pub(crate) fn is_empty(&self) -> bool {
        self.reasoning.is_empty() && self.text.is_empty() && self.calls.is_empty()
    }

    /// Appends further parts.
    pub(crate) fn extend(&mut self, more: Self) {
        self.reasoning.push_str(&more.reasoning);
        self.text.push_str(&more.text);
        self.calls.extend(more.calls);
    }
}

/// The text and the calls of these pieces.
fn text_and_calls(pieces: Vec<AnswerPiece>) -> (String, Vec<ToolCall>) {
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

    /// The text and the number of calls of an answer that arrives in chunks of `size` bytes.
    fn parse(text: &str, size: usize, is_forced: bool) -> (String, usize) {
        let calls = Some(ToolCallReader::new(ToolFormat::Hermes, &[]));
        let (reported, leading) = (ReportedCalls::default(), Some(String::new()));
        let mut reader = AnswerParser { thinking: None, calls, calls_max: 9, reported, is_forced, leading };
        let mut parts = AnswerParts::default();
        for piece in text.as_bytes().chunks(size) {
            parts.extend(reader.push(std::str::from_utf8(piece).unwrap()));
        }
        parts.extend(reader.finish());
        (parts.text, parts.calls.len())
    }

    #[test]
    fn white_space_before_a_call_is_dropped_for_any_chunks() {
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
                assert_eq!(parse(&text, size, is_forced), (expected.0.to_string(), expected.1), "{text:?} by {size}");
            }
        }
    }
}
