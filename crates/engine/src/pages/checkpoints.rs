//! Checkpoints: copies of recurrent states, found by the tokens that they were computed from.
//!
//! A state cannot be rolled back, so a prefix can only be continued from a copy of the state that was kept. A
//! checkpoint is a slot of a group of states that no sequence runs on and that is never written again, only copied. It
//! holds a state that has passed the first `passed` tokens, and the inputs of the rows after it up to its last token: a
//! sequence with the same tokens can continue from any position between the two.
//!
//! There are as many checkpoints as slots, some tens, and a lookup compares all of them: for a sequence of 8000 tokens
//! and 50 checkpoints that all begin like it, that reads 1.6 MB, in a tenth of a millisecond. Where in a sequence
//! checkpoints are taken is decided in `sequence`.

use foretoken_model::PageId;
use foretoken_speculation::Token;

use super::{Owner, View};
use crate::faults::{Fault, is_made};

/// One checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Checkpoint {
    /// `None`: public.
    owner: Option<Owner>,
    /// How many tokens the state has passed.
    pub(super) passed: usize,
    /// The tokens that it has passed, and those whose inputs it holds.
    tokens: Vec<Token>,
}

/// The checkpoints of a group, by slot.
#[derive(Clone, Debug)]
pub(super) struct Checkpoints {
    slots: Vec<Option<Checkpoint>>,
}

impl Checkpoints {
    pub(super) fn new(slots: usize) -> Self {
        Self { slots: vec![None; slots] }
    }

    /// The checkpoint in a slot.
    pub(super) fn of(&self, slot: PageId) -> Option<&Checkpoint> {
        self.slots[slot.0 as usize].as_ref()
    }

    /// Notes that a slot holds a state that has passed the first `passed` of these tokens, and the inputs of the
    /// others.
    pub(super) fn insert(&mut self, slot: PageId, view: View, mut passed: usize, mut tokens: &[Token]) {
        assert!(passed <= tokens.len(), "a state has passed {passed} of {} tokens", tokens.len());
        if is_made(Fault::CheckpointLate) && passed > 1 {
            (passed, tokens) = (passed - 1, &tokens[..tokens.len() - 1]);
        }
        let checkpoint = Checkpoint { owner: view.prefix_owner(tokens.len()), passed, tokens: tokens.to_vec() };
        self.slots[slot.0 as usize] = Some(checkpoint);
    }

    pub(super) fn remove(&mut self, slot: PageId) {
        self.slots[slot.0 as usize] = None;
    }

    /// The slot from which the longest prefix of these tokens can be continued, and the prefix's length; of ties the
    /// slot whose state has passed the most tokens.
    pub(super) fn longest(&self, view: View, tokens: &[Token]) -> Option<(PageId, usize)> {
        let usable = self.matching(view, tokens).filter(|(_, checkpoint, len)| *len > 0 && checkpoint.passed <= *len);
        let best = usable.max_by_key(|(_, checkpoint, len)| (*len, checkpoint.passed));
        best.map(|(slot, _, len)| (slot, len))
    }

    /// How many leading tokens are those of a sequence that left a checkpoint.
    pub(super) fn known_len(&self, view: View, tokens: &[Token]) -> usize {
        self.matching(view, tokens).map(|(.., len)| len).max().unwrap_or(0)
    }

    /// The checkpoints that may be used, with the number of leading tokens that they have in common with `tokens`.
    fn matching(&self, view: View, tokens: &[Token]) -> impl Iterator<Item = (PageId, &Checkpoint, usize)> {
        let slots = (0..).map(PageId).zip(&self.slots);
        let all = slots.filter_map(|(slot, checkpoint)| checkpoint.as_ref().map(|checkpoint| (slot, checkpoint)));
        let with_len = all.map(move |(slot, found)| (slot, found, common_len(&found.tokens, tokens)));
        with_len.filter(move |(_, checkpoint, len)| {
            view.sees(checkpoint.owner, *len) || is_made(Fault::CheckpointOfAnotherTenant)
        })
    }
}

/// The length of the longest common prefix, compared block by block, which is faster than token by token.
fn common_len(a: &[Token], b: &[Token]) -> usize {
    const BLOCK: usize = 64;
    let blocks = a.chunks_exact(BLOCK).zip(b.chunks_exact(BLOCK)).take_while(|(a, b)| a == b).count() * BLOCK;
    blocks + a[blocks..].iter().zip(&b[blocks..]).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use foretoken_speculation::Tenant;

    use super::*;

    #[test]
    fn the_longest_usable_prefix_is_found() {
        let view = |tenant: u64, public_len: usize| View { owner: Owner::from(Tenant(tenant)), public_len };
        let mut checkpoints = Checkpoints::new(4);
        let tokens: Vec<Token> = (0..200).collect();
        checkpoints.insert(PageId(0), view(1, 0), 90, &tokens[..100]);
        checkpoints.insert(PageId(1), view(2, 0), 150, &tokens[..150]);
        checkpoints.insert(PageId(2), view(2, 40), 30, &tokens[..40]);
        let longest = |view: View, len: usize| checkpoints.longest(view, &tokens[..len]);
        assert_eq!(longest(view(1, 0), 200), Some((PageId(0), 100)));
        assert_eq!(longest(view(1, 0), 95), Some((PageId(0), 95)), "between the state and the last input");
        assert_eq!(longest(view(1, 0), 89), Some((PageId(2), 40)), "a public checkpoint");
        assert_eq!(longest(view(3, 0), 29), None);
        assert_eq!(
            longest(view(2, 150), 200),
            Some((PageId(2), 40)),
            "a public prefix is looked for among public ones"
        );
        assert_eq!(
            (checkpoints.known_len(view(1, 0), &tokens[..89]), checkpoints.known_len(view(3, 0), &tokens)),
            (89, 40)
        );
        checkpoints.remove(PageId(2));
        assert_eq!(checkpoints.longest(view(1, 0), &tokens[..89]), None);
    }

    #[test]
    fn comparing_blocks_finds_the_first_different_token() {
        let tokens: Vec<Token> = (0..150).collect();
        for at in [0, 1, 63, 64, 65, 127, 128, 149] {
            let mut other = tokens.clone();
            other[at] = 999;
            assert_eq!(common_len(&tokens, &other), at);
            assert_eq!(common_len(&tokens[..at], &tokens), at);
        }
    }
}
