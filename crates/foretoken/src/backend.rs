//! The backend that runs the targets of this process: the CPU, unless the program chooses another one at its start.

use std::sync::OnceLock;

use foretoken_model::{Backend, Cpu};

static CHOSEN: OnceLock<Box<dyn Backend>> = OnceLock::new();

/// Makes [`chosen_backend`] return this one, for the whole program. Call it at the start of the program.
///
/// # Panics
/// If one was chosen or used already.
pub fn choose_backend(backend: Box<dyn Backend>) {
    let refused = CHOSEN.set(backend).err();
    assert!(refused.is_none(), "backend: {} is in use, and {refused:?} was chosen", chosen_backend().name());
}

/// The backend of targets.
pub fn chosen_backend() -> &'static dyn Backend {
    &**CHOSEN.get_or_init(|| Box::new(Cpu))
}
