//! Who takes part in the next pass, and with how many rows.
//!
//! Sequences whose text is being written come first: each gets its row before any gets a tree, so that nobody's guesses
//! keep another waiting. Prompts share the rows that are left, but for a quarter that is kept for trees: while a prompt
//! fills the pass every row takes the processor's time, and a guess is hardly ever worth as much as a prompt's token,
//! which is certain. Each time the higher priority comes first, then the earlier arrival. Because rows do not know
//! their neighbours, no choice made here can change a text.
//!
//! A prompt beside texts that are being written is cut into pieces that keep these waiting for [`WAIT_SECONDS`] or
//! [`WAIT_PASSES`] of their own passes, whichever is more ([`rows_beside`]). What rows take is known from the passes
//! that were made.

use foretoken_speculation::Costs;

use crate::sequence::{Phase, Sequence};

/// One sequence as it is scheduled for a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scheduled {
    /// Its place among the running sequences.
    pub(crate) at: usize,
    /// Uncached tokens that it runs.
    pub(crate) take: usize,
    /// How many of them a recurrent state passes with the pass.
    pub(crate) certain: usize,
    /// Whether these end with the pending token, so that a token will be chosen.
    pub(crate) complete: bool,
    /// Nodes that its draft tree may have.
    pub(crate) nodes_max: usize,
    /// Rows that its drafters may ask for beside the tree.
    pub(crate) probes_max: usize,
}

/// Trees get this part of the rows at most where prompts can use them.
const TREE_PART: usize = 4;
/// So long a pass with parts of prompts may take, in seconds, where others write in it: a stutter that nobody notices
/// who reads along.
const WAIT_SECONDS: f64 = 0.150;
/// Or as long as so many passes of the writers alone, where these take longer.
const WAIT_PASSES: f64 = 4.0;
/// Bytes of logits that a pass computes to score tokens of prompts, at most.
const SCORING_BYTES: usize = 64 << 20;
/// So many rows of prompts a pass has however long they take, if it has any left, so that prompts come to an end.
const PROMPT_ROWS_MIN: usize = 8;

/// How many rows a pass may have; all that there are, unless prompts are read while others write.
pub(crate) fn rows_beside(running: &[Sequence], costs: &Costs, rows_max: usize) -> usize {
    let Some(Wait { writers, context, seconds }) = Wait::of(running, costs) else { return rows_max };
    if running.iter().all(|sequence| sequence.phase == Phase::Writes) {
        return rows_max;
    }
    // Draft models that read a prompt along with the target go on; at first all are taken to.
    let all = |sequence: &Sequence| sequence.drafters.iter().map(|number| costs.drafter(*number).catch_up).sum();
    let reading = running.iter().filter(|sequence| sequence.phase == Phase::Reads);
    let beside = reading.map(|sequence| sequence.read_along.unwrap_or_else(|| all(sequence))).fold(0.0, f64::max);
    costs.rows_within(seconds, context, beside, writers + PROMPT_ROWS_MIN, rows_max).min(rows_max)
}

/// For how many seconds draft models may read beside a pass of so many rows; without end where that keeps nobody
/// waiting.
pub(crate) fn reading_seconds(running: &[Sequence], costs: &Costs, rows: usize) -> f64 {
    Wait::of(running, costs).map_or(f64::INFINITY, |wait| (wait.seconds - costs.pass(rows, wait.context)).max(0.0))
}

/// For how long a pass may keep those waiting who write in it.
struct Wait {
    writers: usize,
    /// Tokens of all that run, on average.
    context: usize,
    seconds: f64,
}

impl Wait {
    /// `None` where nobody writes, or somebody alone.
    fn of(running: &[Sequence], costs: &Costs) -> Option<Wait> {
        let writers = running.iter().filter(|sequence| sequence.phase == Phase::Writes).count();
        if writers == 0 || running.len() == 1 {
            return None;
        }
        let all = running.iter().map(|sequence| sequence.tokens.len());
        let context = all.sum::<usize>() / running.len();
        let written = running.iter().filter(|sequence| sequence.phase == Phase::Writes);
        let own = written.map(|sequence| sequence.tokens.len()).sum::<usize>() / writers;
        Some(Wait { writers, context, seconds: WAIT_SECONDS.max(WAIT_PASSES * costs.pass(writers, own)) })
    }
}

/// How many rows of a pass may score tokens of prompts, in a vocabulary of so many: their logits stay with the executor
/// until the next pass, and take up to 64 MiB.
pub(crate) fn scoring_rows_max(vocabulary: usize) -> usize {
    (SCORING_BYTES / (size_of::<f32>() * vocabulary.max(1))).max(1)
}

/// Deals out the rows of one pass, of which `scoring_max` may score tokens of prompts. `running`: in order of rank.
pub(crate) fn plan(running: &[Sequence], rows_max: usize, scoring_max: usize, scheduled: &mut Vec<Scheduled>) {
    scheduled.clear();
    let (mut left, mut scoring_left) = (rows_max, scoring_max);
    let of = |phase: Phase| running.iter().filter(move |sequence| sequence.phase == phase);
    // Rows that belong to those who write and have not had their turn.
    let mut owed: usize = of(Phase::Writes).map(Sequence::uncached).sum();
    let prompts: usize = of(Phase::Reads).map(Sequence::rows_left).sum();
    let kept = prompts.min(rows_max - rows_max / TREE_PART);
    for phase in [Phase::Writes, Phase::Reads] {
        for (at, sequence) in running.iter().enumerate().filter(|(_, sequence)| sequence.phase == phase) {
            let (uncached, writing) = (sequence.uncached(), phase == Phase::Writes);
            owed -= if writing { uncached } else { 0 };
            let take = sequence.cut_to_score(sequence.rows_left().min(left), scoring_left);
            let [take, certain] = sequence.stop_at_checkpoint(take);
            if take == 0 {
                continue;
            }
            scoring_left -= sequence.rows_to_score(take).len();
            left -= take;
            let complete = take == uncached;
            // Of what may still be emitted, the last token needs no draft: it comes from the pass itself.
            let useful = (sequence.limit - sequence.tokens.len()).saturating_sub(1);
            let drafting = complete && !sequence.drafters.is_empty();
            let free = left.saturating_sub(owed + if writing { kept } else { 0 });
            let nodes_max = if drafting { sequence.budget.limits().nodes_max.min(useful).min(free) } else { 0 };
            let beside = if nodes_max > 0 { useful.min(free) - nodes_max } else { 0 };
            // Part of a window is of no use, so there is room for all probes or for none.
            let probes_max = if sequence.probes_max <= beside { sequence.probes_max } else { 0 };
            left -= nodes_max + probes_max;
            scheduled.push(Scheduled { at, take, certain, complete, nodes_max, probes_max });
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
    fn everyone_who_writes_gets_a_row_before_anyone_gets_a_tree() {
        let request = |prompt: usize| Request {
            drafters: vec![0],
            budget: BudgetKind::Fixed { nodes: 9 },
            ..Request::new(vec![1; prompt])
        };
        let running: Vec<Sequence> =
            [8, 1, 1, 1].iter().map(|prompt| Sequence::new(SequenceId(0), request(*prompt), 100, 1)).collect();
        let dealt = |rows_max: usize| {
            let mut scheduled = Vec::new();
            plan(&running, rows_max, usize::MAX, &mut scheduled);
            scheduled.iter().map(|entry| (entry.at, entry.take, entry.nodes_max)).collect::<Vec<_>>()
        };
        assert_eq!(dealt(2), [(1, 1, 0), (2, 1, 0)]);
        assert_eq!(dealt(5), [(1, 1, 0), (2, 1, 0), (3, 1, 0), (0, 2, 0)]);
        // What the prompt can use is kept for it, but for a quarter of the rows.
        assert_eq!(dealt(12), [(1, 1, 1), (2, 1, 0), (3, 1, 0), (0, 8, 0)]);
        assert_eq!(dealt(34), [(1, 1, 9), (2, 1, 9), (3, 1, 5), (0, 8, 0)]);
        assert_eq!(dealt(40), [(1, 1, 9), (2, 1, 9), (3, 1, 9), (0, 8, 2)]);
    }

    #[test]
    fn logits_of_prompts_are_computed_a_few_rows_at_a_time() {
        let sequence = |prompt: usize, tokens_max: usize, scores: bool| {
            let (tokens_max, prompt_log_probabilities) = (Some(tokens_max), scores);
            let request = Request { tokens_max, prompt_log_probabilities, ..Request::new(vec![1; prompt]) };
            Sequence::new(SequenceId(0), request, 100, 1)
        };
        let mut running = [sequence(30, 5, true), sequence(9, 5, false), sequence(20, 0, true), sequence(8, 5, true)];
        let dealt = |running: &[Sequence], scoring_max: usize| {
            let mut scheduled = Vec::new();
            plan(running, 60, scoring_max, &mut scheduled);
            scheduled.iter().map(|entry| (entry.at, entry.take, entry.complete)).collect::<Vec<_>>()
        };
        // Who may not score waits, and does not keep others from reading.
        assert_eq!(dealt(&running, 10), [(0, 10, false), (1, 9, true)]);
        // The last row of a prompt scores nothing; who writes nothing has no use for it.
        assert_eq!(dealt(&running, 29), [(0, 30, true), (1, 9, true)]);
        assert_eq!(dealt(&running, 50), [(0, 30, true), (1, 9, true), (2, 19, false), (3, 2, false)]);
        // Rows that are computed again are free, and those behind them are not.
        running[0].scored = 25;
        assert_eq!(dealt(&running, 3), [(0, 27, false), (1, 9, true)]);
        running[0].scored = 30;
        assert_eq!(dealt(&running, 3), [(0, 30, true), (1, 9, true), (2, 3, false)]);
        assert_eq!([8192, 151_936, 1 << 30].map(scoring_rows_max), [2048, 110, 1]);
    }

    #[test]
    fn a_prompt_is_cut_where_it_would_keep_writers_waiting_and_nowhere_else() {
        let request = |prompt: usize| Request::new(vec![1; prompt]);
        let running = |prompts: &[usize]| -> Vec<Sequence> {
            prompts.iter().map(|prompt| Sequence::new(SequenceId(0), request(*prompt), 5000, 1)).collect()
        };
        let costs = |row: f64, pass: f64| Costs {
            curves: vec![Curve::new(0, vec![(1, pass), (101, pass + 100.0 * row)])],
            ..Costs::default()
        };
        // A millisecond a row: 150 of them in 150 ms, of which the pass itself takes 20.
        assert_eq!(rows_beside(&running(&[2000, 1, 1]), &costs(0.001, 0.020), 512), 131);
        // Four passes of the writers are longer: 403 ms in all, with 303 ms more for rows.
        assert_eq!(rows_beside(&running(&[2000, 1, 1]), &costs(0.001, 0.100), 512), 305);
        // Nobody waits, or nobody reads.
        assert_eq!(rows_beside(&running(&[2000, 3]), &costs(0.001, 0.020), 512), 512);
        assert_eq!(rows_beside(&running(&[1, 1, 1]), &costs(0.001, 0.020), 512), 512);
        // However dear rows are, the prompt goes on.
        assert_eq!(rows_beside(&running(&[2000, 1]), &costs(9.0, 0.020), 512), 1 + PROMPT_ROWS_MIN);
    }

    #[test]
    fn draft_models_read_in_what_the_pass_leaves() {
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
