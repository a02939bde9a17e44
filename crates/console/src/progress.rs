//! Output on standard error: lines, and on a terminal progress bars.
//!
//! [`say`] prints notes and statistics, except under `--quiet`; [`warn`] always prints warnings and errors; [`detail`]
//! prints only with `-v`. Errors of writing are ignored.

use std::borrow::Cow;
use std::fmt;
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use foretoken::Event;
use foretoken::generator::Opening;
pub use indicatif::ProgressBar;
use indicatif::{ProgressDrawTarget, ProgressStyle};

use crate::names::option;
use crate::terminal::standard_error;
use crate::verbosity::{coloured_errors, quiet, verbose};

/// A progress bar; hidden unless standard error is a terminal, and under `--quiet`.
pub fn bar(what: impl Into<Cow<'static, str>>, steps: usize) -> ProgressBar {
    let target = if shown() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    ProgressBar::with_draw_target(Some(steps as u64), target).with_style(style(steps)).with_message(what)
}

/// As [`bar`], with an estimate of the time that is left.
pub fn bar_with_time_left(what: impl Into<Cow<'static, str>>, steps: usize) -> ProgressBar {
    bar(what, steps).with_style(style_of("{msg} {wide_bar} {pos}/{len} {elapsed}, {eta} left"))
}

/// Whether progress bars are shown.
pub(crate) fn shown() -> bool {
    std::io::stderr().is_terminal() && !quiet()
}

/// A bar appears after this time; work that ends earlier shows none.
const DELAY: Duration = Duration::from_millis(400);
/// The time after which a bar is redrawn, since it shows a clock.
const TICK: Duration = Duration::from_millis(200);

/// A bar that appears after a delay, whether or not there is progress, and is removed when it is dropped.
struct DelayedBar {
    bar: ProgressBar,
    /// Set when the bar is dropped.
    ended: Arc<(Mutex<bool>, Condvar)>,
    /// The thread that shows the bar after the delay.
    timer: Option<JoinHandle<()>>,
}

impl DelayedBar {
    fn begin(what: &'static str, steps: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::hidden());
        let bar = bar.with_style(style(steps)).with_message(what);
        let ended = Arc::new((Mutex::new(false), Condvar::new()));
        let mut delayed = Self { bar: bar.clone(), ended: Arc::clone(&ended), timer: None };
        if shown() {
            let appear = move || {
                let (has_ended, changed) = &*ended;
                let has_ended = has_ended.lock().unwrap_or_else(PoisonError::into_inner);
                let waited = changed.wait_timeout_while(has_ended, DELAY, |has_ended| !*has_ended);
                if !*waited.unwrap_or_else(PoisonError::into_inner).0 {
                    bar.set_draw_target(ProgressDrawTarget::stderr());
                    bar.enable_steady_tick(TICK);
                }
            };
            // If the system refuses the thread, there is no bar.
            delayed.timer = std::thread::Builder::new().name("bar".to_string()).spawn(appear).ok();
        }
        delayed
    }

    /// Shows that `done` of `of` steps are done.
    fn set(&self, done: usize, of: usize) {
        if self.bar.length() != Some(of as u64) {
            self.bar.set_style(style(of));
            self.bar.set_length(of as u64);
        }
        self.bar.set_position(done as u64);
    }
}

impl Drop for DelayedBar {
    fn drop(&mut self) {
        let (has_ended, changed) = &*self.ended;
        *has_ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
        if let Some(timer) = self.timer.take() {
            let _ = timer.join();
        }
        self.bar.finish_and_clear();
    }
}

/// The style of a bar; without a known length it has only its clock.
fn style(steps: usize) -> ProgressStyle {
    style_of(if steps > 0 { "{msg} {wide_bar} {pos}/{len} {elapsed}" } else { "{msg} {elapsed}" })
}

pub(crate) fn style_of(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is well-formed")
}

/// A bar while models are opened and loaded, one after the other.
pub struct Loading(DelayedBar);

impl Default for Loading {
    fn default() -> Self {
        Self(DelayedBar::begin("loading", 0))
    }
}

impl Loading {
    /// Shows the progress of opening a generator, and prints warnings.
    pub fn on_event(&mut self, opening: Opening<'_>) {
        match opening {
            Opening::Loading { done, of } => self.show(done, of),
            Opening::Warning(message) => warn(format_args!("warning: {}", message.with_names(option))),
        }
    }

    /// Shows that `done` of a model's `of` layers are loaded.
    pub fn show(&mut self, done: usize, of: usize) {
        // After the last layer other work follows, of unknown length.
        if done == of { self.0.set(0, 0) } else { self.0.set(done, of) }
    }
}

/// A bar while a prompt is computed.
pub struct PromptBar(Option<DelayedBar>);

impl PromptBar {
    /// Starts the bar of a prompt with this number of tokens.
    pub fn begin(tokens: usize) -> Self {
        Self(Some(DelayedBar::begin("prompt", tokens)))
    }

    /// Shows the progress; removes the bar when the answer starts.
    pub fn watch(&mut self, event: &Event) {
        match (event, &self.0) {
            (Event::Prompt { done, total, .. }, Some(bar)) if done < total => bar.set(*done, *total),
            _ => self.0 = None,
        }
    }
}

/// Prints a note or a statistic, except under `--quiet`.
pub fn say(line: impl fmt::Display) {
    if !quiet() {
        warn(line);
    }
}

/// As [`say`], for lines with colours, which must not contain text of models or files.
pub fn say_coloured(line: impl fmt::Display) {
    if !quiet() {
        let _ = standard_error().write_coloured(&format!("{line}\n"));
    }
}

/// Prints a warning or an error.
pub fn warn(line: impl fmt::Display) {
    // In one write, so that lines of several threads are not mixed.
    let _ = standard_error().write_all(format!("{line}\n").as_bytes());
}

/// Prints the error by which a command ends.
pub fn error(line: &str) {
    let label = if coloured_errors() { "\x1b[1;31merror:\x1b[0m" } else { "error:" };
    let mut out = standard_error();
    let line = format!("{label} {}\n", out.shown(line));
    let _ = out.write_coloured(&line);
}

/// Prints a line only with `-v`.
pub fn detail(line: impl fmt::Display) {
    if verbose() {
        warn(line);
    }
}
