//! The cache: keys and values of every layer, in pages.
//!
//! A slot is a place for one position: page number times page length plus the place in the page. Which slots a
//! sequence uses is told by its page table; nothing here knows which slots are in use. How a row is rounded and where
//! its elements lie is said by the kernels' [`Side`]. Memory is reserved at start and touched by the operating system
//! page by page, so an unused context costs nothing.

use std::ops::Range;

use foretoken_kernels::attention::{CacheType, Side};

use crate::batch::PageTable;
use crate::executor::Group;

pub(crate) struct Cache {
    pub(crate) group: Group,
    /// One a layer.
    pub(crate) keys: Vec<Side>,
    pub(crate) values: Vec<Side>,
}

impl Cache {
    /// An empty cache with types for keys and values; `None` if there is no memory for it, or no numbers for its slots.
    pub(crate) fn new(
        group: Group,
        types: [CacheType; 2],
        layers: usize,
        [kv_heads, head_dim]: [usize; 2],
    ) -> Option<Self> {
        let slots = group.pages.checked_mul(group.page_len)?;
        let all = |make: fn(CacheType, usize, usize, usize) -> Option<Side>, kind| {
            (0..layers).map(|_| make(kind, slots, kv_heads, head_dim)).collect::<Option<Vec<_>>>()
        };
        Some(Self { group, keys: all(Side::keys, types[0])?, values: all(Side::values, types[1])? })
    }

    /// The slot of a position.
    pub(crate) fn slot(&self, table: &PageTable, position: usize) -> u32 {
        let page = table[position / self.group.page_len];
        (page.0 as usize * self.group.page_len + position % self.group.page_len) as u32
    }

    /// Stores one row of keys and values, `[kv_heads, head_dim]` each.
    pub(crate) fn store(&mut self, layer: usize, slot: u32, key: &[f32], value: &[f32]) {
        self.keys[layer].store(slot, key);
        self.values[layer].store(slot, value);
    }

    /// See [`CacheEdit::Move`](crate::CacheEdit::Move).
    pub(crate) fn move_rows(&mut self, table: &PageTable, from: &[usize], to: usize) {
        for (from, to) in from.iter().copied().zip(to..) {
            assert!(from >= to, "cache: position {from} cannot move up to {to}");
            self.copy(self.slot(table, from), self.slot(table, to));
        }
    }

    /// See [`CacheEdit::Copy`](crate::CacheEdit::Copy).
    pub(crate) fn copy_rows(&mut self, from: &PageTable, to: &PageTable, positions: Range<usize>) {
        for position in positions {
            self.copy(self.slot(from, position), self.slot(to, position));
        }
    }

    fn copy(&mut self, source: u32, target: u32) {
        if source != target {
            self.keys.iter_mut().chain(&mut self.values).for_each(|side| side.copy(source, target));
        }
    }
}
