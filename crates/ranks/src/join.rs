//! How ranks join: each says what it is, and rank 0 refuses those that would not compute what it computes.
//!
//! The program must be of the same version and have the same arithmetic, the system the same sine and cosine (of which
//! rotary embeddings are made), and the command line and all defaults must be the same words, since rank 0 decides for
//! all what is run and how. Files are compared when they are opened (`follower.rs`).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use foretoken_model::ARITHMETIC_VERSION;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::communicator::Communicator;
use crate::follower::follow;
use crate::group::Group;
use crate::leader::Leader;

/// The part of a rank in a job that it has joined.
#[derive(Debug)]
pub enum Role {
    /// Rank 0, which runs the command.
    Leader(Leader),
    /// Another rank, which [follows](follow()).
    Follower(Arc<Group>),
}

/// The job cannot begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why; `None` on ranks other than 0, which leave it to rank 0 to say.
    pub message: Option<String>,
}

/// What a rank says of itself: everything that must be the same on all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// The version of the program.
    pub version: String,
    /// The version of its arithmetic ([`ARITHMETIC_VERSION`]).
    pub arithmetic: u32,
    /// A hash of sines and cosines of this system.
    pub angles: u64,
    /// What was asked for: words of the command line, and defaults.
    pub settings: Vec<String>,
}

impl Greeting {
    /// The greeting of this program, which was started with these settings.
    pub fn new(settings: Vec<String>) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_string();
        Self { version, arithmetic: ARITHMETIC_VERSION, angles: angles_hash(), settings }
    }

    /// The first difference to the greeting of rank 0, as `what: expected, found`.
    fn difference(&self, first: &Self) -> Option<String> {
        let differs = |what: &str, expected: &dyn fmt::Display, found: &dyn fmt::Display| {
            Some(format!("{what}: expected {expected} (as rank 0), found {found}"))
        };
        if self.version != first.version {
            return differs("version", &first.version, &self.version);
        }
        if self.arithmetic != first.arithmetic {
            return differs("version of the arithmetic", &first.arithmetic, &self.arithmetic);
        }
        if self.angles != first.angles {
            return Some("sine and cosine of the system: expected those of rank 0, found others".to_string());
        }
        let longest = self.settings.len().max(first.settings.len());
        let word = |of: &Self, at: usize| of.settings.get(at).map_or("nothing".to_string(), |word| format!("{word:?}"));
        let at = (0..longest).find(|at| self.settings.get(*at) != first.settings.get(*at))?;
        differs("settings", &word(first, at), &word(self, at))
    }
}

/// A hash of sines and cosines, as rotary embeddings take them.
fn angles_hash() -> u64 {
    let mut hash = Xxh3::new();
    for i in 0..4096_u32 {
        let (sine, cosine) = (i as f32 * 0.731).sin_cos();
        [sine, cosine].iter().for_each(|number| hash.update(&number.to_le_bytes()));
    }
    hash.digest()
}

/// Joins the job of a communicator, in which every rank must answer within `limit`.
///
/// # Errors
/// A rank is refused, or does not answer.
pub fn join(communicator: Box<dyn Communicator>, limit: Duration, greeting: &Greeting) -> Result<Role, Refused> {
    let bytes = serde_json::to_vec(greeting).expect("a greeting is JSON");
    if communicator.rank() > 0 {
        let refused = Refused { message: None };
        // Rank 0 may wait for each of the others in turn, and is the one to give up.
        let limit_of_all = limit.saturating_mul(communicator.size() as u32) + Duration::from_secs(1);
        communicator.send(0, &bytes, limit_of_all).map_err(|_| refused.clone())?;
        let is_welcome = communicator.receive(0, Some(limit_of_all)).map_err(|_| refused.clone())? == WELCOME;
        return if is_welcome { Ok(Role::Follower(Group::new(communicator, limit))) } else { Err(refused) };
    }
    let others = 1..communicator.size();
    let result = others.clone().try_for_each(|from| {
        let bytes = communicator.receive(from, Some(limit)).map_err(|silent| silent.to_string())?;
        let found: Greeting =
            serde_json::from_slice(&bytes).map_err(|_| format!("rank {from}: expected a foretoken of this version"))?;
        found.difference(greeting).map_or(Ok(()), |difference| Err(format!("rank {from}: {difference}")))
    });
    let verdict: &[u8] = if result.is_ok() { WELCOME } else { b"" };
    let told = others.into_iter().try_for_each(|to| communicator.send(to, verdict, limit));
    let result = result.and_then(|()| told.map_err(|silent| silent.to_string()));
    result.map_err(|message| Refused { message: Some(message) })?;
    Ok(Role::Leader(Leader::new(Group::new(communicator, limit))))
}

/// What rank 0 answers to a rank that may stay.
const WELCOME: &[u8] = b"welcome";

impl Role {
    /// The leader; other ranks follow until the job ends and yield `None`.
    ///
    /// # Errors
    /// As [`follow`](follow()), in one line.
    pub fn leader(self) -> Result<Option<Leader>, String> {
        match self {
            Self::Leader(leader) => Ok(Some(leader)),
            Self::Follower(group) => follow(&group).map(|()| None).map_err(|error| error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_process::connect;

    /// What every rank gets, if rank `i` greets with `greetings[i]`.
    fn joined(greetings: &[Greeting]) -> Vec<Result<(), Refused>> {
        let ends = connect(greetings.len());
        std::thread::scope(|scope| {
            let join = |end, greeting| join(Box::new(end), Duration::from_millis(300), greeting).map(drop);
            let ranks: Vec<_> = ends.into_iter().zip(greetings).map(|(e, g)| scope.spawn(move || join(e, g))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
        })
    }

    #[test]
    fn equal_ranks_join_and_others_are_refused_by_rank_and_difference() {
        let same = Greeting::new(vec!["generate".to_string(), "-n".to_string(), "5".to_string()]);
        assert!(joined(&[same.clone(), same.clone(), same.clone()]).iter().all(Result::is_ok));
        let other = |change: fn(&mut Greeting)| {
            let mut other = same.clone();
            change(&mut other);
            let found = joined(&[same.clone(), same.clone(), other]);
            assert!(found[1..].iter().all(|rank| *rank == Err(Refused { message: None })), "{found:?}");
            found[0].clone().expect_err("it differs").message.expect("rank 0 says why")
        };
        let of_version = other(|greeting| greeting.version = "9".to_string());
        assert_eq!(of_version, format!("rank 2: version: expected {} (as rank 0), found 9", same.version));
        assert_eq!(
            other(|greeting| greeting.settings[2] = "6".to_string()),
            "rank 2: settings: expected \"5\" (as rank 0), found \"6\""
        );
        assert!(
            other(|greeting| greeting.settings.truncate(1)).ends_with("expected \"-n\" (as rank 0), found nothing")
        );
        assert!(other(|greeting| greeting.arithmetic += 1).starts_with("rank 2: version of the arithmetic"));
        assert!(other(|greeting| greeting.angles += 1).starts_with("rank 2: sine and cosine"));
    }

    #[test]
    fn a_rank_that_does_not_greet_is_named() {
        let mut ends = connect(2);
        let first = ends.remove(0);
        let refused = join(Box::new(first), Duration::from_millis(30), &Greeting::new(Vec::new()));
        let message = refused.err().and_then(|refused| refused.message).expect("rank 0 says why");
        assert_eq!(message, "rank 1 of 2: expected an answer within 0.03 s, found none");
    }
}
