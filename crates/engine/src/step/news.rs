//! What drafters are told of a pass: what was written, and the rows that they asked for.
//!
//! Left out: what they make of it.

use foretoken_speculation::{DraftTree, News, NodeId};

use super::Engine;
use crate::faults::{Fault, is_made};
use crate::scheduler::Scheduled;

/// The first rows of a sequence among those of the pass: of those whose logits are wanted, and of those whose hidden
/// states are.
#[derive(Clone, Copy, Default)]
pub(super) struct FirstRows {
    pub(super) wanted: usize,
    pub(super) hidden: usize,
}

impl Engine {
    /// Tells the drafters of a sequence what came of its part of a pass: of a whole one the tokens from `old_len` on;
    /// of a part of a prompt, or of forced tokens, up to `old_len`, only those who need its rows.
    pub(super) fn tell_drafters(&mut self, entry: Scheduled, first_rows: FirstRows, old_len: usize, path: &[NodeId]) {
        let Self { running, executor, drafters, events, .. } = self;
        let (sequence, outputs) = (&mut running[entry.at], executor.outputs());
        let is_written = old_len - sequence.rows.hidden.len().min(old_len) + 1 >= sequence.request.prompt.len();
        let readers = if entry.complete { Vec::new() } else { drafters.readers(&sequence.drafters, is_written) };
        let numbers = if entry.complete { &sequence.drafters } else { &readers };
        // Rows that are computed again were told before.
        if numbers.is_empty() || !entry.complete && sequence.rows.hidden.is_empty() {
            return;
        }
        let nothing = DraftTree::new();
        let tree = if entry.complete { &sequence.tree } else { &nothing };
        let probes_from = first_rows.wanted + 1 + tree.len();
        // Hidden states: of prompt tokens and the pending one, which end at `old_len`, then of the nodes of the tree.
        let before = sequence.rows.hidden.len().saturating_sub(tree.len());
        let node_of = |(i, node): (usize, &NodeId)| {
            if is_made(Fault::HiddenRowsOfRefusedNodes) { before + i } else { before + node.index() }
        };
        let kept = (0..before).chain(path.iter().filter(|_| before > 0).enumerate().map(node_of));
        let kept: Vec<usize> = kept.map(|row| first_rows.hidden + row).collect();
        let failures = drafters.tell(numbers, |number, layers, observe| {
            let own = sequence.probes.sources().iter().enumerate().filter(|(_, source)| **source == number);
            let probes: Vec<&[f32]> = match entry.complete {
                true => own.map(|(i, _)| outputs.row(probes_from + i)).collect(),
                false => Vec::new(),
            };
            let states = kept.iter().flat_map(|row| layers.iter().map(|layer| outputs.hidden(*layer, *row)));
            observe(News {
                sequence: sequence.id,
                tokens: &sequence.tokens,
                emitted: if entry.complete { &sequence.tokens[old_len..] } else { &[] },
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
