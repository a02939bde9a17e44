//! Memory of the panels: zeros from the system, in large pages where it gives them.
//!
//! Reading weights touches every page of a model once a pass; pages of 2 MB instead of 4 kB spare most of the lookups
//! of addresses, and most of the faults when the memory is first written.

use memmap2::MmapMut;

/// Zeroed bytes that begin at a page, or none.
pub(super) struct Memory(Option<MmapMut>);

impl Memory {
    /// # Panics
    /// If the system has no memory left.
    pub(super) fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Self(None);
        }
        let map =
            MmapMut::map_anon(len).unwrap_or_else(|error| panic!("no memory for {len} bytes of weights: {error}"));
        // A wish: whether it is granted changes the speed and nothing else.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Self(Some(map))
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        self.0.as_deref_mut().unwrap_or_default()
    }
}
