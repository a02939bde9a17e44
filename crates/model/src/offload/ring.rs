//! Layers that are read in turn, again and again, on a thread of their own.
//!
//! The thread reads the layers in order, and after the last the first, into buffers that it puts into the layers'
//! slots; it stops while no buffer is free. A pass holds a layer as long as it computes it, and then its buffer is free
//! again. So between two passes the first layers of the next are read. A pass that wants another layer than the next
//! one (an early exit, which begins again before the last layer) takes the buffers of layers that nobody holds, and the
//! thread goes on from there. A read error fails a pass that waits for the layer; the next pass tries again.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use foretoken_kernels::panel::{Buffer, Slot};

use super::BUFFERS;
use super::file::{self, PackedFile};
use crate::error::ModelError;
use crate::executor::ExecutorError;

/// The layers that are read for every pass.
pub(crate) struct Ring {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    file: Arc<PackedFile>,
    /// For each layer its number in the file and its slot.
    layers: Vec<(usize, Arc<Slot>)>,
    state: Mutex<State>,
    /// Tells the thread that there is something to read.
    wanted: Condvar,
    /// Tells passes that a layer was read, or failed to be.
    arrived: Condvar,
}

struct State {
    /// Buffers that are in no slot and are not being filled.
    free: Vec<Buffer>,
    layers: Vec<LayerState>,
    /// The layer that the thread reads next, or is reading.
    next: usize,
    /// The layer whose last reading failed, and why. Nothing is read until the pass that waits for it knows.
    failure: Option<(usize, ModelError)>,
    /// Whether the thread has ended, or is to end.
    ended: bool,
}

impl State {
    /// Forgets the failure of a layer for which no pass waits, so that the thread goes on.
    fn forget_failure_of_no_pass(&mut self) {
        self.failure.take_if(|(failed, _)| self.layers[*failed].users == 0);
    }
}

#[derive(Clone, Copy, Default)]
struct LayerState {
    /// Whether its slot is filled.
    is_ready: bool,
    /// Whether it was compared with its checksum.
    is_checked: bool,
    /// Number of passes that hold it or wait for it.
    users: usize,
}

impl Ring {
    /// Begins to read. `layers`: for each its number in the file and its slot.
    ///
    /// # Errors
    /// The system has too little memory, or refuses a thread.
    pub(super) fn start(layers: Vec<(usize, Arc<Slot>)>, file: &Arc<PackedFile>) -> Result<Self, ModelError> {
        let largest = layers.iter().map(|(number, _)| file.layers()[*number].bytes).max().unwrap_or(0);
        let free: Vec<Buffer> = (0..BUFFERS).map(|_| file::buffer(file, largest)).collect::<Result<_, _>>()?;
        Self::with_buffers(layers, file, free)
    }

    /// As [`start`](Self::start), with these buffers, each as long as the longest layer.
    fn with_buffers(
        layers: Vec<(usize, Arc<Slot>)>,
        file: &Arc<PackedFile>,
        free: Vec<Buffer>,
    ) -> Result<Self, ModelError> {
        let states = vec![LayerState::default(); layers.len()];
        let state = Mutex::new(State { free, layers: states, next: 0, failure: None, ended: false });
        let (file_of_ring, wanted, arrived) = (Arc::clone(file), Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { file: file_of_ring, layers, state, wanted, arrived });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("layers".to_string()).spawn(move || of_thread.read_all());
        let refused =
            |error: std::io::Error| ModelError::Io { file: file.name().to_string(), message: error.to_string() };
        Ok(Self { shared, thread: Some(thread.map_err(refused)?) })
    }

    /// Waits until a layer is in its slot, and keeps it there until the returned value is dropped.
    ///
    /// # Errors
    /// [`ExecutorError::Failed`] if it cannot be read.
    pub(super) fn hold(&self, layer: usize) -> Result<HeldLayer<'_>, ExecutorError> {
        let shared = &*self.shared;
        let mut state = shared.lock();
        // Perhaps it was read ahead, and failed: it is tried again.
        state.forget_failure_of_no_pass();
        state.layers[layer].users += 1;
        while !state.layers[layer].is_ready {
            let failed = match state.failure.take_if(|(failed, _)| *failed == layer) {
                Some((_, error)) => Some(shared.file.failure(&error)),
                None => state.ended.then(|| format!("{}: the thread that reads layers has ended", shared.file.name())),
            };
            state.forget_failure_of_no_pass();
            if let Some(message) = failed {
                state.layers[layer].users -= 1;
                // Another pass may wait for the same layer.
                shared.wanted.notify_one();
                return Err(ExecutorError::Failed { message });
            }
            if state.next != layer || state.free.is_empty() {
                shared.go_to(&mut state, layer);
            }
            shared.wanted.notify_one();
            state = shared.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(HeldLayer { shared, layer })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.wanted.notify_one();
        // If the thread panicked, the passes after that have failed (`Ended`).
        self.thread.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the thread go on from another layer, with the buffers of all that nobody holds.
    fn go_to(&self, state: &mut State, layer: usize) {
        let State { free, layers, next, .. } = state;
        for ((_, slot), state) in self.layers.iter().zip(layers).filter(|(_, state)| state.is_ready && state.users == 0)
        {
            free.extend(slot.take());
            state.is_ready = false;
        }
        *next = layer;
    }

    /// What the thread does: reads the next layer whenever a buffer is free.
    fn read_all(&self) {
        let _ended = Ended(self);
        let mut state = self.lock();
        while !state.ended {
            let layer = state.next;
            let can_read = state.failure.is_none() && !state.layers[layer].is_ready;
            let Some(mut buffer) = can_read.then(|| state.free.pop()).flatten() else {
                state = self.wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let is_checked = state.layers[layer].is_checked;
            drop(state);
            let (number, slot) = &self.layers[layer];
            let read = self.file.read_layer(*number, &mut buffer, !is_checked);
            state = self.lock();
            match read {
                Ok(()) => {
                    state.free.extend(slot.put(buffer));
                    (state.layers[layer].is_ready, state.layers[layer].is_checked) = (true, true);
                    // Unless a pass wanted another one meanwhile.
                    if state.next == layer {
                        state.next = (layer + 1) % self.layers.len();
                    }
                }
                Err(error) => {
                    state.free.push(buffer);
                    state.failure = Some((layer, error));
                }
            }
            self.arrived.notify_all();
        }
    }
}

/// Lets no pass wait for a thread that has ended, if only by a panic.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.arrived.notify_all();
    }
}

/// A layer that stays in its slot as long as this value lives.
pub(crate) struct HeldLayer<'a> {
    shared: &'a Shared,
    layer: usize,
}

impl Drop for HeldLayer<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let own = &mut state.layers[self.layer];
        own.users -= 1;
        if own.users == 0 {
            own.is_ready = false;
            let buffer = self.shared.layers[self.layer].1.take();
            state.free.extend(buffer);
            self.shared.wanted.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::path::Path;
    use std::sync::{Barrier, mpsc};
    use std::time::Duration;

    use super::super::file::{PAGE_BYTES, Writer};
    use super::*;

    /// Three layers in a file that then has the first of them alone.
    fn shortened(path: &Path) -> (Vec<(usize, Arc<Slot>)>, Arc<PackedFile>) {
        let mut out = File::create(path).unwrap();
        let mut writer = Writer::begin(&mut out).unwrap();
        for layer in 0..3 {
            writer.bytes(&[layer; PAGE_BYTES]).unwrap();
            writer.end_layer().unwrap();
        }
        writer.finish("toy").unwrap();
        let file = Arc::new(PackedFile::open(path, "toy").unwrap());
        OpenOptions::new().write(true).open(path).unwrap().set_len(2 * PAGE_BYTES as u64).unwrap();
        ((0..3).map(|number| (number, Arc::default())).collect(), file)
    }

    /// What `run` yields, which may not take long.
    fn within_a_minute<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || send.send(run()));
        receive.recv_timeout(Duration::from_secs(60)).expect("it waits for ever")
    }

    #[test]
    fn every_pass_that_waits_for_a_layer_learns_that_it_cannot_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let (layers, file) = shortened(&folder.path().join("layers"));
        let ring = Ring::start(layers, &file).unwrap();
        let held = within_a_minute(move || {
            let start = Barrier::new(3);
            std::thread::scope(|scope| {
                let hold = |layer| {
                    let (ring, start) = (&ring, &start);
                    scope.spawn(move || {
                        let hold = |_| {
                            start.wait();
                            ring.hold(layer).is_ok()
                        };
                        (0..500).filter(|round| hold(*round)).count()
                    })
                };
                // A layer that can be read comes, whatever others wait for.
                [1, 1, 0].map(hold).map(|pass| pass.join().expect("no pass panics"))
            })
        });
        assert_eq!(held, [0, 0, 500]);
    }

    #[test]
    fn no_pass_waits_for_a_thread_that_has_panicked() {
        let folder = tempfile::tempdir().unwrap();
        let (layers, file) = shortened(&folder.path().join("layers"));
        // A buffer that is too small for a layer: the thread panics.
        let too_small = Buffer::zeroed(1).expect("there is memory");
        let ring = Ring::with_buffers(layers, &file, vec![too_small]).unwrap();
        let message = within_a_minute(move || {
            [0, 2].map(|layer| ring.hold(layer).map(drop).expect_err("it has ended").to_string())
        });
        assert!(message.iter().all(|line| line.ends_with("the thread that reads layers has ended")), "{message:?}");
    }
}
