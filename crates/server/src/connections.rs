//! Connections: accepted, kept within limits, and brought to an end.
//!
//! The idea: axum serves requests, and hyper below it connections; the loop between them is ours because of its limits.
//! There are only so many connections at a time; a client has so long for its head, and if it neither sends what it
//! owes nor takes what it asked for, its connection is closed, which cancels its texts. When the server is asked to
//! end, nobody new is let in, texts have some time to finish, then they are cut, and what is left is closed. Left out:
//! encryption and HTTP/2, which are a proxy's.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep};

use crate::app::App;

/// Most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Most headers of a request.
const HEADERS_MAX: usize = 128;
/// After the time for finishing, texts that were cut have so long to be told.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// If no connection can be accepted (there are too many files open), it is tried again after so long.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves connections until `shutdown` is ready, and then until all are done or time is over.
pub(crate) async fn serve(app: Arc<App>, listener: TcpListener, router: Router, shutdown: impl Future<Output = ()>) {
    let places = Arc::new(Semaphore::new(app.settings.connections_max));
    let graceful = GracefulShutdown::new();
    let idle = app.settings.idle_timeout();
    let mut shutdown = std::pin::pin!(shutdown);
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
                tracing::warn!(%error, "a connection could not be accepted");
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
        let connection = builder.serve_connection(TokioIo::new(Watched::new(stream, idle)), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection broke");
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

/// A stream that fails if its client takes no byte for too long.
struct Watched {
    stream: TcpStream,
    idle: Duration,
    /// Runs while something waits to be taken.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Watched {
    fn new(stream: TcpStream, idle: Duration) -> Self {
        Self { stream, idle, timer: None }
    }

    /// Passes on what came of writing; if nothing did, until time is over.
    fn watch<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.timer = None;
            return written;
        }
        let idle = self.idle;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + idle)));
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, to)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, from);
        self.watch(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, from);
        self.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
