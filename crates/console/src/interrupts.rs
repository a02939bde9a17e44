//! Signals: the first Ctrl-C during generation stops the generation; at any other time Ctrl-C, like any other signal
//! that ends a program, removes temporary files and ends the program.
//!
//! Signals are handled on a thread of their own, from the first call of [`Interrupts::listen`] or
//! [`ignore_the_first_signal`]. Exit codes are the
//! shell's: 128 plus the signal's number. The server handles signals itself, since it lets its requests finish.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use foretoken::output_file::remove_unfinished;

use crate::failure::{Failure, INTERRUPTED};
use crate::progress::warn;

/// Nothing is being generated: Ctrl-C ends the program.
const IDLE: u8 = 0;
/// A text is being generated: Ctrl-C stops the generation.
const GENERATING: u8 = 1;
/// Ctrl-C was pressed; another one ends the program.
const STOPPING: u8 = 2;

/// The state, which decides the effect of the next Ctrl-C.
static STATE: AtomicU8 = AtomicU8::new(IDLE);

/// Whether Ctrl-C was pressed during generation. The state is global.
#[derive(Clone, Copy, Debug)]
pub struct Interrupts(());

impl Interrupts {
    /// Handles signals from now on. Further calls do nothing. If the system refuses to start a thread, a warning is
    /// printed, and signals end the program as usual.
    pub fn listen() -> Self {
        static LISTENING: Mutex<bool> = Mutex::new(false);
        let mut is_listening = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_listening {
            *is_listening = true;
            if let Err(error) = listen_on_a_thread(handle) {
                warn(format_args!("Ctrl-C: cannot be handled, so it ends the program at once: {error}"));
            }
        }
        Self(())
    }

    /// Generation begins.
    pub fn begin(self) {
        STATE.store(GENERATING, Ordering::Relaxed);
    }

    /// Whether generation may continue.
    pub fn may_continue(self) -> bool {
        Self::none_pending()
    }

    /// As [`Interrupts::may_continue`], also before [`Interrupts::listen`] is called.
    pub fn none_pending() -> bool {
        STATE.load(Ordering::Relaxed) != STOPPING
    }

    /// Generation has ended. Returns whether it was stopped.
    pub fn end(self) -> bool {
        STATE.swap(IDLE, Ordering::Relaxed) == STOPPING
    }

    /// As [`Interrupts::end`], for a command that ends now.
    ///
    /// # Errors
    /// Generation was stopped.
    pub fn end_command(self) -> Result<(), Failure> {
        if self.end() { Err(Failure::Interrupted) } else { Ok(()) }
    }
}

/// Starts the thread that handles signals, and returns when the handler is installed. The thread itself installs it,
/// since a program with a handler and no thread could not be stopped.
fn listen_on_a_thread<F: Future<Output = ()>>(
    handle: impl FnOnce(Signals) -> F + Send + 'static,
) -> std::io::Result<()> {
    let (started, result) = std::sync::mpsc::channel();
    let thread = move || {
        // tokio panics if no file can be opened.
        let signals = foretoken::caught("signals", || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
            let signals = runtime.block_on(async { Signals::new() })?;
            Ok((runtime, signals))
        });
        match signals.unwrap_or_else(|words| Err(std::io::Error::other(words))) {
            Ok((runtime, signals)) => {
                let _ = started.send(Ok(()));
                runtime.block_on(handle(signals));
            }
            Err(error) => _ = started.send(Err(error)),
        }
    };
    std::thread::Builder::new().name("signals".to_string()).spawn(thread)?;
    result.recv().unwrap_or_else(|_| Err(std::io::Error::other("its thread ended")))
}

/// Has the first signal do nothing, and a second one end the program: for a process that another one ends in time, and
/// which is sent the same signals. If the system refuses to start a thread, the first one ends the program as usual.
pub fn ignore_the_first_signal() {
    let _ = listen_on_a_thread(|mut signals| async move {
        signals.next().await;
        let code = signals.next().await;
        std::process::exit(code);
    });
}

/// Handles signals until one ends the program.
async fn handle(mut signals: Signals) {
    loop {
        let code = signals.next().await;
        let stops_generation = code == i32::from(INTERRUPTED)
            && STATE.compare_exchange(GENERATING, STOPPING, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !stops_generation {
            remove_unfinished();
            std::process::exit(code);
        }
    }
}

/// The handled signals with their exit codes, without those that the program was started to ignore.
#[cfg(unix)]
struct Signals(Vec<(i32, tokio::signal::unix::Signal)>);

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].into_iter();
        let is_ignored = foretoken::ignored_signals();
        let handled = kinds.filter(|kind| !is_ignored(kind.as_raw_value()));
        let with_code = |kind: SignalKind| Ok((128 + kind.as_raw_value(), signal(kind)?));
        Ok(Self(handled.map(with_code).collect::<std::io::Result<_>>()?))
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
