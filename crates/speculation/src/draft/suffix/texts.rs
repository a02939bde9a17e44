//! Texts from before: everybody's and each tenant's, up to a number of tokens, of which the oldest are forgotten.
//!
//! Each owner has at most two histories, an older and a newer one. The newer grows to half of the capacity, then the
//! older is dropped and a new one begun. If all owners together hold too much, the history that was begun first goes.
//! So forgetting costs nothing, no table is ever cleaned, and a text is looked for in four histories at most.

use std::collections::BTreeMap;

use crate::draft::history::{END, History};
use crate::draft::suffix::LENGTHS;
use crate::{Tenant, Token};

/// All histories.
#[derive(Debug)]
pub(super) struct Texts {
    capacity_tokens: usize,
    /// By owner, `None` for everybody: one or two histories, the older first, with the number of each.
    owners: BTreeMap<Option<Tenant>, Vec<(u64, History)>>,
    /// How many histories were ever begun.
    begun: u64,
    /// Tokens in all histories, ends of texts included.
    len: usize,
}

impl Texts {
    /// No texts yet.
    pub(super) fn new(capacity_tokens: usize) -> Texts {
        Texts { capacity_tokens, owners: BTreeMap::new(), begun: 0, len: 0 }
    }

    /// Tokens remembered.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> usize {
        self.owners.values().flatten().map(|(_, history)| history.bytes()).sum()
    }

    /// What this tenant may see, its own and the newer first.
    pub(super) fn of(&self, tenant: Tenant) -> impl Iterator<Item = &History> {
        let of = |owner| self.owners.get(&owner).into_iter().flatten().rev().map(|(_, history)| history);
        of(Some(tenant)).chain(of(None))
    }

    /// Remembers a text; of one that is longer than half of the capacity, its end.
    pub(super) fn add(&mut self, tokens: &[Token], owner: Option<Tenant>) {
        let half = self.capacity_tokens / 2;
        let tokens = &tokens[(tokens.len() + 1).saturating_sub(half).min(tokens.len())..];
        if tokens.len() < 2 {
            return; // Nothing follows anything.
        }
        let len = tokens.len() + 1;
        let histories = self.owners.entry(owner).or_default();
        if histories.last().is_none_or(|(_, newer)| newer.len() + len > half) {
            if histories.len() > 1 {
                self.len -= histories.remove(0).1.len();
            }
            histories.push((self.begun, History::new(LENGTHS)));
            self.begun += 1;
        }
        let (_, newer) = histories.last_mut().expect("begun just now if there was none");
        tokens.iter().chain([&END]).for_each(|&token| newer.push(token));
        self.len += len;
        while self.len > self.capacity_tokens {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let begun = |histories: &Vec<(u64, History)>| histories.first().map_or(u64::MAX, |(number, _)| *number);
        let oldest = self.owners.iter().min_by_key(|(_, histories)| begun(histories)).map(|(owner, _)| *owner);
        let owner = oldest.expect("too many tokens are somebody's");
        let histories = self.owners.get_mut(&owner).expect("just found");
        self.len -= histories.remove(0).1.len();
        if histories.is_empty() {
            self.owners.remove(&owner);
        }
    }
}
