//! Hidden rows: the hidden states that a network outputs, and those that a network reads beside its tokens.
//!
//! A *head* (Li et al. 2024, EAGLE; 2025, EAGLE-3; the multi-token prediction layers of DeepSeek-V3) drafts for a
//! target from the target's own hidden states. It is an executor like any other, with a cache and rows to score, whose
//! spans carry hidden rows beside their tokens: the target's for accepted text, its own for drafted tokens. A row reads
//! a token and the hidden states of the position *before* it, of the target or of the row that it continues, and
//! predicts what follows the token. The first token of a sequence has no position before it and no row: row `i` of a
//! head reads token `i + 1` of the sequence beside the target's hidden states of token `i`.
//!
//! The two kinds of rows usually differ in width: a head reads several layers of the target and projects them to its
//! own width, and its own hidden states are not projected. So a span says which kind its rows are.
//!
//! `foretoken_drafters::HeadDrafter` keeps the target's rows until they are read.

use crate::capacity::{Capacity, CapacityProblem};

/// The hidden rows that the rows of a span read beside their tokens, one for each row that is not computed, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum HiddenInput<'a> {
    /// None: the network reads tokens alone.
    #[default]
    None,
    /// The target's, `[rows, target_layers.len() * target_width]`: for each row the hidden states of the position
    /// before it, the layers concatenated in the order of [`HiddenReads::target_layers`].
    Target(&'a [f32]),
    /// The network's own, `[rows, width]` ([`HiddenStates::width`]): for each row those of the row that it continues,
    /// after [`HiddenReads::own_layer`].
    Own(&'a [f32]),
}

/// The hidden states that a network can output ([`Batch::hidden_layers`](crate::Batch::hidden_layers)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HiddenStates {
    /// Number of layers, which are numbered from 0; 0 if it outputs none.
    pub layers: usize,
    /// Elements of the hidden state after each.
    pub width: usize,
}

/// The hidden rows that a network reads beside its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HiddenReads {
    /// Layers of the target whose hidden states it reads, in this order. At least one, and none twice.
    pub target_layers: Vec<usize>,
    /// Elements of the target's hidden state after each.
    pub target_width: usize,
    /// Its own layer whose hidden states it reads for drafted tokens.
    pub own_layer: usize,
}

impl HiddenReads {
    /// Elements of a hidden row of the target.
    pub fn row_width(&self) -> usize {
        self.target_layers.len() * self.target_width
    }

    /// The first inconsistent field, for a network that outputs the hidden states `own`.
    pub(crate) fn problem(&self, own: HiddenStates) -> Option<CapacityProblem> {
        let problem = |field, expected, found| CapacityProblem::new(field, expected, found);
        let Self { target_layers, target_width, own_layer } = self;
        let twice = target_layers.iter().enumerate().find(|(i, layer)| target_layers[..*i].contains(layer));
        if target_layers.is_empty() {
            return problem("hidden_in.target_layers", "at least one", "none".to_string());
        }
        if let Some((_, layer)) = twice {
            return problem("hidden_in.target_layers", "each once", format!("{layer} twice"));
        }
        if *target_width == 0 {
            return problem("hidden_in.target_width", "at least 1", "0".to_string());
        }
        if *own_layer >= own.layers || own.width == 0 {
            let expected = format!("a layer that hidden has, {own:?}");
            return problem("hidden_in.own_layer", &expected, own_layer.to_string());
        }
        None
    }
}

impl Capacity {
    /// The first field that keeps this network from drafting for a target by its hidden states: it reads none, or
    /// layers that the target does not have, or rows of another width, or it has another vocabulary.
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

    /// Asserts that the hidden rows of a span with so many new rows are what the network reads.
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
    use crate::capacity::Group;
    use crate::executor::check;

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

    /// Checks a span of two rows, of which one is new, with these hidden rows.
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
