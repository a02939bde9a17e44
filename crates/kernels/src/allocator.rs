//! The system's memory, for programs that say so in one line where there is none left.
//!
//! Where the system refuses memory, Rust's library aborts the process: by a signal, with a dump of its memory. Users
//! should see what they see of every other error, a line and exit code 1, and there is nothing to save: a file that is
//! half written is not under its name yet. So a program takes this as its `#[global_allocator]`; it costs a comparison
//! an allocation. Whoever can go on without the memory asks with [`fallibly`].
//!
//! It is the last net and catches what nobody reckoned with: what a model needs is compared with what there is before
//! anything is loaded. Left out: systems other than Unix, which abort as before.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
#[cfg(unix)]
use std::sync::atomic::{AtomicBool, Ordering};

/// The system's allocator, which ends the process with a line where the system has no memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator;

/// Whether a thread has begun to say that there is no memory.
#[cfg(unix)]
static IS_SAID: AtomicBool = AtomicBool::new(false);

thread_local! {
    static MAY_FAIL: Cell<bool> = const { Cell::new(false) };
}

/// Runs what can go on where memory is refused, with `Vec::try_reserve` for instance.
pub fn fallibly<T>(run: impl FnOnce() -> T) -> T {
    struct Restored(bool);
    impl Drop for Restored {
        fn drop(&mut self) {
            MAY_FAIL.set(self.0);
        }
    }
    let _before = Restored(MAY_FAIL.replace(true));
    run()
}

/// Gives memory that was freed back to the system, of which allocators keep some for later: to be called where much was
/// freed at once, as by closing a model.
pub fn give_back() {
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
        // SAFETY: the caller's promises are the system's.
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
        refused(size);
    }
    memory
}

/// Says so and ends the process; nothing here allocates.
#[cold]
fn refused(size: usize) {
    #[cfg(unix)]
    {
        use std::io::Write;
        let mut line = [0; 160];
        let room = line.len();
        let mut rest = &mut line[..];
        let words = "the system gives this program no more";
        let _ = writeln!(rest, "error: memory: expected {size} bytes more, found none: {words}");
        let len = room - rest.len();
        // SAFETY: the bytes are the line's; `_exit` runs nothing that could ask for memory.
        unsafe {
            // Of threads that are refused at once one says so, and the others wait for the end.
            while IS_SAID.swap(true, Ordering::Relaxed) {
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
    fn memory_comes_from_the_system_and_goes_back() {
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
    #[cfg_attr(miri, ignore = "where memory is refused Miri ends")]
    fn what_may_fail_is_told_so_and_only_that() {
        let huge = Layout::from_size_align(1 << 60, 16).expect("a layout");
        // SAFETY: the layout is not empty, and nothing is there to be used.
        let refused = fallibly(|| unsafe { Allocator.alloc(huge) });
        assert!(refused.is_null());
        assert!(fallibly(|| fallibly(|| MAY_FAIL.get()) && MAY_FAIL.get()));
        assert!(!MAY_FAIL.get());
    }
}
