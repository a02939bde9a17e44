//! `foretoken chat`: a conversation in the model's own form.
//!
//! On a terminal lines are edited and Ctrl-C stops the answer; otherwise each line of standard input is a turn. What a
//! person types is text and never a special token. The engine stays, and with it what it has computed of the turns
//! before. Left out: how a conversation becomes a prompt ([`foretoken::Conversation`]).

use std::io::{IsTerminal, Lines, StdinLock};
use std::path::PathBuf;

use clap::Args;
use foretoken::{Conversation, Event, FinishReason, Generator, Request, Settings, seed_of_answer};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::failure::Failure;
use crate::interrupts::Interrupts;
use crate::opening::{Notices, open_generator};
use crate::options::{ModelOptions, PromptCacheOptions, SamplingOptions, SpeculationOptions};
use crate::printing::{Marks, ShowDrafts, Stream, table};
use crate::progress::{say, warn};
use crate::report;

/// Options of `foretoken chat`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Conversation")]
pub struct Chat {
    /// The same as -m, --model
    #[arg(value_name = "MODEL", help_heading = "Model", conflicts_with = "model")]
    place: Option<PathBuf>,
    /// What the model is told before the conversation
    #[arg(long, visible_alias = "system-prompt", value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// Show who produced each token: colours, rejected (drafts, too) or table
    ///
    /// As generate does, and says after each answer what it took.
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "colours",
        hide_possible_values = true)]
    show_drafts: Option<ShowDrafts>,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    prompt_cache: PromptCacheOptions,
    #[command(flatten)]
    sampling: SamplingOptions,
    #[command(flatten)]
    speculation: SpeculationOptions,
}

impl Chat {
    /// Runs the command until the person leaves.
    ///
    /// # Errors
    /// The model cannot chat, or standard input or output fail.
    pub fn run(&self) -> Result<(), Failure> {
        let settings = Settings {
            model: self.prompt_cache.with(self.model.at(self.place.as_ref()).settings()),
            sampling: self.sampling.settings(),
            speculation: self.speculation.settings(),
            parallel: 1,
        };
        let (generator, notices) = open_generator(&settings)?;
        let conversation = Conversation::new(&generator.prompter, self.system.as_deref())?;
        let marks = Marks::new(self.show_drafts);
        marks.legend(&generator.prompter.names, self.show_drafts);
        let interrupts = Interrupts::listen()?;
        let stream = Stream::new(marks);
        let mut talk = Talk { generator, notices, conversation, answers: 0, stream, interrupts };
        let mut turns = Turns::new()?;
        while let Some(turn) = turns.next()? {
            match turn.trim() {
                "" => {}
                "/exit" | "/quit" => break,
                "/clear" => talk.conversation.clear(),
                "/regen" => talk.answer_again(self.show_drafts)?,
                command if command.starts_with('/') && !command.contains(' ') => {
                    warn(format_args!("{command}: expected /regen, /clear or /exit"));
                }
                _ => talk.ask(turn, self.show_drafts)?,
            }
        }
        Ok(())
    }
}

/// A conversation, and the means to go on with it.
struct Talk {
    generator: Generator,
    notices: Notices,
    conversation: Conversation,
    /// Answers that this turn had before.
    answers: usize,
    stream: Stream,
    interrupts: Interrupts,
}

impl Talk {
    /// Answers one turn.
    fn ask(&mut self, turn: String, show_drafts: Option<ShowDrafts>) -> Result<(), Failure> {
        self.conversation.ask(turn);
        self.answers = 0;
        self.answer(show_drafts)
    }

    /// Answers the last turn once more, with a seed that is made of the first one.
    fn answer_again(&mut self, show_drafts: Option<ShowDrafts>) -> Result<(), Failure> {
        if !self.conversation.take_back_answer() {
            warn("/regen: expected an answer before it, found none");
            return Ok(());
        }
        if self.generator.prompter.decided.sampling.temperature == 0.0 {
            say("note: /regen: at temperature 0 the answer is the same");
        }
        self.answers += 1;
        self.answer(show_drafts)
    }

    /// Answers the last turn. One that does not fit is forgotten again.
    fn answer(&mut self, show_drafts: Option<ShowDrafts>) -> Result<(), Failure> {
        let request = self.conversation.request()?;
        let (len, context) = (request.prompt.len(), self.generator.prompter.context);
        if len >= context {
            self.conversation.messages.pop();
            warn(format_args!("the conversation has {len} tokens, the context {context}: /clear begins a new one"));
            return Ok(());
        }
        let seed = seed_of_answer(request.seed, self.answers);
        let report_drafts = show_drafts == Some(ShowDrafts::Rejected);
        let request = Request { seed, measure: show_drafts.is_some(), report_drafts, ..request };
        let Self { generator, notices, stream, interrupts, .. } = self;
        let tokenizer = generator.prompter.tokenizer.clone();
        interrupts.begin();
        let answers = generator.run(vec![request], &mut |_, event| -> Result<bool, Failure> {
            notices.hear(event);
            match event {
                Event::Prompt { .. } | Event::PromptScored { .. } | Event::DrafterFailed { .. } => {}
                Event::Drafts { drafted, .. } => stream.drafts(drafted, tokenizer.as_deref()),
                Event::Tokens { emitted, .. } => stream.tokens(emitted)?,
                Event::Finished { text, .. } => stream.text(text)?,
            }
            Ok(interrupts.go_on())
        })?;
        let _ = interrupts.end();
        self.stream.text("\n")?;
        let prompter = &self.generator.prompter;
        for answer in &answers {
            if let Some(failure) = &answer.failure {
                warn(format_args!("error: {failure}"));
            }
            if answer.reason == Some(FinishReason::Context) {
                warn(format_args!("the context of {context} tokens is full: /clear begins a new conversation"));
            }
            if let (Some(ShowDrafts::Table), Some(tokenizer)) = (show_drafts, prompter.tokenizer.as_deref()) {
                self.stream.text(&table(&answer.emitted, &prompter.names, tokenizer))?;
            }
            if show_drafts.is_some() {
                say(report::line(&answers, &prompter.names, None));
            }
            self.conversation.answer_with(answer);
        }
        // After every answer, since nobody knows how a conversation ends.
        Ok(self.generator.keep(&answers)?)
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
        say("/regen asks for another answer, /clear begins a new conversation");
        say("/exit or Ctrl-D leaves, Ctrl-C stops an answer");
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
