//! What each drafter of a sequence is worth: accepted tokens for the time that it drafts, in recent passes.
//!
//! A token counts for everyone who offered it, not only for the first: otherwise whoever is asked first would seem worth
//! more by being asked first, and the order could never change.
//!
//! Left out: what a drafter is worth in other sequences, and whether it is worth asking at all.

use std::time::Duration;

use foretoken_speculation::{DraftTree, NodeId};

/// What is left of an old count after a pass.
const DECAY: f64 = 0.98;

/// Decayed counts, by drafter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Worth {
    counts: Vec<Count>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    accepted: f64,
    seconds: f64,
    /// Whether any guess of it was in a verified tree.
    known: bool,
}

impl Worth {
    /// Adds time that a drafter took.
    pub(crate) fn spend(&mut self, drafter: u8, time: Duration) {
        self.count(drafter).seconds += time.as_secs_f64();
    }

    /// Learns from a verified tree and its accepted path.
    pub(crate) fn learn(&mut self, tree: &DraftTree, path: &[NodeId]) {
        for offer in tree.offers() {
            self.count(offer.source).known = true;
        }
        for node in path {
            for offer in tree.offers_of(*node) {
                self.count(offer.source).accepted += 1.0;
            }
        }
        for count in &mut self.counts {
            (count.accepted, count.seconds) = (count.accepted * DECAY, count.seconds * DECAY);
        }
    }

    /// Puts these drafters in order: the unknown ones, then the others by worth; among equals the order stays.
    pub(crate) fn sort(&self, drafters: &mut [u8]) {
        let worth = |drafter: &u8| {
            let count = self.counts.get(usize::from(*drafter)).filter(|count| count.known);
            count.map_or(f64::INFINITY, |count| count.accepted / count.seconds.max(1e-9))
        };
        drafters.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
    }

    fn count(&mut self, drafter: u8) -> &mut Count {
        let at = usize::from(drafter);
        if self.counts.len() <= at {
            self.counts.resize(at + 1, Count::default());
        }
        &mut self.counts[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foretoken_speculation::Proposal;

    /// A pass in which each of these drafters took so many milliseconds for one guess, right or wrong.
    fn pass(worth: &mut Worth, drafts: &[(u8, u64, bool)]) {
        let mut tree = DraftTree::new();
        let mut path = Vec::new();
        for (drafter, millis, right) in drafts {
            worth.spend(*drafter, Duration::from_millis(*millis));
            let node = tree.offer(None, u32::from(*right), Proposal::Point, *drafter);
            path.extend(right.then_some(node));
        }
        path.dedup();
        worth.learn(&tree, &path);
    }

    fn sorted(worth: &Worth, drafters: &[u8]) -> Vec<u8> {
        let mut drafters = drafters.to_vec();
        worth.sort(&mut drafters);
        drafters
    }

    #[test]
    fn who_was_right_for_less_time_comes_first_and_the_unknown_before() {
        let mut worth = Worth::default();
        assert_eq!(sorted(&worth, &[2, 0, 1]), [2, 0, 1]);
        (0..10).for_each(|_| pass(&mut worth, &[(0, 9, true), (1, 1, true), (2, 1, false)]));
        assert_eq!(sorted(&worth, &[0, 1, 2]), [1, 0, 2]);
        assert_eq!(sorted(&worth, &[0, 4, 1, 3]), [4, 3, 1, 0]);
        // Time without any guess: still unknown.
        worth.spend(3, Duration::from_secs(1));
        assert_eq!(sorted(&worth, &[0, 3]), [3, 0]);
    }

    #[test]
    fn the_order_follows_a_change_and_no_time_is_no_trouble() {
        let mut worth = Worth::default();
        (0..200).for_each(|_| pass(&mut worth, &[(0, 1, true), (1, 1, false)]));
        assert_eq!(sorted(&worth, &[1, 0]), [0, 1]);
        (0..80).for_each(|_| pass(&mut worth, &[(0, 1, false), (1, 1, true)]));
        assert_eq!(sorted(&worth, &[0, 1]), [1, 0]);
        let mut timeless = Worth::default();
        pass(&mut timeless, &[(0, 0, false), (1, 0, true)]);
        assert_eq!(sorted(&timeless, &[0, 1]), [1, 0]);
    }
}
