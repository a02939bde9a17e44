//! Chat templates: a conversation as the text that the model was trained on.
//!
//! A template is a Jinja program that comes with the model ([`files`]), so it is run the way transformers runs it
//! ([`program`]), with what transformers gives it ([`input`]): messages, tools, documents, further variables.
//!
//! What the template writes may be special tokens; what messages and tools say is only text, so that nobody ends a turn
//! or begins a system's by typing its marks ([`ChatTemplate::encode`]). Who wrote what is found out in [`marking`].
//! Turn by turn, the tokens of earlier turns are kept ([`transcript`]). What a model writes back may be calls of tools;
//! they are found in its answer ([`tool_calls`]), and so is what it thinks aloud before ([`thinking`]).
//!
//! What it leaves out: content that is neither text nor parts of text.

mod bounds;
mod clock;
mod files;
mod input;
mod json;
mod marking;
mod metered;
mod named;
mod openai;
mod program;
mod python;
mod thinking;
mod tool_calls;
mod transcript;

use std::fmt;
use std::path::Path;

use foretoken_weights::gguf::Metadata;
use minijinja::Value;

use crate::tokenizer::SpecialSpan;
use crate::{TextError, Token, Tokenizer};
pub use clock::format as strftime;
use files::Sources;
pub use input::{ChatInput, Json, Message};
use marking::{Marking, spelt_out};
use program::Program;
pub use thinking::{Thinking, ThinkingMarks, ThinkingPieces, ThinkingReader};
pub use tool_calls::{AnswerPiece, CallsWanted, ToolCall, ToolCallReader, ToolFormat, ToolFunction};
pub use transcript::Transcript;

/// The chat templates of one model: one, or a second one for conversations with tools.
pub struct ChatTemplate {
    name: String,
    default: Program,
    tool_use: Option<Program>,
    /// What the templates see of the model's special tokens.
    marks: Vec<(String, String)>,
}

impl ChatTemplate {
    /// Reads the templates of a model folder: `chat_template.jinja` (and `additional_chat_templates`), or else what
    /// `tokenizer_config.json` holds. `None` if there is neither.
    ///
    /// # Errors
    /// If a file cannot be read or understood, or a template does not parse.
    pub fn from_dir(dir: &Path) -> Result<Option<Self>, TextError> {
        files::of_dir(dir)?.map(Self::from_sources).transpose()
    }

    /// Makes a template from its source. `bos` and `eos` are what the template sees as `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// If it does not parse. `name` stands in messages where a file would.
    pub fn from_source(name: &str, source: &str, bos: &str, eos: &str) -> Result<Self, TextError> {
        let marks = vec![("bos_token".to_owned(), bos.to_owned()), ("eos_token".to_owned(), eos.to_owned())];
        Self::from_sources(Sources { place: name.to_owned(), default: source.to_owned(), tool_use: None, marks })
    }

    /// The templates of a GGUF file, if it has any. `name` stands in messages where a file would.
    ///
    /// # Errors
    /// If the vocabulary is malformed or a template does not parse.
    pub fn from_gguf(name: &str, metadata: &Metadata) -> Result<Option<Self>, TextError> {
        files::of_gguf(name, metadata)?.map(Self::from_sources).transpose()
    }

    /// The template for these words, if they are any: a template that has a name, or Jinja as it is.
    pub fn source_for(words: &str) -> Option<&str> {
        let named = named::NAMED.iter().find(|(name, _)| *name == words).map(|(_, source)| *source);
        named.or_else(|| ["{{", "{%"].iter().any(|mark| words.contains(mark)).then_some(words))
    }

    /// The templates that have a name.
    pub fn names() -> impl Iterator<Item = &'static str> {
        named::NAMED.iter().map(|(name, _)| *name)
    }

    /// Another template, which sees the same special tokens. `name` stands in messages where a file would.
    ///
    /// # Errors
    /// If it does not parse.
    pub fn with_source(self, name: &str, source: &str) -> Result<Self, TextError> {
        let Self { marks, .. } = self;
        Self::from_sources(Sources { place: name.to_owned(), default: source.to_owned(), tool_use: None, marks })
    }

    fn from_sources(sources: Sources) -> Result<Self, TextError> {
        let Sources { place: name, default, tool_use, marks } = sources;
        let default = Program::new(&name, &default)?;
        let tool_use = tool_use.map(|source| Program::new(&name, &source)).transpose()?;
        Ok(Self { name, default, tool_use, marks })
    }

    /// The template for this input: that for tools, if there is one and there are any.
    fn program(&self, input: &ChatInput) -> &Program {
        self.tool_use.as_ref().filter(|_| input.tools.is_some()).unwrap_or(&self.default)
    }

    /// Writes a conversation as the model expects it, ending, if wanted, where the assistant's answer begins.
    /// To be shown: for a model, [`ChatTemplate::encode`] knows which special tokens in it are the template's.
    ///
    /// # Errors
    /// If the template raises an exception, fails, or takes too many steps, or the last message is to be continued and
    /// is not in the text.
    pub fn render(&self, input: &ChatInput) -> Result<String, TextError> {
        self.run(self.program(input), input)
    }

    fn run(&self, program: &Program, input: &ChatInput) -> Result<String, TextError> {
        let marks = self.marks.iter().map(|(name, text)| (name.clone(), Value::from(text.as_str())));
        let variables = marks.chain(input.variables(&self.name)?).collect();
        input.end(&self.name, program.render(&self.name, variables)?)
    }

    /// The tokens of a conversation as the model expects it, ending, if wanted, where the assistant's answer begins.
    ///
    /// Special tokens are the template's alone: one that a message or a tool spells is encoded as text, also if only
    /// the template completes it or makes it (by taking out what stands between its halves, or by other letters).
    /// Letters, digits and underscores alone may complete one of the template's, as in `'<|' + message.role + '|>'`.
    /// Tokens that were added to the vocabulary and are not special, often `</think>`, are words like others and found
    /// everywhere. Where messages take no part in a special token, the tokens are those of the whole text of
    /// [`ChatTemplate::render`], as transformers has them, whatever the template does with the messages.
    ///
    /// Where a message spells a special token and the template compares its signs in a way that cannot be followed
    /// (with the value of `eos_token`, say), the template is not shown these signs, and writes what it writes then.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`] and [`Tokenizer::encode`].
    pub fn encode(&self, tokenizer: &Tokenizer, input: &ChatInput) -> Result<Vec<Token>, TextError> {
        let (text, specials) = self.render_with_specials(tokenizer, input, usize::MAX)?;
        tokenizer.encode_with(&text, &specials)
    }

    /// The same, going on from an earlier turn: its tokens are kept as far as the text is still the same, those that
    /// the model wrote included, and what is behind them is encoded. An empty transcript gives the tokens of
    /// [`ChatTemplate::encode`].
    ///
    /// # Errors
    /// As [`ChatTemplate::encode`], or the text has more than `bytes_max` bytes: looking for the tokens of a text that
    /// cannot be used takes seconds and hundreds of times its memory.
    pub fn encode_behind(
        &self,
        tokenizer: &Tokenizer,
        input: &ChatInput,
        before: &Transcript,
        bytes_max: usize,
    ) -> Result<Transcript, TextError> {
        let (text, specials) = self.render_with_specials(tokenizer, input, bytes_max)?;
        Ok(Transcript::encoded(tokenizer, text, specials)?.behind(before))
    }

    /// How many tokens of an [encoded](Self::encode_behind) conversation lie before the beginning of the assistant's
    /// answer: what is said next begins with them, whatever becomes of the answer. `None` where none begins, or the
    /// template writes nothing without one.
    pub fn answer_start(&self, input: &ChatInput, transcript: &Transcript) -> Option<usize> {
        if !input.add_generation_prompt {
            return None;
        }
        let without = ChatInput { add_generation_prompt: false, ..input.clone() };
        let text = self.render(&without).ok()?;
        Some(transcript.tokens_within(&text)).filter(|tokens| *tokens > 0)
    }

    /// The text of a conversation, and where the template has written special tokens in it.
    fn render_with_specials(
        &self,
        tokenizer: &Tokenizer,
        input: &ChatInput,
        bytes_max: usize,
    ) -> Result<(String, Vec<SpecialSpan>), TextError> {
        let program = self.program(input);
        let text = self.run(program, input)?;
        if text.len() > bytes_max {
            let expected = format!("expected at most {bytes_max} bytes, which the context may hold");
            return Err(TextError::template(&self.name, format!("{expected}, found {}", text.len())));
        }
        let found = spelt_out(tokenizer, &text, tokenizer.specials(&text));
        let strings = input.strings();
        let own = [&text, &program.source].into_iter().chain(self.marks.iter().map(|(_, text)| text));
        let texts: Vec<&str> = strings.iter().chain(own).map(String::as_str).collect();
        let marking = Marking::new(tokenizer, &texts)
            .ok_or_else(|| TextError::template(&self.name, "expected characters that the text lacks, found none"))?;
        let marked = input.map_strings(&|text| marking.mark(text));
        if found.is_empty() || marked == *input {
            return Ok((text, found));
        }

        let agrees = |rendered: &Result<String, _>| rendered.as_ref().is_ok_and(|it| marking.unmark(it) == text);
        // JSON writes a backslash before these, whatever stands for them.
        let escapes: Vec<char> = ['\\', '"'].into_iter().filter_map(|found| marking.mark_of(found)).collect();
        let escaping = |program: &Program| program.with_escapes(escapes.clone());
        let mut rendered =
            if escapes.is_empty() { self.run(program, &marked) } else { self.run(&escaping(program), &marked) };
        if !agrees(&rendered) {
            // The template looks into the messages: let it find there what it looks for.
            let twin = Program::new(&self.name, &marking.mark_tests(&program.source));
            rendered = twin.and_then(|twin| self.run(&escaping(&twin), &marked));
        }
        let own = rendered.as_ref().map(|it| marking.own_specials(tokenizer, it)).unwrap_or_default();
        if agrees(&rendered) {
            return Ok((text, own));
        }

        // What it looks for cannot be followed. Its own text is safe if the messages spell nothing and it has written
        // the same special tokens as into the marked text.
        let tokens = |spans: &[SpecialSpan]| spans.iter().map(|span| span.token).collect::<Vec<_>>();
        let is_spelt = strings.iter().any(|text| !tokenizer.specials(text).is_empty());
        if !is_spelt && (rendered.is_err() || tokens(&own) == tokens(&found)) {
            return Ok((text, found));
        }
        Ok((marking.unmark(&rendered?), own))
    }

    /// The template as it came with the model; of several, the one for conversations without tools.
    pub fn source(&self) -> &str {
        &self.default.source
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("name", &self.name).field("source", &self.source()).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "chat/tests.rs"]
mod tests;
