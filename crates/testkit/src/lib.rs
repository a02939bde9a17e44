//! The workshop: instruments that tests are made with. Never shipped.
//!
//! `dial` enumerates every outcome of a program's chance, `table` has language models small enough to be written down,
//! `toy` runs them behind the engine's executor trait (`far` with logits that lie far away, `ranks` on two ranks,
//! `experts` with experts, on a clock of its own), `network` is a real one in their place, `head` reads their hidden
//! states, `oracle` decodes with them in the plainest way, and `conform` holds every drafter, promise, budget and batch
//! to the oracle. Faults can be put into the instruments (`toy::Fault`), so that tests can show that they would be
//! seen. `twin` holds a draft model to its table. `rows` asks any kernel whether a row's result depends on its
//! neighbours. `forbidding` is a constraint. `simulator` runs engines with many requests, a run a number. `fuzzing` is
//! what the stable twins of the fuzz targets share.

#![forbid(unsafe_code)]

pub mod conform;
pub mod dial;
pub mod experts;
pub mod far;
pub mod forbidding;
pub mod fuzzing;
pub mod head;
pub mod network;
pub mod oracle;
pub mod ranks;
pub mod rows;
pub mod simulator;
pub mod table;
pub mod toy;
pub mod twin;
pub mod vocabulary;
