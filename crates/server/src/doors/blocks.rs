//! An answer as blocks that follow each other: thoughts, texts and calls, each opened, filled and closed.
//!
//! The idea: APIs that have such blocks tell them alike, whole and streamed, so what opens and what closes is decided
//! once. White space with which a text would begin waits for a letter: between calls it is no block of its own, and
//! clients could not send it back. Left out: how blocks are written.

use foretoken::ToolCall;

use crate::answer::pieces::Pieces;
use crate::answer::{Head, Kind};

/// What a block that is filled piece by piece consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Thoughts,
    Text,
}

/// Whether the answer is to have calls and no text.
pub(super) fn are_calls_alone(head: &Head) -> bool {
    matches!(&head.kind, Kind::Chat(chat) if chat.forces_calls())
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Open(Content),
    /// Further text of the open block.
    More(Content, String),
    /// The block ends; all of its text.
    Close(Content, String),
    /// A call, which is a block by itself, with its number among the calls.
    Call(usize, ToolCall),
}

/// The blocks of one answer, while they come.
#[derive(Default)]
pub(super) struct Blocks {
    open: Option<(Content, String)>,
    /// White space that waits.
    held: String,
    has_calls: bool,
}

impl Blocks {
    /// What further pieces add.
    pub(super) fn push(&mut self, pieces: &Pieces) -> Vec<Step> {
        let mut steps = Vec::new();
        if !pieces.thoughts.is_empty() {
            self.fill(Content::Thoughts, pieces.thoughts.clone(), &mut steps);
        }
        if matches!(self.open, Some((Content::Text, _))) {
            if !pieces.text.is_empty() {
                self.fill(Content::Text, pieces.text.clone(), &mut steps);
            }
        } else {
            self.held.push_str(&pieces.text);
            if !self.held.trim().is_empty() {
                let text = std::mem::take(&mut self.held);
                self.fill(Content::Text, text, &mut steps);
            }
        }
        for (number, call) in &pieces.calls {
            self.held.clear();
            self.has_calls = true;
            self.close(&mut steps);
            steps.push(Step::Call(*number, call.clone()));
        }
        steps
    }

    /// What is left at the end. `are_calls_alone`: there was to be no text.
    pub(super) fn finish(&mut self, are_calls_alone: bool) -> Vec<Step> {
        let mut steps = Vec::new();
        if !self.has_calls && !are_calls_alone && !self.held.is_empty() {
            let text = std::mem::take(&mut self.held);
            self.fill(Content::Text, text, &mut steps);
        }
        self.close(&mut steps);
        steps
    }

    fn fill(&mut self, content: Content, text: String, steps: &mut Vec<Step>) {
        if self.open.as_ref().is_none_or(|(open, _)| *open != content) {
            self.close(steps);
            self.open = Some((content, String::new()));
            steps.push(Step::Open(content));
        }
        if let Some((_, all)) = &mut self.open {
            all.push_str(&text);
        }
        steps.push(Step::More(content, text));
    }

    fn close(&mut self, steps: &mut Vec<Step>) {
        steps.extend(self.open.take().map(|(content, all)| Step::Close(content, all)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(thoughts: &str, text: &str, calls: &[usize]) -> Pieces {
        let call =
            |number: &usize| (*number, ToolCall { name: "f".to_string(), arguments: "{}".to_string(), id: None });
        Pieces { thoughts: thoughts.into(), text: text.into(), calls: calls.iter().map(call).collect() }
    }

    /// Blocks as words, those that are filled by all that is in them.
    fn told(all: &[Pieces], are_calls_alone: bool) -> Vec<String> {
        let mut blocks = Blocks::default();
        let mut steps: Vec<Step> = all.iter().flat_map(|pieces| blocks.push(pieces)).collect();
        steps.extend(blocks.finish(are_calls_alone));
        let (mut told, mut open) = (Vec::new(), None);
        for step in steps {
            match step {
                Step::Open(content) => assert_eq!(open.replace((content, String::new())), None),
                Step::More(content, text) => {
                    let (of, all) = open.as_mut().expect("it was opened");
                    assert!(*of == content && !text.is_empty());
                    all.push_str(&text);
                }
                Step::Close(content, all) => {
                    assert_eq!(open.take(), Some((content, all.clone())));
                    told.push(format!("{content:?} {all:?}"));
                }
                Step::Call(number, _) => {
                    assert_eq!(open, None);
                    told.push(format!("call {number}"));
                }
            }
        }
        assert_eq!(open, None);
        told
    }

    #[test]
    fn what_follows_of_one_kind_is_one_block() {
        let all = [pieces("a", "", &[]), pieces("b", "\n", &[]), pieces("", "c ", &[]), pieces("", " d", &[])];
        assert_eq!(told(&all, false), [r#"Thoughts "ab""#, r#"Text "\nc  d""#]);
        let whole = [pieces("ab", "\nc  d", &[])];
        assert_eq!(told(&whole, false), told(&all, false));
    }

    #[test]
    fn white_space_around_calls_is_no_block() {
        let all = [pieces("", "see", &[]), pieces("", "\n", &[0]), pieces("", "\n", &[]), pieces("", " ", &[1])];
        assert_eq!(told(&all, false), [r#"Text "see\n""#, "call 0", "call 1"]);
        assert_eq!(told(&[pieces("", "\n", &[0]), pieces("", "\n", &[])], false), ["call 0"]);
        assert_eq!(told(&[pieces("", "\n", &[0]), pieces("", "x", &[])], false), ["call 0", r#"Text "x""#]);
        assert_eq!(told(&[pieces("", "\n", &[])], false), [r#"Text "\n""#]);
        assert_eq!(told(&[pieces("", "\n", &[])], true), [""; 0]);
    }
}
