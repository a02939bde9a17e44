//! Memory of the panels: zeros from the system, in large pages where it gives them.
//!
//! Reading weights touches every page of a model once a pass; pages of 2 MB instead of 4 kB spare most of the lookups
//! of addresses, and most of the faults when the memory is first written: one row is read a tenth faster. So matrices
//! lie side by side in large reserves, of which only what is written takes memory. A reserve goes when the last of its
//! matrices does.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use memmap2::{MmapMut, MmapRaw};

/// Bytes of a reserve; a larger matrix has one for itself. Small where tests go through all sizes around it.
const RESERVE: usize = if cfg!(any(test, miri)) { 1 << 16 } else { 256 << 20 };
/// Bytes of a large page.
const PAGE: usize = if cfg!(any(test, miri)) { 1 << 14 } else { 2 << 20 };
/// Matrices begin at lines of memory.
const LINE: usize = 64;

/// The reserve that the next matrix is cut from, while any of its matrices lives, and how much of it is gone.
static CURRENT: Mutex<(Weak<MmapRaw>, usize)> = Mutex::new((Weak::new(), 0));

/// Zeroed bytes that belong to one matrix.
pub(super) struct Memory {
    /// Keeps the bytes alive.
    _reserve: Option<Arc<MmapRaw>>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the bytes belong to this value alone, as those of a vector do.
unsafe impl Send for Memory {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for Memory {}

impl Memory {
    /// No bytes.
    pub(super) const fn none() -> Self {
        Self { _reserve: None, start: NonNull::dangling(), len: 0 }
    }

    /// So many; `None` if the system has no memory left.
    pub(super) fn zeroed(len: usize) -> Option<Self> {
        if len == 0 {
            return Some(Self::none());
        }
        let mut current: MutexGuard<'_, (Weak<MmapRaw>, usize)> =
            CURRENT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (reserve, used) = match (current.0.upgrade(), current.1) {
            // Not one that is larger than a reserve, even where it would fit into the rest of the last page: what it
            // takes is not noted below.
            (Some(reserve), used) if len <= RESERVE.min(reserve.len() - used) => (reserve, used),
            // Where addresses are few (`ulimit -v`), what is asked for may still be had, and nothing beyond.
            _ => reserve(len.max(RESERVE)).or_else(|| reserve(len))?,
        };
        // SAFETY: used + len <= the reserve's length, by the test above or by its making.
        let start = unsafe { NonNull::new_unchecked(reserve.as_mut_ptr().add(used)) };
        if len <= RESERVE {
            *current = (Arc::downgrade(&reserve), (used + len).next_multiple_of(LINE).min(reserve.len()));
        }
        Some(Self { _reserve: Some(reserve), start, len })
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        // SAFETY: the range lies in the reserve, which this value keeps, and is handed out to nobody else.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// A new reserve for `len` bytes, and where its first large page begins; `None` if the system refuses it.
fn reserve(len: usize) -> Option<(Arc<MmapRaw>, usize)> {
    let map = MmapMut::map_anon(len.checked_add(PAGE)?).ok()?;
    // A wish: whether it is granted changes the speed and nothing else.
    #[cfg(all(target_os = "linux", not(miri)))] // Miri knows no such wish
    let _ = map.advise(memmap2::Advice::HugePage);
    let map = MmapRaw::from(map);
    let used = map.as_mut_ptr().align_offset(PAGE).min(PAGE);
    Some((Arc::new(map), used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_do_not_overlap_and_begin_with_zeros() {
        let mut all: Vec<Memory> = [1, 64, 1000, RESERVE / 80, 0, RESERVE + 5, 77]
            .map(|len| Memory::zeroed(len).expect("there is memory"))
            .into();
        // Where memory is refused Miri ends.
        assert!(Memory::zeroed(usize::MAX - 5).is_none() && (cfg!(miri) || Memory::zeroed(1 << 60).is_none()));
        // What fills a reserve to its last byte, and one more.
        let rest = {
            let current = CURRENT.lock().expect("no test panicked");
            current.0.upgrade().map_or(1, |reserve| reserve.len() - current.1)
        };
        all.extend([rest.max(1), 64].map(|len| Memory::zeroed(len).expect("there is memory")));
        for (i, memory) in all.iter_mut().enumerate() {
            assert!(memory.as_slice().iter().all(|byte| *byte == 0), "memory {i}");
            memory.as_mut_slice().fill(i as u8 + 1);
        }
        for (i, memory) in all.iter().enumerate() {
            assert!(memory.as_slice().iter().all(|byte| *byte == i as u8 + 1), "memory {i}");
            assert!(memory.len == 0 || memory.start.as_ptr().addr().is_multiple_of(LINE), "memory {i}");
        }
    }

    #[test]
    fn no_two_matrices_have_a_byte_in_common() {
        // Sizes around those at which a reserve or a large page ends, some of them given back on the way.
        let sizes = [1, RESERVE + 1, LINE, PAGE, RESERVE - 1, RESERVE, 7, RESERVE + PAGE / 2, RESERVE * 2];
        let mut all: Vec<Memory> = Vec::new();
        for round in 0..40 {
            for step in 0..sizes.len() {
                all.push(Memory::zeroed(sizes[(step * (round % 5 + 1)) % sizes.len()]).expect("there is memory"));
            }
            if round % 3 == 0 {
                drop(all.drain(..all.len() / 2));
            }
            let mut ranges: Vec<_> = all.iter().map(|memory| memory.as_slice().as_ptr_range()).collect();
            ranges.sort_by_key(|range| range.start);
            assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "round {round}");
        }
    }
}
