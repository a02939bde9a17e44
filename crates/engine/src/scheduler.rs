//! Who takes part in the next pass, and with how many rows.
//!
//! Sequences whose text is being written come first, one row and a tree each; prompts share the rows that are
//! left, in order of arrival. Because rows do not know their neighbours, no choice made here can change a text.

use crate::sequence::Sequence;

/// One sequence's part in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its place among the running sequences.
    pub(crate) at: usize,
    /// Uncached tokens that it runs.
    pub(crate) take: usize,
    /// Whether these end with the pending token, so that a token will be chosen.
    pub(crate) complete: bool,
    /// Nodes that its draft tree may have.
    pub(crate) nodes_max: usize,
}

/// Deals out the rows of one pass.
pub(crate) fn plan(running: &[Sequence], rows_max: usize, parts: &mut Vec<Part>) {
    parts.clear();
    let mut left = rows_max;
    for writing in [true, false] {
        for (at, sequence) in running.iter().enumerate() {
            let uncached = sequence.uncached();
            if (uncached == 1) != writing || left == 0 {
                continue;
            }
            let take = uncached.min(left);
            left -= take;
            let complete = take == uncached;
            // Of what may still be emitted, the last token needs no draft: it comes from the pass itself.
            let useful = sequence.limit - sequence.tokens.len() - 1;
            let drafting = complete && !sequence.request.drafters.is_empty();
            let nodes_max = if drafting { sequence.budget.nodes().min(useful).min(left) } else { 0 };
            left -= nodes_max;
            parts.push(Part { at, take, complete, nodes_max });
        }
    }
}
