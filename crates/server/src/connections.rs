//! Connections: accepting, limits, and graceful shutdown.
//!
//! axum handles requests and hyper connections; the accept loop is ours, to enforce limits. The number of connections
//! is limited (`room.rs`). A connection is closed, and its requests cancelled, if the client disconnects, or takes too
//! long to send a request or to read the answer. On shutdown connections are accepted for the drain delay, in which
//! routers notice that the server is not ready; then new ones are refused, and running requests may finish for a while;
//! then they are cut, and the remaining connections closed. A request that is only partly received gets a moment to be
//! completed.

mod client;
mod head;
mod room;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::OwnedSemaphorePermit;

use crate::shared::{Shared, Stage};
use client::{Client, WatchedStream};
use room::Room;

/// Maximum number of bytes of a request's line and headers.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Maximum number of headers of a request.
const HEADERS_MAX: usize = 128;
/// Time after the cut in which the ends of answers are sent.
const FINAL_ANSWER_TIME: Duration = Duration::from_secs(2);
/// Time before accepting again after an error (too many open files).
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum time between warnings of such errors.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// Time after connections began to be refused in which partly received requests may be completed.
const PARTIAL_REQUEST_TIME: Duration = Duration::from_secs(1);

/// Listens on an address. As many connections may wait to be accepted as the system allows.
///
/// # Errors
/// The system's.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A server that was just restarted gets its port again. On Windows the option would let two servers share it.
    socket.set_reuseaddr(cfg!(not(windows)))?;
    socket.bind(address)?;
    socket.listen(u32::MAX)
}

/// Serves connections until `shutdown` is ready or a request asks for it, and then until all have ended or the time is
/// over.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()>,
) {
    let room = Room::new(shared.settings.connections_max);
    let graceful = GracefulShutdown::new();
    let mut acceptor = Acceptor { shared: Arc::clone(&shared), listener, router, room, graceful, last_warning: None };
    let requested = async {
        tokio::select! {
            () = shutdown => {}
            () = shared.drain_requested.notified() => {}
        }
    };
    acceptor.accept_until(requested).await;
    let delay = shared.settings.drain_delay();
    if !delay.is_zero() {
        shared.stage.send_replace(Stage::Draining);
        tracing::info!(seconds = delay.as_secs(), "draining: not ready, but requests are still accepted");
        acceptor.accept_until(tokio::time::sleep(delay)).await;
    }
    let Acceptor { room, graceful, listener, .. } = acceptor;
    drop(listener);
    shared.ending_since.get_or_init(Instant::now);
    shared.stage.send_replace(Stage::Ending);
    let done = graceful.shutdown();
    let mut done = std::pin::pin!(done);
    tracing::info!(seconds = shared.settings.shutdown_timeout_s, "shutting down: requests may finish");
    if tokio::time::timeout(shared.settings.shutdown_timeout(), &mut done).await.is_err() {
        shared.stage.send_replace(Stage::Cutting);
        tracing::info!("requests are cut");
        tokio::time::timeout(FINAL_ANSWER_TIME, &mut done).await.ok();
    }
    // A place is free once the client has its answer, even if it still sends.
    tokio::time::timeout(client::LINGER, room.emptied()).await.ok();
}

/// What accepts connections.
struct Acceptor {
    shared: Arc<Shared>,
    listener: TcpListener,
    router: Router,
    room: Room,
    graceful: GracefulShutdown,
    last_warning: Option<Instant>,
}

impl Acceptor {
    /// Accepts connections, each of which is served by a task of its own, until `end` is ready.
    async fn accept_until(&mut self, end: impl Future<Output = ()>) {
        let mut end = std::pin::pin!(end);
        loop {
            let accepted = tokio::select! {
                () = &mut end => return,
                accepted = self.listener.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    if self.last_warning.is_none_or(|last_warning| last_warning.elapsed() > WARN_INTERVAL) {
                        tracing::warn!(%error, "a connection could not be accepted");
                        self.last_warning = Some(Instant::now());
                    }
                    tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
                    continue;
                }
            };
            // Events are small, and should be sent without delay.
            stream.set_nodelay(true).ok();
            let client = Arc::new(Client::new(stream));
            let place = tokio::select! {
                () = &mut end => return,
                place = self.room.place(&client) => place,
            };
            self.serve(client, place);
        }
    }

    /// Starts the task of a connection, which holds its place among the connections.
    fn serve(&self, client: Arc<Client>, place: OwnedSemaphorePermit) {
        let idle = self.shared.settings.idle_timeout();
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(idle)
            .max_headers(HEADERS_MAX)
            .max_buf_size(HEAD_BYTES_MAX);
        let watched = TokioIo::new(WatchedStream::new(Arc::clone(&client), idle));
        let service = track_answers(TowerToHyperService::new(self.router.clone()), Arc::clone(&client));
        let connection = self.graceful.watch(builder.serve_connection(watched, service));
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            tokio::select! {
                biased;
                ended = connection => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a connection broke");
                    }
                    client.linger().await;
                }
                // Dropping the connection cancels its requests.
                () = client.disconnected() => tracing::debug!("a client has disconnected"),
                () = client.idle_after(shutdown_grace_over(&shared)) => {
                    tracing::debug!("a client has sent no request, or not all of it");
                    client.linger().await;
                }
                () = client.dismissed() => tracing::debug!("a connection has made room for another one"),
            }
            drop(place);
        });
    }
}

/// Waits until new connections are refused and the time for the rest of requests, which is the same for all, is over.
pub(crate) async fn shutdown_grace_over(shared: &Shared) {
    shared.reached(Stage::Ending).await;
    if let Some(since) = shared.ending_since.get() {
        tokio::time::sleep_until((*since + PARTIAL_REQUEST_TIME).into()).await;
    }
}

/// The service, which registers each answer with the client until the last byte was taken, or the client disconnected;
/// and each request until all of it was received. A request that has a `Content-Length` and a `Transfer-Encoding` gets
/// the first back, which hyper took away, so that it can be refused.
fn track_answers(
    service: TowerToHyperService<Router>,
    client: Arc<Client>,
) -> impl Service<
    Request<Incoming>,
    Response = Response<impl Body<Data = Bytes, Error = axum::Error>>,
    Error = Infallible,
    Future: Send,
> {
    service_fn(move |mut request: Request<Incoming>| {
        let (answer_guard, body_guard) = (client.begin_answer(), client.begin_body());
        if request.headers().contains_key(TRANSFER_ENCODING) && client.had_content_length() {
            request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        let answer = service.call(request.map(|body| {
            body.map_frame(move |frame| {
                let _body = &body_guard;
                frame
            })
        }));
        async move {
            let answer = answer.await?;
            Ok(answer.map(|body| {
                body.map_frame(move |frame| {
                    let _answer = &answer_guard;
                    frame
                })
            }))
        }
    })
}
