//! How the rows of a pass are shared between pending tokens, prompts and draft trees.
//!
//! Sequences that decode come first: each gets its row before any gets a tree, so that no draft delays another
//! sequence. Prompts share the remaining rows, except a quarter that is reserved for trees: while a prompt fills the
//! pass, every row takes compute time, and a drafted token is hardly ever worth as much as a token of a prompt, which
//! is certain. Among equals the higher priority comes first, then the earlier arrival. Because rows do not depend on
//! each other, no choice made here can change an output.
//!
//! A prompt that is read while other sequences decode is cut into chunks (chunked prefill). A pass with such a chunk
//! takes at most [`DELAY_SECONDS_MAX`], or [`DELAY_PASSES_MAX`] passes of the decoding sequences alone if that is
//! longer ([`pass_rows_max`]), by the learned costs.

use foretoken_speculation::Costs;

use crate::sequence::{Phase, Sequence};

/// One sequence as it is scheduled for a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scheduled {
    /// Its index among the running sequences.
    pub(crate) index: usize,
    /// Rows of its uncached tokens.
    pub(crate) token_rows: usize,
    /// How many of them a recurrent state advances over in the pass.
    pub(crate) certain: usize,
    /// Whether they end with the last pending token, so that a token will be chosen.
    pub(crate) complete: bool,
    /// Maximum number of nodes of its draft tree.
    pub(crate) nodes_max: usize,
    /// Maximum number of rows that its drafters may ask for in addition to the tree.
    pub(crate) probes_max: usize,
}

/// One row in this many is reserved for trees while prompts can use the rest. Trees get few, since a prompt's tokens
/// are certain.
const TREE_ROWS_DIVISOR: usize = 3;
/// Seconds that a pass with chunks of prompts may take if sequences decode in it: a delay that a user who reads the
/// output does not notice.
const DELAY_SECONDS_MAX: f64 = 0.150;
/// Passes of the decoding sequences alone that such a pass may take if these are longer: one pass of a slow model
/// may already take more than [`DELAY_SECONDS_MAX`].
const DELAY_PASSES_MAX: f64 = 4.0;
/// Bytes of logits that a pass may compute to score tokens of prompts, a bound on the executor's memory for outputs.
const SCORING_BYTES_MAX: usize = 64 << 20;
/// Rows of prompts that a pass may always have, however long they take, so that every prefill ends.
const PROMPT_ROWS_MIN: usize = 8;

/// Maximum number of rows of a pass: `rows_max`, or fewer if it reads prompts while sequences decode.
pub(super) fn pass_rows_max(running: &[Sequence], costs: &Costs, rows_max: usize) -> usize {
    let Some(DelayLimit { decoding, context, seconds }) = DelayLimit::of(running, costs) else { return rows_max };
    if running.iter().all(|sequence| sequence.cache.phase == Phase::Decode) {
        return rows_max;
    }
    // Draft models that read along with the target continue to. Before the first pass all are assumed to.
    let all = |sequence: &Sequence| sequence.draft.drafters.iter().map(|number| costs.drafter(*number).catch_up).sum();
    let reading = running.iter().filter(|sequence| sequence.cache.phase == Phase::Prefill);
    let beside =
        reading.map(|sequence| sequence.draft.read_along_seconds.unwrap_or_else(|| all(sequence))).fold(0.0, f64::max);
    costs.rows_within(seconds, context, beside, decoding + PROMPT_ROWS_MIN, rows_max).min(rows_max)
}

/// Seconds for which draft models may read alongside a pass of this many rows; infinite if no sequence is delayed by
/// it.
pub(super) fn reading_seconds(running: &[Sequence], costs: &Costs, rows: usize) -> f64 {
    DelayLimit::of(running, costs)
        .map_or(f64::INFINITY, |delay| (delay.seconds - costs.pass(rows, delay.context)).max(0.0))
}

/// How long a pass may take if sequences decode in it.
struct DelayLimit {
    /// Rows of the sequences that decode: one each, and one for each hypothesis of a beam search.
    decoding: usize,
    /// Tokens of all running sequences, on average.
    context: usize,
    seconds: f64,
}

impl DelayLimit {
    /// `None` if no sequence decodes, or only one sequence runs.
    fn of(running: &[Sequence], costs: &Costs) -> Option<DelayLimit> {
        let decode = running.iter().filter(|sequence| sequence.cache.phase == Phase::Decode);
        let decoding: usize = decode.map(Sequence::emitting_rows).sum();
        if decoding == 0 || running.len() == 1 {
            return None;
        }
        let all = running.iter().map(|sequence| sequence.text.tokens.len());
        let context = all.sum::<usize>() / running.len();
        let decode = running.iter().filter(|sequence| sequence.cache.phase == Phase::Decode);
        let own = decode.clone().map(|sequence| sequence.text.tokens.len()).sum::<usize>() / decode.count();
        Some(DelayLimit {
            decoding,
            context,
            seconds: DELAY_SECONDS_MAX.max(DELAY_PASSES_MAX * costs.pass(decoding, own)),
        })
    }
}

/// How many rows of a pass may score tokens of prompts, for a vocabulary of this size. The executor keeps their logits
/// until the next pass.
pub(super) fn scoring_rows_max(vocabulary: usize) -> usize {
    (SCORING_BYTES_MAX / (size_of::<f32>() * vocabulary.max(1))).max(1)
}

/// Distributes the rows of one pass, of which `scoring_max` may score tokens of prompts. `running`: in order of rank.
pub(super) fn schedule(running: &[Sequence], rows_max: usize, scoring_max: usize, scheduled: &mut Vec<Scheduled>) {
    scheduled.clear();
    let (mut left, mut scoring_left) = (rows_max, scoring_max);
    let in_phase = |phase: Phase| running.iter().filter(move |sequence| sequence.cache.phase == phase);
    // Rows of the decoding sequences that are not scheduled yet.
    let mut reserved: usize = in_phase(Phase::Decode).map(Sequence::uncached).sum();
    let prompts: usize = in_phase(Phase::Prefill).map(Sequence::rows_left).sum();
    let prompt_rows = prompts.min(rows_max - rows_max / TREE_ROWS_DIVISOR);
    for phase in [Phase::Decode, Phase::Prefill] {
        for (index, sequence) in running.iter().enumerate().filter(|(_, sequence)| sequence.cache.phase == phase) {
            let (uncached, is_decoding) = (sequence.uncached(), phase == Phase::Decode);
            reserved -= if is_decoding { uncached } else { 0 };
            let token_rows = sequence.cut_to_score(sequence.rows_within(left), scoring_left);
            let [token_rows, certain] = sequence.stop_at_checkpoint(token_rows);
            if token_rows == 0 {
                continue;
            }
            scoring_left -= sequence.rows_to_score(token_rows).len();
            left -= token_rows;
            let complete = token_rows == uncached;
            // The last token that may be emitted needs no draft: the pass itself yields it.
            let useful = (sequence.text.limit - sequence.text.tokens.len()).saturating_sub(1);
            let is_drafting = complete && !sequence.draft.drafters.is_empty();
            let free = left.saturating_sub(reserved + if is_decoding { prompt_rows } else { 0 });
            let nodes_max =
                if is_drafting { sequence.draft.budget.limits().nodes_max.min(useful).min(free) } else { 0 };
            let beside = if nodes_max > 0 { useful.min(free) - nodes_max } else { 0 };
            // A drafter cannot use a part of its probes, so there are rows for all probes or for none.
            let probes_max = if sequence.draft.probes_max <= beside { sequence.draft.probes_max } else { 0 };
            left -= nodes_max + probes_max;
            scheduled.push(Scheduled { index, token_rows, certain, complete, nodes_max, probes_max });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{BudgetKind, Request};
    use foretoken_speculation::SequenceId;
    use foretoken_speculation::costs::Curve;

    #[test]
    fn every_decoding_sequence_gets_a_row_before_any_gets_a_tree() {
        let request = |prompt: usize| Request {
            drafters: vec![0],
            budget: BudgetKind::Fixed { nodes: 9 },
            ..Request::new(vec![1; prompt])
        };
        let running: Vec<Sequence> =
            [8, 1, 1, 1].iter().map(|prompt| Sequence::new(SequenceId(0), request(*prompt), 100, 1)).collect();
        let plan = |rows_max: usize| {
            let mut scheduled = Vec::new();
            schedule(&running, rows_max, usize::MAX, &mut scheduled);
            scheduled.iter().map(|entry| (entry.index, entry.token_rows, entry.nodes_max)).collect::<Vec<_>>()
        };
        assert_eq!(plan(2), [(1, 1, 0), (2, 1, 0)]);
        assert_eq!(plan(5), [(1, 1, 0), (2, 1, 0), (3, 1, 0), (0, 2, 0)]);
        // The rows that the prompt can use are reserved for it, except a third of all.
        assert_eq!(plan(12), [(1, 1, 1), (2, 1, 0), (3, 1, 0), (0, 8, 0)]);
        assert_eq!(plan(34), [(1, 1, 9), (2, 1, 9), (3, 1, 5), (0, 8, 0)]);
        assert_eq!(plan(40), [(1, 1, 9), (2, 1, 9), (3, 1, 9), (0, 8, 2)]);
    }

    #[test]
    fn prompts_are_scored_a_few_rows_per_pass() {
        let sequence = |prompt: usize, tokens_max: usize, scores: bool| {
            let (tokens_max, prompt_log_probabilities) = (Some(tokens_max), scores);
            let request = Request { tokens_max, prompt_log_probabilities, ..Request::new(vec![1; prompt]) };
            Sequence::new(SequenceId(0), request, 100, 1)
        };
        let mut running = [sequence(30, 5, true), sequence(9, 5, false), sequence(20, 0, true), sequence(8, 5, true)];
        let plan = |running: &[Sequence], scoring_max: usize| {
            let mut scheduled = Vec::new();
            schedule(running, 60, scoring_max, &mut scheduled);
            scheduled.iter().map(|entry| (entry.index, entry.token_rows, entry.complete)).collect::<Vec<_>>()
        };
        // A prompt that may not be scored yet waits, and other prompts are read.
        assert_eq!(plan(&running, 10), [(0, 10, false), (1, 9, true)]);
        // The last row of a prompt scores nothing, and a sequence that emits nothing does not compute it.
        assert_eq!(plan(&running, 29), [(0, 30, true), (1, 9, true)]);
        assert_eq!(plan(&running, 50), [(0, 30, true), (1, 9, true), (2, 19, false), (3, 2, false)]);
        // Rows that were scored before do not count towards the limit; the rows after them do.
        running[0].cache.scored = 25;
        assert_eq!(plan(&running, 3), [(0, 27, false), (1, 9, true)]);
        running[0].cache.scored = 30;
        assert_eq!(plan(&running, 3), [(0, 30, true), (1, 9, true), (2, 3, false)]);
        assert_eq!([8192, 151_936, 1 << 30].map(scoring_rows_max), [2048, 110, 1]);
    }

    #[test]
    fn a_prompt_is_cut_into_chunks_only_if_it_would_delay_decoding() {
        let request = |prompt: usize| Request::new(vec![1; prompt]);
        let running = |prompts: &[usize]| -> Vec<Sequence> {
            prompts.iter().map(|prompt| Sequence::new(SequenceId(0), request(*prompt), 5000, 1)).collect()
        };
        let costs = |row: f64, pass: f64| Costs {
            curves: vec![Curve::new(0, vec![(1, pass), (101, pass + 100.0 * row)])],
            ..Costs::default()
        };
        // A millisecond per row: 150 of them in 150 ms, of which the pass itself takes 20.
        assert_eq!(pass_rows_max(&running(&[2000, 1, 1]), &costs(0.001, 0.020), 512), 131);
        // Four passes of the decoding sequences are longer: 403 ms in all, with 303 ms more for rows.
        assert_eq!(pass_rows_max(&running(&[2000, 1, 1]), &costs(0.001, 0.100), 512), 305);
        // No sequence decodes, or no prompt is read.
        assert_eq!(pass_rows_max(&running(&[2000, 3]), &costs(0.001, 0.020), 512), 512);
        assert_eq!(pass_rows_max(&running(&[1, 1, 1]), &costs(0.001, 0.020), 512), 512);
        // The prefill continues however long a row takes.
        assert_eq!(pass_rows_max(&running(&[2000, 1]), &costs(9.0, 0.020), 512), 1 + PROMPT_ROWS_MIN);
    }

    #[test]
    fn draft_models_read_in_the_time_that_the_pass_leaves() {
        let sequences = |prompts: &[usize]| -> Vec<Sequence> {
            prompts.iter().map(|prompt| Sequence::new(SequenceId(0), Request::new(vec![1; *prompt]), 500, 1)).collect()
        };
        let costs = Costs { curves: vec![Curve::new(0, vec![(1, 0.030), (101, 0.130)])], ..Costs::default() };
        assert!((reading_seconds(&sequences(&[1, 1]), &costs, 2) - (0.150 - 0.031)).abs() < 1e-9);
        assert_eq!(reading_seconds(&sequences(&[1, 1]), &costs, 400), 0.0);
        assert_eq!(reading_seconds(&sequences(&[1]), &costs, 2), f64::INFINITY);
        assert_eq!(reading_seconds(&sequences(&[9, 9]), &costs, 2), f64::INFINITY);
    }
}
