//! What is said on standard error: progress bars, on a terminal only, and lines.
//!
//! [`say`] is for notes and statistics, which `--quiet` silences; [`warn`] for warnings and errors, which nothing does;
//! [`detail`] for what only `-v` wants to know. None of them minds if nobody listens.

use std::fmt;
use std::io::{IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::loudness::{quiet, verbose};

/// A bar of so many steps; hidden unless standard error is a terminal, and under `--quiet`.
pub fn bar(what: &'static str, steps: usize) -> ProgressBar {
    let shown = std::io::stderr().is_terminal() && !quiet();
    let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}").expect("the template is well-formed");
    ProgressBar::with_draw_target(Some(steps as u64), target).with_style(style).with_message(what)
}

/// A bar while models are loaded, one after the other.
#[derive(Default)]
pub struct Loading(Option<ProgressBar>);

impl Loading {
    /// Shows that so many layers of a model are loaded, of so many.
    pub fn show(&mut self, done: usize, of: usize) {
        self.0.get_or_insert_with(|| bar("loading", of)).set_position(done as u64);
        if done == of
            && let Some(bar) = self.0.take()
        {
            bar.finish_and_clear();
        }
    }
}

/// A line for the person at the terminal: a note, a statistic. Nothing under `--quiet`.
pub fn say(line: impl fmt::Display) {
    if !quiet() {
        warn(line);
    }
}

/// A line that is said in any case: a warning, an error. A closed standard error is not worth an error.
pub fn warn(line: impl fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A line that is only said under `-v`.
pub fn detail(line: impl fmt::Display) {
    if verbose() {
        warn(line);
    }
}
