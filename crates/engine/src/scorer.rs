//! A network as a drafter sees it: an executor and page bookkeeping behind `Scorer`.
//!
//! Draft models have a cache and pages of their own, which are shared and evicted as the target's are: rows that were
//! computed for a text of the same tenant are adopted instead of run, and the drafter need not know. A drafter may go
//! back behind what is cached for good; if that leads into a shared page, its rows are copied first. Where there is no
//! room for a sequence it is not scored, and its drafter stays silent.
//!
//! A network with recurrent states is shown its spans from where the state stands: rows that a drafter takes for good
//! may be guesses all the same (those of a draft model that it drafts for), and to a state they are rows of the span
//! that were computed before. A state that would have to go back begins again, from a checkpoint if there is one: a
//! text that is closed leaves its state as one.
//!
//! A head reads hidden rows beside its tokens, and its own come back with its logits. What its rows say goes by the
//! target's hidden rows, so by tokens (the first) and sources that its own tokens do not tell: nothing of it is shared.
//!
//! Left out: drafting itself, and prefixes that were declared public, which drafters are not told.

use std::collections::BTreeMap;
use std::ops::Range;

use foretoken_drafters::{HiddenInput, LogitRows, ScoreAsk, Scorer};
use foretoken_model::{Batch, CacheEdit, Capacity, CapacityProblem, Executor, ExecutorError, PageTable, Span};
use foretoken_speculation::{SequenceId, Tenant, Token};

use crate::faults::{Fault, is_made};
use crate::pages::{Adopted, Pages, SequencePages};

/// An executor with one cache of its own, for a drafter.
pub struct ExecutorScorer {
    executor: Box<dyn Executor>,
    pages: Pages,
    sequences: BTreeMap<SequenceId, Held>,
    /// Rows that had a logit that is NaN.
    not_numbers: u64,
}

/// What a sequence has of the cache.
struct Held {
    pages: SequencePages,
    /// The tokens of its rows, in the order in which these lie.
    tokens: Vec<Token>,
    /// So many first ones are cached for good.
    good: usize,
    /// Behind so many the network sees the span of the ask at hand: behind those that are final and cached.
    base: usize,
    /// Whether the executor knows of it.
    open: bool,
    /// Whether its cache is not to be used any more: it could not be opened, rows could not be moved, or its state has
    /// passed what its drafter does not know of.
    lost: bool,
}

impl Held {
    /// Gives back all that is cached, so that the executor sees a sequence that begins; whether it can.
    fn begin_again(&mut self, sequence: SequenceId, pages: &mut Pages, executor: &mut dyn Executor) -> bool {
        pages.release(&mut self.pages, &[]);
        self.tokens.clear();
        self.good = 0;
        if std::mem::take(&mut self.open) {
            executor.release(sequence.0);
        }
        self.open = executor.open(sequence.0, None).is_ok();
        self.lost |= !self.open;
        self.open
    }

    /// Of the rows up to `end` of an ask so many leading ones of the span that the network sees are certain.
    fn certain(&self, ask: &ScoreAsk<'_>, end: usize) -> usize {
        // Where cached rows are guesses to the state, so is all that follows them.
        if self.base < ask.start { 0 } else { ask.certain.saturating_sub(self.base).min(end) }
    }

    /// The rows of a part as a network with states sees them.
    fn lay_out(&self, asks: &[ScoreAsk<'_>], part: &AskPart) -> LaidOut {
        let (ask, end) = (&asks[part.ask], part.rows.end);
        let guesses = (ask.start - self.base) as u32;
        let behind = |parent: Option<u32>| parent.map_or(guesses.checked_sub(1), |parent| Some(guesses + parent));
        let of_guesses = (0..guesses).map(|row| row.checked_sub(1));
        let parents = match ask.parents.is_empty() {
            true => Vec::new(),
            false => of_guesses.chain(ask.parents[..end].iter().map(|parent| behind(*parent))).collect(),
        };
        LaidOut {
            tokens: [&self.tokens[self.base..ask.start], &ask.tokens[..end]].concat(),
            parents,
            certain: self.certain(ask, end),
            computed: guesses as usize + part.rows.start,
            wanted: ask.wanted[part.wanted.clone()].iter().map(|row| guesses + row).collect(),
        }
    }
}

/// The rows of an ask behind the state of its sequence.
struct LaidOut {
    tokens: Vec<Token>,
    parents: Vec<Option<u32>>,
    certain: usize,
    computed: usize,
    wanted: Vec<u32>,
}

impl LaidOut {
    fn span<'a>(&'a self, sequence: u64, tables: &'a [PageTable], start: usize) -> Span<'a> {
        let Self { tokens, parents, certain, computed, wanted } = self;
        let (certain, computed) = (*certain, *computed);
        Span { sequence, tables, start, tokens, certain, computed, parents, wanted, ..Span::default() }
    }
}

/// A part of an ask in one pass.
struct AskPart {
    ask: usize,
    /// The rows of the span that it computes.
    rows: Range<usize>,
    /// Which of the ask's wanted rows are among them.
    wanted: Range<usize>,
}

impl ExecutorScorer {
    /// Takes over an executor, all of whose pages are free.
    ///
    /// # Panics
    /// As [`Engine::new`](crate::Engine::new), if it has an encoder, which drafts cannot have yet, and if it reads
    /// hidden rows ([`ExecutorScorer::for_head`]).
    pub fn new(executor: Box<dyn Executor>) -> Self {
        assert_eq!(executor.capacity().hidden_in, None, "a head, of which it is not known which target it reads");
        Self::of(executor)
    }

    /// Takes over an executor that reads the hidden states of this target beside its tokens.
    ///
    /// # Errors
    /// It reads none, or not this target's: the field by which that shows.
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
        assert!(problem.is_none(), "an executor that says of itself {problem:?}");
        assert_eq!(capacity.sources, None, "a draft model with an encoder");
        let pages = Pages::that_keep_all(capacity);
        Self { executor, pages, sequences: BTreeMap::new(), not_numbers: 0 }
    }

    /// Whether it reads hidden rows beside its tokens.
    fn is_head(&self) -> bool {
        self.executor.capacity().hidden_in.is_some()
    }

    /// Checks the bookkeeping of pages, as [`Pages::check`].
    ///
    /// # Errors
    /// The first thing that is not in order.
    pub fn check_pages(&self) -> Result<(), String> {
        self.pages.check(self.sequences.values().map(|held| &held.pages))
    }

    /// The executor, for questions about it.
    pub fn executor(&self) -> &dyn Executor {
        &*self.executor
    }

    /// Makes room for the rows of an ask, if there is any; whether there is.
    /// (A tree may have more rows than the context positions; the executor itself refuses positions that it does not
    /// have.)
    fn make_room(&mut self, ask: &ScoreAsk<'_>) -> bool {
        let (is_head, has_states) = (self.is_head(), self.pages.has_states());
        let Self { pages, sequences, .. } = self;
        let held = sequences.get_mut(&ask.sequence).unwrap_or_else(|| panic!("{:?} was not opened", ask.sequence));
        if held.lost {
            return false;
        }
        let cached = ask.start + ask.computed;
        assert!(held.tokens.len() >= cached, "{cached} rows cached, found {}: {:?}", held.tokens.len(), ask.sequence);
        held.tokens.truncate(cached);
        held.tokens.extend_from_slice(&ask.tokens[ask.computed..]);
        held.good = if is_head { 0 } else { ask.start };
        held.base = if has_states { ask.start.min(ask.certain).max(held.pages.passed()) } else { ask.start };
        if held.base > ask.start {
            // Its drafter did not hear of rows that were run: a row was no number, or another sequence's pass panicked.
            held.lost = true;
            return false;
        }
        pages.enter_full(&mut held.pages, &held.tokens[..held.good]);
        let is_grown = pages.grow(&mut held.pages, ask.start + ask.tokens.len());
        if is_grown {
            pages.assert_own(&held.pages, cached..ask.start + ask.tokens.len());
        }
        is_grown
    }

    /// Runs the given parts in one pass, or each in one of its own if the executor refuses them together. Appends the
    /// wanted rows, the first of all asks being row `first`; an ask that cannot be run counts as done, and its rows are
    /// empty.
    fn run(
        &mut self,
        asks: &[ScoreAsk<'_>],
        done: &mut [usize],
        parts: &[AskPart],
        rows: &mut LogitRows,
        first: usize,
    ) {
        match (self.forward(asks, parts), parts) {
            (Ok(()), parts) => {
                // An ask is only begun when those before it are complete, so rows come in order; what was passed over
                // could not be run.
                let outputs = self.executor.outputs();
                rows.set_said(outputs.said().cloned());
                let is_head = self.is_head();
                let mut row = 0;
                for part in parts {
                    let before = first + asks[..part.ask].iter().map(|ask| ask.wanted.len()).sum::<usize>();
                    (rows.len()..before + part.wanted.start).for_each(|_| rows.push(None));
                    for _ in part.wanted.clone() {
                        let has_nan = outputs.has_nan(row);
                        self.not_numbers += u64::from(has_nan);
                        match is_head && !has_nan {
                            true => rows.push_with_hidden(outputs.row(row), outputs.hidden(0, row)),
                            false => rows.push((!has_nan).then(|| outputs.row(row))),
                        }
                        row += 1;
                    }
                    done[part.ask] = part.rows.end;
                    if self.pages.has_states() {
                        let held = self.sequences.get_mut(&asks[part.ask].sequence).expect("it was run");
                        let passed = held.base + held.certain(&asks[part.ask], part.rows.end);
                        held.pages.set_passed(passed.max(held.pages.passed()));
                    }
                }
            }
            (Err(_), [part]) => {
                let before = first + asks[..part.ask].iter().map(|ask| ask.wanted.len()).sum::<usize>();
                rows.refuse(before.min(rows.len())..(before + part.wanted.start).min(rows.len()));
                done[part.ask] = asks[part.ask].tokens.len();
                // A state that passed the parts before cannot be asked for them again.
                let held = self.sequences.get_mut(&asks[part.ask].sequence).expect("it was asked for");
                held.lost |= held.pages.passed() > held.base;
            }
            (Err(_), parts) => {
                parts.iter().for_each(|part| self.run(asks, done, std::slice::from_ref(part), rows, first));
            }
        }
    }

    fn forward(&mut self, asks: &[ScoreAsk<'_>], parts: &[AskPart]) -> Result<(), ExecutorError> {
        let laid_out: Vec<LaidOut> = match self.pages.has_states() {
            true => parts.iter().map(|part| self.sequences[&asks[part.ask].sequence].lay_out(asks, part)).collect(),
            false => Vec::new(),
        };
        // A head's own hidden rows, for the guesses that may follow its rows.
        let hidden_in = self.executor.capacity().hidden_in.as_ref();
        let hidden_layers: Vec<usize> = hidden_in.iter().map(|reads| reads.own_layer).collect();
        let span = |(i, part): (usize, &AskPart)| {
            let (ask, held) = (&asks[part.ask], &self.sequences[&asks[part.ask].sequence]);
            let (sequence, tables) = (ask.sequence.0, held.pages.tables());
            let span = match laid_out.get(i) {
                Some(laid_out) => laid_out.span(sequence, tables, held.base),
                None => Span {
                    sequence,
                    tables,
                    start: ask.start,
                    tokens: &ask.tokens[..part.rows.end],
                    computed: part.rows.start,
                    parents: &ask.parents[..part.rows.end.min(ask.parents.len())],
                    wanted: &ask.wanted[part.wanted.clone()],
                    ..Span::default()
                },
            };
            let hidden = if hidden_layers.is_empty() { &[][..] } else { span.wanted };
            Span { hidden, hidden_in: hidden_in_of(ask, part), ..span }
        };
        let spans: Vec<Span<'_>> = parts.iter().enumerate().map(span).collect();
        self.executor.forward(&Batch { spans: &spans, hidden_layers: &hidden_layers })
    }
}

/// The hidden rows that a part of an ask reads, as the executor is given them.
fn hidden_in_of<'a>(ask: &ScoreAsk<'a>, part: &AskPart) -> foretoken_model::HiddenInput<'a> {
    let first = if is_made(Fault::HiddenRowsOfFirstPart) { part.rows.start } else { ask.computed };
    let rows = part.rows.start - first..part.rows.end - first;
    match ask.hidden_in.part(rows, ask.tokens.len() - ask.computed) {
        HiddenInput::None => foretoken_model::HiddenInput::None,
        HiddenInput::Target(rows) => foretoken_model::HiddenInput::Target(rows),
        HiddenInput::Own(rows) => foretoken_model::HiddenInput::Own(rows),
    }
}

impl Scorer for ExecutorScorer {
    fn open(&mut self, sequence: SequenceId, tenant: Tenant) {
        let pages = self.pages.open(tenant, 0);
        let lost = self.executor.open(sequence.0, None).is_err();
        self.sequences.insert(sequence, Held { pages, tokens: Vec::new(), good: 0, base: 0, open: !lost, lost });
    }

    fn adopt(&mut self, sequence: SequenceId, tokens: &[Token]) -> usize {
        let Self { executor, pages, sequences, .. } = self;
        let held = sequences.get_mut(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        if held.lost {
            return 0;
        }
        // Nothing is relied on.
        if !held.begin_again(sequence, pages, &mut **executor) {
            return 0;
        }
        let adopted = pages.adopt(&mut held.pages, tokens, tokens.len());
        if !copy(&mut **executor, &held.pages, &adopted) {
            pages.release(&mut held.pages, &[]);
            return 0;
        }
        held.tokens.extend_from_slice(&tokens[..adopted.len]);
        held.good = adopted.len;
        adopted.len
    }

    fn score(&mut self, asks: &[ScoreAsk<'_>], rows: &mut LogitRows) {
        let first = rows.len();
        let rows_max = self.executor.capacity().rows_max;
        let mut done: Vec<usize> = asks.iter().map(|ask| ask.computed).collect();
        for (ask, done) in asks.iter().zip(&mut done) {
            // Without room there is nothing left to do for it, and no rows.
            if !self.make_room(ask) {
                *done = ask.tokens.len();
            }
        }
        loop {
            let (mut left, mut parts) = (rows_max, Vec::with_capacity(asks.len()));
            for (i, ask) in asks.iter().enumerate() {
                let end = ask.tokens.len().min(done[i] + left);
                if end > done[i] {
                    left -= end - done[i];
                    let wanted =
                        [done[i], end].map(|row| ask.wanted.partition_point(|wanted| (*wanted as usize) < row));
                    parts.push(AskPart { ask: i, rows: done[i]..end, wanted: wanted[0]..wanted[1] });
                }
            }
            if parts.is_empty() {
                break;
            }
            self.run(asks, &mut done, &parts, rows, first);
        }
        let all = asks.iter().map(|ask| ask.wanted.len()).sum::<usize>();
        (rows.len()..first + all).for_each(|_| rows.push(None));
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> usize {
        let Self { executor, pages, sequences, .. } = self;
        let Some(held) = sequences.get_mut(&sequence) else { return 0 };
        if len < held.pages.passed() {
            let tokens = held.tokens[..len.min(held.tokens.len())].to_vec();
            return self.adopt(sequence, &tokens);
        }
        let cut = pages.truncate(&mut held.pages, len);
        let left = if copy(&mut **executor, &held.pages, &cut) { cut.len } else { 0 };
        if left == 0 {
            held.begin_again(sequence, pages, &mut **executor);
        }
        held.tokens.truncate(left);
        held.good = held.good.min(left);
        left
    }

    fn target_layers(&self) -> &[usize] {
        self.executor.capacity().hidden_in.as_ref().map_or(&[], |reads| &reads.target_layers)
    }

    fn keep_path(&mut self, sequence: SequenceId, start: usize, rows: &[u32]) {
        let reads = &self.executor.capacity().hidden_in;
        assert!(reads.is_none(), "rows {rows:?} of guesses are to be kept, whose hidden rows were not the target's");
        if let Some(held) = self.sequences.get_mut(&sequence) {
            let from: Vec<usize> = rows.iter().map(|row| start + *row as usize).collect();
            self.pages.assert_own(&held.pages, start..start + rows.len());
            // A path whose rows could not be moved is no state to draft from: from now on nothing of this sequence can
            // be scored, as where there is no room.
            let moved = if is_made(Fault::DraftRowsNotMoved) {
                Ok(())
            } else {
                self.executor.rows(CacheEdit::Move { tables: held.pages.tables(), from: &from, to: start })
            };
            held.lost |= moved.is_err();
            from.iter().enumerate().for_each(|(i, from)| held.tokens[start + i] = held.tokens[*from]);
            held.tokens.truncate(start + from.len());
            held.good = if moved.is_ok() { held.tokens.len() } else { start };
            self.pages.truncate(&mut held.pages, start + from.len());
        }
    }

    fn close(&mut self, sequence: SequenceId) {
        if let Some(mut held) = self.sequences.remove(&sequence) {
            // What a state has passed is final, whether or not more was asked behind it.
            let is_head = self.is_head();
            let good = held.good.max(held.pages.passed()).min(held.tokens.len());
            let good = if held.lost || is_head { 0 } else { good };
            self.pages.release(&mut held.pages, &held.tokens[..good]);
            if held.open {
                self.executor.release(sequence.0);
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

/// Copies what is to be copied; whether it could be.
fn copy(executor: &mut dyn Executor, to: &SequencePages, adopted: &Adopted) -> bool {
    let Some(copied) = &adopted.copied else { return true };
    executor.rows(CacheEdit::Copy { from: &copied.from, to: to.tables(), positions: copied.positions.clone() }).is_ok()
}
