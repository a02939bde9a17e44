//! Earlier texts of one owner, up to a number of tokens; the oldest are forgotten.
//!
//! They are stored in two histories, an older and a newer one. When the newer one has grown to half of the capacity,
//! the older is dropped and a new one begun. So forgetting takes no time, and no entry is ever removed from an index.

use crate::history::{END, History};
use crate::tenants::Tenants;
use foretoken_speculation::{Tenant, Token};

/// One or two histories, the older first.
#[derive(Debug, Default)]
pub(super) struct Texts(Vec<History>);

impl Texts {
    /// Number of tokens, ends of texts included.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(History::len).sum()
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(History::bytes).sum()
    }

    /// Its histories, the newer first.
    pub(super) fn newest_first(&self) -> impl Iterator<Item = &History> {
        self.0.iter().rev()
    }

    /// Adds a text, indexed by n-grams of these lengths. If it is longer than half of the capacity, only its end is
    /// added.
    pub(super) fn add(&mut self, tokens: &[Token], capacity_tokens: usize, lengths: &[usize]) {
        let half = capacity_tokens / 2;
        let tokens = &tokens[(tokens.len() + 1).saturating_sub(half).min(tokens.len())..];
        if tokens.len() < 2 {
            return; // Nothing follows a single token.
        }
        if self.0.last().is_none_or(|newer| newer.len() + tokens.len() + 1 > half) {
            self.0.drain(..self.0.len().saturating_sub(1));
            self.0.push(History::new(lengths.iter().copied()));
        }
        let newer = self.0.last_mut().expect("begun just now if there was none");
        tokens.iter().chain([&END]).for_each(|&token| newer.push(token));
    }
}

impl Tenants<Texts> {
    /// Adds a text of an owner (`None`: a public text). At most `capacity_tokens` of all tenants together are stored;
    /// beyond that whole tenants are forgotten.
    pub(super) fn learn(&mut self, tokens: &[Token], owner: Option<Tenant>, capacity_tokens: usize, lengths: &[usize]) {
        self.memory_mut(owner, Texts::default).add(tokens, capacity_tokens, lengths);
        if let Some(tenant) = owner {
            self.shrink(tenant, capacity_tokens, Texts::len);
        }
    }
}
