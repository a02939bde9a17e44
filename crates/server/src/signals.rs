//! Signals that request the program's shutdown.

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ready when a signal requests shutdown: Ctrl-C, SIGTERM (service managers), or SIGHUP (a closed terminal). Signals
/// that the program was started to ignore do not count ([`foretoken::ignored_signals`]). On Unix a second signal ends
/// the program at once. `listening` is called once signals are handled, so that a caller who waits for the server's
/// address can signal it right away.
pub async fn shutdown_signal(listening: impl FnOnce()) {
    #[cfg(unix)]
    {
        let is_ignored = foretoken::ignored_signals();
        // Without a handler a signal ends the program as usual. The library panics if no file can be opened.
        let handler = move |kind: SignalKind| match is_ignored(kind.as_raw_value()) {
            true => None,
            false => foretoken::caught("signals", || signal(kind)).ok().and_then(Result::ok),
        };
        let all_handlers = move || SHUTDOWN_SIGNALS.map(|kind| handler(kind()));
        let mut all = all_handlers();
        listening();
        any_of(&mut all).await;
        tokio::spawn(async move {
            any_of(&mut all).await;
            std::process::exit(130);
        });
        // The task above runs until the last connection has ended; this thread handles signals after that, too.
        let exit_thread = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
            runtime.block_on(async {
                any_of(&mut all_handlers()).await;
                std::process::exit(130);
            })
        };
        let exit_thread = move || foretoken::caught::<std::io::Result<()>>("signals", exit_thread);
        // Without this thread a second signal waits until texts are saved.
        std::thread::Builder::new().name("signals".to_string()).spawn(exit_thread).ok();
    }
    #[cfg(not(unix))]
    {
        listening();
        tokio::signal::ctrl_c().await.ok();
    }
}

/// The signals that request shutdown.
#[cfg(unix)]
const SHUTDOWN_SIGNALS: [fn() -> SignalKind; 3] = [SignalKind::interrupt, SignalKind::terminate, SignalKind::hangup];

/// Waits for any of these signals.
#[cfg(unix)]
async fn any_of(all: &mut [Option<Signal>; 3]) {
    let [interrupt, terminate, hangup] = all;
    tokio::select! {
        Some(_) = async { interrupt.as_mut()?.recv().await } => {}
        Some(_) = async { terminate.as_mut()?.recv().await } => {}
        Some(_) = async { hangup.as_mut()?.recv().await } => {}
        else => std::future::pending().await,
    }
}
