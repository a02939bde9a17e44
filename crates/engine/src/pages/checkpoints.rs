//! Checkpoints: copies of recurrent states, by the text that they have come to.
//!
//! A state cannot go back, so a prefix can only be taken up where a copy of the state was kept. A checkpoint is a slot
//! of a group of states that no text runs on and that is never written again, only copied. It holds a state that has
//! passed the first `from` tokens, and the inputs of the rows behind it up to its last token: whoever has the same text
//! goes on from any position between the two.
//!
//! There are as many as there are slots, some tens, and all are compared: a text of 8000 tokens with 50 checkpoints
//! that all begin as it does takes 1.6 MB of reading, a tenth of a millisecond.
//!
//! Left out: which slot is evicted (`pool`), and where in a text checkpoints are taken (`sequence`).

use foretoken_model::PageId;
use foretoken_speculation::Token;

use super::{Owner, View};
use crate::faults::{Fault, is_made};

/// One checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Checkpoint {
    /// `None`: everybody's.
    owner: Option<Owner>,
    /// Tokens that the state has passed.
    pub(super) from: usize,
    /// These, and those whose inputs lie behind it.
    tokens: Vec<Token>,
}

/// By slot.
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

    /// A slot holds a state that has passed the first `from` of these tokens, and the inputs of the others.
    pub(super) fn insert(&mut self, slot: PageId, view: View, mut from: usize, mut tokens: &[Token]) {
        assert!(from <= tokens.len(), "a state has passed {from} of {} tokens", tokens.len());
        if is_made(Fault::CheckpointLate) && from > 1 {
            (from, tokens) = (from - 1, &tokens[..tokens.len() - 1]);
        }
        let checkpoint = Checkpoint { owner: view.owner(tokens.len()), from, tokens: tokens.to_vec() };
        self.slots[slot.0 as usize] = Some(checkpoint);
    }

    pub(super) fn remove(&mut self, slot: PageId) {
        self.slots[slot.0 as usize] = None;
    }

    /// The slot from which the most first tokens of a text can be continued, and how many; of equals the one whose
    /// state has come furthest.
    pub(super) fn longest(&self, view: View, tokens: &[Token]) -> Option<(PageId, usize)> {
        let visible = self.agreeing(view, tokens).filter(|(_, checkpoint, len)| *len > 0 && checkpoint.from <= *len);
        let best = visible.max_by_key(|(_, checkpoint, len)| (*len, checkpoint.from));
        best.map(|(slot, _, len)| (slot, len))
    }

    /// So many first tokens of a text are those of another that left a checkpoint.
    pub(super) fn known_len(&self, view: View, tokens: &[Token]) -> usize {
        self.agreeing(view, tokens).map(|(.., len)| len).max().unwrap_or(0)
    }

    /// The checkpoints that may be seen, and how many first tokens of a text are theirs.
    fn agreeing(&self, view: View, tokens: &[Token]) -> impl Iterator<Item = (PageId, &Checkpoint, usize)> {
        let slots = (0..).map(PageId).zip(&self.slots);
        let all = slots.filter_map(|(slot, checkpoint)| checkpoint.as_ref().map(|checkpoint| (slot, checkpoint)));
        let agreeing = all.map(move |(slot, found)| (slot, found, common_len(&found.tokens, tokens)));
        agreeing.filter(move |(_, checkpoint, len)| {
            view.sees(checkpoint.owner, *len) || is_made(Fault::CheckpointOfAnotherTenant)
        })
    }
}

/// How many first tokens two texts have in common. By blocks, which are compared faster than tokens.
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
    fn a_text_goes_on_from_the_longest_that_it_may_see() {
        let view = |tenant: u64, public_len: usize| View { whose: Owner::from(Tenant(tenant)), public_len };
        let mut checkpoints = Checkpoints::new(4);
        let text: Vec<Token> = (0..200).collect();
        checkpoints.insert(PageId(0), view(1, 0), 90, &text[..100]);
        checkpoints.insert(PageId(1), view(2, 0), 150, &text[..150]);
        checkpoints.insert(PageId(2), view(2, 40), 30, &text[..40]);
        let longest = |view: View, len: usize| checkpoints.longest(view, &text[..len]);
        assert_eq!(longest(view(1, 0), 200), Some((PageId(0), 100)));
        assert_eq!(longest(view(1, 0), 95), Some((PageId(0), 95)), "the inputs behind it go on");
        assert_eq!(longest(view(1, 0), 89), Some((PageId(2), 40)), "what is everybody's");
        assert_eq!(longest(view(3, 0), 29), None);
        assert_eq!(longest(view(2, 150), 200), Some((PageId(2), 40)), "what is to be public is looked for there");
        assert_eq!(
            (checkpoints.known_len(view(1, 0), &text[..89]), checkpoints.known_len(view(3, 0), &text)),
            (89, 40)
        );
        checkpoints.remove(PageId(2));
        assert_eq!(checkpoints.longest(view(1, 0), &text[..89]), None);
    }

    #[test]
    fn blocks_find_what_tokens_would() {
        let text: Vec<Token> = (0..150).collect();
        for at in [0, 1, 63, 64, 65, 127, 128, 149] {
            let mut other = text.clone();
            other[at] = 999;
            assert_eq!(common_len(&text, &other), at);
            assert_eq!(common_len(&text[..at], &text), at);
        }
    }
}
