//! `foretoken chat`: a conversation, formatted by the model's chat template.
//!
//! On a terminal lines are edited and Ctrl-C stops the answer; otherwise standard output has nothing but an answer to
//! each turn of standard input. What a person types is never read as special tokens. The engine keeps the KV cache of
//! earlier turns. [`foretoken::Conversation`] turns the conversation into prompts.

mod commands;
mod thoughts;
mod turns;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use foretoken::output_file::Existing;
use foretoken::whole::TEXT_BYTES_MAX;
use foretoken::{
    Answer, ChatMessage, Conversation, Event, FinishReason, Generator, OutputFile, Request, Settings, seed_of_answer,
    whole,
};
use foretoken_console::failure::Failure;
use foretoken_console::interrupts::Interrupts;
use foretoken_console::opening::{Notices, named_failure, open_generator};
use foretoken_console::options::{
    ModelOptions, PromptCacheOptions, SamplingOptions, SpeculationOptions, TemplateOptions,
};
use foretoken_console::output::{OutputOptions, refuse_stream};
use foretoken_console::progress::{PromptBar, say, warn};
use foretoken_console::report;

use crate::printing::{Marks, ShowDrafts, Stream, table};
use commands::{Command, HELP};
use thoughts::Thoughts;
use turns::Turns;

/// The share of the context (1 / 4) that is kept free for an answer without a given length, when old turns are dropped.
const ROOM_FOR_ANSWER: usize = 4;

/// Options of `foretoken chat`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Conversation")]
pub struct Chat {
    /// The same as -m, --model
    #[arg(value_name = "MODEL", help_heading = "Model", conflicts_with_all = ["model", "hf_repo"])]
    place: Option<PathBuf>,
    /// The first turn; further turns follow, but not after `foretoken run MODEL PROMPT`
    #[arg(value_name = "PROMPT", conflicts_with = "prompt")]
    words: Option<String>,
    /// The same, also if it looks like an option
    #[arg(short, long, hide_short_help = true, value_name = "PROMPT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Leave after the first answer (also -st), as `foretoken run MODEL PROMPT` does
    #[arg(long, hide_short_help = true)]
    single_turn: bool,
    /// What the model is told before the conversation
    #[arg(long, visible_alias = "system-prompt", value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// When the context is full, leave out the oldest turns [default: on a terminal ask]
    ///
    /// A note says which turns, and the rest is computed again. llama.cpp moves the cache to other positions instead,
    /// which changes the text.
    #[arg(long, hide_short_help = true)]
    context_shift: bool,
    /// Show who produced each token: colours, rejected (drafts, too) or table
    ///
    /// As for generate; the statistics follow each answer.
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "colours",
        hide_possible_values = true)]
    show_drafts: Option<ShowDrafts>,
    #[command(flatten)]
    writing: OutputOptions,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    template: TemplateOptions,
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
    /// The model cannot chat, or standard input or output fail; or a turn of a file or pipe got no answer.
    pub fn run(&self) -> Result<(), Failure> {
        let settings = Settings {
            model: self.template.with(self.prompt_cache.with(self.model.with_model(self.place.as_ref()).settings()?)),
            sampling: self.sampling.settings()?,
            speculation: self.speculation.settings()?,
            parallel: 1,
        };
        let (generator, notices) = open_generator(&settings)?;
        let conversation = Conversation::new(&generator.prompter, self.system.as_deref())?;
        let marks = Marks::new(self.show_drafts);
        let is_guided = generator.prompter.decided.grammar.is_some();
        marks.legend(&generator.prompter.names, is_guided, self.show_drafts);
        let interrupts = Interrupts::listen();
        let stream = Stream::new(marks, generator.prompter.tokenizer.clone());
        let first = self.words.as_ref().or(self.prompt.as_ref()).filter(|text| *text != "-");
        let mut turns = Turns::new(first.is_none() || !self.single_turn)?;
        let mut session = Session {
            options: self,
            generator,
            notices,
            conversation,
            retries: 0,
            last: None,
            saved: None,
            stream,
            interrupts,
            turn_count: 0,
            unanswered_count: 0,
        };
        if let Some(first) = first.filter(|text| !text.trim().is_empty()) {
            session.ask(first.clone(), &mut turns)?;
        }
        while !(self.single_turn && (first.is_some() || session.turn_count > 0)) {
            // Until here Ctrl-C was meant for the answer, even if it had just ended.
            let _ = interrupts.end();
            let Some(turn) = turns.next()? else { break };
            match Command::of(&turn) {
                Some(Command::Exit) => break,
                Some(command) => session.run_command(command, &mut turns)?,
                None if turn.trim().is_empty() => {}
                None => session.ask(turn, &mut turns)?,
            }
        }
        match (turns.is_terminal() && !self.single_turn, session.unanswered_count) {
            (true, _) | (_, 0) => Ok(()),
            (false, some) => Err(Failure::Other(format!("{some} of {} turns got no answer", session.turn_count))),
        }
    }
}

/// A running conversation.
struct Session<'a> {
    options: &'a Chat,
    generator: Generator,
    notices: Notices,
    conversation: Conversation,
    /// How often the last turn was answered again.
    retries: usize,
    /// The last answer.
    last: Option<Answer>,
    /// The file that this conversation was written to.
    saved: Option<PathBuf>,
    stream: Stream,
    interrupts: Interrupts,
    /// Number of turns so far.
    turn_count: usize,
    /// Number of turns that got no answer.
    unanswered_count: usize,
}

impl Session<'_> {
    /// Runs a command. An error is printed and does not end the chat.
    fn run_command(&mut self, command: Command, turns: &mut Turns) -> Result<(), Failure> {
        let print = |result: Result<String, Failure>| match result {
            Ok(line) => say(line),
            Err(failure) => warn(failure.message().unwrap_or_default()),
        };
        match command {
            Command::Help => warn(HELP),
            Command::Exit => {}
            Command::Clear => {
                self.conversation.clear();
                self.last = None;
            }
            Command::Regen => self.answer_again(turns)?,
            Command::Stats => self.print_stats(),
            Command::System(None) => match self.conversation.system() {
                Some(text) => warn(text),
                None => warn("the model is told nothing before the conversation"),
            },
            Command::System(Some(text)) => {
                let text = Some(text).filter(|text| text != "-");
                self.conversation.set_system(text);
            }
            Command::Save(path, force) => print(self.save(&path, force)),
            Command::Load(path) => print(self.load(&path)),
            Command::Wrong(why) => warn(why),
        }
        Ok(())
    }

    /// Writes the conversation to a file. An existing file is only replaced if it is this conversation's, or with
    /// `force`.
    fn save(&mut self, path: &Path, force: bool) -> Result<String, Failure> {
        refuse_stream("/save", path)?;
        let own = self.saved.as_deref() == Some(path);
        let mut file = match own || force {
            true => OutputFile::create(path, Existing::Replaced, &[])?,
            false => self.options.writing.begin(path, &[])?,
        };
        let unwritable = |error| Failure::Other(format!("{}: cannot be written: {error}", path.display()));
        file.write_all(self.conversation.to_json().as_bytes()).map_err(unwritable)?;
        file.finish()?;
        self.saved = Some(path.to_owned());
        Ok(format!("{}: {} messages", path.display(), self.conversation.messages.len()))
    }

    /// Continues the conversation of a file.
    fn load(&mut self, path: &Path) -> Result<String, Failure> {
        let place = path.display().to_string();
        let text = whole::read_text(path, TEXT_BYTES_MAX).map_err(|error| Failure::file(path, &error))?;
        let value = serde_json::from_str(&text)
            .map_err(|error| Failure::Other(format!("{place}: expected a conversation in JSON, found: {error}")))?;
        let messages: Vec<ChatMessage> =
            foretoken::chat::messages(&value).map_err(|why| Failure::Other(format!("{place}: {why}")))?;
        let count = messages.len();
        self.conversation.resume(messages);
        (self.last, self.retries, self.saved) = (None, 0, None);
        Ok(format!("{place}: {count} messages; the conversation goes on behind them"))
    }

    /// Prints the statistics of the last answer, and how full the context is.
    fn print_stats(&self) {
        let prompter = &self.generator.prompter;
        let Some(answer) = &self.last else { return warn("/stats: expected an answer before it, found none") };
        warn(report::long(std::slice::from_ref(answer), &prompter.names, None));
        let tokens = answer.prompt.len() + answer.emitted.len();
        let messages = self.conversation.messages.len();
        warn(format_args!("{messages} messages, {tokens} of {} tokens of the context", prompter.context));
    }

    /// Answers one turn.
    fn ask(&mut self, turn: String, turns: &mut Turns) -> Result<(), Failure> {
        let before = (self.conversation.clone(), self.retries);
        self.conversation.ask(turn);
        self.retries = 0;
        self.answer(before, turns)
    }

    /// Answers the last turn again, with a seed derived from the first one.
    fn answer_again(&mut self, turns: &mut Turns) -> Result<(), Failure> {
        let before = (self.conversation.clone(), self.retries);
        if !self.conversation.take_back_answer() {
            warn("/regen: expected an answer before it, found none");
            return Ok(());
        }
        if self.generator.prompter.decided.sampling.temperature == 0.0 {
            say("note: /regen: at temperature 0 the answer is the same");
        }
        self.retries += 1;
        self.answer(before, turns)
    }

    /// The request for the next answer, with room for the answer in the context; or the reason why there is none.
    fn request(&mut self, turns: &mut Turns) -> Result<Result<Request, String>, Failure> {
        let context = self.generator.prompter.context;
        let mut request = match self.conversation.request() {
            Ok(request) => request,
            Err(error) => return Ok(Err(Failure::from(error).message().unwrap_or_default())),
        };
        let shifts = self.options.context_shift;
        let wanted = request.tokens_max.unwrap_or(usize::MAX).min(context / ROOM_FOR_ANSWER).max(1);
        let len = request.prompt.len();
        if len + if shifts { wanted } else { 1 } <= context {
            return Ok(Ok(request));
        }
        let full = format!("the conversation has {len} tokens, the context {context}");
        if !shifts && !turns.confirms(&format!("{full}: leave out the oldest turns?"))? {
            return Ok(Err(format!("{full}: /clear begins a new one, --context-shift leaves out the oldest turns")));
        }
        let mut removed = 0;
        while request.prompt.len() + wanted > context {
            match self.conversation.forget_oldest_turn() {
                0 => break,
                messages => removed += messages,
            }
            match self.conversation.request() {
                Ok(shorter) => request = shorter,
                Err(error) => return Ok(Err(Failure::from(error).message().unwrap_or_default())),
            }
        }
        let left = request.prompt.len();
        if left >= context {
            return Ok(Err(format!("the last turn alone has {left} tokens, the context {context}")));
        }
        if removed > 0 {
            let rest = format!("the other {left} tokens are computed anew");
            say(format_args!("note: the first {removed} messages are left out; {rest}"));
        }
        Ok(Ok(request))
    }

    /// Answers the last turn. If that fails, the conversation is restored to `before`.
    fn answer(&mut self, before: (Conversation, usize), turns: &mut Turns) -> Result<(), Failure> {
        self.turn_count += 1;
        let request = match self.request(turns)? {
            Ok(request) => request,
            Err(why) => {
                warn(why);
                (self.conversation, self.retries) = before;
                self.unanswered_count += 1;
                return Ok(());
            }
        };
        let show_drafts = self.options.show_drafts;
        let seed = seed_of_answer(request.seed, self.retries);
        let report_drafts = show_drafts == Some(ShowDrafts::Rejected);
        let request = Request { seed, measure: show_drafts.is_some(), report_drafts, ..request };
        let thinking = self.conversation.thinking().filter(|_| matches!(show_drafts, None | Some(ShowDrafts::Table)));
        let mut thoughts = thinking.map(Thoughts::new);
        let Self { generator, notices, stream, interrupts, .. } = self;
        interrupts.begin();
        let mut prompt_bar = PromptBar::begin(request.prompt.len());
        let answers = generator.run(vec![request], &mut |_, event| -> Result<bool, Failure> {
            prompt_bar.watch(event);
            notices.on_event(event);
            match &mut thoughts {
                Some(thoughts) => {
                    thoughts.text(&event.text(), stream)?;
                    if matches!(event, Event::Finished { .. }) {
                        thoughts.finish(stream)?;
                    }
                }
                None => stream.event(event)?,
            }
            Ok(interrupts.may_continue())
        })?;
        drop(prompt_bar);
        self.stream.text("\n")?;
        self.finish_answer(&answers)?;
        // After every answer, since the conversation may end at any time.
        self.generator.keep(&answers)?;
        self.last = answers.into_iter().next();
        Ok(())
    }

    /// Prints failures and statistics of an answer, and adds it to the conversation.
    fn finish_answer(&mut self, answers: &[Answer]) -> Result<(), Failure> {
        let (prompter, show_drafts) = (&self.generator.prompter, self.options.show_drafts);
        for answer in answers {
            if let Some(failure) = &answer.failure {
                self.unanswered_count += 1;
                warn(format_args!("error: {}", named_failure(failure)));
            }
            if answer.reason == Some(FinishReason::Context) {
                let context = prompter.context;
                warn(format_args!("the context of {context} tokens is full: /clear begins a new conversation"));
            }
            if let (Some(ShowDrafts::Table), Some(tokenizer)) = (show_drafts, prompter.tokenizer.as_deref()) {
                self.stream.text(&table(&answer.emitted, &prompter.names, tokenizer))?;
            }
            report::tell_cut(answers, prompter.decided.grammar.is_some());
            if show_drafts.is_some() {
                say(report::long(answers, &prompter.names, None));
            } else if foretoken_console::verbosity::verbose() {
                report::tell(answers, &prompter.names, None);
            }
            self.conversation.answer_with(answer);
        }
        Ok(())
    }
}
