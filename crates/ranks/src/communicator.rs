//! Messages between the ranks of a job, and how long a rank waits for one.
//!
//! There are two kinds of messages, which do not overtake their own kind: those of [`send`](Communicator::send) and
//! [`receive`](Communicator::receive), and the parts of [`gather`](Communicator::gather). A rank makes one call at a
//! time (`group.rs` sees to that), so an implementation needs no locks for several threads.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The connection of a rank with all others.
pub trait Communicator: fmt::Debug + Send + Sync {
    /// The number of this rank, from 0 on.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// Sends a message to another rank.
    ///
    /// # Errors
    /// The rank does not take it within the limit.
    fn send(&self, to: usize, message: &[u8], limit: Duration) -> Result<(), Silent>;

    /// Receives the next message of another rank. Waiting for it takes no processor time after the first millisecond;
    /// without a limit it is waited for as long as it takes.
    ///
    /// # Errors
    /// There is none within the limit.
    fn receive(&self, from: usize, limit: Option<Duration>) -> Result<Vec<u8>, Silent>;

    /// Sends `part` to every other rank and writes the parts of all ranks to `all`, in order of rank; `lens` are their
    /// numbers of bytes. An empty part is not sent.
    ///
    /// # Errors
    /// Parts are missing after the limit.
    fn gather(&self, part: &[u8], lens: &[usize], all: &mut [u8], limit: Duration) -> Result<(), Silent>;
}

impl<C: Communicator + ?Sized> Communicator for Arc<C> {
    fn rank(&self) -> usize {
        (**self).rank()
    }

    fn size(&self) -> usize {
        (**self).size()
    }

    fn send(&self, to: usize, message: &[u8], limit: Duration) -> Result<(), Silent> {
        (**self).send(to, message, limit)
    }

    fn receive(&self, from: usize, limit: Option<Duration>) -> Result<Vec<u8>, Silent> {
        (**self).receive(from, limit)
    }

    fn gather(&self, part: &[u8], lens: &[usize], all: &mut [u8], limit: Duration) -> Result<(), Silent> {
        (**self).gather(part, lens, all, limit)
    }
}

/// The ranks with their parts of a buffer, whose numbers of bytes are `lens`.
pub(crate) fn parts<'a>(lens: &[usize], all: &'a mut [u8]) -> impl Iterator<Item = (usize, &'a mut [u8])> {
    let mut rest = all;
    lens.iter().enumerate().map(move |(rank, len)| {
        let (own, behind) = std::mem::take(&mut rest).split_at_mut(*len);
        rest = behind;
        (rank, own)
    })
}

/// The failure of a call: ranks that did not answer within the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silent {
    /// The ranks, ascending.
    pub ranks: Vec<usize>,
    /// Number of ranks of the job.
    pub size: usize,
    /// How long they were waited for.
    pub limit: Duration,
}

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ranks, size, limit } = self;
        let numbers: Vec<String> = ranks.iter().map(ToString::to_string).collect();
        let which = if numbers.len() == 1 { "rank" } else { "ranks" };
        let numbers = numbers.join(", ");
        write!(f, "{which} {numbers} of {size}: expected an answer within {} s, found none", limit.as_secs_f32())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_in_order_of_rank() {
        let mut all = [1, 2, 3];
        let found: Vec<(usize, Vec<u8>)> =
            parts(&[1, 0, 2], &mut all).map(|(rank, part)| (rank, part.to_vec())).collect();
        assert_eq!(found, [(0, vec![1]), (1, vec![]), (2, vec![2, 3])]);
    }

    #[test]
    fn silent_ranks_are_named_in_one_line() {
        let silent = |ranks: &[usize]| Silent { ranks: ranks.to_vec(), size: 4, limit: Duration::from_secs(30) };
        assert_eq!(silent(&[1]).to_string(), "rank 1 of 4: expected an answer within 30 s, found none");
        assert!(silent(&[1, 3]).to_string().starts_with("ranks 1, 3 of 4: "));
    }
}
