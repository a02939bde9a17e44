//! Connections: accepted, kept within limits, and brought to an end.
//!
//! The idea: axum serves requests, and hyper below it connections; the loop between them is ours because of its limits.
//! There are only so many connections at a time; a client has so long for its head, and if it neither sends what it
//! owes nor takes what it asked for, or has gone, its connection is closed, which cancels its texts. When the server is
//! asked to end, nobody new is let in, texts have some time to finish, then they are cut, and what is left is closed.
//! Left out: encryption and HTTP/2, which are a proxy's.

mod client;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::app::App;
use client::{Watched, hung_up, linger};

/// Most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Most headers of a request.
const HEADERS_MAX: usize = 128;
/// After the time for finishing, texts that were cut have so long to be told.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// If no connection can be accepted (there are too many files open), it is tried again after so long.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// And told of again after so long.
const TOLD_AGAIN: Duration = Duration::from_secs(10);

/// Serves connections until `shutdown` is ready, and then until all are done or time is over.
pub(crate) async fn serve(app: Arc<App>, listener: TcpListener, router: Router, shutdown: impl Future<Output = ()>) {
    let places = Arc::new(Semaphore::new(app.settings.connections_max));
    let graceful = GracefulShutdown::new();
    let idle = app.settings.idle_timeout();
    let mut shutdown = std::pin::pin!(shutdown);
    let mut told: Option<Instant> = None;
    loop {
        let place = tokio::select! {
            () = &mut shutdown => break,
            place = Arc::clone(&places).acquire_owned() => place.expect("nobody closes it"),
        };
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                if told.is_none_or(|told| told.elapsed() > TOLD_AGAIN) {
                    tracing::warn!(%error, "a connection could not be accepted");
                    told = Some(Instant::now());
                }
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        // Events are small and wanted at once.
        stream.set_nodelay(true).ok();
        let service = TowerToHyperService::new(router.clone());
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(idle)
            .max_headers(HEADERS_MAX)
            .max_buf_size(HEAD_BYTES_MAX);
        let stream = Arc::new(stream);
        let watched = TokioIo::new(Watched::new(Arc::clone(&stream), idle));
        let connection = graceful.watch(builder.serve_connection(watched, service));
        tokio::spawn(async move {
            tokio::select! {
                biased;
                ended = connection => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a connection broke");
                    }
                    linger(&stream).await;
                }
                // Dropping the connection cancels its texts.
                () = hung_up(&stream) => tracing::debug!("a client has gone"),
            }
            drop(place);
        });
    }
    drop(listener);
    let done = graceful.shutdown();
    let mut done = std::pin::pin!(done);
    tracing::info!(seconds = app.settings.shutdown_timeout_s, "asked to end: texts may finish");
    if tokio::time::timeout(app.settings.shutdown_timeout(), &mut done).await.is_err() {
        app.cutting.send_replace(true);
        tracing::info!("texts are cut");
        tokio::time::timeout(LAST_WORDS, &mut done).await.ok();
    }
}
