//! A communicator over links of a given latency and rate.
//!
//! Every exchange takes at least `latency + bytes / rate`, where the bytes are those that this rank gets from the
//! others (a link carries both directions at once): the model of a network that `pass_time.rs` computes with. Nothing
//! else is changed, so a job on one machine takes the time that it would take on several.

use std::time::{Duration, Instant};

use crate::communicator::{Communicator, Silent};

/// Another communicator with slower links.
#[derive(Debug)]
pub struct Slow<C> {
    /// The communicator that carries the messages.
    pub inner: C,
    /// The time of the smallest message.
    pub latency: Duration,
    /// Bytes a second.
    pub rate: f64,
}

impl<C: Communicator> Slow<C> {
    /// Waits until the time has passed that these bytes take from `since` on.
    fn wait(&self, since: Instant, bytes: usize) {
        let until = since + self.latency + Duration::from_secs_f64(bytes as f64 / self.rate);
        // Sleeps are late by some 60 microseconds; the rest is waited for awake.
        let late = Duration::from_micros(200);
        if let Some(left) = until.checked_duration_since(Instant::now()).and_then(|left| left.checked_sub(late)) {
            std::thread::sleep(left);
        }
        while Instant::now() < until {
            std::thread::yield_now();
        }
    }
}

impl<C: Communicator> Communicator for Slow<C> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn send(&self, to: usize, message: &[u8], limit: Duration) -> Result<(), Silent> {
        self.inner.send(to, message, limit)
    }

    fn receive(&self, from: usize, limit: Option<Duration>) -> Result<Vec<u8>, Silent> {
        let message = self.inner.receive(from, limit)?;
        // It was sent at an unknown time; a receiver that was waiting gets it this much later.
        self.wait(Instant::now(), message.len());
        Ok(message)
    }

    fn gather(&self, part: &[u8], lens: &[usize], all: &mut [u8], limit: Duration) -> Result<(), Silent> {
        self.inner.gather(part, lens, all, limit)?;
        // Links are busy from when the last part was ready, for which ranks that were early have waited.
        self.wait(Instant::now(), lens.iter().sum::<usize>() - part.len());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_process::connect;

    #[test]
    fn an_exchange_takes_the_latency_and_the_time_of_the_bytes() {
        let ends = connect(2).into_iter();
        let latency = Duration::from_millis(2);
        let took = std::thread::scope(|scope| {
            let run = |inner| {
                let slow = Slow { inner, latency, rate: 1e6 };
                let (since, mut all) = (Instant::now(), [0; 6000]);
                slow.gather(&[7; 3000], &[3000; 2], &mut all, Duration::from_secs(9)).expect("both answer");
                assert_eq!(all, [7; 6000]);
                since.elapsed()
            };
            let ranks: Vec<_> = ends.map(|end| scope.spawn(move || run(end))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).min().expect("two ranks")
        });
        // 2 ms, and 3000 bytes at a megabyte a second.
        assert!(took >= Duration::from_millis(5) && took < Duration::from_millis(50), "{took:?}");
    }
}
