//! What is said on standard error: progress bars, on a terminal only, and lines.
//!
//! [`say`] is for notes and statistics, which `--quiet` silences; [`warn`] for warnings and errors, which nothing does;
//! [`detail`] for what only `-v` wants to know. None of them minds if nobody listens.

use std::borrow::Cow;
use std::fmt;
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use foretoken::Event;
use foretoken::generator::Opening;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::loudness::{quiet, verbose};
use crate::names::option;

/// A bar of so many steps; hidden unless standard error is a terminal, and under `--quiet`.
pub fn bar(what: impl Into<Cow<'static, str>>, steps: usize) -> ProgressBar {
    let target = if shown() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    ProgressBar::with_draw_target(Some(steps as u64), target).with_style(style(steps)).with_message(what)
}

fn shown() -> bool {
    std::io::stderr().is_terminal() && !quiet()
}

/// What takes so long gets a bar; what is done before leaves the terminal as it is.
const DELAY: Duration = Duration::from_millis(400);
/// A bar is drawn again so often, also where nothing has moved: its clock does.
const TICK: Duration = Duration::from_millis(200);

/// A bar that appears when something has taken a while, whether or not it has moved, and goes when it is dropped.
struct Patient {
    bar: ProgressBar,
    /// Whether it is over.
    over: Arc<(Mutex<bool>, Condvar)>,
    waits: Option<JoinHandle<()>>,
}

impl Patient {
    fn begin(what: &'static str, steps: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::hidden());
        let bar = bar.with_style(style(steps)).with_message(what);
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        let mut patient = Self { bar: bar.clone(), over: Arc::clone(&over), waits: None };
        if shown() {
            let appear = move || {
                let (is_over, changed) = &*over;
                let is_over = is_over.lock().unwrap_or_else(PoisonError::into_inner);
                let waited = changed.wait_timeout_while(is_over, DELAY, |is_over| !*is_over);
                if !*waited.unwrap_or_else(PoisonError::into_inner).0 {
                    bar.set_draw_target(ProgressDrawTarget::stderr());
                    bar.enable_steady_tick(TICK);
                }
            };
            // Without a thread there is no bar, which is no reason not to go on.
            patient.waits = std::thread::Builder::new().name("bar".to_string()).spawn(appear).ok();
        }
        patient
    }

    /// So many steps are done, of so many.
    fn set(&self, done: usize, of: usize) {
        if self.bar.length() != Some(of as u64) {
            self.bar.set_style(style(of));
            self.bar.set_length(of as u64);
        }
        self.bar.set_position(done as u64);
    }
}

impl Drop for Patient {
    fn drop(&mut self) {
        let (is_over, changed) = &*self.over;
        *is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
        if let Some(waits) = self.waits.take() {
            let _ = waits.join();
        }
        self.bar.finish_and_clear();
    }
}

/// How a bar looks; one without a known length has only its clock.
fn style(steps: usize) -> ProgressStyle {
    let form = if steps > 0 { "{msg} {wide_bar} {pos}/{len} {elapsed}" } else { "{msg} {elapsed}" };
    ProgressStyle::with_template(form).expect("the template is well-formed")
}

/// A bar while models are opened and loaded, one after the other.
pub struct Loading(Patient);

impl Default for Loading {
    fn default() -> Self {
        Self(Patient::begin("loading", 0))
    }
}

impl Loading {
    /// Shows how far opening a generator is, and says what is to be said before.
    pub fn hear(&mut self, opening: Opening<'_>) {
        match opening {
            Opening::Loading { done, of } => self.show(done, of),
            Opening::Warning(message) => warn(format_args!("warning: {}", message.with_names(option))),
        }
    }

    /// Shows that so many layers of a model are loaded, of so many.
    pub fn show(&mut self, done: usize, of: usize) {
        // Behind the last layer other work follows, of unknown length.
        if done == of { self.0.set(0, 0) } else { self.0.set(done, of) }
    }
}

/// A bar while a prompt is computed.
pub struct PromptBar(Option<Patient>);

impl PromptBar {
    /// Computing a prompt of so many tokens begins.
    pub fn begin(tokens: usize) -> Self {
        Self(Some(Patient::begin("prompt", tokens)))
    }

    /// Shows how far it is, and goes when the text begins.
    pub fn watch(&mut self, event: &Event) {
        match (event, &self.0) {
            (Event::Prompt { done, total, .. }, Some(bar)) if done < total => bar.set(*done, *total),
            _ => self.0 = None,
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
