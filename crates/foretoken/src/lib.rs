//! Text from large language models several times faster, without changing the text.
//!
//! From a model to streamed text with a drafter, on the demo models (feature `demo`; a folder or a `.gguf` file is
//! named by `settings.model.path`, a draft model by `settings.speculation.model_draft`):
//!
#![cfg_attr(feature = "demo", doc = "```")]
#![cfg_attr(not(feature = "demo"), doc = "```no_run")]
//! use foretoken::{Error, Event, Generator, Settings};
//!
//! let mut settings = Settings::default();
//! settings.speculation.spec_type = "draft+suffix".parse().expect("two drafters");
//! settings.sampling.tokens_max = 16.into();
//! # let folder = tempfile::tempdir().expect("a temporary folder for the costs file");
//! # settings.speculation.costs = Some(folder.path().join("costs.json"));
//! let mut generator = Generator::open(&settings)?;
//! let request = generator.request("Once upon a time,")?;
//! generator.run(vec![request], &mut |_, event: &Event| -> Result<bool, Error> {
//!     print!("{}", event.text());
//!     Ok(true)
//! })?;
//! # Ok::<(), Error>(())
//! ```
//!
//! Two users at a time, each on its own thread and with its own settings. The engine runs on a third thread; the users
//! share the [`Prompter`], which creates requests:
//!
#![cfg_attr(feature = "demo", doc = "```")]
#![cfg_attr(not(feature = "demo"), doc = "```no_run")]
//! use foretoken::settings::SamplingSettings;
//! use foretoken::{Conversation, EngineThread, Error, Event, Generator, Settings};
//!
//! let mut settings = Settings { parallel: 2, ..Settings::default() };
//! # settings.model.ctx_size = Some(256);
//! # let folder = tempfile::tempdir().expect("a temporary folder for the costs file");
//! # settings.speculation.costs = Some(folder.path().join("costs.json"));
//! let generator = Generator::open(&settings)?;
//! let prompter = generator.prompter.clone();
//! let engine = EngineThread::start(generator)?;
//! let serve = |question: &str, temperature: f32| -> Result<String, Error> {
//!     let sampling = SamplingSettings {
//!         temperature: Some(temperature),
//!         tokens_max: 16.into(),
//!         stop: vec![".".to_string()],
//!         ..settings.sampling.clone()
//!     };
//!     let mut conversation = Conversation::new(&prompter, None)?;
//!     conversation.ask(question);
//!     let request = conversation.request_by(&prompter.decide(&sampling)?)?;
//!     let (events, received) = std::sync::mpsc::channel();
//!     engine.submit(request, &events)?;
//!     drop(events); // The engine has the other sender, and closes the channel after the last event.
//!     Ok(received.iter().map(|event: Event| event.text()).collect())
//! };
//! std::thread::scope(|users| {
//!     let user = users.spawn(|| serve("Tell me a story.", 0.8));
//!     println!("{}", serve("What is a dog?", 0.0)?);
//!     println!("{}", user.join().expect("it does not panic")?);
//!     Ok::<(), Error>(())
//! })?;
//! let generator = engine.stop()?; // Dropping it writes the measured costs.
//! # Ok::<(), Error>(())
//! ```
//!
//! [`Settings`] are plain structs that can be read from JSON. [`Generator`] loads the models that they name and runs
//! requests. [`Prompter`] turns prompts and settings into requests, also while the engine runs. [`EngineThread`] runs
//! the engine on a thread of its own. [`Answer`] is the result of a request, and [`report`] writes it as JSON.
//! [`Record`] has every setting that decided a text. The command line and the server use only this interface. Types of
//! lower crates that appear in this crate's signatures are re-exported, so a front end needs no other crate unless it
//! implements a drafter, a network or a constraint. Why speculation does not change a text is explained in
//! `foretoken_speculation`; the loop is in `foretoken_engine`.
//!
//! # Costs are measured when a generator is opened
//!
//! How much to draft depends on how long forward passes take on this machine. So [`Generator::open`] measures three
//! passes of the target, of 1, 8 and 16 rows, and a few steps of each drafter, unless there are no drafters; this takes
//! about as long as generating ten tokens. The costs are kept in the cache folder (`$XDG_CACHE_HOME/foretoken` or
//! `~/.cache/foretoken`), one small file for each model, way of running it and machine. Dropping the generator writes
//! the costs learned from its passes there; the next generator starts with them and measures nothing. If
//! [`costs`](settings::SpeculationSettings::costs) names a file, its costs are used unchanged: they are measured only
//! if the file does not exist, and dropping the generator writes nothing.

#![forbid(unsafe_code)]

pub mod answers;
mod backend;
pub mod chat;
mod costs;
mod difference;
pub mod drafters;
mod engine_thread;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod generator;
pub mod hidden;
mod kept_file;
mod kept_texts;
pub mod logits;
mod memory;
pub mod models;
mod names;
pub mod output_file;
mod prompt_cache;
mod prompter;
pub mod prompts;
pub mod quantize;
mod record;
pub mod report;
mod seeds;
pub mod settings;
mod signals;
pub mod spec_type;
pub mod store;

pub use answers::{Answer, Submitted};
pub use backend::{choose_backend, chosen_backend};
pub use chat::Conversation;
pub use costs::{machine, measured_costs, measured_rows_per_second};
pub use difference::difference;
pub use engine_thread::{EngineThread, Listener};
pub use error::{Error, KeptFileError, Message};
pub use generator::Generator;
pub use memory::{MemoryLimit, parse_size};
pub use models::Offload;
pub use output_file::OutputFile;
pub use prompter::{Method, Prompter};
pub use prompts::Prompt;
pub use record::{DecidedBy, Record};
pub use seeds::{n_best, seed_of_answer};
pub use settings::Settings;
pub use signals::ignored_signals;
pub use spec_type::SpecType;

pub use foretoken_engine::{
    Beam, BeamSearch, BeamStats, BudgetKind, CostRecord, Drafted, DrafterStats, EarlyStopping, Emitted, Engine, Event,
    FinishReason, Order, Origin, PassTotals, Race, Reliability, Request, RequestError, Scored, SequenceId, Stats,
    Token, TranslationWay, Workload, guided,
};
pub use foretoken_kernels::block::Format as BlockFormat;
pub use foretoken_kernels::{Allocator, Isa};
pub use foretoken_model::{CacheType, Executor, ExecutorError, ModelError, WeightType};
pub use foretoken_speculation::{
    Chance, Constrained, Constraint, Costs, DraftSettings, Drafter, NumberRange, ParameterKind, Promise, Sampling,
    SamplingParameter, SamplingProblem, Tenant, theory,
};
pub use foretoken_text::{
    AnswerPiece, CallsWanted, ChatInput, ChatTemplate, Grammar, GrammarSource, Json, Message as ChatMessage, TextError,
    Thinking, ThinkingPieces, ThinkingReader, ThinkingTags, Tokenizer, ToolCall, ToolCallReader, ToolFormat,
    ToolFunction,
};
#[doc(hidden)] // for the server
pub use foretoken_text::{caught, strftime};
pub use foretoken_weights::{
    WeightsError, exit_if_a_mapped_file_is_truncated, fail_where_a_file_may_not_grow, line, whole,
};
