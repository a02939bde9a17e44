//! The cache: keys and values of every layer, in pages.
//!
//! A slot is a place for one position: page number times page length plus the place in the page. Layers that see the
//! same part of a text are a group with pages of its own; layers that share the keys and values of an earlier one have
//! none. Which slots of a group a sequence uses is told by its page table; nothing here knows which slots are in use.
//! How a row is rounded and where its elements lie is said by the kernels' [`Side`]. Memory is reserved at start and
//! touched by the operating system page by page, so an unused context costs nothing.

use std::ops::Range;

use foretoken_kernels::attention::{CacheType, Side};

use crate::batch::{PageId, PageTable};
use crate::executor::{ExecutorError, Group};
use crate::spec::Heads;

pub(crate) struct Cache {
    pub(crate) groups: Vec<Group>,
    /// For each layer that has keys and values of its own its group.
    pub(crate) group_of: Vec<usize>,
    /// One for each of them.
    pub(crate) keys: Vec<Side>,
    pub(crate) values: Vec<Side>,
}

impl Cache {
    /// An empty cache with types for keys and values; `None` if there is no memory for it, or no numbers for its slots.
    /// `layers`: of each layer that has keys and values its group and their heads.
    pub(crate) fn new(groups: Vec<Group>, layers: &[(usize, Heads)], types: [CacheType; 2]) -> Option<Self> {
        let slots: Option<Vec<usize>> = groups.iter().map(|group| group.pages.checked_mul(group.page_len)).collect();
        let slots = slots?;
        let all = |make: fn(CacheType, usize, usize, usize) -> Option<Side>, kind| {
            let side = |(group, heads): &(usize, Heads)| make(kind, slots[*group], heads.count, heads.head_dim);
            layers.iter().map(side).collect::<Option<Vec<_>>>()
        };
        let (keys, values) = (all(Side::keys, types[0])?, all(Side::values, types[1])?);
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

    /// See [`CacheEdit::Move`](crate::CacheEdit::Move).
    pub(crate) fn move_rows(&mut self, tables: &[PageTable], from: &[usize], to: usize) {
        for (from, to) in from.iter().copied().zip(to..) {
            assert!(from >= to, "cache: position {from} cannot move up to {to}");
            self.copy([tables, tables], [from, to]);
        }
    }

    /// See [`CacheEdit::Copy`](crate::CacheEdit::Copy).
    ///
    /// # Errors
    /// A page that later rows of the target see was given back by the source.
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

    /// Copies a row from a position of some page tables to one of others, in every group that has pages for both.
    fn copy(&mut self, [from, to]: [&[PageTable]; 2], [source, target]: [usize; 2]) {
        for group in 0..self.groups.len() {
            let slots = self.slot(group, &from[group], source).zip(self.slot(group, &to[group], target));
            let Some((source, target)) = slots.filter(|(source, target)| source != target) else { continue };
            let sides = self.keys.iter_mut().zip(&mut self.values).zip(&self.group_of);
            for ((keys, values), _) in sides.filter(|(_, of)| **of == group) {
                [keys, values].into_iter().for_each(|side| side.copy(source, target));
            }
        }
    }
}
