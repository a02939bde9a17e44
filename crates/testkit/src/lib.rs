//! The workshop: instruments that tests are made with. Never shipped.
//!
//! `dial` enumerates every outcome of a program's chance, `table` has language models small enough to be written down.

#![forbid(unsafe_code)]

pub mod dial;
pub mod table;
