//! Signals: Ctrl-C, asked once, stops what is being written; at any other time, and as any other signal that ends a
//! program, it takes half files along.
//!
//! They are heard on a thread of their own, from the moment when somebody listens. Exit codes are the shell's: 128 and
//! the signal's number. Left out: `serve`, which lets its requests finish.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use foretoken::output_file::remove_unfinished;

use crate::failure::Failure;
use crate::progress::warn;

/// Nothing is being written: Ctrl-C ends the program.
const IDLE: u8 = 0;
/// A text is being written: Ctrl-C asks for its end.
const WRITING: u8 = 1;
/// Its end was asked for; asking twice ends the program.
const STOPPING: u8 = 2;

/// What Ctrl-C would do now.
static STATE: AtomicU8 = AtomicU8::new(IDLE);

/// Exit code of a program that was ended by Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// Whether Ctrl-C was pressed while a text was being written. There is one state, whoever asks for it.
#[derive(Clone, Copy, Debug)]
pub struct Interrupts(());

impl Interrupts {
    /// Listens from now on, if nobody did before. Where the system gives no thread for it, a line says so, and signals
    /// end the program as they end any other.
    pub fn listen() -> Self {
        static LISTENS: Mutex<bool> = Mutex::new(false);
        let mut listens = LISTENS.lock().unwrap_or_else(PoisonError::into_inner);
        if !*listens {
            *listens = true;
            if let Err(error) = hear_on_a_thread() {
                warn(format_args!("Ctrl-C: cannot be listened for, so it ends the program at once: {error}"));
            }
        }
        Self(())
    }

    /// A text begins.
    pub fn begin(self) {
        STATE.store(WRITING, Ordering::Relaxed);
    }

    /// Whether the text may go on.
    pub fn go_on(self) -> bool {
        Self::goes_on()
    }

    /// The same for who was not told whether anybody listens.
    pub fn goes_on() -> bool {
        STATE.load(Ordering::Relaxed) != STOPPING
    }

    /// The text has ended. Returns whether it was stopped.
    pub fn end(self) -> bool {
        STATE.swap(IDLE, Ordering::Relaxed) == STOPPING
    }

    /// The same for a command that ends then: the failure by which it does, if it was stopped.
    ///
    /// # Errors
    /// It was.
    pub fn end_command(self) -> Result<(), Failure> {
        if self.end() { Err(Failure::Interrupted) } else { Ok(()) }
    }
}

/// Returns when signals are heard, so that none is missed from then on. Until the thread is there nobody asks for them,
/// for who asks and does not hear cannot be stopped.
fn hear_on_a_thread() -> std::io::Result<()> {
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
                runtime.block_on(hear(signals));
            }
            Err(error) => _ = heard.send(Err(error)),
        }
    };
    std::thread::Builder::new().name("signals".to_string()).spawn(thread)?;
    hears.recv().unwrap_or_else(|_| Err(std::io::Error::other("its thread ended")))
}

/// Hears signals until one ends the program.
async fn hear(mut signals: Signals) {
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

/// Each with its exit code; but for those that whoever started the program had it ignore: `nohup` its hang-up, a shell
/// its Ctrl-C where it runs in the background of a script.
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
            // It cannot be heard: nothing ever comes.
            Err(_) => std::future::pending().await,
        }
    }
}
