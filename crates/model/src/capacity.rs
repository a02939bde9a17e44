//! The capacity of an executor: its cache groups, and how much it can hold.
//!
//! A cache is a list of groups. What a group holds, and which of it later rows can still see, decides how it is rolled
//! back and which prefixes it can continue; nothing else depends on the kind of network. An inconsistent capacity is
//! refused with the name of the field when the executor is opened ([`Capacity::problem`]).
//!
//! The executor has the bytes of the cache; the engine knows which sequence holds which page.

use std::fmt;

use crate::hidden::{HiddenReads, HiddenStates};

/// What the rows of a cache group hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One row a position, which later rows read as it is: keys and values of attention, or the inputs of a short
    /// convolution.
    Rows,
    /// A recurrent state. A page is a slot: it holds the state of one sequence, the position that the state has
    /// advanced to, and the inputs of later rows, which were drafted when they were computed. The state advances over
    /// the certain rows of a span ([`Span::certain`](crate::Span::certain)) with the pass, and over those of an
    /// accepted path at the beginning of the next pass, when they lie before the span's start. It never advances over a
    /// drafted token, so it never has to be rolled back.
    ///
    /// What an executor does with a span: if the span starts at 0 and none of its rows is computed, the slot begins
    /// empty, whatever it held. The state advances over the inputs of rows before the start, unless it already has.
    /// Inputs after those of the computed rows are discarded. The state has advanced over rows that are certain *and*
    /// computed in the pass that computed them, and does not do so again. A pass that fails advances nothing.
    ///
    /// Inputs of drafted rows are [moved](crate::CacheEdit::Move) as keys and values are. A slot is
    /// [copied](crate::CacheEdit::Copy): the state with the inputs after it, up to the last position of the copy. This
    /// is how checkpoints are taken and continued.
    State,
}

/// Which rows of a cache group later rows can still see, and therefore have to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// All of them.
    All,
    /// Those in a sliding window: a row sees this many positions, its own included. Pages before the window are given
    /// back once the rows that moved it are committed, never for a draft.
    Window(usize),
}

/// A part of the cache with pages of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// What a row holds.
    pub kind: Kind,
    /// Which rows are kept.
    pub keep: Keep,
    /// Positions a page.
    pub page_len: usize,
    /// Number of pages, which are numbered from 0.
    pub pages: usize,
}

impl Group {
    /// Keys and values of attention over the whole sequence.
    pub fn attention(page_len: usize, pages: usize) -> Self {
        Self { kind: Kind::Rows, keep: Keep::All, page_len, pages }
    }

    /// The same for layers that see the last `window` positions.
    pub fn window(window: usize, page_len: usize, pages: usize) -> Self {
        Self { keep: Keep::Window(window.max(1)), ..Self::attention(page_len, pages) }
    }

    /// Recurrent states, one for each running sequence.
    pub fn state(slots: usize) -> Self {
        Self { kind: Kind::State, keep: Keep::All, page_len: usize::MAX, pages: slots }
    }

    /// Number of entries of a page table for so many positions.
    pub fn pages_for(&self, positions: usize) -> usize {
        positions.div_ceil(self.page_len)
    }

    /// The most pages that a sequence of so many positions holds at a time, if a pass has up to `rows_max` of its rows.
    pub fn pages_held(&self, positions: usize, rows_max: usize) -> usize {
        let all = self.pages_for(positions);
        match self.keep {
            Keep::All => all,
            // The window of the next row may begin and end anywhere in a page.
            Keep::Window(window) => {
                all.min((window - 1).saturating_add(rows_max).div_ceil(self.page_len).saturating_add(1))
            }
        }
    }

    /// The first position that a row at this position sees.
    pub fn first_seen(&self, position: usize) -> usize {
        match self.keep {
            Keep::All => 0,
            Keep::Window(window) => (position + 1).saturating_sub(window),
        }
    }

    /// Number of leading pages that no later row sees once so many positions are committed.
    pub fn pages_gone(&self, committed: usize) -> usize {
        self.first_seen(committed) / self.page_len
    }

    /// The length of the longest sequence that the pages suffice for.
    pub fn room(&self, rows_max: usize) -> usize {
        match self.pages >= self.pages_held(usize::MAX, rows_max) {
            true => usize::MAX,
            false => self.pages * self.page_len,
        }
    }
}

/// Capacity for the sources (the inputs) of an encoder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceCapacity {
    /// Number of tokens in the encoder's vocabulary.
    pub vocabulary: usize,
    /// The most tokens of a source.
    pub len_max: usize,
    /// Positions a page.
    pub page_len: usize,
    /// Number of pages, which are numbered from 0.
    pub pages: usize,
}

impl SourceCapacity {
    /// Number of pages of a source of so many tokens.
    pub fn pages_for(&self, len: usize) -> usize {
        len.div_ceil(self.page_len.max(1))
    }

    /// Tokens of the longest source that the pages suffice for.
    pub fn longest(&self) -> usize {
        self.len_max.min(self.pages * self.page_len)
    }
}

/// How much an executor can hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Number of tokens.
    pub vocabulary: usize,
    /// Number of positions that the network can represent.
    pub context_max: usize,
    /// The most rows of one pass.
    pub rows_max: usize,
    /// The cache groups, at least one.
    pub groups: Vec<Group>,
    /// Capacity for the inputs of the encoder; `None`: there is no encoder.
    pub sources: Option<SourceCapacity>,
    /// The hidden states that it can output.
    pub hidden: HiddenStates,
    /// The hidden rows that it reads beside tokens; `None`: it reads tokens alone.
    pub hidden_in: Option<HiddenReads>,
}

impl Capacity {
    /// The first inconsistent field; `None` if there is none.
    pub fn problem(&self) -> Option<CapacityProblem> {
        let Self { vocabulary, context_max, rows_max, groups, sources, hidden, hidden_in } = self;
        let problem = |field: String, expected, found| CapacityProblem::new(&field, expected, found);
        let zero = |field: String| problem(field, "at least 1", "0".to_string());
        for (field, found) in [("vocabulary", vocabulary), ("context_max", context_max), ("rows_max", rows_max)] {
            if *found == 0 {
                return zero(field.to_string());
            }
        }
        if groups.is_empty() {
            return problem("groups".to_string(), "at least one", "none".to_string());
        }
        for (number, group) in groups.iter().enumerate() {
            let Group { kind, page_len, pages, .. } = group;
            let of_group = |field: &str| zero(format!("groups: group {number}: {field}"));
            match (kind, *page_len, *pages) {
                (Kind::State, _, 0) => return of_group("slots"),
                (Kind::State, ..) if *group != Group::state(*pages) => {
                    let field = format!("groups: group {number}");
                    return problem(field, "states as Group::state says", format!("{group:?}"));
                }
                (Kind::Rows, 0, _) => return of_group("page_len"),
                (Kind::Rows, _, 0) => return of_group("pages"),
                (Kind::Rows, page_len, pages) if page_len.checked_mul(pages).is_none() => {
                    let field = format!("groups: group {number}");
                    return problem(field, "positions that can be numbered", format!("{pages} pages of {page_len}"));
                }
                _ => {}
            }
        }
        if let Some(problem) = hidden_in.as_ref().and_then(|reads| reads.problem(*hidden)) {
            return Some(problem);
        }
        let empty = sources.as_ref().filter(|sources| sources.longest() == 0 || sources.vocabulary == 0);
        let expected = "a vocabulary and room for a token";
        empty.and_then(|found| problem("sources".to_string(), expected, format!("{found:?}")))
    }
}

/// An inconsistent field of a [`Capacity`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapacityProblem {
    /// The field, and its group.
    pub field: String,
    /// What was expected.
    pub expected: String,
    /// What was found.
    pub found: String,
}

impl CapacityProblem {
    pub(crate) fn new(field: &str, expected: &str, found: String) -> Option<Self> {
        Some(Self { field: field.to_string(), expected: expected.to_string(), found })
    }
}

impl std::error::Error for CapacityProblem {}

impl fmt::Display for CapacityProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, found {}", self.field, self.expected, self.found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inconsistent_fields_are_named() {
        let sound = Capacity {
            vocabulary: 5,
            context_max: 8,
            rows_max: 4,
            groups: vec![Group::attention(2, 4), Group::state(1)],
            sources: Some(SourceCapacity { vocabulary: 5, len_max: 3, page_len: 2, pages: 2 }),
            hidden: HiddenStates::default(),
            hidden_in: None,
        };
        assert_eq!(sound.problem(), None);
        let with = |change: fn(&mut Capacity)| {
            let mut capacity = sound.clone();
            change(&mut capacity);
            capacity.problem().map_or(String::new(), |problem| problem.to_string())
        };
        let found = [
            with(|capacity| capacity.rows_max = 0),
            with(|capacity| capacity.groups.clear()),
            with(|capacity| capacity.groups[0].page_len = 0),
            with(|capacity| capacity.groups[0].pages = 0),
            with(|capacity| capacity.groups[1].pages = 0),
            with(|capacity| capacity.groups[0].page_len = usize::MAX),
            with(|capacity| capacity.groups[1].page_len = 2).split_once(", found").expect("it is found").0.to_string(),
        ];
        let expected = [
            "rows_max: expected at least 1, found 0",
            "groups: expected at least one, found none",
            "groups: group 0: page_len: expected at least 1, found 0",
            "groups: group 0: pages: expected at least 1, found 0",
            "groups: group 1: slots: expected at least 1, found 0",
            "groups: group 0: expected positions that can be numbered, found 4 pages of 18446744073709551615",
            "groups: group 1: expected states as Group::state says",
        ];
        assert_eq!(found, expected);
        let no_room = with(|capacity| capacity.sources.as_mut().unwrap().pages = 0);
        assert!(no_room.starts_with("sources: expected a vocabulary and room for a token, found"), "{no_room}");
    }
}
