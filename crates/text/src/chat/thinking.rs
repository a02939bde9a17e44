//! Reasoning: the tags around a model's thoughts, and an incremental parser that separates thoughts from the answer.
//!
//! Reasoning models write their thoughts before the answer, between tags that their chat templates know, so the tags
//! are found in the template's source ([`ThinkingTags::of_template`]). A template may write the opening tag itself at
//! the end of the prompt, or both tags if thinking is turned off ([`ThinkingTags::at_end_of`]). The parser
//! ([`ThinkingReader`]) holds back what may be part of a tag, and white space around thoughts, since templates write
//! their own.
//!
//! Not supported: thoughts between parts of one answer, and channels (gpt-oss), whose tags also end turns.

use super::ChatTemplate;

/// The tags around a model's thoughts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThinkingTags {
    /// Before the thoughts.
    pub open: &'static str,
    /// After the thoughts.
    pub close: &'static str,
}

/// All known tags. A template has the closing one in its source, because it removes thoughts from earlier answers or
/// writes them.
const ALL: [ThinkingTags; 5] = [
    // Gemma 4: a channel of this name.
    ThinkingTags { open: "<|channel>thought", close: "<channel|>" },
    // Command-R7B and Command-A.
    ThinkingTags { open: "<|START_THINKING|>", close: "<|END_THINKING|>" },
    // Seed-OSS.
    ThinkingTags { open: "<seed:think>", close: "</seed:think>" },
    // Magistral.
    ThinkingTags { open: "[THINK]", close: "[/THINK]" },
    // DeepSeek-R1, Qwen 3, GLM 4.5, SmolLM 3 and most others.
    ThinkingTags { open: "<think>", close: "</think>" },
];

/// Whether an answer begins with thoughts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Thinking {
    /// The prompt ends with the opening tag: the answer continues with thoughts.
    Begun,
    /// The model decides.
    Possible,
    /// Thinking is turned off, or has ended.
    Ended,
}

impl ThinkingTags {
    /// The tags in a model's template; `None` if there are none.
    pub fn of_template(template: &ChatTemplate) -> Option<Self> {
        Self::of_source(template.source())
    }

    /// As [`ThinkingTags::of_template`], for the source of a template.
    pub fn of_source(source: &str) -> Option<Self> {
        ALL.into_iter().find(|tags| source.contains(tags.close))
    }

    /// Both tags as special tokens may write them ([`crate::Tokenizer::special_tokens`]): Gemma's channel is a token,
    /// but its name is text.
    pub fn shown(self) -> [&'static str; 2] {
        [self.open.strip_suffix("thought").unwrap_or(self.open), self.close]
    }

    /// Whether the answer to this prompt begins with thoughts.
    pub fn at_end_of(self, prompt: &str) -> Thinking {
        let prompt = prompt.trim_end();
        if prompt.ends_with(self.open) {
            Thinking::Begun
        } else if prompt.ends_with(self.close) {
            Thinking::Ended
        } else {
            Thinking::Possible
        }
    }

    /// Whether an answer that has begun with this text continues with thoughts.
    pub fn within(self, answer: &str) -> Thinking {
        match (answer.rfind(self.open), answer.rfind(self.close)) {
            (Some(open), close) if close.is_none_or(|close| close < open) => Thinking::Begun,
            _ => Thinking::Ended,
        }
    }
}

/// Newly parsed text of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThinkingPieces {
    /// Text of the thoughts.
    pub thoughts: String,
    /// Text of the answer itself.
    pub answer: String,
}

/// The state of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// At the beginning, where the opening tag may be. If thinking has begun, the prompt has the tag.
    First {
        has_begun: bool,
    },
    /// Before the first letter of the thoughts.
    Opened,
    Thoughts,
    /// Before the first letter of the answer.
    Closed,
    Answer,
}

/// Separates a model's thoughts from its answer while they are generated.
///
/// White space at both ends of the thoughts, and before an answer that follows them, is dropped. Thoughts without a
/// closing tag extend to the end.
///
/// ```
/// use foretoken_text::{Thinking, ThinkingTags, ThinkingReader};
///
/// let tags = ThinkingTags::of_source("{% if '</think>' in content %}").unwrap();
/// let mut reader = ThinkingReader::new(tags, Thinking::Begun);
/// let pieces = ["\nA sea", ".\n</th", "ink>\n\nBlue."].map(|text| reader.push(text));
/// assert_eq!(pieces.each_ref().map(|piece| piece.thoughts.as_str()), ["A sea", ".", ""]);
/// assert_eq!(pieces[2].answer, "Blue.");
/// assert_eq!(reader.finish().answer, "");
/// ```
#[derive(Clone, Debug)]
pub struct ThinkingReader {
    tags: ThinkingTags,
    state: State,
    /// Text that was pushed and is held back.
    held: String,
}

impl ThinkingReader {
    /// A reader of an answer.
    pub fn new(tags: ThinkingTags, thinking: Thinking) -> Self {
        Self { tags, state: State::First { has_begun: thinking == Thinking::Begun }, held: String::new() }
    }

    /// Adds a piece of the text, and returns what is certain now.
    pub fn push(&mut self, text: &str) -> ThinkingPieces {
        let mut pieces = ThinkingPieces::default();
        self.held.push_str(text);
        while self.advance(&mut pieces) {}
        pieces
    }

    /// Returns the text that was held back, at the end of the answer.
    pub fn finish(&mut self) -> ThinkingPieces {
        let held = std::mem::take(&mut self.held);
        let (thoughts, answer) = match self.state {
            State::First { has_begun: false } => (String::new(), held),
            State::First { has_begun: true } | State::Opened => (held.trim().to_owned(), String::new()),
            State::Thoughts => (held.trim_end().to_owned(), String::new()),
            State::Closed | State::Answer => (String::new(), String::new()),
        };
        ThinkingPieces { thoughts, answer }
    }

    /// Parses the held text one step further; returns whether to continue.
    fn advance(&mut self, pieces: &mut ThinkingPieces) -> bool {
        match self.state {
            State::First { has_begun } => {
                let rest = self.held.trim_start();
                if let Some(after) = rest.strip_prefix(self.tags.open) {
                    self.held = after.to_owned();
                    self.state = State::Opened;
                    return true;
                }
                // The text may still become a tag.
                let may_be_tag = self.tags.open.starts_with(rest);
                if !may_be_tag {
                    self.state = if has_begun { State::Opened } else { State::Answer };
                }
                !may_be_tag
            }
            State::Opened | State::Closed => {
                let spaces = self.held.len() - self.held.trim_start().len();
                self.held.drain(..spaces);
                if self.held.is_empty() {
                    return false;
                }
                self.state = if self.state == State::Opened { State::Thoughts } else { State::Answer };
                true
            }
            State::Thoughts => {
                if let Some(at) = self.held.find(self.tags.close) {
                    pieces.thoughts.push_str(self.held[..at].trim_end());
                    self.held.drain(..at + self.tags.close.len());
                    self.state = State::Closed;
                    return true;
                }
                let close = self.tags.close;
                let begins = |at: &usize| close.starts_with(&self.held[*at..]);
                let indices = self.held.char_indices().map(|(at, _)| at);
                let end = indices.rev().take(close.len()).filter(begins).last().unwrap_or(self.held.len());
                let end = self.held[..end].trim_end().len();
                pieces.thoughts.extend(self.held.drain(..end));
                false
            }
            State::Answer => {
                pieces.answer.push_str(&std::mem::take(&mut self.held));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read<'a>(tags: ThinkingTags, thinking: Thinking, parts: impl Iterator<Item = &'a str>) -> ThinkingPieces {
        let mut reader = ThinkingReader::new(tags, thinking);
        let mut pieces: Vec<ThinkingPieces> = parts.map(|part| reader.push(part)).collect();
        pieces.push(reader.finish());
        let joined = |part: fn(&ThinkingPieces) -> &str| pieces.iter().map(part).collect();
        ThinkingPieces { thoughts: joined(|piece| &piece.thoughts), answer: joined(|piece| &piece.answer) }
    }

    const THINK: ThinkingTags = ALL[4];

    #[test]
    fn thoughts_and_answer_are_separated() {
        use Thinking::{Begun, Ended, Possible};
        for (thinking, text, thoughts, answer) in [
            (Possible, "<think>\na b\n</think>\n\nc <think>", "a b", "c <think>"),
            (Possible, "\n<think></think> c", "", "c"),
            (Possible, "\n<thin", "", "\n<thin"),
            (Possible, " c </think> d", "", " c </think> d"),
            (Ended, " <think>a</think>c", "a", "c"),
            (Begun, "a</think>c ", "a", "c "),
            (Begun, "<think>a </thin </think>c", "a </thin", "c"),
            (Begun, "\n a\n", "a", ""),
            (Begun, "a </thi", "a </thi", ""),
            (Begun, " <th", "<th", ""),
            (Begun, "", "", ""),
            (Possible, "<think>", "", ""),
        ] {
            let found = read(THINK, thinking, std::iter::once(text));
            assert_eq!((found.thoughts.as_str(), found.answer.as_str()), (thoughts, answer), "{thinking:?}: {text:?}");
        }
    }

    #[test]
    fn tags_are_found_in_templates_and_at_the_end_of_prompts() {
        assert_eq!(ThinkingTags::of_source("{{ content.split('</think>')[-1] }}"), Some(THINK));
        assert_eq!(ThinkingTags::of_source("[THINK]x[/THINK]").map(|tags| tags.open), Some("[THINK]"));
        assert_eq!(ThinkingTags::of_source("{{ '<|assistant|>' }}"), None);
        assert_eq!(THINK.at_end_of("<|assistant|><think>\n"), Thinking::Begun);
        assert_eq!(THINK.at_end_of("<|assistant|><think>\n\n</think>\n\n"), Thinking::Ended);
        assert_eq!(THINK.at_end_of("<|assistant|>"), Thinking::Possible);
        assert_eq!(THINK.within("<think> a"), Thinking::Begun);
        assert_eq!(THINK.within("<think> a</think> b"), Thinking::Ended);
    }

    proptest! {
        #[test]
        fn the_result_does_not_depend_on_the_pieces(
            fragments in prop::collection::vec(prop::sample::select(vec![
                "<think>", "</think>", "<", "/", "think", ">", " ", "\n", "a", "é", "</", "thin", "<|channel>",
                "thought", "<channel|>", "[THINK]", "[/THINK]", "[", "</think",
            ]), 0..12),
            cuts in prop::collection::vec(1..5_usize, 1..20),
            kind in 0..ALL.len(),
            thinking in prop::sample::select(vec![Thinking::Begun, Thinking::Possible, Thinking::Ended]),
        ) {
            let text = fragments.concat();
            let characters: Vec<char> = text.chars().collect();
            let (mut parts, mut rest) = (Vec::new(), &characters[..]);
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (part, after) = rest.split_at((*cut).min(rest.len()));
                parts.push(part.iter().collect::<String>());
                rest = after;
            }
            let whole = read(ALL[kind], thinking, std::iter::once(text.as_str()));
            prop_assert_eq!(read(ALL[kind], thinking, parts.iter().map(String::as_str)), whole.clone());
            // Nothing is invented, and nothing but tags and white space is lost.
            let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            let left = letters(&whole.thoughts).len() + letters(&whole.answer).len();
            prop_assert!(left + ALL[kind].open.len() + ALL[kind].close.len() >= letters(&text).len());
            prop_assert!(whole.thoughts.trim() == whole.thoughts);
        }
    }
}
