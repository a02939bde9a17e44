//! What a drafter remembers beyond a sequence: one memory for everybody, and one for each tenant.
//!
//! A tenant sees its own memory and everybody's, never another tenant's. So many tenants are remembered, and so much of
//! all of them; then the one that was not heard of for longest is forgotten, whole.
//!
//! Left out: what a memory holds, and how it bounds itself.

use std::collections::BTreeMap;

use foretoken_speculation::Tenant;

/// Tenants that are remembered, where nobody says how many.
pub(super) const TENANTS_MAX: usize = 64;

/// Memories by owner.
#[derive(Debug)]
pub(super) struct Tenants<M> {
    /// Most tenants that are remembered, from 1.
    tenants_max: usize,
    everybody: M,
    /// With each when it was used last.
    tenants: BTreeMap<Tenant, (u64, M)>,
    /// Counts uses.
    uses: u64,
}

impl<M> Tenants<M> {
    /// No tenants yet. `everybody`: what all see.
    pub(super) fn new(tenants_max: usize, everybody: M) -> Tenants<M> {
        Tenants { tenants_max, everybody, tenants: BTreeMap::new(), uses: 0 }
    }

    /// What a tenant may see: its own memory, if it has one, and everybody's.
    pub(super) fn seen_by(&self, tenant: Tenant) -> impl Iterator<Item = &M> + Clone {
        self.tenants.get(&tenant).map(|(_, memory)| memory).into_iter().chain([&self.everybody])
    }

    /// All memories.
    pub(super) fn all(&self) -> impl Iterator<Item = &M> {
        self.tenants.values().map(|(_, memory)| memory).chain([&self.everybody])
    }

    /// Notes that a tenant is here.
    pub(super) fn touch(&mut self, tenant: Tenant) {
        self.uses += 1;
        if let Some((used, _)) = self.tenants.get_mut(&tenant) {
            *used = self.uses;
        }
    }

    /// The memory of an owner (`None`: everybody's), to be changed. A `new` one may take the place of another tenant's.
    pub(super) fn memory_mut(&mut self, owner: Option<Tenant>, new: impl FnOnce() -> M) -> &mut M {
        let Some(tenant) = owner else { return &mut self.everybody };
        if !self.tenants.contains_key(&tenant) && self.tenants.len() >= self.tenants_max {
            self.forget_other_than(tenant);
        }
        self.uses += 1;
        let entry = self.tenants.entry(tenant).or_insert_with(|| (0, new()));
        entry.0 = self.uses;
        &mut entry.1
    }

    /// Forgets tenants other than this one, those first that were not used for longest, until the rest has no more than
    /// `size_max` by this measure.
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
