//! An answer as a sequence of blocks: reasoning, text and calls, each opened, filled and closed.
//!
//! Where blocks begin and end is the same in all APIs that have them, complete and streamed, so it is decided here
//! once. White space at the beginning of a text is buffered until other text follows: between calls it is not a block
//! of its own, since clients could not send such a block back.

use foretoken::ToolCall;

use crate::answer::parts::AnswerParts;
use crate::answer::{AnswerContext, RequestKind};

/// The content of a block that is filled incrementally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Reasoning,
    Text,
}

/// Whether the answer is constrained to consist of calls only.
pub(super) fn are_calls_only(context: &AnswerContext) -> bool {
    matches!(&context.kind, RequestKind::Chat(chat) if chat.forces_calls())
}

/// A change of the blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BlockEvent {
    /// A block begins.
    Open(Content),
    /// Further text of the open block.
    Append(Content, String),
    /// The block ends; the string is all of its text.
    Close(Content, String),
    /// A call, which is a block by itself, with its index among the calls.
    Call(usize, ToolCall),
}

/// The blocks of one answer, while it is generated.
#[derive(Default)]
pub(super) struct Blocks {
    open: Option<(Content, String)>,
    /// White space that is buffered.
    buffered: String,
    has_calls: bool,
}

impl Blocks {
    /// The changes that further parts cause.
    pub(super) fn push(&mut self, parts: &AnswerParts) -> Vec<BlockEvent> {
        let mut events = Vec::new();
        if !parts.reasoning.is_empty() {
            self.fill(Content::Reasoning, parts.reasoning.clone(), &mut events);
        }
        if matches!(self.open, Some((Content::Text, _))) {
            if !parts.text.is_empty() {
                self.fill(Content::Text, parts.text.clone(), &mut events);
            }
        } else {
            self.buffered.push_str(&parts.text);
            if !self.buffered.trim().is_empty() {
                let text = std::mem::take(&mut self.buffered);
                self.fill(Content::Text, text, &mut events);
            }
        }
        for (number, call) in &parts.calls {
            self.buffered.clear();
            self.has_calls = true;
            self.close(&mut events);
            events.push(BlockEvent::Call(*number, call.clone()));
        }
        events
    }

    /// The changes at the end of the answer. `are_calls_only`: the answer has no text.
    pub(super) fn finish(&mut self, are_calls_only: bool) -> Vec<BlockEvent> {
        let mut events = Vec::new();
        if !self.has_calls && !are_calls_only && !self.buffered.is_empty() {
            let text = std::mem::take(&mut self.buffered);
            self.fill(Content::Text, text, &mut events);
        }
        self.close(&mut events);
        events
    }

    fn fill(&mut self, content: Content, text: String, events: &mut Vec<BlockEvent>) {
        if self.open.as_ref().is_none_or(|(open, _)| *open != content) {
            self.close(events);
            self.open = Some((content, String::new()));
            events.push(BlockEvent::Open(content));
        }
        if let Some((_, all)) = &mut self.open {
            all.push_str(&text);
        }
        events.push(BlockEvent::Append(content, text));
    }

    fn close(&mut self, events: &mut Vec<BlockEvent>) {
        events.extend(self.open.take().map(|(content, all)| BlockEvent::Close(content, all)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(reasoning: &str, text: &str, calls: &[usize]) -> AnswerParts {
        let call =
            |number: &usize| (*number, ToolCall { name: "f".to_string(), arguments: "{}".to_string(), id: None });
        AnswerParts { reasoning: reasoning.into(), text: text.into(), calls: calls.iter().map(call).collect() }
    }

    /// A description of each block, with its whole content.
    fn described(all: &[AnswerParts], are_calls_only: bool) -> Vec<String> {
        let mut blocks = Blocks::default();
        let mut events: Vec<BlockEvent> = all.iter().flat_map(|parts| blocks.push(parts)).collect();
        events.extend(blocks.finish(are_calls_only));
        let (mut described, mut open) = (Vec::new(), None);
        for event in events {
            match event {
                BlockEvent::Open(content) => assert_eq!(open.replace((content, String::new())), None),
                BlockEvent::Append(content, text) => {
                    let (of, all) = open.as_mut().expect("it was opened");
                    assert!(*of == content && !text.is_empty());
                    all.push_str(&text);
                }
                BlockEvent::Close(content, all) => {
                    assert_eq!(open.take(), Some((content, all.clone())));
                    described.push(format!("{content:?} {all:?}"));
                }
                BlockEvent::Call(number, _) => {
                    assert_eq!(open, None);
                    described.push(format!("call {number}"));
                }
            }
        }
        assert_eq!(open, None);
        described
    }

    #[test]
    fn adjacent_parts_of_one_kind_are_one_block() {
        let all = [parts("a", "", &[]), parts("b", "\n", &[]), parts("", "c ", &[]), parts("", " d", &[])];
        assert_eq!(described(&all, false), [r#"Reasoning "ab""#, r#"Text "\nc  d""#]);
        let whole = [parts("ab", "\nc  d", &[])];
        assert_eq!(described(&whole, false), described(&all, false));
    }

    #[test]
    fn white_space_around_calls_is_no_block() {
        let all = [parts("", "see", &[]), parts("", "\n", &[0]), parts("", "\n", &[]), parts("", " ", &[1])];
        assert_eq!(described(&all, false), [r#"Text "see\n""#, "call 0", "call 1"]);
        assert_eq!(described(&[parts("", "\n", &[0]), parts("", "\n", &[])], false), ["call 0"]);
        assert_eq!(described(&[parts("", "\n", &[0]), parts("", "x", &[])], false), ["call 0", r#"Text "x""#]);
        assert_eq!(described(&[parts("", "\n", &[])], false), [r#"Text "\n""#]);
        assert_eq!(described(&[parts("", "\n", &[])], true), [""; 0]);
    }
}
