//! The step: plan, draft, one pass, verify, keep, report. The only caller of `verify`, and of its lossy form.
//!
//! After verification the accepted cache rows are moved right after the pending token's row, pages beyond them are
//! released, and drafters observe what was written. A sequence that cannot continue ends with a reason, and the other
//! sequences continue.

mod accepted;
mod admission;
mod beams;
mod check;
mod costs;
mod drafts;
mod forced;
mod observe;
mod saved;
mod scores;
mod stuck;

use foretoken_model::{Batch, Executor, ExecutorError, HiddenInput, Span};
use foretoken_speculation::{
    Chance, Context, Drafter, Law, NodeId, Pass, Scratch, SequenceId, Tenant, Token, verify, verify_leniently,
};

use crate::clock::{Clock, SystemClock};
use crate::drafting::Drafters;
use crate::faults::{Fault, is_made};
use crate::law::possible_law;
use crate::output::{Event, FinishReason};
use crate::pages::{Owner, Pages};
use crate::planner::{PassTiming, Planner, Scheduled};
use crate::request::{Request, RequestError};
use crate::sequence::{OutputCounts, Sequence, SpanRows};
use crate::sources::Sources;
use crate::stats::{PassTotals, StepTimes};
use accepted::{append_all, compact_accepted_path};
use observe::FirstRows;
use saved::PrefixToSave;
pub use saved::{SavedPrefix, SavedRows};

/// The loop: sequences, an executor, drafters, and the bookkeeping between them.
pub struct Engine {
    executor: Box<dyn Executor>,
    drafters: Drafters,
    planner: Planner,
    clock: Box<dyn Clock>,
    /// The passes of this step.
    timings: Vec<PassTiming>,
    times: StepTimes,
    totals: PassTotals,
    /// Whether the executor failed the latest pass.
    is_failing: bool,
    pages: Pages,
    sources: Sources,
    /// A prefix that is to be saved, for use by another engine.
    prefix_to_save: PrefixToSave,
    context: usize,
    sequences_max: usize,
    /// In order of rank.
    waiting: Vec<Sequence>,
    waiting_max: usize,
    /// In order of rank.
    running: Vec<Sequence>,
    scheduled: Vec<Scheduled>,
    scratch: Scratch,
    events: Vec<Event>,
    sequences_opened: u64,
    /// The number of the next request.
    next_request: u64,
}

impl Engine {
    /// An engine over an executor whose pages are all free, for up to `sequences_max` running sequences of up to
    /// `context` tokens each (never more than the network or its cache can hold).
    ///
    /// # Panics
    /// If the executor's capacity is invalid ([`foretoken_model::Capacity::problem`]), or it reads hidden states
    /// besides tokens, as heads do.
    pub fn new(executor: Box<dyn Executor>, sequences_max: usize, context: usize) -> Self {
        let capacity = executor.capacity();
        let problem = capacity.problem();
        assert!(problem.is_none(), "an executor of invalid capacity: {problem:?}");
        assert_eq!(capacity.hidden_in, None, "a target must read tokens alone, not hidden rows");
        let room = capacity.groups.iter().map(|group| group.room(capacity.rows_max)).min().unwrap_or(0);
        Self {
            pages: Pages::new(capacity),
            sources: Sources::new(capacity.sources.as_ref()),
            prefix_to_save: PrefixToSave::default(),
            context: context.min(capacity.context_max).min(room),
            sequences_max: sequences_max.max(1),
            executor,
            drafters: Drafters::default(),
            planner: Planner::default(),
            clock: Box::new(SystemClock::default()),
            timings: Vec::new(),
            times: StepTimes::default(),
            totals: PassTotals::default(),
            is_failing: false,
            waiting: Vec::new(),
            waiting_max: usize::MAX,
            running: Vec::new(),
            scheduled: Vec::new(),
            scratch: Scratch::default(),
            events: Vec::new(),
            sequences_opened: 0,
            next_request: 0,
        }
    }

    /// Adds a drafter and returns its number, by which requests refer to it.
    ///
    /// # Panics
    /// If a sequence is alive already, or there are 255, or it needs hidden states of layers that the network does not
    /// have.
    pub fn add_drafter(&mut self, drafter: Box<dyn Drafter>) -> u8 {
        assert!(self.is_idle(), "drafters are added before the first request");
        let number = self.drafters.add(drafter);
        let (needed, layers) = (self.drafters.hidden_layers(), self.executor.capacity().hidden.layers);
        assert!(needed.iter().all(|layer| *layer < layers), "hidden states of layers {needed:?} of {layers}");
        number
    }

    /// Uses another clock than the system's.
    pub fn set_clock(&mut self, clock: Box<dyn Clock>) {
        self.clock = clock;
    }

    /// Lets every drafter learn an earlier text, as [`Drafter::warm_up`].
    pub fn warm_up(&mut self, tokens: &[Token], prompt_len: usize, tenant: Option<Tenant>) {
        self.drafters.warm_up(tokens, prompt_len, tenant);
    }

    /// Maximum number of tokens of a sequence, prompt included.
    pub fn context(&self) -> usize {
        self.context
    }

    /// True if no sequence waits or runs.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// The number that the next request gets. Requests are numbered in the order in which they are submitted, from 0 or
    /// the number of [`Engine::set_next_request`] on; one that is refused takes no number.
    pub fn next_request(&self) -> u64 {
        self.next_request
    }

    /// Numbers requests from this number on; after `u64::MAX` comes 0.
    ///
    /// Under *rejection* and *block* a request's random numbers are made from its seed and this number
    /// ([`foretoken_speculation::Pass::request`]), so the same two repeat its output. While a drafter remembers the
    /// output of a request, no other request with the same seed may have the same number, or its output does not follow
    /// the target's law. So a program that teaches drafters texts of earlier runs ([`Engine::warm_up`]) stores the
    /// number with the texts and continues after it. Under *exact* the number has no effect; the noise of *exact* is
    /// that of number 0, so a program that runs requests of both promises with one seed begins with 1.
    pub fn set_next_request(&mut self, number: u64) {
        self.next_request = number;
    }

    /// Accepts a request; it runs from the next step that has room for it.
    ///
    /// # Errors
    /// [`RequestError`] if it could never run, or too many requests wait; nothing is changed then.
    pub fn submit(&mut self, mut request: Request) -> Result<SequenceId, RequestError> {
        self.check(&request)?;
        let id = SequenceId(self.sequences_opened);
        self.sequences_opened += 1;
        // Tokens beyond the context can never be written.
        request.prediction.truncate(self.context);
        let mut sequence = Sequence::new(id, request, self.context, self.drafters.len());
        sequence.request_number = self.next_request;
        let Request { tenant, source, public_prefix, .. } = &sequence.request;
        let number = source.as_ref().map(|source| self.sources.add_sequence(*tenant, source));
        // Rows that depend on a source are not shared with requests of other sources.
        let public_prefix = if number.is_some() { 0 } else { *public_prefix };
        let source = number.filter(|_| !is_made(Fault::PrefixOfAnotherSource)).unwrap_or(0);
        sequence.owner = Owner { tenant: *tenant, source };
        sequence.cache.pages = self.pages.open(sequence.owner, public_prefix);
        self.drafters.update_needs(&mut sequence);
        self.next_request = self.next_request.wrapping_add(1);
        self.enqueue(sequence);
        Ok(id)
    }

    /// Ends a sequence at the next step. Unknown sequences are ignored, since they have ended already.
    pub fn cancel(&mut self, sequence: SequenceId) {
        let mut all = self.waiting.iter_mut().chain(&mut self.running);
        if let Some(sequence) = all.find(|other| other.id == sequence) {
            sequence.finished = Some(FinishReason::Cancelled);
        }
    }

    /// Ends all sequences at the next step, the waiting ones too.
    pub fn cancel_all(&mut self) {
        let all = self.waiting.iter_mut().chain(&mut self.running);
        all.for_each(|sequence| sequence.finished = Some(FinishReason::Cancelled));
    }

    /// The times of the last step.
    pub fn last_step(&self) -> StepTimes {
        self.times
    }

    /// One pass over all running sequences. Returns the events, in order.
    pub fn step(&mut self, chance: &mut dyn Chance) -> &[Event] {
        let started = self.clock.now();
        self.events.clear();
        self.times = StepTimes::default();
        self.admit();
        self.planner.schedule(&self.running, self.executor.capacity(), &mut self.scheduled);
        let mut scheduled = std::mem::take(&mut self.scheduled);
        self.secure_pages(&mut scheduled);
        let drafted = self.draft(&scheduled, chance);
        let before: Vec<OutputCounts> = self.running.iter().map(Sequence::output_counts).collect();
        self.run(&scheduled, chance);
        self.learn(&scheduled, &drafted, &before);
        self.scheduled = scheduled;
        self.save_requested_prefix();
        self.retire();
        self.times.all = self.clock.since(started).unwrap_or_default();
        &self.events
    }

    /// Runs a pass over what is scheduled and processes its outputs. If the executor refuses the pass, each sequence
    /// gets a pass of its own, so that only those end that cannot be run; the rows of the others do not depend on the
    /// batch. Only the executor's time is recorded: the law of a written token is computed whether it was drafted or
    /// not.
    fn run(&mut self, scheduled: &[Scheduled], chance: &mut dyn Chance) {
        let started = self.clock.now();
        match (self.forward(scheduled), scheduled) {
            (Ok(()), _) => {
                let time = self.clock.since(started);
                let spans = || scheduled.iter().map(|entry| &self.running[entry.index].rows);
                let rows = spans().map(|rows| rows.tokens.len() - rows.computed).sum();
                let wanted = spans().map(|rows| rows.wanted.len()).sum();
                let read = self.executor.weights_read();
                self.timings.extend(time.map(|time| PassTiming { rows, wanted, seconds: time.as_secs_f64(), read }));
                self.totals.count(rows, read);
                self.times.rows += rows;
                self.times.passes += time.unwrap_or_default();
                self.process_outputs(scheduled, chance);
            }
            (Err(error), [entry]) => self.running[entry.index].finished = Some(FinishReason::Failed(error.to_string())),
            (Err(_), scheduled) => scheduled.iter().for_each(|entry| self.run(std::slice::from_ref(entry), chance)),
        }
    }

    /// Runs one pass of the executor.
    fn forward(&mut self, scheduled: &[Scheduled]) -> Result<(), ExecutorError> {
        if scheduled.is_empty() {
            return Ok(());
        }
        let vocabulary = self.executor.capacity().vocabulary;
        for entry in scheduled {
            let sequence = &mut self.running[entry.index];
            assert!(
                sequence.draft.tree.len() <= entry.nodes_max,
                "{} nodes of {}",
                sequence.draft.tree.len(),
                entry.nodes_max
            );
            sequence.lay_out_rows(entry.token_rows, vocabulary);
            let (start, SpanRows { tokens, computed, .. }) = (sequence.cache.cached, &sequence.rows);
            self.pages.assert_own(&sequence.cache.pages, start + computed..start + tokens.len());
        }
        let running = &self.running;
        let span = |entry: &Scheduled| {
            let sequence = &running[entry.index];
            Span {
                sequence: sequence.id.0,
                tables: sequence.cache.pages.tables(),
                start: sequence.cache.cached,
                tokens: &sequence.rows.tokens,
                certain: entry.certain,
                computed: sequence.rows.computed,
                parents: &sequence.rows.parents,
                wanted: &sequence.rows.wanted,
                hidden: &sequence.rows.hidden,
                hidden_in: HiddenInput::None,
            }
        };
        let spans: Vec<Span<'_>> = scheduled.iter().map(span).collect();
        let done = self.executor.forward(&Batch { spans: &spans, hidden_layers: self.drafters.hidden_layers() });
        self.is_failing = matches!(done, Err(ExecutorError::Failed { .. }));
        done
    }

    /// Processes the outputs of a pass for each sequence in it.
    fn process_outputs(&mut self, scheduled: &[Scheduled], chance: &mut dyn Chance) {
        let mut first_rows = FirstRows::default();
        for entry in scheduled {
            let sequence = &mut self.running[entry.index];
            let (start, prompt) = (sequence.cache.cached, sequence.request.prompt.len());
            sequence.cache.pages.set_passed(start + entry.certain);
            if sequence.cache.cached < prompt {
                let done = (sequence.cache.cached + entry.token_rows).min(prompt);
                let shared = sequence.stats.prompt_tokens_shared;
                self.events.push(Event::Prompt { sequence: sequence.id, done, total: prompt, shared });
            }
            let SpanRows { wanted, hidden, .. } = &sequence.rows;
            let next = FirstRows { wanted: first_rows.wanted + wanted.len(), hidden: first_rows.hidden + hidden.len() };
            let wanted = first_rows.wanted + self.report_scores(*entry, first_rows.wanted);
            let after_scores = FirstRows { wanted, ..first_rows };
            if self.running[entry.index].has_failed() {
                // A row that scores its prompt has a NaN.
            } else if self.running[entry.index].is_in_beam_search(entry.complete) {
                self.advance_beams(*entry, after_scores.wanted);
            } else if entry.complete {
                self.verify_sequence(*entry, after_scores, chance);
            } else {
                let sequence = &mut self.running[entry.index];
                sequence.stats.prompt_passes += 1;
                let cached = sequence.cache.cached + entry.token_rows;
                sequence.set_cached(cached);
                self.pages.commit(&mut sequence.cache.pages, &sequence.text.tokens[..cached]);
                if sequence.rows_left() == 0 {
                    sequence.finished.get_or_insert(FinishReason::Length);
                }
                self.let_drafters_observe(*entry, after_scores, cached, &[]);
            }
            if !self.running[entry.index].has_failed() {
                self.keep_checkpoint(entry.index, start + entry.token_rows - usize::from(entry.complete));
            }
            first_rows = next;
        }
    }

    /// Verifies one tree, and keeps the accepted tokens.
    fn verify_sequence(&mut self, entry: Scheduled, first_rows: FirstRows, chance: &mut dyn Chance) {
        let Self { running, scratch, executor, pages, events, .. } = self;
        let vocabulary = executor.capacity().vocabulary;
        let outputs = executor.outputs();
        let sequence = &mut running[entry.index];
        let old_len = sequence.text.tokens.len();
        let row_of = |node: Option<NodeId>| first_rows.wanted + node.map_or(0, |node| 1 + node.index());
        let (tree, request, tokens) = (&sequence.draft.tree, &sequence.request, &sequence.text.tokens);
        let (mut impossible, mut forced) = (Vec::new(), Vec::new());
        let (measured, lenience, sampling) = (request.measure, request.lenience(), request.verified_by());
        let mut overlaps: Vec<(Option<NodeId>, u8, f64)> = Vec::new();
        let mut law = |node: Option<NodeId>| {
            let path = node.map_or(Vec::new(), |node| tree.path(node));
            let constraint = request.constraint.as_ref();
            let context = Context { tokens, prompt_len: request.prompt.len(), path: &path, constraint };
            if let Some(token) = request.sampling.forced(vocabulary, &context) {
                forced.push(node);
                return Law::point(token);
            }
            let law = possible_law(outputs, row_of(node), &sampling, &context, scratch);
            // A node may be asked for again, if a token that was rejected as a part of a block is then accepted alone.
            let is_new = measured && !overlaps.iter().any(|(asked, ..)| *asked == node);
            if let Some(p) = law.as_ref().ok().filter(|_| is_new) {
                let overlap = |q: &Law| lenience.map_or_else(|| p.overlap(q), |lenience| lenience.overlap(p, q));
                overlaps.extend(tree.laws_under(node).map(|(source, q)| (node, source, overlap(q))));
            }
            law.unwrap_or_else(|why| {
                impossible.push((node, stuck::why_no_law(why, &request.sampling, &context, vocabulary)));
                Law::point(0)
            })
        };
        let start = sequence.place_of_noise() as u64;
        let pass = Pass { seed: request.seed, request: sequence.request_number, start };
        let mut verdict = match lenience {
            None => verify(tree, &mut law, request.promise, pass, chance),
            Some(lenience) => verify_leniently(tree, &mut law, lenience, pass, chance),
        };
        let failed = stuck::cut_at_impossible(&mut verdict, &impossible);

        let moved = compact_accepted_path(executor, sequence.cache.pages.tables(), &verdict.path, old_len);
        let outputs = executor.outputs();
        let mut emitted = append_all(sequence, &verdict, outputs, row_of, &forced);
        // The sequence may end before the end of the path.
        let kept = if moved.is_ok() { verdict.path.len().min(emitted.len()) } else { 0 };
        sequence.set_cached(old_len + kept);
        pages.commit(&mut sequence.cache.pages, &sequence.text.tokens[..old_len + kept]);
        let refused = !sequence.constraint_goes_on(old_len);
        stuck::end_if_stuck(sequence, failed, refused, moved);
        // Only nodes after which a token was written: block verification asks for laws of others too, and the sequence
        // may have ended.
        let places = &verdict.path[..emitted.len().saturating_sub(1).min(verdict.path.len())];
        overlaps.retain(|(node, ..)| node.is_none_or(|node| places.contains(&node)));
        let overlaps: Vec<(u8, f64)> = overlaps.into_iter().map(|(_, source, overlap)| (source, overlap)).collect();
        // A node is chosen by the law of its parent.
        let is_forced = |node: NodeId| forced.contains(&sequence.draft.tree.parent(node));
        let forced_nodes: Vec<NodeId> = verdict.path.iter().copied().filter(|node| is_forced(*node)).collect();
        sequence.count(&verdict.path, emitted.len(), |node| forced_nodes.contains(&node), &overlaps);
        if sequence.request.report_drafts && !sequence.draft.tree.is_empty() {
            let drafted = sequence.draft.drafted(&verdict.path[..verdict.path.len().min(emitted.len())]);
            events.push(Event::Drafts { sequence: sequence.id, drafted });
        }
        sequence.write_forced(vocabulary, &mut emitted);
        if !emitted.is_empty() {
            events.push(Event::Tokens { sequence: sequence.id, emitted });
        }
        self.let_drafters_observe(entry, first_rows, old_len, &verdict.path);
    }
}
