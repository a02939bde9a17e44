//! The beam search of a sequence: its rows in a pass, and what it answers.
//!
//! The text of the sequence is the prompt and the tokens that all hypotheses share; it is cached as usual. The rows of
//! the hypotheses come after it as a tree ([`BeamTree`]), in the same span and the same pages. So a beam search is
//! prefilled, shares its prefix, is preempted and computed again like any other sequence: first its text, then its
//! tree, each in as many passes as it takes. The logits of the last rows are wanted together, by one pass.

use foretoken_speculation::Token;

use super::text::SequenceText;
use super::{Sequence, SpanRows};
use crate::beams::{BeamCheck, BeamRates, BeamTree, Compaction, DraftedSteps, Ended, Search, Writing};
use crate::output::{Beam, FinishReason};

/// The beam search of a sequence that has read its prompt.
#[derive(Debug)]
pub(crate) struct SequenceBeams {
    pub(crate) search: Search,
    pub(crate) tree: BeamTree,
    /// The prompt and the tokens of a hypothesis; the memory is reused.
    pub(crate) context: Vec<Token>,
    /// The steps that were drafted after the hypotheses, in rows at the end of the tree.
    pub(crate) drafted: DraftedSteps,
    /// What became of the drafted steps of the last pass.
    pub(crate) checks: Vec<BeamCheck>,
    /// How often its drafted steps were included, once that is known.
    pub(crate) rates: Option<BeamRates>,
}

impl Sequence {
    /// Begins the beam search of the request, if it has one that has not begun.
    pub(crate) fn begin_beams(&mut self) {
        let Some(settings) = self.request.beams.filter(|_| self.beams.is_none()) else { return };
        let len_max = self.text.limit - self.request.prompt.len();
        let asked = self.request.tokens_max.is_some_and(|tokens| tokens <= len_max);
        let reason = if asked { FinishReason::Length } else { FinishReason::Context };
        let writing = Writing { constraint: self.request.constraint.clone(), text: self.text.searched() };
        let search = Search::new(settings, &self.request.sampling.end_tokens, (len_max, reason), writing);
        let context = self.request.prompt.clone();
        let (tree, drafted, checks) = (BeamTree::default(), DraftedSteps::NONE, Vec::new());
        self.beams = Some(SequenceBeams { search, tree, context, drafted, checks, rates: None });
    }

    /// Whether a pass of it belongs to a beam search: it yields logits for one, or rows that one has to compute again.
    pub(crate) fn is_in_beam_search(&self, complete: bool) -> bool {
        self.beams.is_some() || complete && self.request.beams.is_some()
    }

    /// Rows of a pass that choose tokens: one, or one for each hypothesis of a beam search whose scores are not known.
    pub(crate) fn emitting_rows(&self) -> usize {
        let unknown = |beams: &SequenceBeams| beams.search.running().iter().filter(|one| one.scores.is_none()).count();
        self.beams.as_ref().map_or(1, unknown)
    }

    /// Rows after those of its text: the tree of its beam search, or the first rows of one that has not begun.
    pub(crate) fn rows_after_text(&self) -> usize {
        let begun = self.beams.as_ref().map(|beams| beams.tree.len());
        begun.or(self.request.beams.map(|beams| beams.beams)).unwrap_or(0)
    }

    /// How many rows it may have in a pass with room for `most`. The rows whose logits a beam search wants are computed
    /// in one pass.
    pub(crate) fn rows_within(&self, most: usize) -> usize {
        let left = self.rows_left();
        match &self.beams {
            Some(beams) if left > most => most.min(left - (beams.tree.len() - beams.tree.wanted_from())),
            _ => left.min(most),
        }
    }

    /// Its cached positions after a pass with these rows.
    pub(crate) fn positions_after(&self, token_rows: usize) -> usize {
        self.cache.cached + self.beams.as_ref().map_or(0, |beams| beams.tree.computed()) + token_rows
    }

    /// Notes that the pass has computed these rows. Returns its cached positions.
    pub(crate) fn add_computed(&mut self, token_rows: usize, complete: bool) -> usize {
        let of_text = token_rows.min(self.text.tokens.len() - self.cache.cached);
        if let Some(SequenceBeams { tree, .. }) = &mut self.beams {
            // A complete pass has drafted rows, too.
            tree.set_computed(if complete { tree.len() } else { tree.computed() + token_rows - of_text });
        }
        self.set_cached(self.cache.cached + of_text);
        self.positions_after(0)
    }

    /// Fills `rows` with `token_rows` uncached tokens of the text, then of the tree; with the whole tree if these are
    /// all.
    pub(super) fn lay_out_beams(&mut self, token_rows: usize) {
        let Self { rows, text, cache, beams, .. } = self;
        let SequenceBeams { tree, .. } = beams.as_ref().expect("a beam search that has begun");
        let SpanRows { tokens, computed, parents, wanted, scored, hidden } = rows;
        let of_text = token_rows.min(text.tokens.len() - cache.cached);
        let of_tree = tree.computed() + token_rows - of_text;
        let complete = cache.cached + of_text == text.tokens.len() && of_tree > tree.wanted_from();
        let of_tree = if complete { tree.len() } else { of_tree };
        assert!(of_text == 0 || tree.computed() == 0, "rows of a tree are cached before those of its text");
        (*computed, *scored) = (tree.computed(), 0);
        hidden.clear();
        tokens.clear();
        tokens.extend_from_slice(&text.tokens[cache.cached..cache.cached + of_text]);
        tokens.extend_from_slice(&tree.tokens()[..of_tree]);
        let root = of_text.checked_sub(1).map(|row| row as u32);
        parents.clear();
        parents.extend((0..of_text as u32).map(|row| row.checked_sub(1)));
        let below = |parent: &Option<u32>| parent.map_or(root, |parent| Some(of_text as u32 + parent));
        parents.extend(tree.parents()[..of_tree].iter().map(below));
        wanted.clear();
        if complete {
            wanted.extend((of_text + tree.wanted_from()) as u32..tokens.len() as u32);
        }
    }

    /// Removes the rows of the tree that no hypothesis continues, and makes rows that all share text. The rows of the
    /// cache are to be moved accordingly. `None` if nothing changes.
    pub(crate) fn compact_beam_rows(&mut self) -> Option<Compaction> {
        let SequenceBeams { search, tree, .. } = self.beams.as_mut()?;
        let mut leaves: Vec<u32> = search.running().iter().filter_map(|hypothesis| hypothesis.row).collect();
        let before = tree.len();
        let compaction = tree.compact(&mut leaves);
        let rows = search.running_mut().iter_mut().filter(|hypothesis| hypothesis.row.is_some());
        rows.zip(leaves).for_each(|(hypothesis, leaf)| hypothesis.row = Some(leaf));
        self.text.tokens.extend_from_slice(&compaction.shared);
        (tree.len() < before).then_some(compaction)
    }

    /// Whether a compaction is due.
    pub(crate) fn is_beam_tree_sparse(&self) -> bool {
        let leaves = |beams: &SequenceBeams| -> Vec<u32> {
            beams.search.running().iter().filter_map(|hypothesis| hypothesis.row).collect()
        };
        self.beams.as_ref().is_some_and(|beams| beams.tree.is_sparse(&leaves(beams)))
    }

    /// Its pages were released: all rows of its tree that are still needed are computed again.
    pub(super) fn forget_beam_rows(&mut self) {
        self.compact_beam_rows();
        if let Some(beams) = &mut self.beams {
            beams.tree.set_computed(0);
        }
    }

    /// Notes the time of a step of the search.
    pub(crate) fn note_beam_step(&mut self) {
        self.stats.beams.steps += 1;
        self.stats.time = self.submitted.elapsed();
        if self.stats.beams.steps == 1 {
            (self.stats.emitted_first, self.stats.time_to_first_token) = (1, self.stats.time);
        }
    }

    /// Ends a search that is over. Returns the hypotheses that were found.
    pub(crate) fn take_beams(&mut self) -> Vec<Beam> {
        let Some(SequenceBeams { search, .. }) = self.beams.take() else { return Vec::new() };
        let beam = |ended: Ended| {
            let is_end = matches!(ended.reason, FinishReason::EndToken(_));
            let shown: &[Token] = &ended.tokens[..ended.tokens.len() - usize::from(is_end)];
            let text = SequenceText::whole(&self.request, shown);
            let Ended { tokens, log_probability, score, reason } = ended;
            Beam { tokens, text, score, log_probability, reason }
        };
        let found: Vec<Beam> = search.into_ended().into_iter().map(beam).collect();
        if let Some(best) = found.first() {
            (self.stats.emitted, self.finished) = (best.tokens.len(), Some(best.reason.clone()));
        }
        found
    }
}
