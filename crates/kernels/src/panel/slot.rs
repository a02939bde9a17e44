//! Memory that the panels of several layers take in turn, as they are read from a file.
//!
//! A [`Slot`] is where the panels of one layer are while a pass needs them: it is empty, or it holds a [`Buffer`] with
//! the bytes of all of them. Buffers move from slot to slot, so a few of them serve a network that is larger than
//! memory. A product holds the slots of its matrices as long as it runs, and a buffer that is being filled is in no
//! slot, so nothing is ever read while it changes. When which layer is read is not decided here.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, TryLockError};

use memmap2::MmapMut;

/// Bytes of panels, which begin at a page of the system, as direct reads of a file require.
pub struct Buffer(MmapMut);

impl Buffer {
    /// Zeroed bytes; `None` if the system has no memory for them.
    pub fn zeroed(len: usize) -> Option<Self> {
        let map = MmapMut::map_anon(len.max(1)).ok()?;
        // This is advice, which changes only the speed.
        #[cfg(all(target_os = "linux", not(miri)))] // Miri has no such call
        let _ = map.advise(memmap2::Advice::HugePage);
        Some(Self(map))
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer of {} bytes", self.len())
    }
}

/// The place of a layer's panels: empty, or a buffer with the bytes of all of them.
#[derive(Debug, Default)]
pub struct Slot(RwLock<Option<Buffer>>);

impl Slot {
    /// Puts a buffer into the slot and returns the one that was there. Waits for products that use it.
    pub fn put(&self, buffer: Buffer) -> Option<Buffer> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).replace(buffer)
    }

    /// Takes the buffer out. Waits for products that use it.
    pub fn take(&self) -> Option<Buffer> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps the buffer in the slot until the returned value is dropped.
    ///
    /// # Panics
    /// If the slot is empty, or its buffer is being exchanged: whoever computes with a layer has waited for it before.
    pub(super) fn hold(&self) -> RwLockReadGuard<'_, Option<Buffer>> {
        let held = match self.0.try_read() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => panic!("panels: the layer's buffer is being exchanged"),
        };
        assert!(held.is_some(), "panels: the layer is not in memory");
        held
    }
}
