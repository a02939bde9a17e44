//! The progress of a download: a bar with the remaining time on a terminal, a line at the start elsewhere.

use std::sync::Mutex;

use foretoken_hub::{Event, Name, readable};

use crate::progress::{ProgressBar, bar, say, shown, style_of};

const TEMPLATE: &str = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left";

/// Shows the progress of fetching a model.
pub struct DownloadProgress {
    name: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bar: Option<ProgressBar>,
    /// A line that is printed with the first byte, so that an error before it is the only output.
    line: Option<String>,
}

impl DownloadProgress {
    /// Shows nothing until the first event.
    pub fn new(name: &Name) -> Self {
        Self { name: name.to_string(), state: Mutex::default() }
    }

    /// Shows an event.
    pub fn on_event(&self, event: Event<'_>) {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match event {
            Event::Begin { files, bytes } => {
                let count = if files == 1 { "1 file".to_string() } else { format!("{files} files") };
                let line = format!("{}: {count}, {}", self.name, readable(bytes));
                match shown() {
                    true => state.bar = Some(bar(line, bytes as usize).with_style(style_of(TEMPLATE))),
                    false => state.line = Some(line),
                }
            }
            Event::Done { bytes } => {
                state.line.take().iter().for_each(say);
                let Some(bar) = state.bar.as_ref() else { return };
                // Cached bytes took no time, so they must not be part of the estimate of the remaining time.
                if bar.position() == 0 {
                    bar.reset_eta();
                }
                bar.set_position(bytes);
            }
            Event::Waits { file } => {
                self.line(state.bar.as_ref(), &format!("{file}: another process fetches it; waiting for that process"));
            }
            Event::Unchecked { why } => {
                self.line(state.bar.as_ref(), &format!("{why}; the files in the cache are used unchecked"));
            }
            Event::Retry { file, why } => self.line(state.bar.as_ref(), &format!("{file}: {why}; trying again")),
        }
    }

    /// Prints a line above the bar.
    fn line(&self, bar: Option<&ProgressBar>, line: &str) {
        let line = format!("note: {}: {line}", self.name);
        match bar {
            Some(bar) => bar.suspend(|| say(line)),
            None => say(line),
        }
    }

    /// Removes the bar.
    pub fn end(&self) {
        if let Some(bar) = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner).bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// Removes the bar also after a failure, so that its message begins a line.
impl Drop for DownloadProgress {
    fn drop(&mut self) {
        self.end();
    }
}
