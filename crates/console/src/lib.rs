//! What all commands of the program share: options, prompts, failures, and lines on a terminal.
//!
//! [`options`] and [`values`] say what can be given and turn it into settings, which the library `foretoken` opens and
//! runs; [`prompts`] and [`records`] read what a command runs on; [`hub`] makes a path of a model's name; [`opening`]
//! opens a generator and says what its user should know; [`progress`], [`loudness`] and [`report`] are what a person
//! sees; [`interrupts`] is Ctrl-C. Whatever goes wrong is a [`Failure`](failure::Failure): one line, and an exit code.
//! Left out: the commands, which are in the program and in `foretoken_bench`, and the words that name them.

#![forbid(unsafe_code)]

pub mod clock;
pub mod failure;
pub mod hub;
pub mod interrupts;
pub mod loudness;
pub mod names;
pub mod opening;
pub mod options;
pub mod output;
pub mod progress;
pub mod prompts;
pub mod records;
pub mod report;
pub mod values;
pub mod vocabulary;
