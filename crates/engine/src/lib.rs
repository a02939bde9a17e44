//! *Who runs next, and what happened?* Sequences, a scheduler, page bookkeeping, and the one step.
//!
//! [`Engine::step`] is the whole loop: plan, draft, one forward pass, verify, keep what was accepted, report.
//! Plain decoding is the step with empty trees; a prompt is a span without wanted rows; nothing else exists that
//! could disagree. The engine is written against the traits of its means, so a toy network, a trained one and a
//! remote one run through the same lines, and so do the proofs by enumeration.
//!
//! ```text
//! tokens   t0 t1 t2 ... t(n-1)        t(n-1) is *pending*: emitted, but without a cache row
//! cache    r0 r1 ... r(n-2)           cached length = n - 1
//! span     t(n-1) + draft tree        the pending token is the root; its row and the nodes' rows are new
//! verdict  k accepted nodes + 1       cached length = n - 1 + 1 + k; the one more token is pending again
//! ```
//!
//! Left out: text beyond the stop strings that end a request, the network of doors, and reading the clock for
//! anything but statistics, costs (`meter`) and drafters that hang (`drafting/late.rs`).

#![forbid(unsafe_code)]

mod chance;
mod clock;
mod drafting;
#[cfg(feature = "faults")]
pub mod faults;
#[cfg(not(feature = "faults"))]
mod faults;
mod guided;
mod law;
mod meter;
mod output;
mod pages;
mod panics;
mod request;
mod scheduler;
mod scorer;
mod sequence;
mod shared;
mod sources;
mod stats;
mod step;
mod translated;
mod weighing;

pub use chance::Race;
pub use clock::Clock;
pub use guided::{Forcing, ThinkingWords, guided, guided_behind};
pub use meter::{CostRecord, DrafterTime, WidthTime};
pub use output::{Drafted, Emitted, Event, FinishReason, Origin, Scored};
pub use pages::{Adopted, Copied, Owner, Pages, SequencePages};
pub use panics::panic_message;
pub use request::{BudgetKind, Order, Request, RequestError};
pub use scorer::ExecutorScorer;
pub use stats::{DrafterStats, PassTotals, Reliability, Stats, StepTimes, Workload};
pub use step::{Engine, SavedPrefix, SavedRows};
pub use translated::{TextTranslator, TranslationSettings, TranslationWay, translated_drafter};

pub use foretoken_speculation::{Costs, SequenceId, Token};
