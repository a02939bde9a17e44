//! The engine: sequences, the planner, the bookkeeping of pages, and the step.
//!
//! [`Engine::step`] is the whole loop: plan, draft, one forward pass, verify, keep what was accepted, report. Plain
//! decoding is a step with empty trees, and a chunk of a prompt is a span without wanted rows, so there is only one
//! code path. The engine is written against traits, so a toy network, a trained one and a remote one run through the
//! same code, and so do the proofs by enumeration.
//!
//! ```text
//! tokens   t0 t1 t2 ... t(n-1)        t(n-1) is *pending*: emitted, but without a cache row
//! cache    r0 r1 ... r(n-2)           cached length = n - 1
//! span     t(n-1) + draft tree        the pending token is the root; its row and the nodes' rows are new
//! verdict  k accepted nodes + 1       cached length = n - 1 + 1 + k; the one more token is pending again
//! ```
//!
//! The clock is read only for statistics, costs (`planner/meter.rs`) and drafters that hang (`drafting/late.rs`).

#![forbid(unsafe_code)]

mod beams;
mod chance;
mod clock;
mod drafting;
#[cfg(feature = "faults")]
pub mod faults;
#[cfg(not(feature = "faults"))]
mod faults;
mod guided;
mod law;
mod output;
mod pages;
mod panics;
mod planner;
mod request;
mod scorer;
mod sequence;
mod sources;
mod stats;
mod step;
mod translated;

pub use beams::{BeamSearch, EarlyStopping};
pub use chance::Race;
pub use clock::Clock;
pub use guided::{Forcing, ThinkingWords, guided, guided_after_thoughts};
pub use output::{Beam, Drafted, Emitted, Event, FinishReason, Origin, Scored};
pub use pages::{Owner, Pages};
pub use panics::panic_message;
pub use planner::{CostRecord, DrafterTime, WidthTime};
pub use request::{BudgetKind, Order, Request, RequestError};
pub use scorer::ExecutorScorer;
pub use stats::{BeamStats, DrafterStats, PassTotals, Reliability, Stats, StepTimes, Workload};
pub use step::{Engine, SavedPrefix, SavedRows};
pub use translated::{TextTranslator, TranslationSettings, TranslationWay, translated_drafter};

pub use foretoken_speculation::{Costs, SequenceId, Token};
