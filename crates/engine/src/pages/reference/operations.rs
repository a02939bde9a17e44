//! The operations on sequences, each made by the pages and predicted by the reference: beginning with an adopted
//! prefix, growing, committing, truncating and releasing.

use std::ops::Range;

use foretoken_model::{Group, PageId};
use foretoken_speculation::{Tenant, Token};

use super::{Entry, Reference, ReferenceSequence};

impl Reference {
    /// Begins a sequence of random tokens that continue those of an earlier one, and checks which prefix it adopts.
    pub(super) fn begin(&mut self) {
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
        let admitted = self.pages.admits(&self.pages.open(tenant, public_len), &tokens, len_max, 0, [0, 0]);
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
    pub(super) fn truncate(&mut self, to: usize) {
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

    /// Grows by some rows, drafted ones or those of the next tokens, and writes them. Returns whether there was room.
    pub(super) fn grow(&mut self, at: usize, rows: usize, is_drafted: bool) -> bool {
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
    pub(super) fn commit(&mut self, at: usize, rows: usize) {
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

    /// Commits nothing more of a sequence that keeps `rows` rows after its committed ones, as a beam search does.
    pub(super) fn commit_within(&mut self, at: usize, rows: usize) {
        let ReferenceSequence { pages, committed, tokens, .. } = &mut self.sequences[at];
        let before = pages.tables.clone();
        self.pages.commit_within(pages, &tokens[..*committed], *committed + rows);
        assert_eq!(pages.tables, before, "{rows} rows after {committed} are kept");
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
        let is_same = |entry: &&Entry| entry.group == group && entry.owners == owners && entry.tokens == tokens;
        let (known, own) = (self.entries.iter().find(is_same).map(|entry| entry.page), before[page]);
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

    pub(super) fn release(&mut self, at: usize) {
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
}
