//! Which pages belong to whom: integers only. The bytes are the executor's.
//!
//! A sequence *reserves* the most positions it can ever have when it is admitted, and takes pages one by one as
//! it grows. Since reservations never exceed the pages there are, growing cannot fail halfway through a pass.
//! Left out: sharing pages between sequences.

use foretoken_model::{Group, PageId, PageTable};

/// Free pages and reservations of every cache group of one executor.
#[derive(Clone, Debug)]
pub struct Pages {
    groups: Vec<Group>,
    /// One list a group; the last is taken next.
    free: Vec<Vec<PageId>>,
    /// Pages promised to sequences, one number a group; taken ones are counted too.
    reserved: Vec<usize>,
}

impl Pages {
    /// All pages of the groups, free.
    pub fn new(groups: &[Group]) -> Self {
        let free = groups.iter().map(|group| (0..group.pages as u32).rev().map(PageId).collect()).collect();
        Self { groups: groups.to_vec(), free, reserved: vec![0; groups.len()] }
    }

    /// Promises a sequence room for so many positions; false (and nothing changed) if too much is promised already.
    pub fn reserve(&mut self, positions: usize) -> bool {
        self.enlarge(0, positions)
    }

    /// Raises a sequence's promise from some number of positions to a larger one; false as [`reserve`](Self::reserve).
    pub fn enlarge(&mut self, from: usize, to: usize) -> bool {
        let more = |group: &Group| group.pages_for(to) - group.pages_for(from);
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
            free.extend(table.drain(needed..).rev());
        }
    }

    /// Gives back everything of a sequence that had reserved so many positions.
    pub fn release(&mut self, tables: &mut [PageTable], positions: usize) {
        self.truncate(tables, 0);
        for (group, reserved) in self.groups.iter().zip(&mut self.reserved) {
            let pages = group.pages_for(positions);
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

    #[test]
    fn no_page_is_ever_lost_or_held_twice() {
        let group = Group::attention(4, 30);
        let mut pages = Pages::new(&[group]);
        let mut sequences: Vec<(Vec<PageTable>, usize)> = Vec::new();
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for _ in 0..20_000 {
            match random(4) {
                0 => {
                    let positions = 1 + random(40) as usize;
                    if pages.reserve(positions) {
                        sequences.push((pages.tables(), positions));
                    }
                }
                1 if !sequences.is_empty() => {
                    let at = random(sequences.len() as u64) as usize;
                    let (mut tables, positions) = sequences.swap_remove(at);
                    pages.release(&mut tables, positions);
                }
                2 if !sequences.is_empty() => {
                    let at = random(sequences.len() as u64) as usize;
                    let len = random(sequences[at].1 as u64 + 1) as usize;
                    pages.grow(&mut sequences[at].0, len);
                }
                _ if !sequences.is_empty() => {
                    let at = random(sequences.len() as u64) as usize;
                    let len = random(sequences[at].1 as u64 + 1) as usize;
                    let before = sequences[at].0[0].clone();
                    pages.truncate(&mut sequences[at].0, len);
                    let after = &sequences[at].0[0];
                    assert_eq!(after[..], before[..after.len()], "kept pages keep their order");
                    assert_eq!(after.len(), before.len().min(len.div_ceil(4)));
                }
                _ => {}
            }
            let held: Vec<PageId> = sequences.iter().flat_map(|(tables, _)| tables[0].iter().copied()).collect();
            let distinct: BTreeSet<PageId> = held.iter().copied().chain(pages.free[0].iter().copied()).collect();
            assert_eq!((held.len() + pages.free(), distinct.len()), (30, 30));
        }
    }
}
