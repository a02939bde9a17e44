//! The networks of drafters: an executor with its page bookkeeping, behind the trait `Scorer`.
//!
//! Draft models have a cache and pages of their own, which are shared and evicted as the target's are: rows that were
//! computed for a sequence of the same tenant are adopted instead of computed again, unknown to the drafter. A drafter
//! may roll back into the rows that it has committed; if that leads into a shared page, its rows are copied first. A
//! sequence for which there is no room is not scored, and its drafter drafts nothing. Drafters do not know which
//! prefixes are public, so those are not shared between tenants here.
//!
//! A network with recurrent states gets its spans from the position of its state on: rows that a drafter has committed
//! may still be drafted ones (if it drafts for another draft model), and the state has not advanced over them, so they
//! are rows of the span that were computed before. A state cannot be rolled back; it restarts, from a checkpoint if
//! there is one. A sequence that is closed leaves its state as a checkpoint.
//!
//! A network with an encoder reads the source of its sequence itself (`scorer/source.rs`).
//!
//! A head reads hidden states besides its tokens, and returns its own with its logits. Its rows depend on the target's
//! hidden states, and thereby on things that its own tokens do not determine (the first token, the source): no rows are
//! shared.

mod source;

use std::collections::BTreeMap;
use std::ops::Range;

use foretoken_drafters::{HiddenInput, LogitRows, ScoreAsk, Scorer};
use foretoken_model::{Batch, CacheEdit, Capacity, CapacityProblem, Executor, ExecutorError, PageTable, Span};
use foretoken_speculation::{Opening, SequenceId, Token};

use crate::faults::{Fault, is_made};
use crate::pages::{Adopted, Owner, Pages, SequencePages};
use crate::sources::Sources;
use source::HeldTokens;

/// An executor with one cache of its own, for a drafter.
pub struct ExecutorScorer {
    executor: Box<dyn Executor>,
    pages: Pages,
    sources: Sources,
    sequences: BTreeMap<SequenceId, ScorerSequence>,
    /// The number of rows with a NaN among their logits.
    not_numbers: u64,
}

/// The cache of a sequence.
struct ScorerSequence {
    pages: SequencePages,
    /// The tokens of its rows, in cache order.
    tokens: Vec<Token>,
    /// How many leading rows are committed.
    committed: usize,
    /// The position at which the span of the current ask begins for the network: after the rows that are final and
    /// cached.
    base: usize,
    /// Its source, if the network has an encoder.
    source: Option<HeldTokens>,
    /// Whether it is open in the executor.
    is_open: bool,
    /// Whether its cache must not be used any more: it could not be opened, rows could not be moved, or its state has
    /// advanced over rows that its drafter does not know of.
    is_unusable: bool,
}

impl ScorerSequence {
    /// Releases everything that is cached and opens the sequence again in the executor. Returns whether that worked.
    fn restart(&mut self, sequence: SequenceId, pages: &mut Pages, executor: &mut dyn Executor) -> bool {
        pages.release(&mut self.pages, &[]);
        self.tokens.clear();
        self.committed = 0;
        if std::mem::take(&mut self.is_open) {
            executor.release(sequence.0);
        }
        self.is_open = source::open(executor, sequence.0, self.source.as_mut());
        self.is_unusable |= !self.is_open;
        self.is_open
    }

    /// How many leading rows of the network's span are certain, if it ends with row `end` of the ask.
    fn certain(&self, ask: &ScoreAsk<'_>, end: usize) -> usize {
        // If cached rows are drafted ones to the state, so are all rows after them.
        if self.base < ask.start { 0 } else { ask.certain.saturating_sub(self.base).min(end) }
    }

    /// The span of a chunk for a network with states.
    fn state_span(&self, asks: &[ScoreAsk<'_>], chunk: &AskChunk) -> StateSpan {
        let (ask, end) = (&asks[chunk.ask], chunk.rows.end);
        let drafted_rows = (ask.start - self.base) as u32;
        let shifted =
            |parent: Option<u32>| parent.map_or(drafted_rows.checked_sub(1), |parent| Some(drafted_rows + parent));
        let drafted_parents = (0..drafted_rows).map(|row| row.checked_sub(1));
        let parents = match ask.parents.is_empty() {
            true => Vec::new(),
            false => drafted_parents.chain(ask.parents[..end].iter().map(|parent| shifted(*parent))).collect(),
        };
        StateSpan {
            tokens: [&self.tokens[self.base..ask.start], &ask.tokens[..end]].concat(),
            parents,
            certain: self.certain(ask, end),
            computed: drafted_rows as usize + chunk.rows.start,
            wanted: ask.wanted[chunk.wanted.clone()].iter().map(|row| drafted_rows + row).collect(),
        }
    }
}

/// The rows of an ask from the position of its sequence's state on.
struct StateSpan {
    tokens: Vec<Token>,
    parents: Vec<Option<u32>>,
    certain: usize,
    computed: usize,
    wanted: Vec<u32>,
}

impl StateSpan {
    fn span<'a>(&'a self, sequence: u64, tables: &'a [PageTable], start: usize) -> Span<'a> {
        let Self { tokens, parents, certain, computed, wanted } = self;
        let (certain, computed) = (*certain, *computed);
        Span { sequence, tables, start, tokens, certain, computed, parents, wanted, ..Span::default() }
    }
}

/// The chunk of an ask that is computed in one pass.
struct AskChunk {
    ask: usize,
    /// The rows of the ask that it computes.
    rows: Range<usize>,
    /// The wanted rows among them, as indices of [`ScoreAsk::wanted`].
    wanted: Range<usize>,
}

impl ExecutorScorer {
    /// Takes over an executor, all of whose pages are free.
    ///
    /// # Panics
    /// As [`Engine::new`](crate::Engine::new), and if it reads hidden states ([`ExecutorScorer::for_head`] is for
    /// those).
    pub fn new(executor: Box<dyn Executor>) -> Self {
        assert_eq!(executor.capacity().hidden_in, None, "a head needs its target: use for_head");
        Self::of(executor)
    }

    /// Takes over an executor that reads the hidden states of this target besides its tokens.
    ///
    /// # Errors
    /// It reads none, or not this target's: the first field that does not fit.
    ///
    /// # Panics
    /// As [`ExecutorScorer::new`].
    pub fn for_head(executor: Box<dyn Executor>, target: &Capacity) -> Result<Self, CapacityProblem> {
        match executor.capacity().head_problem(target) {
            Some(problem) => Err(problem),
            None => Ok(Self::of(executor)),
        }
    }

    fn of(executor: Box<dyn Executor>) -> Self {
        let capacity = executor.capacity();
        let problem = capacity.problem();
        assert!(problem.is_none(), "the executor's capacity is inconsistent: {problem:?}");
        let (pages, sources) = (Pages::with_rollback(capacity), Sources::new(capacity.sources.as_ref()));
        Self { executor, pages, sources, sequences: BTreeMap::new(), not_numbers: 0 }
    }

    /// Whether it reads hidden states besides its tokens.
    fn is_head(&self) -> bool {
        self.executor.capacity().hidden_in.is_some()
    }

    /// Checks the bookkeeping of pages: everything that is recorded twice must agree.
    ///
    /// # Errors
    /// The first inconsistency.
    pub fn check_pages(&self) -> Result<(), String> {
        self.sources.check(self.sequences.values().filter(|entry| entry.source.is_some()).count())?;
        self.pages.check(self.sequences.values().map(|entry| &entry.pages))
    }

    /// The executor.
    pub fn executor(&self) -> &dyn Executor {
        &*self.executor
    }

    /// Makes room for the rows of an ask. Returns whether there was enough. (A tree may have more rows than the context
    /// has positions; the executor itself refuses positions that it does not have.)
    fn make_room(&mut self, ask: &ScoreAsk<'_>) -> bool {
        let (is_head, has_states) = (self.is_head(), self.pages.has_states());
        let Self { pages, sequences, .. } = self;
        let entry = sequences.get_mut(&ask.sequence).unwrap_or_else(|| panic!("{:?} was not opened", ask.sequence));
        if entry.is_unusable {
            return false;
        }
        let cached = ask.start + ask.computed;
        assert!(entry.tokens.len() >= cached, "{cached} rows cached, found {}: {:?}", entry.tokens.len(), ask.sequence);
        entry.tokens.truncate(cached);
        entry.tokens.extend_from_slice(&ask.tokens[ask.computed..]);
        entry.committed = if is_head { 0 } else { ask.start };
        entry.base = if has_states { ask.start.min(ask.certain).max(entry.pages.passed()) } else { ask.start };
        if entry.base > ask.start {
            // Rows were computed that its drafter does not know of: a row had NaN, or another sequence's pass panicked.
            entry.is_unusable = true;
            return false;
        }
        pages.enter_full(&mut entry.pages, &entry.tokens[..entry.committed]);
        let is_grown = pages.grow(&mut entry.pages, ask.start + ask.tokens.len());
        if is_grown {
            pages.assert_own(&entry.pages, cached..ask.start + ask.tokens.len());
        }
        is_grown
    }

    /// Runs the given chunks in one pass, or each in a pass of its own if the executor refuses them together. Appends
    /// the wanted rows; the first row of all asks is row `first`. An ask that cannot be run counts as done, and its
    /// rows are empty.
    fn run(
        &mut self,
        asks: &[ScoreAsk<'_>],
        done: &mut [usize],
        chunks: &[AskChunk],
        rows: &mut LogitRows,
        first: usize,
    ) {
        match (self.forward(asks, chunks), chunks) {
            (Ok(()), chunks) => {
                // An ask begins only when those before it are complete, so rows come in order; skipped rows are those
                // of asks that could not be run.
                let outputs = self.executor.outputs();
                rows.set_row_tokens(outputs.row_tokens().cloned());
                let is_head = self.is_head();
                let mut row = 0;
                for chunk in chunks {
                    let before = first + asks[..chunk.ask].iter().map(|ask| ask.wanted.len()).sum::<usize>();
                    (rows.len()..before + chunk.wanted.start).for_each(|_| rows.push(None));
                    for _ in chunk.wanted.clone() {
                        let has_nan = outputs.has_nan(row);
                        self.not_numbers += u64::from(has_nan);
                        match is_head && !has_nan {
                            true => rows.push_with_hidden(outputs.row(row), outputs.hidden(0, row)),
                            false => rows.push((!has_nan).then(|| outputs.row(row))),
                        }
                        row += 1;
                    }
                    done[chunk.ask] = chunk.rows.end;
                    if self.pages.has_states() {
                        let entry = self.sequences.get_mut(&asks[chunk.ask].sequence).expect("its chunk was run");
                        let passed = entry.base + entry.certain(&asks[chunk.ask], chunk.rows.end);
                        entry.pages.set_passed(passed.max(entry.pages.passed()));
                    }
                }
            }
            (Err(_), [chunk]) => {
                let before = first + asks[..chunk.ask].iter().map(|ask| ask.wanted.len()).sum::<usize>();
                rows.refuse(before.min(rows.len())..(before + chunk.wanted.start).min(rows.len()));
                done[chunk.ask] = asks[chunk.ask].tokens.len();
                // A state that has advanced over the chunks before cannot compute them again.
                let entry = self.sequences.get_mut(&asks[chunk.ask].sequence).expect("make_room found it");
                entry.is_unusable |= entry.pages.passed() > entry.base;
            }
            (Err(_), chunks) => {
                chunks.iter().for_each(|chunk| self.run(asks, done, std::slice::from_ref(chunk), rows, first));
            }
        }
    }

    fn forward(&mut self, asks: &[ScoreAsk<'_>], chunks: &[AskChunk]) -> Result<(), ExecutorError> {
        let state_spans: Vec<StateSpan> = match self.pages.has_states() {
            true => {
                chunks.iter().map(|chunk| self.sequences[&asks[chunk.ask].sequence].state_span(asks, chunk)).collect()
            }
            false => Vec::new(),
        };
        // A head's own hidden states, which drafting further tokens may need.
        let hidden_in = self.executor.capacity().hidden_in.as_ref();
        let hidden_layers: Vec<usize> = hidden_in.iter().map(|reads| reads.own_layer).collect();
        let span = |(i, chunk): (usize, &AskChunk)| {
            let (ask, entry) = (&asks[chunk.ask], &self.sequences[&asks[chunk.ask].sequence]);
            let (sequence, tables) = (ask.sequence.0, entry.pages.tables());
            let span = match state_spans.get(i) {
                Some(state_span) => state_span.span(sequence, tables, entry.base),
                None => Span {
                    sequence,
                    tables,
                    start: ask.start,
                    tokens: &ask.tokens[..chunk.rows.end],
                    computed: chunk.rows.start,
                    parents: &ask.parents[..chunk.rows.end.min(ask.parents.len())],
                    wanted: &ask.wanted[chunk.wanted.clone()],
                    ..Span::default()
                },
            };
            let hidden = if hidden_layers.is_empty() { &[][..] } else { span.wanted };
            Span { hidden, hidden_in: hidden_in_of(ask, chunk), ..span }
        };
        let spans: Vec<Span<'_>> = chunks.iter().enumerate().map(span).collect();
        self.executor.forward(&Batch { spans: &spans, hidden_layers: &hidden_layers })
    }
}

/// The hidden states that a chunk reads, as the executor gets them.
fn hidden_in_of<'a>(ask: &ScoreAsk<'a>, chunk: &AskChunk) -> foretoken_model::HiddenInput<'a> {
    let first = if is_made(Fault::HiddenRowsOfFirstPart) { chunk.rows.start } else { ask.computed };
    let rows = chunk.rows.start - first..chunk.rows.end - first;
    match ask.hidden_in.part(rows, ask.tokens.len() - ask.computed) {
        HiddenInput::None => foretoken_model::HiddenInput::None,
        HiddenInput::Target(rows) => foretoken_model::HiddenInput::Target(rows),
        HiddenInput::Own(rows) => foretoken_model::HiddenInput::Own(rows),
    }
}

impl Scorer for ExecutorScorer {
    fn open(&mut self, opening: &Opening<'_>) {
        let Self { executor, pages, sources, sequences, .. } = self;
        let held = source::hold(sources, executor.capacity().sources.as_ref(), opening);
        let (is_readable, mut source) = (held.is_ok(), held.unwrap_or_default());
        let is_open = is_readable && source::open(&mut **executor, opening.sequence.0, source.as_mut());
        let number = source.as_ref().map_or(0, |source| source.number);
        let pages = pages.open(Owner { tenant: opening.tenant, source: number }, 0);
        let (tokens, committed, base, is_unusable) = (Vec::new(), 0, 0, !is_open);
        let entry = ScorerSequence { pages, tokens, committed, base, source, is_open, is_unusable };
        sequences.insert(opening.sequence, entry);
    }

    fn adopt(&mut self, sequence: SequenceId, tokens: &[Token]) -> usize {
        let Self { executor, pages, sequences, .. } = self;
        let entry = sequences.get_mut(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        if entry.is_unusable {
            return 0;
        }
        // The rows that it had before are given up.
        if !entry.restart(sequence, pages, &mut **executor) {
            return 0;
        }
        let adopted = pages.adopt(&mut entry.pages, tokens, tokens.len());
        if !copy(&mut **executor, &entry.pages, &adopted) {
            pages.release(&mut entry.pages, &[]);
            return 0;
        }
        entry.tokens.extend_from_slice(&tokens[..adopted.len]);
        entry.committed = adopted.len;
        adopted.len
    }

    fn score(&mut self, asks: &[ScoreAsk<'_>], rows: &mut LogitRows) {
        let first = rows.len();
        let rows_max = self.executor.capacity().rows_max;
        let mut done: Vec<usize> = asks.iter().map(|ask| ask.computed).collect();
        for (ask, done) in asks.iter().zip(&mut done) {
            // An ask without room is done, and its rows are empty.
            if !self.make_room(ask) {
                *done = ask.tokens.len();
            }
        }
        loop {
            let (mut rows_left, mut chunks) = (rows_max, Vec::with_capacity(asks.len()));
            for (i, ask) in asks.iter().enumerate() {
                let end = ask.tokens.len().min(done[i] + rows_left);
                if end > done[i] {
                    rows_left -= end - done[i];
                    let wanted =
                        [done[i], end].map(|row| ask.wanted.partition_point(|wanted| (*wanted as usize) < row));
                    chunks.push(AskChunk { ask: i, rows: done[i]..end, wanted: wanted[0]..wanted[1] });
                }
            }
            if chunks.is_empty() {
                break;
            }
            self.run(asks, &mut done, &chunks, rows, first);
        }
        let all = asks.iter().map(|ask| ask.wanted.len()).sum::<usize>();
        (rows.len()..first + all).for_each(|_| rows.push(None));
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> usize {
        let Self { executor, pages, sequences, .. } = self;
        let Some(entry) = sequences.get_mut(&sequence) else { return 0 };
        if len < entry.pages.passed() {
            let tokens = entry.tokens[..len.min(entry.tokens.len())].to_vec();
            return self.adopt(sequence, &tokens);
        }
        let cut = pages.truncate(&mut entry.pages, len);
        let left = if copy(&mut **executor, &entry.pages, &cut) { cut.len } else { 0 };
        if left == 0 {
            entry.restart(sequence, pages, &mut **executor);
        }
        entry.tokens.truncate(left);
        entry.committed = entry.committed.min(left);
        left
    }

    fn target_layers(&self) -> &[usize] {
        self.executor.capacity().hidden_in.as_ref().map_or(&[], |reads| &reads.target_layers)
    }

    fn keep_path(&mut self, sequence: SequenceId, start: usize, rows: &[u32]) {
        let reads = &self.executor.capacity().hidden_in;
        assert!(reads.is_none(), "a head cannot keep drafted rows {rows:?}: their hidden rows were not the target's");
        if let Some(entry) = self.sequences.get_mut(&sequence) {
            let from: Vec<usize> = rows.iter().map(|row| start + *row as usize).collect();
            self.pages.assert_own(&entry.pages, start..start + rows.len());
            // If the rows of the path could not be moved, the cache is useless: this sequence is not scored any more.
            let moved = if is_made(Fault::DraftRowsNotMoved) {
                Ok(())
            } else {
                self.executor.rows(CacheEdit::Move { tables: entry.pages.tables(), from: &from, to: start })
            };
            entry.is_unusable |= moved.is_err();
            from.iter().enumerate().for_each(|(i, from)| entry.tokens[start + i] = entry.tokens[*from]);
            entry.tokens.truncate(start + from.len());
            entry.committed = if moved.is_ok() { entry.tokens.len() } else { start };
            self.pages.truncate(&mut entry.pages, start + from.len());
        }
    }

    fn close(&mut self, sequence: SequenceId) {
        if let Some(mut entry) = self.sequences.remove(&sequence) {
            // The rows that a state has advanced over are final, committed or not.
            let is_head = self.is_head();
            let committed = entry.committed.max(entry.pages.passed()).min(entry.tokens.len());
            let committed = if entry.is_unusable || is_head { 0 } else { committed };
            self.pages.release(&mut entry.pages, &entry.tokens[..committed]);
            if entry.is_open {
                self.executor.release(sequence.0);
            }
            if let Some(held) = &entry.source {
                source::release(&mut self.sources, held);
            }
        }
    }

    fn context_max(&self) -> usize {
        self.executor.capacity().context_max
    }

    fn not_numbers(&self) -> u64 {
        self.not_numbers
    }
}

/// Copies the rows that the adopted prefix needs copied. Returns whether that worked.
fn copy(executor: &mut dyn Executor, to: &SequencePages, adopted: &Adopted) -> bool {
    let Some(copied) = &adopted.copied else { return true };
    executor.rows(CacheEdit::Copy { from: &copied.from, to: to.tables(), positions: copied.positions.clone() }).is_ok()
}
