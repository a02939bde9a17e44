//! Instruments for tests, which are never shipped.
//!
//! `enumerator` enumerates every outcome of a program's random draws, `table` has language models of a few tokens,
//! `toy` runs them behind the engine's executor trait (`remote_logits` with logits that are not in this process's
//! memory, `ranks` on two ranks, `experts` with experts, on a manual clock), `network` is a real network instead of a
//! toy, `head` reads hidden states of toys, `oracle` is a naive decoder, `conform` compares every drafter, promise,
//! budget and batch with the oracle, and `beams` is a naive beam search. Faults can be injected into the toys
//! (`toy::Fault`), so that tests can show that they would be detected. `checked_scorer` compares a draft model with its
//! table. `rows` tests for any kernel whether a row's result depends on the other rows of the batch. `forbidding` is a
//! constraint. `simulator` runs engines with many random requests, drawn from a seed; `world` runs the engine in
//! simulated time, to measure its planner. `fuzzing` is shared by the tests that run the fuzz targets' code on stable
//! Rust.

#![forbid(unsafe_code)]

pub mod beams;
pub mod checked_scorer;
pub mod conform;
pub mod enumerator;
pub mod experts;
pub mod forbidding;
pub mod fuzzing;
pub mod head;
pub mod network;
pub mod oracle;
pub mod ranks;
pub mod remote_logits;
pub mod rows;
pub mod simulator;
pub mod table;
pub mod toy;
pub mod vocabulary;
pub mod world;
