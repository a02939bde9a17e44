//! What a model thinks aloud before it answers: which marks stand around it, and thoughts and answer apart while they
//! are written.
//!
//! Models that think write their thoughts before the answer, between marks that their chat templates know, so the marks
//! are found from the template's source ([`ThinkingMarks::of_template`]). A template may write the first mark itself,
//! as the end of the prompt, and may write both where thinking is turned off ([`ThinkingMarks::at_end_of`]). The reader
//! ([`ThinkingReader`]) holds back what may be part of a mark, and white space around thoughts, of which templates
//! write their own.
//!
//! Left out: thoughts between parts of one answer, and channels (gpt-oss), whose marks also end turns.

use super::ChatTemplate;

/// The marks around what a model thinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThinkingMarks {
    /// Before the thoughts.
    pub open: &'static str,
    /// Behind them.
    pub close: &'static str,
}

/// All there are. A template has the closing one in its source: it takes thoughts out of earlier answers, or writes it.
const ALL: [ThinkingMarks; 5] = [
    // Gemma 4: a channel of this name.
    ThinkingMarks { open: "<|channel>thought", close: "<channel|>" },
    // Command-R7B and Command-A.
    ThinkingMarks { open: "<|START_THINKING|>", close: "<|END_THINKING|>" },
    // Seed-OSS.
    ThinkingMarks { open: "<seed:think>", close: "</seed:think>" },
    // Magistral.
    ThinkingMarks { open: "[THINK]", close: "[/THINK]" },
    // DeepSeek-R1, Qwen 3, GLM 4.5, SmolLM 3 and most others.
    ThinkingMarks { open: "<think>", close: "</think>" },
];

/// Whether an answer begins with thoughts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Thinking {
    /// The prompt has the first mark: the answer goes on with thoughts.
    Begun,
    /// The model decides.
    Possible,
    /// It is turned off, or over.
    Ended,
}

impl ThinkingMarks {
    /// The marks of a model, by its template; `None` if that knows none.
    pub fn of_template(template: &ChatTemplate) -> Option<Self> {
        Self::of_source(template.source())
    }

    /// The same for the source of a template.
    pub fn of_source(source: &str) -> Option<Self> {
        ALL.into_iter().find(|marks| source.contains(marks.close))
    }

    /// Both, as texts show them ([`crate::Tokenizer::special_tokens`]): Gemma's channel is a token, its name a word.
    pub fn shown(self) -> [&'static str; 2] {
        [self.open.strip_suffix("thought").unwrap_or(self.open), self.close]
    }

    /// What an answer begins with behind a prompt that ends so.
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

    /// What an answer goes on with that has begun so.
    pub fn within(self, answer: &str) -> Thinking {
        match (answer.rfind(self.open), answer.rfind(self.close)) {
            (Some(open), close) if close.is_none_or(|close| close < open) => Thinking::Begun,
            _ => Thinking::Ended,
        }
    }
}

/// Text of an answer, parted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThinkingPieces {
    /// What belongs to the thoughts.
    pub thoughts: String,
    /// What belongs to the answer itself.
    pub answer: String,
}

/// Where a reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The beginning, where the first mark may stand; it has been written before if thinking has begun.
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

/// Parts what a model thinks from its answer, while both are being written.
///
/// White space at both ends of the thoughts, and before an answer that follows them, is dropped. Thoughts that do not
/// end are thoughts to the end.
///
/// ```
/// use foretoken_text::{Thinking, ThinkingMarks, ThinkingReader};
///
/// let marks = ThinkingMarks::of_source("{% if '</think>' in content %}").unwrap();
/// let mut reader = ThinkingReader::new(marks, Thinking::Begun);
/// let pieces = ["\nA sea", ".\n</th", "ink>\n\nBlue."].map(|text| reader.push(text));
/// assert_eq!(pieces.each_ref().map(|piece| piece.thoughts.as_str()), ["A sea", ".", ""]);
/// assert_eq!(pieces[2].answer, "Blue.");
/// assert_eq!(reader.finish().answer, "");
/// ```
#[derive(Clone, Debug)]
pub struct ThinkingReader {
    marks: ThinkingMarks,
    place: Place,
    /// What was pushed and has not come out.
    held: String,
}

impl ThinkingReader {
    /// A reader of an answer that begins so.
    pub fn new(marks: ThinkingMarks, thinking: Thinking) -> Self {
        Self { marks, place: Place::First { has_begun: thinking == Thinking::Begun }, held: String::new() }
    }

    /// Adds a piece of the text, and says what is certain now.
    pub fn push(&mut self, text: &str) -> ThinkingPieces {
        let mut pieces = ThinkingPieces::default();
        self.held.push_str(text);
        while self.reads_on(&mut pieces) {}
        pieces
    }

    /// What was held back, now that the text has ended.
    pub fn finish(&mut self) -> ThinkingPieces {
        let held = std::mem::take(&mut self.held);
        let (thoughts, answer) = match self.place {
            Place::First { has_begun: false } => (String::new(), held),
            Place::First { has_begun: true } | Place::Opened => (held.trim().to_owned(), String::new()),
            Place::Thoughts => (held.trim_end().to_owned(), String::new()),
            Place::Closed | Place::Answer => (String::new(), String::new()),
        };
        ThinkingPieces { thoughts, answer }
    }

    /// Reads on in what is held; whether there may be more to read.
    fn reads_on(&mut self, pieces: &mut ThinkingPieces) -> bool {
        match self.place {
            Place::First { has_begun } => {
                let rest = self.held.trim_start();
                if let Some(behind) = rest.strip_prefix(self.marks.open) {
                    self.held = behind.to_owned();
                    self.place = Place::Opened;
                    return true;
                }
                // Where a mark may still come, what is held waits.
                let waits = self.marks.open.starts_with(rest);
                if !waits {
                    self.place = if has_begun { Place::Opened } else { Place::Answer };
                }
                !waits
            }
            Place::Opened | Place::Closed => {
                let spaces = self.held.len() - self.held.trim_start().len();
                self.held.drain(..spaces);
                if self.held.is_empty() {
                    return false;
                }
                self.place = if self.place == Place::Opened { Place::Thoughts } else { Place::Answer };
                true
            }
            Place::Thoughts => {
                if let Some(at) = self.held.find(self.marks.close) {
                    pieces.thoughts.push_str(self.held[..at].trim_end());
                    self.held.drain(..at + self.marks.close.len());
                    self.place = Place::Closed;
                    return true;
                }
                let close = self.marks.close;
                let begins = |at: &usize| close.starts_with(&self.held[*at..]);
                let indices = self.held.char_indices().map(|(at, _)| at);
                let end = indices.rev().take(close.len()).filter(begins).last().unwrap_or(self.held.len());
                let end = self.held[..end].trim_end().len();
                pieces.thoughts.extend(self.held.drain(..end));
                false
            }
            Place::Answer => {
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

    fn read<'a>(marks: ThinkingMarks, thinking: Thinking, parts: impl Iterator<Item = &'a str>) -> ThinkingPieces {
        let mut reader = ThinkingReader::new(marks, thinking);
        let mut pieces: Vec<ThinkingPieces> = parts.map(|part| reader.push(part)).collect();
        pieces.push(reader.finish());
        let of = |part: fn(&ThinkingPieces) -> &str| pieces.iter().map(part).collect();
        ThinkingPieces { thoughts: of(|piece| &piece.thoughts), answer: of(|piece| &piece.answer) }
    }

    const THINK: ThinkingMarks = ALL[4];

    #[test]
    fn thoughts_and_answer_are_parted() {
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
    fn templates_show_their_marks_and_prompts_whether_thinking_has_begun() {
        assert_eq!(ThinkingMarks::of_source("{{ content.split('</think>')[-1] }}"), Some(THINK));
        assert_eq!(ThinkingMarks::of_source("[THINK]x[/THINK]").map(|marks| marks.open), Some("[THINK]"));
        assert_eq!(ThinkingMarks::of_source("{{ '<|assistant|>' }}"), None);
        assert_eq!(THINK.at_end_of("<|assistant|><think>\n"), Thinking::Begun);
        assert_eq!(THINK.at_end_of("<|assistant|><think>\n\n</think>\n\n"), Thinking::Ended);
        assert_eq!(THINK.at_end_of("<|assistant|>"), Thinking::Possible);
        assert_eq!(THINK.within("<think> a"), Thinking::Begun);
        assert_eq!(THINK.within("<think> a</think> b"), Thinking::Ended);
    }

    proptest! {
        #[test]
        fn any_pieces_give_the_same_parts(
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
                let (part, behind) = rest.split_at((*cut).min(rest.len()));
                parts.push(part.iter().collect::<String>());
                rest = behind;
            }
            let whole = read(ALL[kind], thinking, std::iter::once(text.as_str()));
            prop_assert_eq!(read(ALL[kind], thinking, parts.iter().map(String::as_str)), whole.clone());
            // Nothing is invented, and nothing but marks and white space is lost.
            let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            let left = letters(&whole.thoughts).len() + letters(&whole.answer).len();
            prop_assert!(left + ALL[kind].open.len() + ALL[kind].close.len() >= letters(&text).len());
            prop_assert!(whole.thoughts.trim() == whole.thoughts);
        }
    }
}
