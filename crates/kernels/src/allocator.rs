//! An allocator for programs that end with one line if the system has no memory left.
//!
//! If the system refuses memory, Rust's standard library aborts the process by a signal, with a core dump. Users should
//! see what they see of every other error, one line and exit code 1. Nothing has to be saved before the exit, since
//! files are written under temporary names until they are complete. So a program uses this as its
//! `#[global_allocator]`; it costs a comparison per allocation. Code that can continue without the memory requests it
//! in [`fallibly`].
//!
//! This is the last resort: what a model needs is compared with the available memory before anything is loaded. On
//! systems other than Unix the process still aborts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
#[cfg(unix)]
use std::sync::atomic::{AtomicBool, Ordering};

/// The system's allocator, which ends the process with one line if the system has no memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator;

/// Whether a thread has begun to report that there is no memory.
#[cfg(unix)]
static IS_REPORTED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread runs code that handles refused memory.
    static MAY_FAIL: Cell<bool> = const { Cell::new(false) };
}

/// Runs code that handles refused memory, such as `Vec::try_reserve`, so that the process does not end.
pub fn fallibly<T>(run: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            MAY_FAIL.set(self.0);
        }
    }
    let _restore = Restore(MAY_FAIL.replace(true));
    run()
}

/// Returns freed memory to the system, since allocators keep some of it for later. Call this after much memory was
/// freed at once, for example by closing a model.
pub fn release_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes no pointer, may be called at any time by any thread, and touches free memory alone.
    unsafe {
        libc::malloc_trim(0);
    }
}

// SAFETY: every call is the system allocator's with the same arguments, and its result is handed on; a thread-local
// without a destructor is read without allocating.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of the system's allocator, which is the same.
        checked(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        checked(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        checked(unsafe { System.realloc(memory, layout, size) }, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[inline]
fn checked(memory: *mut u8, size: usize) -> *mut u8 {
    if memory.is_null() && !MAY_FAIL.get() {
        exit_out_of_memory(size);
    }
    memory
}

/// Reports the error and ends the process; nothing here allocates.
#[cold]
fn exit_out_of_memory(size: usize) {
    #[cfg(unix)]
    {
        use std::io::Write;
        let mut line = [0; 160];
        let capacity = line.len();
        let mut rest = &mut line[..];
        let words = "the system gives this program no more";
        let _ = writeln!(rest, "error: memory: expected {size} bytes more, found none: {words}");
        let len = capacity - rest.len();
        // SAFETY: the bytes are the line's; `_exit` runs nothing that could ask for memory.
        unsafe {
            // If several threads get no memory at once, one reports it and the others wait for the exit.
            while IS_REPORTED.swap(true, Ordering::Relaxed) {
                libc::pause();
            }
            let _ = libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), len);
            libc::_exit(1);
        }
    }
    #[cfg(not(unix))]
    let _ = size;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_allocated_and_freed() {
        let layout = Layout::from_size_align(64, 16).expect("a layout");
        // SAFETY: the layout is not empty, and what is allocated is used and given back with it.
        unsafe {
            let zeros = Allocator.alloc_zeroed(layout);
            assert!(std::slice::from_raw_parts(zeros, 64).iter().all(|byte| *byte == 0));
            *zeros = 7;
            let more = Allocator.realloc(zeros, layout, 4096);
            assert_eq!(*more, 7);
            Allocator.dealloc(more, Layout::from_size_align(4096, 16).expect("a layout"));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri aborts if memory is refused")]
    fn refused_memory_is_returned_only_to_fallible_code() {
        let huge = Layout::from_size_align(1 << 60, 16).expect("a layout");
        // SAFETY: the layout is not empty, and the result is not used.
        let memory = fallibly(|| unsafe { Allocator.alloc(huge) });
        assert!(memory.is_null());
        assert!(fallibly(|| fallibly(|| MAY_FAIL.get()) && MAY_FAIL.get()));
        assert!(!MAY_FAIL.get());
    }
}
