//! The memory of panels: zeroed by the system, in huge pages if it has them.
//!
//! Reading weights touches every page of a model once per pass. Pages of 2 MB instead of 4 kB avoid most TLB misses,
//! and most page faults when the memory is first written: with one row, weights are read a tenth faster. So matrices
//! are placed one after the other in large arenas, of which only written pages take memory. An arena is freed with the
//! last of its matrices.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use memmap2::{MmapMut, MmapRaw};

/// Bytes of an arena; a larger matrix has one of its own. Arenas are small in tests, which try all sizes around this
/// one.
const ARENA_BYTES: usize = if cfg!(any(test, miri)) { 1 << 16 } else { 256 << 20 };
/// Bytes of a huge page.
const HUGE_PAGE_BYTES: usize = if cfg!(any(test, miri)) { 1 << 14 } else { 2 << 20 };
/// Matrices are aligned to cache lines.
const ALIGNMENT: usize = 64;

/// The arena for the next matrix, which lives as long as any of its matrices, and the number of its bytes that are
/// used.
static CURRENT: Mutex<(Weak<MmapRaw>, usize)> = Mutex::new((Weak::new(), 0));

/// Zeroed bytes that belong to one matrix.
pub(super) struct Memory {
    /// Keeps the bytes alive.
    _arena: Option<Arc<MmapRaw>>,
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
        Self { _arena: None, start: NonNull::dangling(), len: 0 }
    }

    /// Returns `len` zeroed bytes; `None` if the system has no memory left.
    pub(super) fn zeroed(len: usize) -> Option<Self> {
        if len == 0 {
            return Some(Self::none());
        }
        let mut current: MutexGuard<'_, (Weak<MmapRaw>, usize)> =
            CURRENT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (arena, used) = match (current.0.upgrade(), current.1) {
            // A matrix larger than an arena never shares one, even if it would fit into the rest of the last page: the
            // bytes that it uses are not counted below.
            (Some(arena), used) if len <= ARENA_BYTES.min(arena.len() - used) => (arena, used),
            // If address space is limited (`ulimit -v`), there may be room for the matrix alone.
            _ => map_arena(len.max(ARENA_BYTES)).or_else(|| map_arena(len))?,
        };
        // SAFETY: used + len <= the arena's length, by the guard above or because it was made for `len` bytes.
        let start = unsafe { NonNull::new_unchecked(arena.as_mut_ptr().add(used)) };
        if len <= ARENA_BYTES {
            *current = (Arc::downgrade(&arena), (used + len).next_multiple_of(ALIGNMENT).min(arena.len()));
        }
        Some(Self { _arena: Some(arena), start, len })
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        // SAFETY: the range lies in the arena, which this value keeps alive, and belongs to no other value.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Maps a new arena for `len` bytes; also returns the offset of its first huge page. `None` if the system refuses it.
fn map_arena(len: usize) -> Option<(Arc<MmapRaw>, usize)> {
    let map = MmapMut::map_anon(len.checked_add(HUGE_PAGE_BYTES)?).ok()?;
    // This is advice, which changes only the speed.
    #[cfg(all(target_os = "linux", not(miri)))] // Miri has no such call
    let _ = map.advise(memmap2::Advice::HugePage);
    let map = MmapRaw::from(map);
    let used = map.as_mut_ptr().align_offset(HUGE_PAGE_BYTES).min(HUGE_PAGE_BYTES);
    Some((Arc::new(map), used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_do_not_overlap_and_begin_with_zeros() {
        let mut all: Vec<Memory> = [1, 64, 1000, ARENA_BYTES / 80, 0, ARENA_BYTES + 5, 77]
            .map(|len| Memory::zeroed(len).expect("there is memory"))
            .into();
        // Miri aborts if memory is refused.
        assert!(Memory::zeroed(usize::MAX - 5).is_none() && (cfg!(miri) || Memory::zeroed(1 << 60).is_none()));
        // One matrix fills an arena to its last byte, and another follows.
        let rest = {
            let current = CURRENT.lock().expect("no test panicked");
            current.0.upgrade().map_or(1, |arena| arena.len() - current.1)
        };
        all.extend([rest.max(1), 64].map(|len| Memory::zeroed(len).expect("there is memory")));
        for (i, memory) in all.iter_mut().enumerate() {
            assert!(memory.as_slice().iter().all(|byte| *byte == 0), "memory {i}");
            memory.as_mut_slice().fill(i as u8 + 1);
        }
        for (i, memory) in all.iter().enumerate() {
            assert!(memory.as_slice().iter().all(|byte| *byte == i as u8 + 1), "memory {i}");
            assert!(memory.len == 0 || memory.start.as_ptr().addr().is_multiple_of(ALIGNMENT), "memory {i}");
        }
    }

    #[test]
    fn no_two_matrices_share_a_byte() {
        // The sizes are around those of an arena and of a huge page; some matrices are dropped meanwhile.
        let sizes = [
            1,
            ARENA_BYTES + 1,
            ALIGNMENT,
            HUGE_PAGE_BYTES,
            ARENA_BYTES - 1,
            ARENA_BYTES,
            7,
            ARENA_BYTES + HUGE_PAGE_BYTES / 2,
            ARENA_BYTES * 2,
        ];
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
