//! Reports that another program has shortened a mapped file: one line and exit code 1, for programs that ask for it.
//!
//! Pages of a mapping beyond the end of its file cannot be read: the system sends SIGBUS, which by default ends the
//! process without a message. No check beforehand helps, since the file can be shortened right after it. So every
//! mapped file is listed here with its range of addresses and the line to print, made in advance, and
//! [`exit_if_a_mapped_file_is_truncated`] installs a handler that looks up the address. A signal handler may do very
//! little: this one compares numbers, writes the line and ends the process. An address that no listed file has is left
//! to the system.
//!
//! A library must not handle signals of the program that it is part of, so nothing happens before the program asks.
//! Files that are overwritten at the same length are not noticed, since no system call reports that. The process cannot
//! continue without the file, since the weights in it are gone.

use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::line::one_line;

/// Maximum number of listed files. A model has at most a few hundred shards; for further files the system's default
/// remains.
const FILES_MAX: usize = 1024;

/// A mapped file of the list. The entry is free while `start` is 0.
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

/// The value of `start` while an entry is being filled: no mapping begins at this address, and the range is empty.
const TAKEN: usize = usize::MAX;

/// The entry of a file in the list, while it is mapped.
pub(super) struct Listing {
    index: Option<usize>,
    /// The line to print, to which the list points. It is not a `Box`, since no other pointer may lead to the bytes of
    /// one.
    _line: Arc<[u8]>,
}

impl Listing {
    /// Lists a mapping of `bytes`. The listing must be dropped before the bytes are unmapped.
    pub(super) fn new(path: &Path, bytes: &[u8]) -> Self {
        let name = one_line(&path.to_string_lossy(), 1000);
        let expected = format!("expected {} bytes, found fewer", bytes.len());
        let line = format!("error: {name}: {expected}: it was shortened while it was used, or cannot be read\n");
        let line: Arc<[u8]> = Arc::from(line.into_bytes());
        let is_taken =
            |listed: &&Listed| listed.start.compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_err();
        let index = LISTED.iter().take_while(is_taken).count();
        let index = LISTED.get(index).map(|listed| {
            let start = bytes.as_ptr().addr();
            listed.end.store(start + bytes.len(), Ordering::Relaxed);
            listed.line.store(line.as_ptr().cast_mut(), Ordering::Relaxed);
            listed.line_len.store(line.len(), Ordering::Relaxed);
            listed.start.store(start, Ordering::Release);
            index
        });
        Self { index, _line: line }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        if let Some(index) = self.index {
            LISTED[index].start.store(0, Ordering::Release);
        }
    }
}

/// From now on, if the process reads a mapped file beyond its end because the file was shortened, it prints one line to
/// standard error and ends with exit code 1.
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

/// Does nothing, since this system has no such signals.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub fn exit_if_a_mapped_file_is_truncated() -> std::io::Result<()> {
    Ok(())
}

/// From now on, writing more to a file than the process may (`ulimit -f`) is an error, as on a full disk, and does not
/// end the process.
pub fn fail_where_a_file_may_not_grow() {
    // SAFETY: no code of this process waits for the signal; the only change is that it is ignored.
    #[cfg(unix)]
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Whether a thread has begun to report a truncated file.
#[cfg(unix)]
static IS_REPORTED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

#[cfg(unix)]
extern "C" fn on_bus_error(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the system gives a handler with SA_SIGINFO a valid pointer, and a bus error has an address.
    let address = unsafe { (*info).si_addr() }.addr();
    for listed in &LISTED {
        let start = listed.start.load(Ordering::Acquire);
        if start <= address && start != 0 && address < listed.end.load(Ordering::Relaxed) {
            let (line, len) = (listed.line.load(Ordering::Relaxed), listed.line_len.load(Ordering::Relaxed));
            // SAFETY: the thread that reads this address holds the mapping, so its listing and its line still live;
            // `write` and `_exit` may be called while a signal is handled.
            unsafe {
                // If several threads fault at once, one reports it and the others wait for the exit.
                while IS_REPORTED.swap(true, Ordering::Relaxed) {
                    libc::pause();
                }
                let _ = libc::write(libc::STDERR_FILENO, line.cast_const().cast(), len);
                libc::_exit(1);
            }
        }
    }
    // No listed file has the address: the instruction is retried, and fails as if there were no handler.
    // SAFETY: `signal` may be called while a signal is handled.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}
