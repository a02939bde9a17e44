//! Drafters observe a step: the tokens that a pass wrote, and the rows that they asked for.

use foretoken_speculation::{DraftTree, NodeId, StepOutput};

use super::Engine;
use crate::faults::{Fault, is_made};
use crate::planner::Scheduled;

/// The index of a sequence's first row among the rows of the pass with logits, and among those with hidden states.
#[derive(Clone, Copy, Default)]
pub(super) struct FirstRows {
    pub(super) wanted: usize,
    pub(super) hidden: usize,
}

impl Engine {
    /// Lets the drafters of a sequence observe its part of a pass. A complete pass has written the tokens from
    /// `old_len` on. A pass over a chunk of a prompt, or of forced tokens, up to `old_len`, is observed only by
    /// drafters that need its hidden states.
    pub(super) fn let_drafters_observe(
        &mut self,
        entry: Scheduled,
        first_rows: FirstRows,
        old_len: usize,
        path: &[NodeId],
    ) {
        let Self { running, executor, drafters, events, .. } = self;
        let (sequence, outputs) = (&mut running[entry.index], executor.outputs());
        let is_generated = old_len - sequence.rows.hidden.len().min(old_len) + 1 >= sequence.request.prompt.len();
        let readers =
            if entry.complete { Vec::new() } else { drafters.readers(&sequence.draft.drafters, is_generated) };
        let numbers = if entry.complete { &sequence.draft.drafters } else { &readers };
        // Rows that are computed again were observed before.
        if numbers.is_empty() || !entry.complete && sequence.rows.hidden.is_empty() {
            return;
        }
        let nothing = DraftTree::new();
        let tree = if entry.complete { &sequence.draft.tree } else { &nothing };
        let probes_from = first_rows.wanted + 1 + tree.len();
        // Hidden states: those of prompt tokens and the pending one, which end at `old_len`, then those of the tree.
        let before = sequence.rows.hidden.len().saturating_sub(tree.len());
        let node_of = |(i, node): (usize, &NodeId)| {
            if is_made(Fault::HiddenRowsOfRejectedNodes) { before + i } else { before + node.index() }
        };
        let kept = (0..before).chain(path.iter().filter(|_| before > 0).enumerate().map(node_of));
        let kept: Vec<usize> = kept.map(|row| first_rows.hidden + row).collect();
        let failures = drafters.observe(numbers, |number, layers, observe| {
            let own = sequence.draft.probes.sources().iter().enumerate().filter(|(_, source)| **source == number);
            let probes: Vec<&[f32]> = match entry.complete {
                true => own.map(|(i, _)| outputs.row(probes_from + i)).collect(),
                false => Vec::new(),
            };
            let states = kept.iter().flat_map(|row| layers.iter().map(|layer| outputs.hidden(*layer, *row)));
            observe(StepOutput {
                sequence: sequence.id,
                tokens: &sequence.text.tokens,
                emitted: if entry.complete { &sequence.text.tokens[old_len..] } else { &[] },
                tree,
                path,
                probes: &probes,
                hidden_from: old_len - before,
                hidden: &states.collect::<Vec<_>>(),
            });
        });
        for (number, message) in failures {
            drafters.drop_for(number, sequence, message, events);
        }
    }
}
