//! What happens when another program shortens a file that is mapped: one line and exit code 1, for programs that ask.
//!
//! Pages of a mapping that lie behind the end of its file cannot be read: the system sends SIGBUS, whose default is to
//! end the process without a word. No check beforehand helps, since the file can be shortened right after it. So every
//! mapped file is listed here with its range of addresses and the line that is to be said, made beforehand, and
//! [`exit_if_a_mapped_file_is_truncated`] has a handler look the address up. A handler may do almost nothing: this one
//! compares numbers, writes the line and ends the process. An address that is nobody's is left to the system.
//!
//! A library must not take signals from the program that it is part of, so nothing is done before a program asks. Left
//! out: files that are overwritten at the same length, which no system call notices, and going on without the file:
//! the weights in it are gone.

use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::line::line;

/// Files that are listed at a time. A model has some shards, some hundreds at most; of more, the rest ends as the
/// system has it.
const FILES_MAX: usize = 1024;

/// A mapped file of the list. A place is free while `start` is 0.
struct Listed {
    start: AtomicUsize,
    end: AtomicUsize,
    line: AtomicPtr<u8>,
    line_len: AtomicUsize,
}

static LISTED: [Listed; FILES_MAX] = [const {
    Listed {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        line: AtomicPtr::new(ptr::null_mut()),
        line_len: AtomicUsize::new(0),
    }
}; FILES_MAX];

/// What `start` is while a place is being filled: no mapping begins there, and the range is empty.
const TAKEN: usize = usize::MAX;

/// A file's place in the list, while it is mapped.
pub(super) struct Listing {
    place: Option<usize>,
    /// What is said; the list points to it. Not a `Box`, whose bytes nobody else may point to.
    _line: Arc<[u8]>,
}

impl Listing {
    /// Lists a mapping of `bytes`, which is to be dropped before it is unmapped.
    pub(super) fn new(path: &Path, bytes: &[u8]) -> Self {
        let name = line(&path.to_string_lossy(), 1000);
        let expected = format!("expected {} bytes, found fewer", bytes.len());
        let line = format!("error: {name}: {expected}: it was shortened while it was used, or cannot be read\n");
        let line: Arc<[u8]> = Arc::from(line.into_bytes());
        let is_taken =
            |listed: &&Listed| listed.start.compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_err();
        let place = LISTED.iter().take_while(is_taken).count();
        let place = LISTED.get(place).map(|listed| {
            let start = bytes.as_ptr().addr();
            listed.end.store(start + bytes.len(), Ordering::Relaxed);
            listed.line.store(line.as_ptr().cast_mut(), Ordering::Relaxed);
            listed.line_len.store(line.len(), Ordering::Relaxed);
            listed.start.store(start, Ordering::Release);
            place
        });
        Self { place, _line: line }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            LISTED[place].start.store(0, Ordering::Release);
        }
    }
}

/// From now on, a process that reads a mapped file behind its end, because the file was shortened, says so in one line
/// on standard error and ends with exit code 1.
///
/// # Errors
/// The system refuses the handler.
#[cfg(unix)]
pub fn exit_if_a_mapped_file_is_truncated() -> std::io::Result<()> {
    // SAFETY: all-zero bytes are a valid `sigaction`, whose fields are numbers and sets of bits.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the action is initialized, and its handler calls only what may be called while a signal is handled.
    match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// The same where there are no such signals: nothing.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub fn exit_if_a_mapped_file_is_truncated() -> std::io::Result<()> {
    Ok(())
}

/// From now on, writing more to a file than the process may (`ulimit -f`) is an error, as it is on a full disk, and
/// does not end the process before it can say so.
pub fn fail_where_a_file_may_not_grow() {
    // SAFETY: nothing of this process waits for the signal; that it is passed over is all that changes.
    #[cfg(unix)]
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Whether a thread has begun to say that a file is shorter.
#[cfg(unix)]
static IS_SAID: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

#[cfg(unix)]
extern "C" fn on_bus_error(_: libc::c_int, about: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the system gives a handler with SA_SIGINFO a valid pointer, and a bus error has an address.
    let address = unsafe { (*about).si_addr() }.addr();
    for listed in &LISTED {
        let start = listed.start.load(Ordering::Acquire);
        if start <= address && start != 0 && address < listed.end.load(Ordering::Relaxed) {
            let (line, len) = (listed.line.load(Ordering::Relaxed), listed.line_len.load(Ordering::Relaxed));
            // SAFETY: the thread that reads this address holds the mapping, so its listing and its line still live;
            // `write` and `_exit` may be called while a signal is handled.
            unsafe {
                // Of threads that read it at once one says so, and the others wait for the end.
                while IS_SAID.swap(true, Ordering::Relaxed) {
                    libc::pause();
                }
                let _ = libc::write(libc::STDERR_FILENO, line.cast_const().cast(), len);
                libc::_exit(1);
            }
        }
    }
    // Nobody's address: the instruction is tried again, and fails as if nobody had listened.
    // SAFETY: `signal` may be called while a signal is handled.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}
