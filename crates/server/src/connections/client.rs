//! A client's stream, which hyper reads and writes and which is watched for a disconnect.
//!
//! While an answer is written and further bytes wait after the request (a pipelined byte suffices), hyper stops reading
//! and cannot notice that the client disconnected. So a watcher shares the stream and asks the operating system, which
//! reports the closed side even before all bytes are read. A client that takes no byte for too long counts as
//! disconnected, too. If an answer was sent before the whole request was read, further bytes are read and discarded for
//! a moment: closing at once would make the client's system drop the answer.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};

use super::head::Head;

/// How often a stream with unread bytes is checked for a disconnect.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long bytes after the answer are read and discarded.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// A client's stream and its state.
pub(super) struct Client {
    stream: TcpStream,
    /// Its reference count is the number of answers under way plus one.
    answers: Arc<()>,
    /// Its reference count is the number of requests whose bodies are being received, plus one.
    bodies: Arc<()>,
    /// Whether a write waits for the client.
    is_write_pending: AtomicBool,
    /// The state between two answers.
    between: Mutex<BetweenAnswers>,
    /// Notified when the connection is to end.
    dismissal: Notify,
    is_dismissed: AtomicBool,
}

/// What has happened since the last answer.
struct BetweenAnswers {
    /// When that answer ended or, before the first one, when there was room for the connection.
    since: Instant,
    /// The head of the next request.
    head: Head,
}

impl BetweenAnswers {
    fn new() -> Self {
        Self { since: Instant::now(), head: Head::default() }
    }
}

/// An answer is under way until this is dropped.
pub(super) struct AnswerGuard {
    client: Arc<Client>,
    _count: Arc<()>,
}

impl Drop for AnswerGuard {
    fn drop(&mut self) {
        *self.client.between() = BetweenAnswers::new();
    }
}

impl Client {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            answers: Arc::default(),
            bodies: Arc::default(),
            is_write_pending: AtomicBool::new(false),
            between: Mutex::new(BetweenAnswers::new()),
            dismissal: Notify::new(),
            is_dismissed: AtomicBool::new(false),
        }
    }

    fn between(&self) -> MutexGuard<'_, BetweenAnswers> {
        self.between.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers an answer as under way until the returned guard is dropped.
    pub(super) fn begin_answer(self: &Arc<Self>) -> AnswerGuard {
        AnswerGuard { client: Arc::clone(self), _count: Arc::clone(&self.answers) }
    }

    /// Registers a request as incomplete until the returned guard is dropped.
    pub(super) fn begin_body(&self) -> Arc<()> {
        Arc::clone(&self.bodies)
    }

    /// Whether the head of the request that is being answered had a `Content-Length`, as far as that is known.
    pub(super) fn had_content_length(&self) -> bool {
        self.between().head.has_content_length
    }

    /// Since when the client is awaited, that is, owes the server a request or the rest of one.
    pub(super) fn awaited_since(&self) -> Option<Instant> {
        let owes_request = Arc::strong_count(&self.answers) == 1 && !self.is_write_pending.load(Ordering::Relaxed);
        let is_awaited = owes_request || Arc::strong_count(&self.bodies) > 1;
        (is_awaited && !self.is_dismissed.load(Ordering::Relaxed)).then(|| self.between().since)
    }

    /// From now on a request is awaited.
    pub(super) fn begin_waiting(&self) {
        self.between().since = Instant::now();
    }

    /// Asks the connection to end.
    pub(super) fn dismiss(&self) {
        self.is_dismissed.store(true, Ordering::Relaxed);
        self.dismissal.notify_one();
    }

    /// Waits until the connection is asked to end.
    pub(super) async fn dismissed(&self) {
        self.dismissal.notified().await;
    }

    /// Waits until the client has closed its side.
    pub(super) async fn disconnected(&self) {
        loop {
            match self.stream.ready(Interest::READABLE).await {
                Ok(ready) if !ready.is_read_closed() => tokio::time::sleep(POLL_INTERVAL).await,
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// Waits for `time`, and then until no answer is under way and no write waits for the client.
    pub(super) async fn idle_after(&self, time: impl Future<Output = ()>) {
        time.await;
        while Arc::strong_count(&self.answers) > 1 || self.is_write_pending.load(Ordering::Relaxed) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Closes the server's side, and discards further bytes until the client has closed its own, for [`LINGER`] at
    /// most.
    pub(super) async fn linger(&self) {
        if SockRef::from(&self.stream).shutdown(Shutdown::Write).is_err() {
            return; // the client has disconnected
        }
        let drain = async {
            let mut bytes = [0; 4096];
            while self.stream.readable().await.is_ok() {
                match self.stream.try_read(&mut bytes) {
                    Ok(0) => return,
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return,
                }
            }
        };
        tokio::time::timeout(LINGER, drain).await.ok();
    }
}

/// A shared stream that fails if the client takes no byte for too long.
pub(super) struct WatchedStream {
    client: Arc<Client>,
    /// How long a write may wait for the client.
    idle: Duration,
    /// Runs while a write waits for the client.
    timer: Option<Pin<Box<Sleep>>>,
}

impl WatchedStream {
    pub(super) fn new(client: Arc<Client>, idle: Duration) -> Self {
        Self { client, idle, timer: None }
    }

    /// Passes on the result of a write; fails once a pending one takes too long.
    fn check_timeout<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.client.is_write_pending.store(written.is_pending(), Ordering::Relaxed);
        if written.is_ready() {
            self.timer = None;
            return written;
        }
        let idle = self.idle;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + idle)));
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
    }

    /// Writes once the stream is ready.
    fn write(
        &mut self,
        context: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let written = loop {
            match self.client.stream.poll_write_ready(context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => break Poll::Ready(Err(error)),
                Poll::Pending => break Poll::Pending,
            }
            match write(&self.client.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => break Poll::Ready(written),
            }
        };
        self.check_timeout(context, written)
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.client.stream.poll_read_ready(context))?;
            match self.client.stream.try_read(to.initialize_unfilled()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(bytes) => {
                    self.client.between().head.read(&to.initialize_unfilled()[..bytes]);
                    to.advance(bytes);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        self.write(context, |stream| stream.try_write(from))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(context, |stream| stream.try_write_vectored(from))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Written bytes are already with the operating system.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match SockRef::from(&self.client.stream).shutdown(Shutdown::Write) {
            // It is already shut down.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            shut => Poll::Ready(shut),
        }
    }
}
