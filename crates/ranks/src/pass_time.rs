//! How long a pass takes on several machines, computed from one machine's time and the link between them.
//!
//! A pass is arithmetic, most of which is divided by the number of ranks (the products) and some of which every rank
//! repeats (norms, sampling on rank 0), and exchanges. An exchange takes the link's latency once, since all ranks send
//! at the same time, and the time of the bytes that a rank gets: the parts of all others. Links carry both directions
//! at once, and a switch all pairs of ranks. Computing and sending do not overlap.
//!
//! `examples/links.rs` compares this with measured times.

use foretoken_model::Sent;

/// A link between machines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Seconds from the call of a rank that sends to the return of one that waits, without the time of the bytes.
    pub latency: f64,
    /// Bytes a second, in each direction.
    pub rate: f64,
}

impl Link {
    /// A link of this many gigabits a second.
    pub fn gigabits(gigabits: f64, latency: f64) -> Self {
        Self { latency, rate: gigabits * 1e9 / 8.0 }
    }
}

/// What a pass of a number of rows takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PassTime {
    /// Seconds of one process for what ranks divide among them.
    pub divided: f64,
    /// Seconds of what every rank computes for itself.
    pub repeated: f64,
    /// Number of exchanges.
    pub exchanges: f64,
    /// Bytes of what is exchanged, of all ranks together.
    pub bytes: f64,
}

impl PassTime {
    /// A pass of which rank 0, of this number of ranks, sent this much.
    pub fn with_sent(self, sent: Sent, ranks: usize) -> Self {
        let others = ranks.saturating_sub(1).max(1) as f64;
        // It sends its part, which is one of `ranks` about equal ones, to each of the others.
        Self { exchanges: sent.messages as f64 / others, bytes: sent.bytes as f64 / others * ranks as f64, ..self }
    }

    /// Seconds of the pass on this number of ranks.
    pub fn seconds(&self, ranks: usize, link: Link) -> f64 {
        let ranks = ranks.max(1) as f64;
        let computing = self.divided / ranks + self.repeated;
        if ranks == 1.0 {
            return computing;
        }
        computing + self.exchanges * link.latency + self.bytes * (ranks - 1.0) / ranks / link.rate
    }

    /// How many times faster than one process a pass is on this number of ranks.
    pub fn gain(&self, ranks: usize, link: Link) -> f64 {
        self.seconds(1, link) / self.seconds(ranks, link)
    }

    /// The rate in bytes a second from which on this number of ranks is as fast as one process; `None` if no link of
    /// this latency is.
    pub fn least_rate(&self, ranks: usize, latency: f64) -> Option<f64> {
        let without_bytes = self.seconds(ranks, Link { latency, rate: f64::INFINITY });
        let left = self.seconds(1, Link { latency, rate: f64::INFINITY }) - without_bytes;
        (left > 0.0).then(|| self.bytes * (ranks as f64 - 1.0) / ranks as f64 / left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASS: PassTime = PassTime { divided: 0.2, repeated: 0.01, exchanges: 100.0, bytes: 4e6 };

    #[test]
    fn a_pass_is_its_arithmetic_and_its_exchanges() {
        let link = Link::gigabits(1.0, 50e-6);
        assert!((PASS.seconds(1, link) - 0.21).abs() < 1e-12);
        // 100 ms and 10 ms of arithmetic, 5 ms of latency, 2 MB of 125 MB/s.
        assert!((PASS.seconds(2, link) - (0.1 + 0.01 + 0.005 + 0.016)).abs() < 1e-12);
        assert!((PASS.gain(2, link) - 0.21 / 0.131).abs() < 1e-9);
    }

    #[test]
    fn at_the_least_rate_nothing_is_gained_or_lost() {
        let rate = PASS.least_rate(4, 50e-6).expect("there is one");
        assert!((PASS.gain(4, Link { latency: 50e-6, rate }) - 1.0).abs() < 1e-9);
        assert_eq!(PASS.least_rate(2, 1e-3), None, "latencies alone take 100 ms");
    }

    #[test]
    fn what_was_sent_says_what_is_exchanged() {
        let sent = Sent { messages: 300, bytes: 3_000_000 };
        let pass = PassTime { exchanges: 0.0, bytes: 0.0, ..PASS }.with_sent(sent, 4);
        assert_eq!((pass.exchanges, pass.bytes), (100.0, 4e6));
    }
}
