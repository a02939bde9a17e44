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
//! # let folder = tempfile::tempdir().expect("a folder for costs, which a test build has no business to keep");
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
//! [`Settings`] are plain structs that can be read from JSON; [`Generator`] opens what they name and runs requests;
//! [`EngineThread`] runs them beside whatever else a program does; [`Record`] holds all that decided a text. Doors
//! (the command line, and whatever comes after it) are made of exactly this. What is promised and why it holds stands
//! in `foretoken_speculation`, the loop in `foretoken_engine`.
//!
//! Left out: printing, progress bars, and names of options.

#![forbid(unsafe_code)]

pub mod answers;
mod chat;
mod costs;
mod engine_thread;
mod error;
pub mod generator;
mod memory;
pub mod models;
pub mod prompts;
mod record;
pub mod settings;
pub mod spec_type;
pub mod store;

pub use answers::{Answer, Submitted};
pub use chat::Conversation;
pub use engine_thread::EngineThread;
pub use error::{Error, Message};
pub use generator::Generator;
pub use prompts::Prompt;
pub use record::{DecidedBy, Record};
pub use settings::Settings;
pub use spec_type::SpecType;

pub use foretoken_engine::{Emitted, Engine, Event, FinishReason, Origin, Request, RequestError, Stats, Token};
pub use foretoken_speculation::{Promise, Sampling};
pub use foretoken_text::Tokenizer;
