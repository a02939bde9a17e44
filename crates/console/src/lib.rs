//! The parts that all commands of the program share: options, prompts, failures, and output on a terminal.
//!
//! [`options`] and [`values`] parse the command line into settings of the library `foretoken`; [`prompts`] and
//! [`records`] read input files; [`hub`] resolves a model's name to a path; [`opening`] opens a generator and prints
//! its notes; [`progress`], [`verbosity`] and [`report`] are output for people; [`terminal`] escapes control sequences
//! in texts; [`interrupts`] handles Ctrl-C. Every error is a [`Failure`](failure::Failure): one line, and an exit code.
//! The commands themselves are in the crates `cli` and `bench`.

#![forbid(unsafe_code)]

pub mod clock;
pub mod failure;
pub mod hub;
pub mod interrupts;
pub mod names;
pub mod opening;
pub mod options;
pub mod output;
pub mod progress;
pub mod prompts;
pub mod records;
pub mod report;
pub mod terminal;
pub mod values;
pub mod verbosity;
pub mod vocabulary;
