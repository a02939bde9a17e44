//! Signals that ask a program to end.
//!
//! Left out: what is done then, which is the server's or the program's.

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ready when the system asks the program to end: by Ctrl-C, as service managers do (SIGTERM), or as a terminal that is
/// closed (SIGHUP); but for signals that it was started to pass over ([`foretoken::ignored_signals`]). On Unix, asked a
/// second time, the program ends at once. `listening` is called as soon as the program would hear it: who waits for the
/// server's address before it ends the server is heard, too.
pub async fn asked_to_end(listening: impl FnOnce()) {
    #[cfg(unix)]
    {
        let is_ignored = foretoken::ignored_signals();
        // Where the system does not tell, the program ends as any does. The library panics where no file can be opened.
        let heard = move |kind: SignalKind| match is_ignored(kind.as_raw_value()) {
            true => None,
            false => foretoken::caught("signals", || signal(kind)).ok().and_then(Result::ok),
        };
        let all_heard = move || KINDS.map(|kind| heard(kind()));
        let mut all = all_heard();
        listening();
        one_of(&mut all).await;
        tokio::spawn(async move {
            one_of(&mut all).await;
            std::process::exit(130);
        });
        // The task above is heard until the last connection has ended, and this thread behind that, too.
        let end = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
            runtime.block_on(async {
                one_of(&mut all_heard()).await;
                std::process::exit(130);
            })
        };
        let end = move || foretoken::caught::<std::io::Result<()>>("signals", end);
        // Without it a second signal waits for what is being kept.
        std::thread::Builder::new().name("signals".to_string()).spawn(end).ok();
    }
    #[cfg(not(unix))]
    {
        listening();
        tokio::signal::ctrl_c().await.ok();
    }
}

/// Those that ask a program to end.
#[cfg(unix)]
const KINDS: [fn() -> SignalKind; 3] = [SignalKind::interrupt, SignalKind::terminate, SignalKind::hangup];

/// Waits for one of these signals.
#[cfg(unix)]
async fn one_of(all: &mut [Option<Signal>; 3]) {
    let [interrupt, terminate, hangup] = all;
    tokio::select! {
        Some(_) = async { interrupt.as_mut()?.recv().await } => {}
        Some(_) = async { terminate.as_mut()?.recv().await } => {}
        Some(_) = async { hangup.as_mut()?.recv().await } => {}
        else => std::future::pending().await,
    }
}
