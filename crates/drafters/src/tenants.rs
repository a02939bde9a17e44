//! What a drafter keeps beyond a sequence: a public memory, which all tenants see, and one for each tenant.
//!
//! A tenant sees its own memory and the public one, never another tenant's. The number of tenants and the size of their
//! memories together are bounded; beyond that the least recently used tenant is forgotten, with all its memory.

use std::collections::BTreeMap;

use foretoken_speculation::Tenant;

/// Maximum number of tenants that are kept by default.
pub(super) const TENANTS_MAX: usize = 64;

/// Memories by owner.
#[derive(Debug)]
pub(super) struct Tenants<M> {
    /// Maximum number of tenants that are kept, from 1.
    tenants_max: usize,
    public: M,
    /// The memory of each tenant, with the number of its last use.
    tenants: BTreeMap<Tenant, (u64, M)>,
    /// Number of uses so far.
    uses: u64,
}

impl<M> Tenants<M> {
    /// No tenants yet. `public`: the memory that all see.
    pub(super) fn new(tenants_max: usize, public: M) -> Tenants<M> {
        Tenants { tenants_max, public, tenants: BTreeMap::new(), uses: 0 }
    }

    /// The memories that a tenant may see: its own, if it has one, and the public one.
    pub(super) fn seen_by(&self, tenant: Tenant) -> impl Iterator<Item = &M> + Clone {
        self.tenants.get(&tenant).map(|(_, memory)| memory).into_iter().chain([&self.public])
    }

    /// All memories.
    pub(super) fn all(&self) -> impl Iterator<Item = &M> {
        self.tenants.values().map(|(_, memory)| memory).chain([&self.public])
    }

    /// Marks a tenant as used.
    pub(super) fn touch(&mut self, tenant: Tenant) {
        self.uses += 1;
        if let Some((used, _)) = self.tenants.get_mut(&tenant) {
            *used = self.uses;
        }
    }

    /// The memory of an owner (`None`: the public one), to be changed. A `new` one may replace another tenant's.
    pub(super) fn memory_mut(&mut self, owner: Option<Tenant>, new: impl FnOnce() -> M) -> &mut M {
        let Some(tenant) = owner else { return &mut self.public };
        if !self.tenants.contains_key(&tenant) && self.tenants.len() >= self.tenants_max {
            self.forget_other_than(tenant);
        }
        self.uses += 1;
        let entry = self.tenants.entry(tenant).or_insert_with(|| (0, new()));
        entry.0 = self.uses;
        &mut entry.1
    }

    /// Forgets tenants other than this one, the least recently used first, until the sum of `size` of the rest is at
    /// most `size_max`.
    pub(super) fn shrink(&mut self, tenant: Tenant, size_max: usize, size: impl Fn(&M) -> usize) {
        while self.tenants.values().map(|(_, memory)| size(memory)).sum::<usize>() > size_max {
            if !self.forget_other_than(tenant) {
                return;
            }
        }
    }

    fn forget_other_than(&mut self, tenant: Tenant) -> bool {
        let others = self.tenants.iter().filter(|(other, _)| **other != tenant);
        let oldest = others.min_by_key(|(_, (used, _))| *used).map(|(other, _)| *other);
        oldest.is_some_and(|oldest| self.tenants.remove(&oldest).is_some())
    }
}
