//! What a verified pass leaves: accepted rows in their places, and the tokens that were written.

use foretoken_model::{CacheEdit, Executor, ExecutorError, Outputs, PageTable};
use foretoken_speculation::{NodeId, Verdict};

use crate::law::raw_log_probabilities;
use crate::output::{Emitted, Origin};
use crate::request::Request;
use crate::sequence::Sequence;

/// Moves the accepted rows, which come after the root's in tree order, right after it, unless they are there already.
pub(super) fn compact_accepted_path(
    executor: &mut dyn Executor,
    tables: &[PageTable],
    path: &[NodeId],
    old_len: usize,
) -> Result<(), ExecutorError> {
    if path.iter().enumerate().all(|(place, node)| node.index() == place) {
        return Ok(());
    }
    let from: Vec<usize> = path.iter().map(|node| old_len + node.index()).collect();
    executor.rows(CacheEdit::Move { tables, from: &from, to: old_len })
}

/// Appends the chosen tokens until one of them ends the sequence. `forced`: the nodes after which one token was
/// possible.
pub(super) fn append_all(
    sequence: &mut Sequence,
    verdict: &Verdict,
    outputs: &dyn Outputs,
    row_of: impl Fn(Option<NodeId>) -> usize,
    forced: &[Option<NodeId>],
) -> Vec<Emitted> {
    let mut emitted = Vec::with_capacity(verdict.tokens.len());
    let pass = sequence.stats.passes + 1;
    for (i, (token, p)) in verdict.tokens.iter().zip(&verdict.probabilities).enumerate() {
        let chosen_at = i.checked_sub(1).map(|before| verdict.path[before]);
        let node = verdict.path.get(i).copied();
        let offer = node.and_then(|node| sequence.draft.tree.offers_of(node).next());
        let Request { log_probabilities: wanted, top_log_probabilities: top_len, .. } = sequence.request;
        let row = row_of(chosen_at);
        let scores = (wanted || top_len > 0)
            .then(|| raw_log_probabilities(outputs, row, *token, top_len, &sequence.request.sampling));
        let (log_probability, top) = scores.unzip();
        emitted.push(sequence.append(Emitted {
            token: *token,
            origin: match offer {
                _ if forced.contains(&chosen_at) => Origin::Forced,
                Some(offer) => Origin::Drafted(offer.source),
                None => Origin::Target,
            },
            depth: node.map_or(0, |node| sequence.draft.tree.depth(node)),
            pass,
            p: *p,
            q: offer.and_then(|offer| offer.evidence.q),
            log_probability: log_probability.filter(|_| wanted),
            top: top.unwrap_or_default(),
            text: String::new(),
        }));
        if sequence.finished.is_some() {
            break;
        }
    }
    emitted
}
