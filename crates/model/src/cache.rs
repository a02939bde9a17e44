//! The KV cache: keys and values of every layer, in pages.
//!
//! A slot holds one position: its number is the page number times the page length plus the offset in the page. Layers
//! with the same attention window form a group with pages of its own; layers that share the keys and values of an
//! earlier one have none. A sequence's page table says which slots of a group it uses; nothing here knows which slots
//! are in use. The kernels' [`CacheTensor`] defines how a row is rounded and where its elements lie. Memory is reserved
//! at the start and committed by the operating system page by page, so an unused context takes no memory.

use std::ops::Range;

use foretoken_kernels::attention::{CacheTensor, CacheType};

use crate::batch::{PageId, PageTable};
use crate::capacity::Group;
use crate::executor::{CacheRows, ExecutorError};
use crate::spec::Heads;

/// The version of all arithmetic that computes the rows of a cache, and of the form in which they are
/// [saved](crate::Executor::save_rows). Rows that were saved under another version are not used.
///
/// It has to be raised whenever the same tokens, weights and settings can give a row that differs in any bit: when the
/// order of a sum changes, a rounding, an approximation, how weights are rounded when they are packed, or what a family
/// reads from its files; and when rows are saved in another form. Faster kernels do not raise it as long as their
/// results are the same to the bit. A test compares the rows of some networks with those of this version
/// (`tests/model/saved.rs`).
pub const ARITHMETIC_VERSION: u32 = 1;

pub(crate) struct Cache {
    pub(crate) groups: Vec<Group>,
    /// The group of each layer that has keys and values of its own.
    pub(crate) group_of: Vec<usize>,
    /// The keys of each of these layers; their values are in `values`.
    pub(crate) keys: Vec<CacheTensor>,
    pub(crate) values: Vec<CacheTensor>,
}

impl Cache {
    /// An empty cache with types for keys and values; `None` if there is no memory for it, or its slots cannot be
    /// numbered. `layers` has the group and the heads of each layer that has keys and values.
    pub(crate) fn new(groups: Vec<Group>, layers: &[(usize, Heads)], types: [CacheType; 2]) -> Option<Self> {
        let slots: Option<Vec<usize>> = groups.iter().map(|group| group.pages.checked_mul(group.page_len)).collect();
        let slots = slots?;
        let all = |make: fn(CacheType, usize, usize, usize) -> Option<CacheTensor>, kind| {
            let tensor = |(group, heads): &(usize, Heads)| make(kind, slots[*group], heads.count, heads.head_dim);
            layers.iter().map(tensor).collect::<Option<Vec<_>>>()
        };
        let (keys, values) = (all(CacheTensor::keys, types[0])?, all(CacheTensor::values, types[1])?);
        Some(Self { groups, group_of: layers.iter().map(|(group, _)| *group).collect(), keys, values })
    }

    /// The slot of a position in a group; `None` if its page was given back.
    pub(crate) fn slot(&self, group: usize, table: &PageTable, position: usize) -> Option<u32> {
        let page_len = self.groups[group].page_len;
        let page = table[position / page_len];
        (page != PageId::GONE).then(|| (page.0 as usize * page_len + position % page_len) as u32)
    }

    /// Stores one row of keys and values, `[kv_heads, head_dim]` each.
    pub(crate) fn store(&mut self, layer: usize, slot: u32, key: &[f32], value: &[f32]) {
        self.keys[layer].store(slot, key);
        self.values[layer].store(slot, value);
    }

    /// Applies [`CacheEdit::Move`](crate::CacheEdit::Move).
    pub(crate) fn move_rows(&mut self, tables: &[PageTable], from: &[usize], to: usize) {
        for (from, to) in from.iter().copied().zip(to..) {
            assert!(from >= to, "cache: position {from} cannot move up to {to}");
            self.copy([tables, tables], [from, to]);
        }
    }

    /// Applies [`CacheEdit::Copy`](crate::CacheEdit::Copy).
    ///
    /// # Errors
    /// The source sequence has given back a page that later rows of the destination see.
    pub(crate) fn copy_rows(
        &mut self,
        from: &[PageTable],
        to: &[PageTable],
        positions: Range<usize>,
    ) -> Result<(), ExecutorError> {
        for (number, (group, table)) in self.groups.iter().zip(from).enumerate() {
            let mut seen = group.first_seen(positions.end).max(positions.start)..positions.end;
            if let Some(position) = seen.find(|position| self.slot(number, table, *position).is_none()) {
                let message = format!("position {position} of the copied sequence was given back");
                return Err(ExecutorError::Failed { message });
            }
        }
        for position in positions {
            self.copy([from, to], [position; 2]);
        }
        Ok(())
    }

    /// Copies a row from a position of some page tables to a position of others, in every group that has both pages.
    fn copy(&mut self, [from, to]: [&[PageTable]; 2], [source, target]: [usize; 2]) {
        for group in 0..self.groups.len() {
            let slots = self.slot(group, &from[group], source).zip(self.slot(group, &to[group], target));
            let Some((source, target)) = slots.filter(|(source, target)| source != target) else { continue };
            let tensors = self.keys.iter_mut().zip(&mut self.values).zip(&self.group_of);
            for ((keys, values), _) in tensors.filter(|(_, group_of_layer)| **group_of_layer == group) {
                [keys, values].into_iter().for_each(|tensor| tensor.copy(source, target));
            }
        }
    }

    /// Number of bytes of a saved row of a group.
    pub(crate) fn saved_bytes(&self, group: usize) -> usize {
        self.tensors(group).map(CacheTensor::row_bytes).sum()
    }

    /// The keys and values of each layer of a group, in the order in which they are saved.
    fn tensors(&self, group: usize) -> impl Iterator<Item = &CacheTensor> {
        let layers = self.keys.iter().zip(&self.values).zip(&self.group_of);
        layers
            .filter(move |(_, group_of_layer)| **group_of_layer == group)
            .flat_map(|((keys, values), _)| [keys, values])
    }

    /// Saves rows as [`Executor::save_rows`](crate::Executor::save_rows) does.
    ///
    /// # Errors
    /// A page was given back.
    pub(crate) fn save_rows(&self, rows: CacheRows<'_>, out: &mut Vec<u8>) -> Result<(), ExecutorError> {
        for slot in self.slots(&rows)? {
            self.tensors(rows.group).for_each(|tensor| tensor.save(slot, out));
        }
        Ok(())
    }

    /// Loads rows as [`Executor::load_rows`](crate::Executor::load_rows) does.
    ///
    /// # Errors
    /// A page was given back.
    pub(crate) fn load_rows(&mut self, rows: CacheRows<'_>, bytes: &[u8]) -> Result<(), ExecutorError> {
        let (slots, row_bytes) = (self.slots(&rows)?, self.saved_bytes(rows.group));
        assert_eq!(bytes.len(), slots.len() * row_bytes, "cache: bytes of saved rows {rows:?}");
        let tensors = self.keys.iter_mut().zip(&mut self.values).zip(&self.group_of);
        let mut start = 0;
        for ((keys, values), _) in tensors.filter(|(_, group_of_layer)| **group_of_layer == rows.group) {
            for tensor in [keys, values] {
                let end = start + tensor.row_bytes();
                let rows = slots.iter().zip(bytes.chunks_exact(row_bytes));
                rows.for_each(|(slot, row)| tensor.load(*slot, &row[start..end]));
                start = end;
            }
        }
        Ok(())
    }

    fn slots(&self, rows: &CacheRows<'_>) -> Result<Vec<u32>, ExecutorError> {
        let slot = |position| {
            let gone = || ExecutorError::Failed { message: format!("position {position} of a prefix was given back") };
            self.slot(rows.group, rows.table, position).ok_or_else(gone)
        };
        rows.positions.clone().map(slot).collect()
    }
}
