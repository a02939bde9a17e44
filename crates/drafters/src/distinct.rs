//! Numbers tokens in the order of their first occurrence: the index of a list with one entry for each distinct token.
//!
//! A draft makes such a list for each of its nodes, so clearing it takes no time: entries of the list before are
//! recognized by an older stamp. The list itself is the caller's.

use foretoken_speculation::Token;

/// Minimum number of slots.
const SLOTS_MIN: usize = 64;

/// Different tokens, numbered from 0. An open-addressed table.
#[derive(Debug, Default)]
pub(super) struct Distinct {
    slots: Vec<Slot>,
    stamp: u32,
    len: usize,
}

/// A token with its number; empty if it has another stamp than the table.
#[derive(Copy, Clone, Debug, Default)]
struct Slot {
    stamp: u32,
    token: Token,
    number: u32,
}

impl Distinct {
    /// Forgets all tokens, and makes room for `len_max`.
    pub(super) fn clear(&mut self, len_max: usize) {
        let slots = (2 * len_max).next_power_of_two().max(SLOTS_MIN);
        self.len = 0;
        self.stamp = self.stamp.wrapping_add(1);
        if self.slots.len() < slots || self.stamp == 0 {
            self.slots.clear();
            self.slots.resize(slots, Slot::default());
            self.stamp = 1;
        }
    }

    /// The number of a token; a new one gets the next number.
    pub(super) fn number(&mut self, token: Token) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = (token.wrapping_mul(0x9e37_79b9) >> 7) as usize & mask;
        while self.slots[at].stamp == self.stamp {
            if self.slots[at].token == token {
                return self.slots[at].number as usize;
            }
            at = (at + 1) & mask;
        }
        self.slots[at] = Slot { stamp: self.stamp, token, number: self.len as u32 };
        self.len += 1;
        self.len - 1
    }
}
