//! Connections: accepted, kept within limits, and brought to an end.
//!
//! The idea: axum serves requests, and hyper below it connections; the loop between them is ours because of its limits.
//! There are only so many connections at a time; a client has so long for its head, and if it neither sends what it
//! owes nor takes what it asked for, or has gone, its connection is closed, which cancels its texts. When the server is
//! asked to end, nobody new is let in, texts have some time to finish, then they are cut, and what is left is closed;
//! whoever has sent only a part of a request by then has a moment for the rest of it.
//! Left out: encryption and HTTP/2, which are a proxy's.

mod client;

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::shared::{Shared, Stage};
use client::{Client, Watched};

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

/// When the server is asked to end, a request that has begun to come has so long to be there.
const REST_OF_REQUEST: Duration = Duration::from_secs(1);

/// Serves connections until `shutdown` is ready, and then until all are done or time is over.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()>,
) {
    let places = Arc::new(Semaphore::new(shared.settings.connections_max));
    let graceful = GracefulShutdown::new();
    let idle = shared.settings.idle_timeout();
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
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(idle)
            .max_headers(HEADERS_MAX)
            .max_buf_size(HEAD_BYTES_MAX);
        let client = Arc::new(Client::new(stream));
        let watched = TokioIo::new(Watched::new(Arc::clone(&client), idle));
        let service = counted(TowerToHyperService::new(router.clone()), Arc::clone(&client));
        let connection = graceful.watch(builder.serve_connection(watched, service));
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            tokio::select! {
                biased;
                ended = connection => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a connection broke");
                    }
                    client.linger().await;
                }
                // Dropping the connection cancels its texts.
                () = client.hung_up() => tracing::debug!("a client has gone"),
                () = client.owed_nothing(too_late(&shared)) => {
                    tracing::debug!("a client has sent no request, or not all of it");
                    client.linger().await;
                }
            }
            drop(place);
        });
    }
    drop(listener);
    shared.asked_to_end.get_or_init(Instant::now);
    shared.stage.send_replace(Stage::Ending);
    let done = graceful.shutdown();
    let mut done = std::pin::pin!(done);
    tracing::info!(seconds = shared.settings.shutdown_timeout_s, "asked to end: texts may finish");
    if tokio::time::timeout(shared.settings.shutdown_timeout(), &mut done).await.is_err() {
        shared.stage.send_replace(Stage::Cutting);
        tracing::info!("texts are cut");
        tokio::time::timeout(LAST_WORDS, &mut done).await.ok();
    }
    // A place is given back when its client has its answer, also where it still sends.
    let all = u32::try_from(shared.settings.connections_max).unwrap_or(u32::MAX);
    tokio::time::timeout(client::LINGER, places.acquire_many(all)).await.ok();
}

/// Waits until the server was asked to end and the time for the rest of requests, which is one for all, is over.
pub(crate) async fn too_late(shared: &Shared) {
    shared.reached(Stage::Ending).await;
    if let Some(asked) = shared.asked_to_end.get() {
        tokio::time::sleep_until((*asked + REST_OF_REQUEST).into()).await;
    }
}

/// The service, which notes at the client while a request is answered: until the last of the answer has been taken
/// from it, or its client has gone.
fn counted(
    service: TowerToHyperService<Router>,
    client: Arc<Client>,
) -> impl Service<
    Request<Incoming>,
    Response = Response<impl Body<Data = Bytes, Error = axum::Error>>,
    Error = Infallible,
    Future: Send,
> {
    service_fn(move |request| {
        let answers = client.answers();
        let answer = service.call(request);
        async move {
            let answer = answer.await?;
            Ok(answer.map(|body| {
                body.map_frame(move |frame| {
                    let _kept = &answers;
                    frame
                })
            }))
        }
    })
}
