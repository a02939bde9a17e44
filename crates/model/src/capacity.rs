//! What an executor says of itself: its cache groups, and how much it can hold.
//!
//! A cache is a list of groups. What a group holds and which of it later rows can still see decides how it goes back,
//! and which prefixes it can continue; nobody else asks what kind of network there is. An executor that says nonsense
//! is refused by whoever opens it, by field ([`Capacity::problem`]).
//!
//! Left out: the bytes, which are the executor's, and who holds which page, which the engine knows.

use std::fmt;

use crate::hidden::{HiddenReads, HiddenStates};

/// What the rows of a cache group hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One row a position, which later rows read as it is: keys and values of attention, or the inputs of a short
    /// convolution.
    Rows,
    /// A recurrent state. A page is a slot: it holds one text's state, the position that it has come to, and behind it
    /// the inputs of rows that were guesses when they were computed. The state passes the certain rows of a span
    /// ([`Span::certain`](crate::Span::certain)) with the pass, and those of an accepted path at the beginning of the
    /// next one, when they lie before the span's start. It never passes a guess, so it never has to go back.
    ///
    /// What an executor does with a span: a slot begins empty where the span starts at 0 and none of its rows is
    /// computed, whatever the slot held. The inputs of rows before the start are passed, unless they were already. Of
    /// the inputs behind those of the computed rows nothing is left. Rows that are certain *and* computed were passed
    /// by the pass that computed them, and are not passed again. A pass that fails has passed nothing.
    ///
    /// Inputs of guesses are [moved](crate::CacheEdit::Move) as keys and values are. A slot is
    /// [copied](crate::CacheEdit::Copy): the state with the inputs behind it, up to the last position that is meant. So
    /// checkpoints are taken and continued.
    State,
}

/// Which rows of a cache group later rows can still see, so which have to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// All of them.
    All,
    /// Those of the last positions: a row sees so many, its own included. Pages behind them are given back once the
    /// rows that moved the window on are committed, never for a draft.
    Window(usize),
}

/// One kind of cache, with its own pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// What a row holds.
    pub kind: Kind,
    /// Which rows are kept.
    pub keep: Keep,
    /// Positions a page.
    pub page_len: usize,
    /// Pages there are, numbered from 0.
    pub pages: usize,
}

impl Group {
    /// Keys and values of attention over the whole text.
    pub fn attention(page_len: usize, pages: usize) -> Self {
        Self { kind: Kind::Rows, keep: Keep::All, page_len, pages }
    }

    /// The same of layers that see the last `window` positions.
    pub fn window(window: usize, page_len: usize, pages: usize) -> Self {
        Self { keep: Keep::Window(window.max(1)), ..Self::attention(page_len, pages) }
    }

    /// Recurrent states, one a text that runs.
    pub fn state(slots: usize) -> Self {
        Self { kind: Kind::State, keep: Keep::All, page_len: usize::MAX, pages: slots }
    }

    /// Entries of a page table for so many positions.
    pub fn pages_for(&self, positions: usize) -> usize {
        positions.div_ceil(self.page_len)
    }

    /// Most pages that a sequence of so many positions holds at a time, if a pass has up to `rows_max` rows of it.
    pub fn pages_held(&self, positions: usize, rows_max: usize) -> usize {
        let all = self.pages_for(positions);
        match self.keep {
            Keep::All => all,
            // What the next row sees begins and ends anywhere in a page.
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

    /// Pages that no later row sees once so many positions are committed, counted from the front.
    pub fn pages_gone(&self, committed: usize) -> usize {
        self.first_seen(committed) / self.page_len
    }

    /// Positions of one text that there is room for.
    pub fn room(&self, rows_max: usize) -> usize {
        match self.pages >= self.pages_held(usize::MAX, rows_max) {
            true => usize::MAX,
            false => self.pages * self.page_len,
        }
    }
}

/// Room for the sources of an encoder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceCapacity {
    /// Tokens that the encoder knows.
    pub vocabulary: usize,
    /// Tokens of a source, at most.
    pub len_max: usize,
    /// Positions a page.
    pub page_len: usize,
    /// Pages there are, numbered from 0.
    pub pages: usize,
}

impl SourceCapacity {
    /// Pages of a source of so many tokens.
    pub fn pages_for(&self, len: usize) -> usize {
        len.div_ceil(self.page_len.max(1))
    }

    /// Tokens of the longest source that there is room for.
    pub fn longest(&self) -> usize {
        self.len_max.min(self.pages * self.page_len)
    }
}

/// How much an executor can hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Tokens there are.
    pub vocabulary: usize,
    /// Positions the network can represent.
    pub context_max: usize,
    /// Rows of one pass.
    pub rows_max: usize,
    /// The cache groups, at least one.
    pub groups: Vec<Group>,
    /// Room for what the encoder reads; `None`: there is no encoder.
    pub sources: Option<SourceCapacity>,
    /// The hidden states that it can tell.
    pub hidden: HiddenStates,
    /// The hidden rows that it reads beside tokens; `None`: it reads tokens alone.
    pub hidden_in: Option<HiddenReads>,
}

impl Capacity {
    /// What makes no sense of what an executor says of itself; nothing as a rule.
    pub fn problem(&self) -> Option<CapacityProblem> {
        let Self { vocabulary, context_max, rows_max, groups, sources, hidden, hidden_in } = self;
        let problem = |field: String, expected, found| CapacityProblem::new(&field, expected, found);
        let nothing = |field: String| problem(field, "at least 1", "0".to_string());
        for (field, found) in [("vocabulary", vocabulary), ("context_max", context_max), ("rows_max", rows_max)] {
            if *found == 0 {
                return nothing(field.to_string());
            }
        }
        if groups.is_empty() {
            return problem("groups".to_string(), "at least one", "none".to_string());
        }
        for (number, group) in groups.iter().enumerate() {
            let Group { kind, page_len, pages, .. } = group;
            let of_group = |field: &str| nothing(format!("groups: group {number}: {field}"));
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
        let nothing = sources.as_ref().filter(|sources| sources.longest() == 0 || sources.vocabulary == 0);
        let expected = "a vocabulary and room for a token";
        nothing.and_then(|found| problem("sources".to_string(), expected, format!("{found:?}")))
    }
}

/// What makes no sense of a [`Capacity`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapacityProblem {
    /// The field, and of which group.
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
    fn nonsense_is_named_by_field() {
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
