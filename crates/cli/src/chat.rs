//! `foretoken chat`: a conversation in the model's own form.
//!
//! The whole conversation is written out by the model's chat template at every turn and computed again; what the
//! engine does not have to know about conversations it does not know. On a terminal lines are edited and Ctrl-C stops
//! the answer; otherwise each line of standard input is a turn. What a person types is text and never a special token.
//! Left out: tools, and keeping the cache between turns.

use std::io::{IsTerminal, Lines, StdinLock};
use std::sync::Arc;

use clap::Args;
use foretoken_engine::{Event, FinishReason, Request};
use foretoken_text::{ChatTemplate, Message, Tokenizer};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::answers::run;
use crate::assembly::{Assembly, Choices};
use crate::failure::Failure;
use crate::interrupts::Interrupts;
use crate::options::{ModelOptions, SamplingOptions, SpeculationOptions};
use crate::printing::{Marks, ShowDrafts, Stream, table};
use crate::progress::say;
use crate::report;

/// Options of `foretoken chat`.
#[derive(Args, Debug)]
pub struct Chat {
    #[command(flatten)]
    model: ModelOptions,
    /// What the model is told before the conversation
    #[arg(long, visible_alias = "system-prompt", value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// Colour each token by who produced it, and say after each answer what it took (brackets under NO_COLOR); =table
    /// lists the tokens behind each answer instead, as generate does
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "colours",
        hide_possible_values = true)]
    show_drafts: Option<ShowDrafts>,
    #[command(flatten)]
    speculation: SpeculationOptions,
    #[command(flatten)]
    sampling: SamplingOptions,
}

impl Chat {
    /// Runs the command until the person leaves.
    ///
    /// # Errors
    /// The model cannot chat, or standard input or output fail.
    pub fn run(&self) -> Result<(), Failure> {
        let mut assembly = Assembly::new(&Choices::new(&self.model, &self.speculation, &self.sampling, 1))?;
        let Some(tokenizer) = assembly.tokenizer.clone() else {
            return Err(Failure::Other(assembly.target.missing_tokenizer()));
        };
        if !self.sampling.law.ignore_eos {
            // Some models' files name only the end of a text, not the end of a turn.
            assembly.request.sampling.end_tokens.extend_from_slice(tokenizer.turn_end_tokens());
        }
        let template = assembly.target.chat_template()?.ok_or_else(|| {
            let place = &assembly.target.name;
            let without = "expected one to chat with, found none; generate goes on with a text without one";
            Failure::Other(format!("{place}: chat template: {without}"))
        })?;
        let marks = Marks::new(self.show_drafts);
        marks.legend(&assembly.names);
        let interrupts = Interrupts::listen()?;
        let system: Vec<Message> = self.system.iter().map(|text| Message::new("system", text)).collect();
        let messages = system.clone();
        let mut talk = Conversation { assembly, tokenizer, template, stream: Stream::new(marks), messages, interrupts };
        let mut turns = Turns::new()?;
        while let Some(turn) = turns.next()? {
            match turn.trim() {
                "" => {}
                "/exit" | "/quit" => break,
                "/clear" => talk.messages.clone_from(&system),
                command if command.starts_with('/') && !command.contains(' ') => {
                    say(format_args!("{command}: expected /clear or /exit"));
                }
                _ => talk.answer(turn, self.show_drafts)?,
            }
        }
        Ok(())
    }
}

/// A conversation, and the means to go on with it.
struct Conversation {
    assembly: Assembly,
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    stream: Stream,
    messages: Vec<Message>,
    interrupts: Interrupts,
}

impl Conversation {
    /// Answers one turn. A turn that does not fit is forgotten again.
    fn answer(&mut self, turn: String, show_drafts: Option<ShowDrafts>) -> Result<(), Failure> {
        self.messages.push(Message::new("user", turn));
        let prompt = self.template.encode(&self.tokenizer, &self.messages, true)?;
        let (len, context) = (prompt.len(), self.assembly.engine.context());
        if len >= context {
            self.messages.pop();
            say(format_args!("the conversation has {len} tokens, the context {context}: /clear begins a new one"));
            return Ok(());
        }
        let request = Request { prompt, measure: show_drafts.is_some(), ..self.assembly.request.clone() };
        let Self { assembly, stream, interrupts, .. } = self;
        interrupts.begin();
        let answers = run(assembly, vec![request], &mut |_, event| {
            match event {
                Event::Prompt { .. } | Event::DrafterFailed { .. } => {}
                Event::Tokens { emitted, .. } => stream.tokens(emitted)?,
                Event::Finished { text, .. } => stream.text(text)?,
            }
            Ok(interrupts.go_on())
        })?;
        interrupts.end();
        self.stream.text("\n")?;
        for answer in &answers {
            if let Some(failure) = &answer.failure {
                say(format_args!("error: {failure}"));
            }
            if answer.reason == Some(FinishReason::Context) {
                say(format_args!("the context of {context} tokens is full: /clear begins a new conversation"));
            }
            if show_drafts == Some(ShowDrafts::Table) {
                self.stream.text(&table(&answer.emitted, &self.assembly.names, &self.tokenizer))?;
            }
            if show_drafts.is_some() {
                say(report::line(&answers, &self.assembly.names, None));
            }
            self.messages.push(Message::new("assistant", answer.text.clone()));
        }
        // After every answer, since nobody knows how a conversation ends.
        self.assembly.memory.keep(&answers, &self.assembly.engine)
    }
}

/// What the person says, line by line.
enum Turns {
    Edited(Box<DefaultEditor>),
    Plain(Lines<StdinLock<'static>>),
}

impl Turns {
    fn new() -> Result<Self, Failure> {
        if !std::io::stdin().is_terminal() {
            return Ok(Self::Plain(std::io::stdin().lines()));
        }
        say("/clear begins a new conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer");
        DefaultEditor::new().map(|editor| Self::Edited(Box::new(editor))).map_err(terminal)
    }

    /// The next line; `None` when there is no more.
    fn next(&mut self) -> Result<Option<String>, Failure> {
        let editor = match self {
            Self::Plain(lines) => {
                let wrong = |error| Failure::Other(format!("standard input: cannot be read: {error}"));
                return lines.next().transpose().map_err(wrong);
            }
            Self::Edited(editor) => editor,
        };
        loop {
            match editor.readline("> ") {
                Ok(line) => {
                    // A history that cannot be kept is no reason to end a conversation.
                    let _ = editor.add_history_entry(&line);
                    return Ok(Some(line));
                }
                Err(ReadlineError::Eof) => return Ok(None),
                Err(ReadlineError::Interrupted) => say("Ctrl-D leaves"),
                Err(error) => return Err(terminal(error)),
            }
        }
    }
}

fn terminal(error: ReadlineError) -> Failure {
    Failure::Other(format!("terminal: {error}"))
}
