//! Tests of pages against a naive reference: lists of tokens, linear searches, and the rows that an executor stores.
//!
//! The reference learns only which page numbers were handed out. For each page it records its prefix, its owners and
//! when it was released, and predicts which prefix is found, which page may be evicted, and what a row must see.

use std::ops::Range;

use foretoken_model::{Capacity, Group, Keep, PageId};
use foretoken_speculation::{Tenant, Token};

use super::{Pages, SequencePages};

/// A page of the tree: the owners of its ancestors and itself, the tokens up to its end, and when it was released.
struct Entry {
    group: usize,
    page: PageId,
    owners: Vec<Option<Tenant>>,
    tokens: Vec<Token>,
    released: u64,
}

/// A sequence: its tokens, and how many of them are committed.
struct ReferenceSequence {
    pages: SequencePages,
    tenant: Tenant,
    public_len: usize,
    tokens: Vec<Token>,
    committed: usize,
    /// For each group the owners of its pages in the tree.
    owners: Vec<Vec<Option<Tenant>>>,
}

/// A row as an executor stores it: the tokens that it was computed from, and its owner.
type Row = Option<(Vec<Token>, Option<Tenant>)>;

struct Reference {
    pages: Pages,
    groups: Vec<Group>,
    /// By group, page and index in the page.
    rows: Vec<Vec<Row>>,
    entries: Vec<Entry>,
    sequences: Vec<ReferenceSequence>,
    /// The tokens of earlier sequences, from which prompts are made.
    prompts: Vec<Vec<Token>>,
    state: u64,
    clock: u64,
    /// Adopted prefixes, copied rows, evicted pages, replaced pages, and failures to grow.
    counts: [usize; 5],
}

impl Reference {
    fn new(groups: Vec<Group>, seed: u64, key_bits: u64) -> Self {
        let mut pages = Pages::new(&Capacity {
            vocabulary: 3,
            context_max: 1000,
            rows_max: 6,
            groups: groups.clone(),
            ..Capacity::default()
        });
        let trees = pages.groups.iter_mut().filter_map(|pages| pages.prefixes.tree());
        trees.for_each(|tree| tree.key_bits = key_bits);
        let rows = groups.iter().map(|group| vec![None; group.pages * group.page_len]).collect();
        let prompts = vec![vec![0]; 6];
        Self { pages, groups, rows, entries: vec![], sequences: vec![], prompts, state: seed, clock: 0, counts: [0; 5] }
    }

    fn random(&mut self, below: usize) -> usize {
        self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.state >> 33) as usize % below
    }

    fn holders(&self, group: usize, page: PageId) -> usize {
        self.sequences.iter().filter(|sequence| sequence.pages.tables[group].contains(&page)).count()
    }

    fn entry(&self, group: usize, page: PageId) -> Option<usize> {
        self.entries.iter().position(|entry| (entry.group, entry.page) == (group, page))
    }

    /// The numbers of free and of cached pages of a group.
    fn unheld(&self, group: usize) -> [usize; 2] {
        let pages = (0..self.groups[group].pages as u32).map(PageId);
        let unheld: Vec<PageId> = pages.filter(|page| self.holders(group, *page) == 0).collect();
        let cached = unheld.iter().filter(|page| self.entry(group, **page).is_some()).count();
        [unheld.len() - cached, cached]
    }

    /// Notes that pages were taken: free ones first, then the least recently released.
    fn take(&mut self, group: usize, free: usize, taken: &[PageId]) {
        for (i, page) in taken.iter().enumerate() {
            let Some(at) = self.entry(group, *page) else {
                assert!(i < free, "{page:?} was taken as a free page, but none was free");
                continue;
            };
            assert!(i >= free, "{page:?} was evicted though a page was free");
            let others = self.entries.iter().filter(|entry| entry.group == group);
            let unheld = others.filter(|entry| entry.page == *page || self.holders(group, entry.page) == 0);
            let first = unheld.min_by_key(|entry| entry.released).expect("the page itself is one");
            assert_eq!(first.page, *page, "another page was released earlier");
            self.entries.swap_remove(at);
            self.counts[2] += 1;
        }
    }

    /// Notes that a table released pages, in this order.
    fn note_released(&mut self, group: usize, pages: impl IntoIterator<Item = PageId>) {
        for page in pages {
            self.clock += 1;
            let clock = self.clock;
            if let Some(at) = self.entry(group, page).filter(|_| self.holders(group, page) == 0) {
                self.entries[at].released = clock;
            }
        }
    }

    /// Whether a group can continue the first `len` of these tokens: as far as the next position sees, there are full
    /// pages with these owners, and a page that agrees for the remaining tokens.
    fn holds(&self, number: usize, owners: &[Option<Tenant>], tenant: Tenant, tokens: &[Token], len: usize) -> bool {
        let group = &self.groups[number];
        let (page_len, full) = (group.page_len, len / group.page_len);
        let has = |at: usize| {
            let prefix = &tokens[..(at + 1) * page_len];
            let is = |entry: &Entry| entry.tokens == prefix && entry.owners == owners[..=at];
            self.entries.iter().any(|entry| entry.group == number && is(entry))
        };
        let agrees = |entry: &&Entry| {
            let is_next = (entry.group, entry.owners.len()) == (number, full + 1);
            is_next && entry.owners[..full] == owners[..full] && entry.tokens.starts_with(&tokens[..len])
        };
        let is_own = |entry: &Entry| entry.owners[full].is_none_or(|owner| owner == tenant);
        (group.pages_gone(len).min(full)..full).all(has)
            && (len == full * page_len || self.entries.iter().filter(agrees).any(is_own))
    }

    /// The longest prefix that all groups can continue.
    fn longest(&self, tenant: Tenant, public_len: usize, tokens: &[Token], len_max: usize) -> usize {
        let holds = |group: usize, len: usize| {
            let page_len = self.groups[group].page_len;
            let full = len / page_len;
            (0..=full).any(|public| {
                let may_be_own = public == full || (public + 1) * page_len > public_len;
                let owners: Vec<_> = (0..full).map(|at| (at >= public).then_some(tenant)).collect();
                may_be_own && self.holds(group, &owners, tenant, tokens, len)
            })
        };
        let all = |len: &usize| (0..self.groups.len()).all(|group| holds(group, *len));
        (1..=len_max).rev().find(all).unwrap_or(0)
    }

    fn begin(&mut self) {
        let (tenant, which) = (Tenant(self.random(2) as u64), self.random(self.prompts.len()));
        let mut tokens = self.prompts[which].clone();
        tokens.truncate(1 + self.random(tokens.len()));
        for _ in 0..self.random(12) + usize::from(tokens.is_empty()) {
            tokens.push(self.random(2) as Token);
        }
        tokens.truncate(26);
        self.prompts[which].clone_from(&tokens);
        let public_len = if self.random(2) == 0 { 0 } else { self.random(tokens.len() + 1) };
        let len_max = if self.random(4) == 0 { self.random(tokens.len()) } else { tokens.len() - 1 };
        let longest = self.longest(tenant, public_len, &tokens, len_max);
        let unheld: Vec<[usize; 2]> = (0..self.groups.len()).map(|group| self.unheld(group)).collect();
        let admitted = self.pages.admits(&self.pages.open(tenant, public_len), &tokens, len_max, [0, 0]);
        let mut pages = self.pages.open(tenant, public_len);
        let adopted = self.pages.adopt(&mut pages, &tokens, len_max);
        let mut expected = longest;
        while adopted.len < expected {
            // A group has no page for the rows to copy, so the prefix is shortened to that group's full pages.
            let scarce = |(group, unheld): (&Group, &[usize; 2])| {
                let full = expected / group.page_len;
                let is_copied = !expected.is_multiple_of(group.page_len);
                (is_copied && unheld.iter().sum::<usize>() <= full + 1).then_some(full * group.page_len)
            };
            let shorter = self.groups.iter().zip(&unheld).filter_map(scarce).max();
            let shorter = shorter.unwrap_or_else(|| panic!("{} adopted of {expected}", adopted.len));
            expected = self.longest(tenant, public_len, &tokens, shorter);
        }
        assert_eq!(adopted.len, expected, "of {longest}");
        self.counts[0] += usize::from(adopted.len > 0);
        let owners_of = |(group, table): (usize, &Vec<PageId>)| {
            let shared = adopted.len / self.groups[group].page_len;
            let entries = table[..shared].iter().filter_map(|page| self.entry(group, *page));
            entries.map(|entry| self.entries[entry].owners.clone()).max_by_key(Vec::len).unwrap_or_default()
        };
        let owners = pages.tables.iter().enumerate().map(owners_of).collect();
        let committed = adopted.len;
        self.sequences.push(ReferenceSequence { pages, tenant, public_len, tokens, committed, owners });
        if let Some(copied) = adopted.copied {
            self.copy(self.sequences.len() - 1, &copied.from, copied.positions, &unheld);
        }
        self.check_rows(self.sequences.len() - 1);
        if admitted {
            self.run_to_end(self.sequences.len() - 1);
        }
    }

    /// Truncates a sequence, committed rows included, as a draft model does.
    fn truncate(&mut self, to: usize) {
        let len = self.random(self.sequences[to].committed + 1);
        let before = self.sequences[to].pages.tables.clone();
        let mut unheld: Vec<[usize; 2]> = (0..self.groups.len()).map(|group| self.unheld(group)).collect();
        let entered: Vec<usize> = self.sequences[to].owners.iter().map(Vec::len).collect();
        let alone: Vec<Vec<bool>> = (0..self.groups.len())
            .map(|group| before[group].iter().map(|page| self.holders(group, *page) == 1).collect())
            .collect();
        let freed = |group: usize, full: usize| alone[group][full + 1..].iter().filter(|alone| **alone).count();
        let left = self.pages.truncate(&mut self.sequences[to].pages, len);
        let mut expected = len;
        let scarce = |expected: usize| {
            let is_scarce = |group: usize| {
                let full = expected / self.groups[group].page_len;
                let copied = !expected.is_multiple_of(self.groups[group].page_len) && full < entered[group];
                (copied && unheld[group].iter().sum::<usize>() + freed(group, full) == 0)
                    .then_some(full * self.groups[group].page_len)
            };
            (0..self.groups.len()).find_map(is_scarce)
        };
        while let Some(shorter) = scarce(expected) {
            expected = shorter;
        }
        let len = left.len;
        assert_eq!(len, expected);
        self.sequences[to].committed = len;
        for (group, before) in before.into_iter().enumerate() {
            let (page_len, entered) = (self.groups[group].page_len, entered[group]);
            let full = len / page_len;
            self.sequences[to].owners[group].truncate(full);
            unheld[group][0] += before.len() - entered.max(len.div_ceil(page_len)).min(before.len());
            let table = &self.sequences[to].pages.tables[group];
            assert_eq!(table[..full], before[..full]);
            let shared = if full < entered { before[full..entered].to_vec() } else { Vec::new() };
            assert_eq!(table.len(), len.div_ceil(page_len).min(before.len()));
            self.note_released(group, shared.into_iter().rev());
        }
        if let Some(copied) = left.copied {
            self.copy(to, &copied.from, copied.positions, &unheld);
        }
        self.check_rows(to);
    }

    /// Copies rows to a sequence, which took a page for them in each group where the pages differ.
    fn copy(&mut self, to: usize, from: &[Vec<PageId>], positions: Range<usize>, unheld: &[[usize; 2]]) {
        self.counts[1] += positions.len();
        let ReferenceSequence { tenant, public_len, .. } = self.sequences[to];
        for group in 0..self.groups.len() {
            let (page_len, table) = (self.groups[group].page_len, self.sequences[to].pages.tables[group].clone());
            let differs = |position: &usize| from[group][position / page_len] != table[position / page_len];
            for position in positions.clone().filter(differs) {
                let [source, target] = [&from[group], &table].map(|table| table[position / page_len].0 as usize);
                let row = self.rows[group][source * page_len + position % page_len].clone();
                let (tokens, owner) = row.expect("a row was stored");
                assert!(owner.is_none_or(|owner| owner == tenant), "a row of {owner:?} is copied to {tenant:?}");
                // A tenant may declare its own tokens public.
                let owner = (tokens.len() > public_len).then_some(tenant);
                self.rows[group][target * page_len + position % page_len] = Some((tokens, owner));
            }
            let last = positions.end - 1;
            if !differs(&last) {
                continue;
            }
            let [source, target] = [&from[group], &table].map(|table| table[last / page_len]);
            // A page that is copied from is held during the copy, and then released.
            if self.holders(group, source) == 0 {
                let at = self.entry(group, source).expect("it is in the tree");
                self.entries[at].released = u64::MAX;
            }
            self.take(group, unheld[group][0], &[target]);
            self.note_released(group, [source]);
        }
    }

    /// Checks that every row that the next row of a sequence sees was computed from its tokens, and is public or its
    /// tenant's.
    fn check_rows(&self, at: usize) {
        let ReferenceSequence { pages, tenant, tokens: expected, committed, .. } = &self.sequences[at];
        for (number, group) in self.groups.iter().enumerate() {
            for position in group.first_seen(*committed)..*committed {
                let page = pages.tables[number][position / group.page_len];
                let row = &self.rows[number][page.0 as usize * group.page_len + position % group.page_len];
                let (tokens, owner) = row.as_ref().expect("a row was stored");
                assert_eq!(tokens[..], expected[..=position], "group {number}, position {position}");
                assert!(owner.is_none_or(|owner| owner == *tenant), "a row of {owner:?} is shown to {tenant:?}");
            }
        }
    }

    /// Grows by some rows, drafted ones or those of the next tokens, and writes them. Returns whether there was room.
    fn grow(&mut self, at: usize, rows: usize, is_drafted: bool) -> bool {
        let end = self.sequences[at].committed + rows;
        let before: Vec<usize> = self.sequences[at].pages.tables.iter().map(Vec::len).collect();
        let unheld: Vec<[usize; 2]> = (0..self.groups.len()).map(|group| self.unheld(group)).collect();
        let needed = |group: usize| self.groups[group].pages_for(end).saturating_sub(before[group]);
        let fits = (0..self.groups.len()).all(|group| needed(group) <= unheld[group].iter().sum());
        let grown = self.pages.grow(&mut self.sequences[at].pages, end);
        assert_eq!(grown, fits, "growing to {end}: {unheld:?}");
        self.counts[4] += usize::from(!grown);
        if !grown {
            return false;
        }
        for group in 0..self.groups.len() {
            let taken = self.sequences[at].pages.tables[group][before[group]..].to_vec();
            self.take(group, unheld[group][0], &taken);
        }
        let ReferenceSequence { pages, committed, tokens: known, tenant, public_len, .. } = &self.sequences[at];
        let (committed, owner) = (*committed, |position| (position >= *public_len).then_some(*tenant));
        self.pages.assert_own(pages, committed..end);
        for ((rows, table), Group { page_len, .. }) in self.rows.iter_mut().zip(&pages.tables).zip(&self.groups) {
            for position in committed..end {
                let mut tokens = known[..(position + 1).min(known.len())].to_vec();
                tokens.extend(is_drafted.then_some(9));
                let row = table[position / page_len].0 as usize * page_len + position % page_len;
                rows[row] = Some((tokens, owner(position)));
            }
        }
        true
    }

    /// Commits `rows` more rows of a sequence.
    fn commit(&mut self, at: usize, rows: usize) {
        let ReferenceSequence { committed, tokens, .. } = &mut self.sequences[at];
        *committed += rows;
        let tokens = tokens[..*committed].to_vec();
        let mut before: Vec<Vec<PageId>> = self.sequences[at].pages.tables.clone();
        self.pages.commit(&mut self.sequences[at].pages, &tokens);
        for (group, before) in before.iter_mut().enumerate() {
            let page_len = self.groups[group].page_len;
            while (self.sequences[at].owners[group].len() + 1) * page_len <= tokens.len() {
                let entered = self.sequences[at].owners[group].len();
                self.enter(at, group, &tokens[..(entered + 1) * page_len], before);
            }
        }
        for (group, before) in before.iter().enumerate() {
            let gone = self.groups[group].pages_gone(tokens.len()).min(before.len());
            self.note_released(group, before[..gone].iter().rev().copied().filter(|page| *page != PageId::GONE));
            let table = &self.sequences[at].pages.tables[group];
            assert!(
                table[..gone].iter().all(|page| *page == PageId::GONE)
                    && table[gone..].iter().all(|p| *p != PageId::GONE)
            );
            assert_eq!(table.len(), self.groups[group].pages_for(tokens.len()).min(before.len()));
        }
    }

    /// Adds a full page of a sequence to the tree of its group, or replaces it by the page that is there.
    fn enter(&mut self, at: usize, group: usize, tokens: &[Token], before: &mut [PageId]) {
        let (page_len, sequence) = (self.groups[group].page_len, &self.sequences[at]);
        let page = tokens.len() / page_len - 1;
        let owner = (tokens.len() > sequence.public_len).then_some(sequence.tenant);
        let owners = |owner| [&sequence.owners[group][..], &[owner]].concat();
        let exists = |owners: &[Option<Tenant>]| {
            let is_below =
                |others: &[Option<Tenant>], other: &[Token]| others.starts_with(owners) && other.starts_with(tokens);
            let of_group = self.entries.iter().filter(|entry| entry.group == group);
            let entered = |other: &ReferenceSequence| other.owners[group].len() * page_len;
            of_group.into_iter().any(|entry| is_below(&entry.owners, &entry.tokens))
                || self.sequences.iter().any(|other| is_below(&other.owners[group], &other.tokens[..entered(other)]))
        };
        let is_public = !exists(&owners(owner)) && exists(&owners(None));
        let owners = owners(owner.filter(|_| !is_public));
        let is = |entry: &&Entry| entry.group == group && entry.owners == owners && entry.tokens == tokens;
        let (known, own) = (self.entries.iter().find(is).map(|entry| entry.page), before[page]);
        let gone = self.groups[group].pages_gone(self.sequences[at].committed) > page;
        let expected = if gone { PageId::GONE } else { known.unwrap_or(own) };
        assert_eq!(self.sequences[at].pages.tables[group][page], expected, "page {page} of group {group}");
        self.counts[3] += usize::from(known.is_some());
        before[page] = known.unwrap_or(own);
        if known.is_none() && own != PageId::GONE {
            if owners.last() == Some(&None) {
                // Another sequence's page may become the missing page of a public prefix.
                let rows = &mut self.rows[group][own.0 as usize * page_len..][..page_len];
                rows.iter_mut().for_each(|row| row.as_mut().expect("it is full").1 = None);
            }
            self.entries.push(Entry { group, page: own, owners: owners.clone(), tokens: tokens.to_vec(), released: 0 });
        }
        self.sequences[at].owners[group] = owners;
    }

    fn release(&mut self, at: usize) {
        let keeps = self.random(4) > 0;
        let mut sequence = self.sequences.swap_remove(at);
        let tokens = if keeps { sequence.tokens[..sequence.committed].to_vec() } else { Vec::new() };
        let before = sequence.pages.tables.clone();
        let owner = (tokens.len() > sequence.public_len).then_some(sequence.tenant);
        for (group, before) in before.iter().enumerate() {
            let own = &sequence.owners[group];
            if tokens.len() <= own.len() * self.groups[group].page_len {
                continue;
            }
            let covers = |entry: &Entry| {
                let last = entry.owners.last().copied().flatten();
                (entry.group, entry.owners.len()) == (group, own.len() + 1)
                    && entry.owners.starts_with(own)
                    && entry.tokens.starts_with(&tokens)
                    && (last.is_none() || last == owner)
            };
            if !self.entries.iter().any(covers) {
                let (page, owners) = (before[own.len()], [&own[..], &[owner]].concat());
                self.entries.push(Entry { group, page, owners, tokens: tokens.clone(), released: 0 });
            }
        }
        self.pages.release(&mut sequence.pages, &tokens);
        assert!(sequence.pages.tables.iter().all(Vec::is_empty));
        for (group, table) in before.into_iter().enumerate() {
            self.note_released(group, table.into_iter().rev().filter(|page| *page != PageId::GONE));
        }
    }

    /// Checks that a sequence that was admitted can compute all of its tokens while no other takes pages.
    fn run_to_end(&mut self, at: usize) {
        while self.sequences[at].committed < self.sequences[at].tokens.len() {
            let rows = 6.min(self.sequences[at].tokens.len() - self.sequences[at].committed);
            assert!(self.grow(at, rows, false), "there are no pages for an admitted sequence");
            self.commit(at, rows);
            self.check_rows(at);
        }
    }

    fn step(&mut self) {
        let count = self.sequences.len();
        match self.random(20) {
            0..3 if count < 7 => self.begin(),
            5 if count > 0 && self.groups.iter().all(|group| group.keep == Keep::All) => {
                let at = self.random(count);
                self.truncate(at);
            }
            3 | 4 if count > 0 => {
                let at = self.random(count);
                self.release(at);
            }
            5..8 if count > 0 => {
                // A draft tree of which nothing is accepted.
                let (at, rows) = (self.random(count), self.random(7));
                if self.grow(at, rows, true) {
                    self.commit(at, 0);
                }
            }
            _ if count > 0 => {
                let at = self.random(count);
                let left = self.sequences[at].tokens.len() - self.sequences[at].committed;
                let rows = self.random(left.min(6) + 1);
                if left == 0 {
                    let token = self.random(2) as Token;
                    let tokens = &mut self.sequences[at].tokens;
                    tokens.extend((tokens.len() < 40).then_some(token));
                } else if self.grow(at, rows, false) {
                    let kept = self.random(rows + 1);
                    self.commit(at, kept);
                    self.check_rows(at);
                }
            }
            _ => {}
        }
    }
}

/// Makes random steps with these groups. Returns the counts.
fn run(groups: Vec<Group>, seed: u64, steps: usize) -> [usize; 5] {
    // Keys of two bits, so that many different tokens have the same key.
    let mut reference = Reference::new(groups, seed, if seed.is_multiple_of(2) { 3 } else { u64::MAX });
    for step in 0..steps {
        reference.step();
        if step % 4 == 0 {
            let checked = reference.pages.check(reference.sequences.iter().map(|sequence| &sequence.pages));
            checked.unwrap_or_else(|error| panic!("seed {seed}, step {step}: {error}"));
        }
    }
    reference.counts
}

#[test]
fn a_million_operations_agree_with_the_reference() {
    let all = |pages| Group::attention(3, pages);
    let window = |window, pages| Group::window(window, 3, pages);
    let mut total = [0; 5];
    for (i, groups) in [
        vec![all(24)],
        vec![all(24), window(5, 14)],
        vec![window(7, 16)],
        vec![window(4, 13), all(22), window(9, 15)],
        // Pages of different lengths.
        vec![all(24), Group::attention(2, 36), Group::attention(5, 15)],
        vec![Group::window(6, 4, 15), all(24), Group::window(5, 2, 25)],
    ]
    .into_iter()
    .enumerate()
    {
        let found = run(groups, i as u64, 250_000);
        println!("adopted, copied, evicted, replaced, without room: {found:?}");
        total.iter_mut().zip(found).for_each(|(total, found)| *total += found);
        assert!(found.iter().all(|count| *count > 200), "{found:?}");
    }
}

#[test]
fn a_window_group_holds_the_pages_of_its_window_and_one_pass() {
    let group = Group::window(4096, 32, 400);
    assert_eq!([100, 4096, 32_768].map(|positions| group.pages_held(positions, 512)), [4, 128, 145]);
    assert_eq!((group.room(512), Group::window(4096, 32, 100).room(512)), (usize::MAX, 3200));
    assert_eq!((group.first_seen(4095), group.first_seen(4096), group.pages_gone(4095 + 32)), (0, 1, 1));
}
