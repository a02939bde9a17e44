//! Ctrl-C: asked once it stops what is being written, at any other time the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::failure::Failure;

/// Nothing is being written: Ctrl-C ends the program.
const IDLE: u8 = 0;
/// A text is being written: Ctrl-C asks for its end.
const WRITING: u8 = 1;
/// Its end was asked for; asking twice ends the program.
const STOPPING: u8 = 2;

/// Whether Ctrl-C was pressed while a text was being written.
#[derive(Clone)]
pub struct Interrupts(Arc<AtomicU8>);

impl Interrupts {
    /// Listens from now on.
    ///
    /// # Errors
    /// The system does not let us.
    pub fn listen() -> Result<Self, Failure> {
        let state = Arc::new(AtomicU8::new(IDLE));
        let listener = state.clone();
        let stop = move || {
            if listener.compare_exchange(WRITING, STOPPING, Ordering::Relaxed, Ordering::Relaxed).is_err() {
                std::process::exit(130);
            }
        };
        match ctrlc::set_handler(stop) {
            Ok(()) => Ok(Self(state)),
            Err(error) => Err(Failure::Other(format!("Ctrl-C: cannot be listened for: {error}"))),
        }
    }

    /// A text begins.
    pub fn begin(&self) {
        self.0.store(WRITING, Ordering::Relaxed);
    }

    /// Whether the text may go on.
    pub fn go_on(&self) -> bool {
        self.0.load(Ordering::Relaxed) == WRITING
    }

    /// The text has ended.
    pub fn end(&self) {
        self.0.store(IDLE, Ordering::Relaxed);
    }
}
