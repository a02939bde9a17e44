//! Chat templates: they render a conversation as the text that the model was trained on.
//!
//! A template is a Jinja program that comes with the model ([`files`]). It is run as in transformers ([`program`]),
//! with the same variables ([`input`]): messages, tools, documents and others.
//!
//! Only the template can write special tokens; text of messages and tools is encoded as plain text, so nobody can end a
//! turn or begin a system message by typing special tokens ([`ChatTemplate::encode`]). [`marking`] determines which
//! parts of the rendered text come from the template. The tokens of earlier turns are kept ([`transcript`]). In the
//! model's answer, tool calls ([`tool_calls`]) and reasoning ([`thinking`]) are parsed.
//!
//! Not supported: content other than text.

mod bounds;
mod builtin;
mod clock;
mod files;
mod input;
mod json;
mod marking;
mod metered;
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
use marking::{Marking, written_exactly};
use program::Program;
pub use thinking::{Thinking, ThinkingPieces, ThinkingReader, ThinkingTags};
pub use tool_calls::{AnswerPiece, CallsWanted, ToolCall, ToolCallReader, ToolFormat, ToolFunction};
pub use transcript::Transcript;

/// The chat templates of a model: the default one, and possibly one for conversations with tools.
pub struct ChatTemplate {
    name: String,
    default: Program,
    tool_use: Option<Program>,
    /// The template variables with the model's special tokens.
    special_tokens: Vec<(String, String)>,
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
    /// If it does not parse. `name` identifies the source in the message.
    pub fn from_source(name: &str, source: &str, bos: &str, eos: &str) -> Result<Self, TextError> {
        let special_tokens = vec![("bos_token".to_owned(), bos.to_owned()), ("eos_token".to_owned(), eos.to_owned())];
        Self::with_special_tokens(name, source, special_tokens)
    }

    fn with_special_tokens(name: &str, source: &str, special_tokens: Vec<(String, String)>) -> Result<Self, TextError> {
        let (place, default) = (name.to_owned(), source.to_owned());
        Self::from_sources(Sources { place, default, tool_use: None, special_tokens })
    }

    /// The templates of a GGUF file, if it has any. `name` identifies the file in messages.
    ///
    /// # Errors
    /// If the vocabulary is malformed or a template does not parse.
    pub fn from_gguf(name: &str, metadata: &Metadata) -> Result<Option<Self>, TextError> {
        files::of_gguf(name, metadata)?.map(Self::from_sources).transpose()
    }

    /// The source for a setting's value: the built-in template of this name, or the value itself if it is Jinja.
    pub fn source_for(value: &str) -> Option<&str> {
        let builtin = builtin::BUILTIN.iter().find(|(name, _)| *name == value).map(|(_, source)| *source);
        builtin.or_else(|| ["{{", "{%"].iter().any(|mark| value.contains(mark)).then_some(value))
    }

    /// The names of the built-in templates.
    pub fn names() -> impl Iterator<Item = &'static str> {
        builtin::BUILTIN.iter().map(|(name, _)| *name)
    }

    /// Another template with the same special tokens. `name` identifies the source in messages.
    ///
    /// # Errors
    /// If it does not parse.
    pub fn with_source(self, name: &str, source: &str) -> Result<Self, TextError> {
        Self::with_special_tokens(name, source, self.special_tokens)
    }

    fn from_sources(sources: Sources) -> Result<Self, TextError> {
        let Sources { place: name, default, tool_use, special_tokens } = sources;
        let default = Program::new(&name, &default)?;
        let tool_use = tool_use.map(|source| Program::new(&name, &source)).transpose()?;
        Ok(Self { name, default, tool_use, special_tokens })
    }

    /// The template for this input: the one for tools if it has tools and there is one.
    fn program(&self, input: &ChatInput) -> &Program {
        self.tool_use.as_ref().filter(|_| input.tools.is_some()).unwrap_or(&self.default)
    }

    /// Renders a conversation, with a generation prompt if the input asks for one. For display only: to run a model use
    /// [`ChatTemplate::encode`], which knows which special tokens come from the template.
    ///
    /// # Errors
    /// If the template raises an exception, fails, or takes too many steps, or the last message is to be continued and
    /// is not in the text.
    pub fn render(&self, input: &ChatInput) -> Result<String, TextError> {
        self.run(self.program(input), input)
    }

    fn run(&self, program: &Program, input: &ChatInput) -> Result<String, TextError> {
        let special_tokens = self.special_tokens.iter().map(|(name, text)| (name.clone(), Value::from(text.as_str())));
        let variables = special_tokens.chain(input.variables(&self.name)?).collect();
        input.end(&self.name, program.render(&self.name, variables)?)
    }

    /// Encodes a conversation, with a generation prompt if the input asks for one.
    ///
    /// Only the template's special tokens become special: those written in a message or a tool are encoded as text,
    /// even if the template completes or assembles them (by removing text between two halves, or by changing letters).
    /// Only letters, digits and underscores of a message may complete a template's special token, as in
    /// `'<|' + message.role + '|>'`. Added tokens that are not special, often `</think>`, are ordinary text and matched
    /// everywhere. If messages contribute nothing to special tokens, the result equals encoding the whole text of
    /// [`ChatTemplate::render`], as transformers does, whatever the template does with the messages.
    ///
    /// If a message has a special token and the template compares its symbols in a way that cannot be followed (with
    /// the value of `eos_token`, for example), the template gets placeholders instead of these symbols.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`] and [`Tokenizer::encode`].
    pub fn encode(&self, tokenizer: &Tokenizer, input: &ChatInput) -> Result<Vec<Token>, TextError> {
        let (text, special_spans) = self.render_with_special_spans(tokenizer, input, usize::MAX)?;
        tokenizer.encode_with(&text, &special_spans)
    }

    /// As [`ChatTemplate::encode`], reusing the tokens of an earlier turn: they are kept as far as the text is still
    /// the same, including those that the model wrote, and the rest is encoded. An empty transcript gives the tokens of
    /// [`ChatTemplate::encode`].
    ///
    /// # Errors
    /// As [`ChatTemplate::encode`], or if the text has more than `bytes_max` bytes: encoding a text that is too long
    /// takes seconds and hundreds of times its memory.
    pub fn encode_after(
        &self,
        tokenizer: &Tokenizer,
        input: &ChatInput,
        before: &Transcript,
        bytes_max: usize,
    ) -> Result<Transcript, TextError> {
        let (text, special_spans) = self.render_with_special_spans(tokenizer, input, bytes_max)?;
        Ok(Transcript::encoded(tokenizer, text, special_spans)?.reusing(before))
    }

    /// The number of tokens of an [encoded](Self::encode_after) conversation before the generation prompt: the next
    /// turn begins with them, whatever the answer is. `None` if there is no generation prompt, or if the template
    /// writes nothing without one.
    pub fn answer_start(&self, input: &ChatInput, transcript: &Transcript) -> Option<usize> {
        if !input.add_generation_prompt {
            return None;
        }
        let without = ChatInput { add_generation_prompt: false, ..input.clone() };
        let text = self.render(&without).ok()?;
        Some(transcript.tokens_within(&text)).filter(|tokens| *tokens > 0)
    }

    /// Renders a conversation; returns the text and the special tokens that the template has written.
    fn render_with_special_spans(
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
        let found = written_exactly(tokenizer, &text, tokenizer.special_spans(&text));
        let strings = input.strings();
        let own = [&text, &program.source].into_iter().chain(self.special_tokens.iter().map(|(_, text)| text));
        let texts: Vec<&str> = strings.iter().chain(own).map(String::as_str).collect();
        let marking = Marking::new(tokenizer, &texts)
            .ok_or_else(|| TextError::template(&self.name, "expected characters that the text lacks, found none"))?;
        let marked = input.map_strings(&|text| marking.mark(text));
        if found.is_empty() || marked == *input {
            return Ok((text, found));
        }

        let agrees = |rendered: &Result<String, _>| rendered.as_ref().is_ok_and(|it| marking.unmark(it) == text);
        // JSON needs a backslash before the placeholders of these characters, too.
        let escapes: Vec<char> = ['\\', '"'].into_iter().filter_map(|found| marking.placeholder_of(found)).collect();
        let escaping = |program: &Program| program.with_escapes(escapes.clone());
        let mut rendered =
            if escapes.is_empty() { self.run(program, &marked) } else { self.run(&escaping(program), &marked) };
        if !agrees(&rendered) {
            // The template searches in the messages: mark the strings that it searches for, too.
            let marked_program = Program::new(&self.name, &marking.mark_searched_strings(&program.source));
            rendered = marked_program.and_then(|program| self.run(&escaping(&program), &marked));
        }
        let own = rendered.as_ref().map(|it| marking.template_special_spans(tokenizer, it)).unwrap_or_default();
        if agrees(&rendered) {
            return Ok((text, own));
        }

        // The search cannot be followed. The unmarked text is safe if the messages have no special tokens and the
        // template has written the same special tokens as into the marked text.
        let tokens = |spans: &[SpecialSpan]| spans.iter().map(|span| span.token).collect::<Vec<_>>();
        let has_special = strings.iter().any(|text| !tokenizer.special_spans(text).is_empty());
        if !has_special && (rendered.is_err() || tokens(&own) == tokens(&found)) {
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
