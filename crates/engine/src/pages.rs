//! Which pages belong to whom: integers only. The bytes are the executor's.
//!
//! A sequence *reserves* the most positions it can ever have when it is admitted, and takes pages one by one as
//! it grows. Since reservations never exceed the pages there are, growing cannot fail halfway through a pass. Of a
//! cache group that keeps a window of the text, pages behind the window are given back when rows are committed, and as
//! many are reserved as the window and the rows of a pass take, however long the text may become.
//! Left out: sharing pages between sequences.

use foretoken_model::{Capacity, Group, Keep, PageId, PageTable};

/// Free pages and reservations of every cache group of one executor.
#[derive(Clone, Debug)]
pub struct Pages {
    groups: Vec<Group>,
    /// Rows of one pass.
    rows_max: usize,
    /// One list a group; the last is taken next.
    free: Vec<Vec<PageId>>,
    /// Pages promised to sequences, one number a group; taken ones are counted too.
    reserved: Vec<usize>,
}

impl Pages {
    /// All pages of an executor, free.
    pub fn new(capacity: &Capacity) -> Self {
        let Capacity { groups, rows_max, .. } = capacity;
        let free = groups.iter().map(|group| (0..group.pages as u32).rev().map(PageId).collect()).collect();
        Self { groups: groups.clone(), rows_max: *rows_max, free, reserved: vec![0; groups.len()] }
    }

    /// The same for sequences that may go back behind what they committed, as those of draft models do: nothing is
    /// given back at the front.
    pub fn that_keep_all(capacity: &Capacity) -> Self {
        let mut pages = Self::new(capacity);
        pages.groups.iter_mut().for_each(|group| group.keep = Keep::All);
        pages
    }

    /// Promises a sequence room for so many positions; false (and nothing changed) if too much is promised already.
    pub fn reserve(&mut self, positions: usize) -> bool {
        self.enlarge(0, positions)
    }

    /// Raises a sequence's promise from some number of positions to a larger one; false as [`reserve`](Self::reserve).
    pub fn enlarge(&mut self, from: usize, to: usize) -> bool {
        let rows_max = self.rows_max;
        let more = |group: &Group| group.pages_held(to, rows_max) - group.pages_held(from, rows_max);
        let mut both = self.groups.iter().zip(&self.reserved);
        let fits = both.all(|(group, reserved)| reserved + more(group) <= group.pages);
        if fits {
            self.groups.iter().zip(&mut self.reserved).for_each(|(group, reserved)| *reserved += more(group));
        }
        fits
    }

    /// Empty page tables, one a group.
    pub fn tables(&self) -> Vec<PageTable> {
        vec![PageTable::new(); self.groups.len()]
    }

    /// Takes pages until the tables have room for so many positions.
    ///
    /// # Panics
    /// If more was asked for than was reserved, and no page is left.
    pub fn grow(&mut self, tables: &mut [PageTable], positions: usize) {
        for ((group, free), table) in self.groups.iter().zip(&mut self.free).zip(tables) {
            while table.len() < group.pages_for(positions) {
                table.push(free.pop().expect("a sequence grows beyond what it reserved"));
            }
        }
    }

    /// Gives back the pages that hold nothing but positions from `len` on.
    pub fn truncate(&mut self, tables: &mut [PageTable], len: usize) {
        for ((group, free), table) in self.groups.iter().zip(&mut self.free).zip(tables) {
            let needed = group.pages_for(len).min(table.len());
            free.extend(table.drain(needed..).rev().filter(|page| *page != PageId::GONE));
        }
    }

    /// Notes that the first `len` positions are committed and will not be taken back: gives back the pages that hold
    /// nothing but positions behind them, or positions that no later row sees.
    pub fn commit(&mut self, tables: &mut [PageTable], len: usize) {
        self.truncate(tables, len);
        for ((group, free), table) in self.groups.iter().zip(&mut self.free).zip(tables) {
            let gone = group.pages_gone(len).min(table.len());
            // From the last on: those in front went before.
            let held = table[..gone].iter_mut().rev().take_while(|page| **page != PageId::GONE);
            free.extend(held.map(|page| std::mem::replace(page, PageId::GONE)));
        }
    }

    /// Gives back everything of a sequence that had reserved so many positions.
    pub fn release(&mut self, tables: &mut [PageTable], positions: usize) {
        self.truncate(tables, 0);
        for (group, reserved) in self.groups.iter().zip(&mut self.reserved) {
            let pages = group.pages_held(positions, self.rows_max);
            assert!(*reserved >= pages, "{pages} pages were released of {reserved} reserved");
            *reserved -= pages;
        }
    }

    /// Pages of the first group that no sequence holds.
    pub fn free(&self) -> usize {
        self.free[0].len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A sequence: its tables, the positions that it reserved, those that are committed, and those it has pages for.
    struct Held {
        tables: Vec<PageTable>,
        reserved: usize,
        committed: usize,
        grown: usize,
    }

    /// Every page is free or held once, and what later rows see is held.
    fn check(pages: &Pages, sequences: &[Held]) {
        for (i, group) in pages.groups.iter().enumerate() {
            let of = |held: &Held| held.tables[i].iter().copied().filter(|page| *page != PageId::GONE).collect();
            let held: Vec<PageId> = sequences.iter().flat_map(|held| -> Vec<PageId> { of(held) }).collect();
            let distinct: BTreeSet<PageId> = held.iter().chain(&pages.free[i]).copied().collect();
            assert_eq!((held.len() + pages.free[i].len(), distinct.len()), (group.pages, group.pages));
            assert!(held.len() <= pages.reserved[i], "{} pages of {}", held.len(), pages.reserved[i]);
            for held in sequences {
                let seen = group.first_seen(held.committed) / group.page_len..group.pages_for(held.grown);
                assert!(held.tables[i][seen].iter().all(|page| *page != PageId::GONE));
            }
        }
    }

    #[test]
    fn no_page_is_ever_lost_or_held_twice() {
        let groups = vec![Group::attention(4, 30), Group::window(9, 4, 17)];
        let mut pages = Pages::new(&Capacity { vocabulary: 1, context_max: 1000, rows_max: 6, groups });
        let mut sequences: Vec<Held> = Vec::new();
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        };
        let mut gone = 0;
        for _ in 0..20_000 {
            match random(40) {
                0 => {
                    let reserved = 1 + random(40);
                    if pages.reserve(reserved) {
                        sequences.push(Held { tables: pages.tables(), reserved, committed: 0, grown: 0 });
                    }
                }
                1 if !sequences.is_empty() => {
                    let mut held = sequences.swap_remove(random(sequences.len()));
                    pages.release(&mut held.tables, held.reserved);
                }
                2..20 if !sequences.is_empty() => {
                    let at = random(sequences.len());
                    let held = &mut sequences[at];
                    held.grown = held.grown.max(held.reserved.min(held.committed + random(7)));
                    pages.grow(&mut held.tables, held.grown);
                }
                _ if !sequences.is_empty() => {
                    let at = random(sequences.len());
                    let held = &mut sequences[at];
                    held.committed += random(held.grown - held.committed + 1);
                    let before = held.tables.clone();
                    pages.commit(&mut held.tables, held.committed);
                    held.grown = held.committed;
                    assert_eq!(held.tables[0][..], before[0][..held.committed.div_ceil(4)], "all is kept, in order");
                    gone += held.tables[1].iter().filter(|page| **page == PageId::GONE).count();
                }
                _ => {}
            }
            check(&pages, &sequences);
        }
        assert!(gone > 1000, "pages behind the window were given back {gone} times");
    }

    #[test]
    fn a_window_reserves_itself_and_a_pass() {
        let group = Group::window(4096, 32, 400);
        assert_eq!([100, 4096, 32_768].map(|positions| group.pages_held(positions, 512)), [4, 128, 145]);
        assert_eq!((group.room(512), Group::window(4096, 32, 100).room(512)), (usize::MAX, 3200));
        assert_eq!((group.first_seen(4095), group.first_seen(4096), group.pages_gone(4095 + 32)), (0, 1, 1));
    }
}
