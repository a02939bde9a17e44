//! Tests of pages against a naive reference: lists of tokens, linear searches, and the rows that an executor stores.
//!
//! The reference learns only which page numbers were handed out. For each page it records its prefix, its owners and
//! when it was released, and predicts which prefix is found, which page may be evicted, and what a row must see.

mod operations;

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
            let is_prefix = |entry: &Entry| entry.tokens == prefix && entry.owners == owners[..=at];
            self.entries.iter().any(|entry| entry.group == number && is_prefix(entry))
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
                    self.commit_within(at, rows);
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
