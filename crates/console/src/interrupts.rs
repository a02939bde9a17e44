//! Signals: the first Ctrl-C during generation stops it; at any other time Ctrl-C, like any other signal that ends a
//! program, removes temporary files and ends the program.
//!
//! They are handled on a thread of their own, from the first call of [`Interrupts::listen`]. Exit codes are the
//! shell's: 128 plus the signal's number. The server handles signals itself, since it lets its requests finish.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use foretoken::output_file::remove_unfinished;

use crate::failure::{Failure, INTERRUPTED};
use crate::progress::warn;

/// Nothing is being generated: Ctrl-C ends the program.
const IDLE: u8 = 0;
/// Something is being generated: Ctrl-C stops it.
const WRITING: u8 = 1;
/// Ctrl-C was pressed; another one ends the program.
const STOPPING: u8 = 2;

/// What the next Ctrl-C does.
static STATE: AtomicU8 = AtomicU8::new(IDLE);

/// Whether Ctrl-C was pressed during generation. The state is global.
#[derive(Clone, Copy, Debug)]
pub struct Interrupts(());

impl Interrupts {
    /// Handles signals from now on, if this was not called before. If the system refuses a thread for it, a warning is
    /// printed, and signals end the program as usual.
    pub fn listen() -> Self {
        static LISTENS: Mutex<bool> = Mutex::new(false);
        let mut listens = LISTENS.lock().unwrap_or_else(PoisonError::into_inner);
        if !*listens {
            *listens = true;
            if let Err(error) = listen_on_a_thread() {
                warn(format_args!("Ctrl-C: cannot be listened for, so it ends the program at once: {error}"));
            }
        }
        Self(())
    }

    /// Generation begins.
    pub fn begin(self) {
        STATE.store(WRITING, Ordering::Relaxed);
    }

    /// Whether generation may continue.
    pub fn may_continue(self) -> bool {
        Self::none_pending()
    }

    /// The same without having called [`Interrupts::listen`].
    pub fn none_pending() -> bool {
        STATE.load(Ordering::Relaxed) != STOPPING
    }

    /// Generation has ended. Returns whether it was stopped.
    pub fn end(self) -> bool {
        STATE.swap(IDLE, Ordering::Relaxed) == STOPPING
    }

    /// The same for a command that ends then: an error if it was stopped.
    ///
    /// # Errors
    /// It was stopped.
    pub fn end_command(self) -> Result<(), Failure> {
        if self.end() { Err(Failure::Interrupted) } else { Ok(()) }
    }
}

/// Returns when the handler is installed, so that no signal is missed from then on. It is installed by the thread
/// itself, since a program with a handler and no thread could not be stopped.
fn listen_on_a_thread() -> std::io::Result<()> {
    let (heard, hears) = std::sync::mpsc::channel();
    let thread = move || {
        // The library panics where no file can be opened.
        let signals = foretoken::caught("signals", || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
            let signals = runtime.block_on(async { Signals::new() })?;
            Ok((runtime, signals))
        });
        match signals.unwrap_or_else(|words| Err(std::io::Error::other(words))) {
            Ok((runtime, signals)) => {
                let _ = heard.send(Ok(()));
                runtime.block_on(handle(signals));
            }
            Err(error) => _ = heard.send(Err(error)),
        }
    };
    std::thread::Builder::new().name("signals".to_string()).spawn(thread)?;
    hears.recv().unwrap_or_else(|_| Err(std::io::Error::other("its thread ended")))
}

/// Handles signals until one ends the program.
async fn handle(mut signals: Signals) {
    loop {
        let code = signals.next().await;
        let asks = code == i32::from(INTERRUPTED)
            && STATE.compare_exchange(WRITING, STOPPING, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !asks {
            remove_unfinished();
            std::process::exit(code);
        }
    }
}

/// The handled signals with their exit codes, without those that the program was started to ignore: `nohup` ignores the
/// hang-up, a shell ignores Ctrl-C for the background jobs of a script.
#[cfg(unix)]
struct Signals(Vec<(i32, tokio::signal::unix::Signal)>);

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].into_iter();
        let is_ignored = foretoken::ignored_signals();
        let heard = kinds.filter(|kind| !is_ignored(kind.as_raw_value()));
        let with_code = |kind: SignalKind| Ok((128 + kind.as_raw_value(), signal(kind)?));
        Ok(Self(heard.map(with_code).collect::<std::io::Result<_>>()?))
    }

    /// The exit code of the next one.
    async fn next(&mut self) -> i32 {
        std::future::poll_fn(|context| {
            let code = self.0.iter_mut().find_map(|(code, signal)| match signal.poll_recv(context) {
                std::task::Poll::Ready(Some(())) => Some(*code),
                _ => None,
            });
            code.map_or(std::task::Poll::Pending, std::task::Poll::Ready)
        })
        .await
    }
}

#[cfg(not(unix))]
struct Signals(());

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self(()))
    }

    async fn next(&mut self) -> i32 {
        match tokio::signal::ctrl_c().await {
            Ok(()) => 130,
            // No handler could be installed, so no signal ever comes.
            Err(_) => std::future::pending().await,
        }
    }
}
