//! A client's stream: read and written by hyper, and watched beside it.
//!
//! The idea: hyper stops reading while an answer is written and something waits behind the request (a pipelined byte is
//! enough), and then it cannot see that its client has gone. So the stream is shared with a watcher, which asks the
//! system instead: it tells that the other side has closed whatever is still to be read. Whoever takes no byte for too
//! long is gone as well. After an answer that came before the whole request was read, what still comes is read for a
//! moment and thrown away, for closing at once would make the client's system drop the answer. Left out: who may
//! connect at all.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

/// Where bytes wait that hyper does not read, it is asked so often whether the client is still there.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// What a client still sends behind its answer is read for so long.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// A client's stream, and what is known of it.
pub(super) struct Client {
    stream: TcpStream,
    /// One more than requests that are being answered.
    answers: Arc<()>,
    /// Whether something waits to be taken by the client.
    waits: AtomicBool,
}

impl Client {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, answers: Arc::default(), waits: AtomicBool::new(false) }
    }

    /// A request is being answered for as long as what this returns is kept.
    pub(super) fn answers(&self) -> Arc<()> {
        Arc::clone(&self.answers)
    }

    /// Waits until the client has closed its side, which is how programs go away.
    pub(super) async fn hung_up(&self) {
        loop {
            match self.stream.ready(Interest::READABLE).await {
                Ok(ready) if !ready.is_read_closed() => tokio::time::sleep(LOOK_AGAIN).await,
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// Waits for `time`, and then until nothing is owed to the client: no answer, and no byte of one.
    pub(super) async fn owed_nothing(&self, time: impl Future<Output = ()>) {
        time.await;
        while Arc::strong_count(&self.answers) > 1 || self.waits.load(Ordering::Relaxed) {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Ends the server's side, and reads what still comes until the client has ended its own, for a moment at most.
    pub(super) async fn linger(&self) {
        if SockRef::from(&self.stream).shutdown(Shutdown::Write).is_err() {
            return; // it is gone
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

/// A shared stream that fails if its client takes no byte for too long.
pub(super) struct Watched {
    client: Arc<Client>,
    idle: Duration,
    /// Runs while something waits to be taken.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Watched {
    pub(super) fn new(client: Arc<Client>, idle: Duration) -> Self {
        Self { client, idle, timer: None }
    }

    /// Passes on what came of writing; if nothing did, until time is over.
    fn watch<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.client.waits.store(written.is_pending(), Ordering::Relaxed);
        if written.is_ready() {
            self.timer = None;
            return written;
        }
        let idle = self.idle;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + idle)));
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
    }

    /// Writes once the system takes something.
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
        self.watch(context, written)
    }
}

impl AsyncRead for Watched {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.client.stream.poll_read_ready(context))?;
            match self.client.stream.try_read(to.initialize_unfilled()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(bytes) => {
                    to.advance(bytes);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for Watched {
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

    /// What was written has been handed to the system.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match SockRef::from(&self.client.stream).shutdown(Shutdown::Write) {
            // It is shut already.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            shut => Poll::Ready(shut),
        }
    }
}
