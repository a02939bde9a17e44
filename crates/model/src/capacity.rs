//! The capacity of an executor: its cache groups, and how much it can hold.
//!
//! A cache is a list of groups. What a group holds, and which of it later rows can still see, decides how it is rolled
//! back and which prefixes it can continue; nothing else depends on the kind of network. An inconsistent capacity is
//! refused with the name of the field when the executor is opened ([`Capacity::problem`]).
//!
//! The executor has the bytes of the cache; the engine decides which sequence holds which page.

use crate::error::CapacityProblem;
use crate::hidden::{HiddenInput, HiddenReads, HiddenStates};

/// What the rows of a cache group hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One row per position, which later rows read unchanged: keys and values of attention, or the inputs of a short
    /// convolution.
    Rows,
    /// A recurrent state. A page is a slot: it holds the state of one sequence, the position that the state has
    /// advanced to, and the inputs of later rows, which were drafted when they were computed. The state advances over
    /// the certain rows of a span ([`Span::certain`](crate::Span::certain)) with the pass, and over those of an
    /// accepted path at the beginning of the next pass, when they lie before the span's start. It never advances over a
    /// drafted token, so it never has to be rolled back.
    ///
    /// An executor treats a span as follows. If the span starts at 0 and none of its rows is computed, the slot begins
    /// empty, whatever it held. The state advances over the inputs of rows before the start, unless it already has.
    /// Inputs after those of the computed rows are discarded. The state has advanced over rows that are certain *and*
    /// computed in the pass that computed them, and does not do so again. A pass that fails advances nothing.
    ///
    /// Inputs of drafted rows are [moved](crate::CacheEdit::Move) as keys and values are. A slot is
    /// [copied](crate::CacheEdit::Copy) with its state and the inputs after it, up to the last position of the copy.
    /// Checkpoints are taken and continued by such copies.
    State,
}

/// Which rows of a cache group later rows can still see, and therefore have to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// All rows.
    All,
    /// The rows in a sliding window: a row sees this many positions, its own included. Pages before the window are
    /// given back once the rows that moved it are committed, never for a draft.
    Window(usize),
}

/// A part of the cache with pages of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// What a row holds.
    pub kind: Kind,
    /// Which rows are kept.
    pub keep: Keep,
    /// Number of positions per page.
    pub page_len: usize,
    /// Number of pages, which are numbered from 0.
    pub pages: usize,
}

impl Group {
    /// A group for keys and values of attention over the whole sequence.
    pub fn attention(page_len: usize, pages: usize) -> Self {
        Self { kind: Kind::Rows, keep: Keep::All, page_len, pages }
    }

    /// A group for keys and values of layers that see the last `window` positions.
    pub fn window(window: usize, page_len: usize, pages: usize) -> Self {
        Self { keep: Keep::Window(window.max(1)), ..Self::attention(page_len, pages) }
    }

    /// A group for recurrent states, one slot for each state.
    pub fn state(slots: usize) -> Self {
        Self { kind: Kind::State, keep: Keep::All, page_len: usize::MAX, pages: slots }
    }

    /// Number of entries of a page table for this many positions.
    pub fn pages_for(&self, positions: usize) -> usize {
        positions.div_ceil(self.page_len)
    }

    /// The maximum number of pages that a sequence of this many positions holds at a time, if a pass has up to
    /// `rows_max` of its rows.
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

    /// Number of leading pages that no later row sees once this many positions are committed.
    pub fn pages_gone(&self, committed: usize) -> usize {
        self.first_seen(committed) / self.page_len
    }

    /// The length of the longest sequence for which the pages suffice.
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
    /// Maximum number of tokens of a source.
    pub len_max: usize,
    /// Number of positions per page.
    pub page_len: usize,
    /// Number of pages, which are numbered from 0.
    pub pages: usize,
}

impl SourceCapacity {
    /// Number of pages of a source of `len` tokens.
    pub fn pages_for(&self, len: usize) -> usize {
        len.div_ceil(self.page_len.max(1))
    }

    /// Number of tokens of the longest source for which the pages suffice.
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
    /// Maximum number of rows of one pass.
    pub rows_max: usize,
    /// The cache groups, at least one.
    pub groups: Vec<Group>,
    /// Capacity for the inputs of the encoder; `None` if there is no encoder.
    pub sources: Option<SourceCapacity>,
    /// The hidden states that the network can output.
    pub hidden: HiddenStates,
    /// The hidden states that the network reads besides tokens; `None` if it reads tokens alone.
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

    /// The first field that keeps this network from drafting for a target by its hidden states: it reads none, or
    /// layers that the target does not have, or hidden states of another width, or it has another vocabulary.
    pub fn head_problem(&self, target: &Capacity) -> Option<CapacityProblem> {
        let problem = |field, expected: String, found| CapacityProblem::new(field, &expected, found);
        let Some(reads) = &self.hidden_in else {
            return problem("hidden_in", "a network that reads hidden rows".to_string(), "None".to_string());
        };
        let HiddenStates { layers, width } = target.hidden;
        if let Some(layer) = reads.target_layers.iter().find(|layer| **layer >= layers) {
            let expected = format!("layers below {layers} (the target's)");
            return problem("hidden_in.target_layers", expected, layer.to_string());
        }
        if reads.target_width != width {
            let expected = format!("{width} (the target's hidden.width)");
            return problem("hidden_in.target_width", expected, reads.target_width.to_string());
        }
        if self.vocabulary != target.vocabulary {
            let expected = format!("{} (the target's)", target.vocabulary);
            return problem("vocabulary", expected, self.vocabulary.to_string());
        }
        None
    }

    /// Asserts that the hidden states of a span with `rows` new rows are what the network reads.
    pub(crate) fn assert_hidden_in(&self, input: HiddenInput<'_>, rows: usize) {
        let (kind, found, width) = match (input, &self.hidden_in) {
            (HiddenInput::None, None) => return,
            (HiddenInput::Target(found), Some(reads)) => ("the target's", found.len(), reads.row_width()),
            (HiddenInput::Own(found), Some(_)) => ("its own", found.len(), self.hidden.width),
            (input, reads) => panic!("span: hidden rows {input:?} for a network that reads {reads:?}"),
        };
        assert_eq!(found, rows * width, "span: elements of hidden rows, {kind}: {rows} rows of {width}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Batch, PageId, Span};
    use crate::executor::check;

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

    fn target() -> Capacity {
        Capacity {
            vocabulary: 5,
            context_max: 8,
            rows_max: 4,
            groups: vec![Group::attention(8, 1)],
            sources: None,
            hidden: HiddenStates { layers: 4, width: 3 },
            hidden_in: None,
        }
    }

    fn head() -> Capacity {
        let reads = HiddenReads { target_layers: vec![0, 3], target_width: 3, own_layer: 0 };
        Capacity { hidden: HiddenStates { layers: 1, width: 2 }, hidden_in: Some(reads), ..target() }
    }

    #[test]
    fn the_field_that_differs_from_the_target_is_named() {
        assert_eq!((head().problem(), head().head_problem(&target())), (None, None));
        let with = |change: fn(&mut Capacity)| {
            let mut head = head();
            change(&mut head);
            head.head_problem(&target()).map(|problem| problem.to_string()).unwrap_or_default()
        };
        let reads = |head: &mut Capacity| head.hidden_in.take().expect("a head");
        let wide = HiddenStates { width: 9, ..target().hidden };
        assert!(head().head_problem(&Capacity { hidden: wide, ..target() }).is_some());
        let found = [
            with(|head| head.hidden_in = None),
            with(|head| head.hidden_in.as_mut().unwrap().target_width = 4),
            with(|head| head.hidden_in.as_mut().unwrap().target_layers.push(4)),
            with(|head| head.vocabulary = 6),
        ];
        let expected = [
            "hidden_in: expected a network that reads hidden rows, found None",
            "hidden_in.target_width: expected 3 (the target's hidden.width), found 4",
            "hidden_in.target_layers: expected layers below 4 (the target's), found 4",
            "vocabulary: expected 5 (the target's), found 6",
        ];
        assert_eq!(found, expected);
        let inconsistent = |change: fn(&mut HiddenReads)| {
            let mut head = head();
            let mut reads = reads(&mut head);
            change(&mut reads);
            Capacity { hidden_in: Some(reads), ..head }.problem().map(|problem| problem.to_string()).unwrap_or_default()
        };
        let found = [
            inconsistent(|reads| reads.target_layers.clear()),
            inconsistent(|reads| reads.target_layers.push(3)),
            inconsistent(|reads| reads.target_width = 0),
            inconsistent(|reads| reads.own_layer = 1),
        ];
        let expected = [
            "hidden_in.target_layers: expected at least one, found none",
            "hidden_in.target_layers: expected each once, found 3 twice",
            "hidden_in.target_width: expected at least 1, found 0",
            "hidden_in.own_layer: expected a layer that hidden has, HiddenStates { layers: 1, width: 2 }, found 1",
        ];
        assert_eq!(found, expected);
    }

    /// Checks a span of two rows, one of which is new, with these hidden states.
    fn check_span(capacity: &Capacity, hidden_in: HiddenInput<'_>) {
        let tables = [vec![PageId(0)]];
        let span = Span { tables: &tables, tokens: &[1, 2], computed: 1, hidden_in, ..Span::default() };
        check(&Batch { spans: &[span], hidden_layers: &[] }, capacity).expect("a sound span");
    }

    #[test]
    fn each_new_row_has_a_hidden_row() {
        check_span(&target(), HiddenInput::None);
        check_span(&head(), HiddenInput::Target(&[0.0; 6]));
        check_span(&head(), HiddenInput::Own(&[0.0; 2]));
    }

    #[test]
    #[should_panic(expected = "span: hidden rows None for a network that reads Some")]
    fn a_missing_hidden_row_panics() {
        check_span(&head(), HiddenInput::None);
    }

    #[test]
    #[should_panic(expected = "for a network that reads None")]
    fn a_hidden_row_for_a_network_that_reads_none_panics() {
        check_span(&target(), HiddenInput::Own(&[0.0; 3]));
    }

    #[test]
    #[should_panic(expected = "span: elements of hidden rows, the target's: 1 rows of 6")]
    fn hidden_rows_of_computed_rows_panic() {
        check_span(&head(), HiddenInput::Target(&[0.0; 12]));
    }
}
