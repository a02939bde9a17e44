//! The bytes of the cache: keys and values of every layer, in pages.
//!
//! A slot is a place for one position: page number times page length plus the place in the page. Which slots a
//! sequence uses is told by its page table; nothing here knows which slots are in use. Memory is reserved at
//! start and touched by the operating system page by page, so an unused context costs nothing.

use crate::batch::{Group, PageTable};

pub(crate) struct Cache {
    pub(crate) group: Group,
    /// Elements of one slot: key-value heads times their width.
    pub(crate) width: usize,
    /// One a layer: `[slots, width]`.
    pub(crate) keys: Vec<Vec<f32>>,
    pub(crate) values: Vec<Vec<f32>>,
}

impl Cache {
    /// An empty cache; `None` if there is no memory for it, or no numbers for its slots.
    pub(crate) fn new(group: Group, layers: usize, width: usize) -> Option<Self> {
        let slots = group.pages.checked_mul(group.page_len)?;
        let elements = u32::try_from(slots).ok().and_then(|_| slots.checked_mul(width))?;
        let zeros = |_| {
            // Memory that is zero already, and so costs nothing before it is used, can only be demanded. So as much
            // is asked for first, and given back; out of the compiler's sight, which would take it for granted.
            let mut asked = Vec::<f32>::new();
            asked.try_reserve_exact(elements).ok()?;
            drop(std::hint::black_box(asked));
            Some(vec![0f32; elements])
        };
        let all = || (0..layers).map(zeros).collect::<Option<Vec<_>>>();
        Some(Self { group, width, keys: all()?, values: all()? })
    }

    /// The slot of a position.
    pub(crate) fn slot(&self, table: &PageTable, position: usize) -> u32 {
        let page = table[position / self.group.page_len];
        (page.0 as usize * self.group.page_len + position % self.group.page_len) as u32
    }

    /// Stores one row of keys and values.
    pub(crate) fn store(&mut self, layer: usize, slot: u32, key: &[f32], value: &[f32]) {
        let first = slot as usize * self.width;
        self.keys[layer][first..first + self.width].copy_from_slice(key);
        self.values[layer][first..first + self.width].copy_from_slice(value);
    }

    /// See [`CacheEdit::Move`](crate::CacheEdit::Move).
    pub(crate) fn move_rows(&mut self, table: &PageTable, from: &[usize], to: usize) {
        for (i, from) in from.iter().enumerate() {
            assert!(*from >= to + i, "cache: position {from} cannot move up to {}", to + i);
            if *from == to + i {
                continue;
            }
            let source = self.slot(table, *from) as usize * self.width;
            let target = self.slot(table, to + i) as usize * self.width;
            for rows in self.keys.iter_mut().chain(&mut self.values) {
                rows.copy_within(source..source + self.width, target);
            }
        }
    }
}
