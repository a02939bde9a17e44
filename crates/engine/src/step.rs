//! The step: plan, draft, one pass, verify, keep, report. The one caller of `verify`.
//!
//! What was accepted is kept in one place: its cache rows are moved behind the pending token's, pages beyond them are
//! given back, drafters are told what was written. A sequence that cannot go on ends with a reason; the others do
//! not notice.

mod admission;
mod check;
mod costs;
mod drafts;
mod forced;
mod news;
mod saved;
mod scores;
mod stuck;

use foretoken_model::{Batch, CacheEdit, Executor, ExecutorError, HiddenInput, Outputs, PageTable, Span};
use foretoken_speculation::{
    Chance, Context, Drafter, Law, NodeId, Pass, Scratch, SequenceId, Tenant, Token, Verdict, verify,
};

use crate::clock::{Clock, SystemClock};
use crate::drafting::Drafters;
use crate::faults::{Fault, is_made};
use crate::law::{possible_law, told};
use crate::meter::{Made, Meter};
use crate::output::{Emitted, Event, FinishReason, Origin};
use crate::pages::{Owner, Pages};
use crate::request::{Request, RequestError};
use crate::scheduler::{Scheduled, plan, rows_beside, scoring_rows_max};
use crate::sequence::{Sequence, SpanRows, Written};
use crate::shared::Shared;
use crate::sources::Sources;
use crate::stats::{PassTotals, StepTimes};
use crate::weighing::Trials;
use news::FirstRows;
use saved::Wanted;
pub use saved::{SavedPrefix, SavedRows};

/// The loop: sequences, an executor, drafters, and the bookkeeping between them.
pub struct Engine {
    executor: Box<dyn Executor>,
    drafters: Drafters,
    /// What all sequences have learned of the drafters.
    shared: Shared,
    meter: Meter,
    clock: Box<dyn Clock>,
    trials: Trials,
    /// Passes of this step.
    made: Vec<Made>,
    times: StepTimes,
    totals: PassTotals,
    pages: Pages,
    sources: Sources,
    /// A prefix that is to be kept beyond this engine.
    wanted: Wanted,
    context: usize,
    sequences_max: usize,
    /// In order of rank, as the running ones.
    waiting: Vec<Sequence>,
    waiting_max: usize,
    running: Vec<Sequence>,
    scheduled: Vec<Scheduled>,
    scratch: Scratch,
    events: Vec<Event>,
    opened: u64,
    /// The number of the next request.
    next_request: u64,
}

impl Engine {
    /// An engine over an executor whose pages are all free, for up to `sequences_max` texts at a time of up to
    /// `context` tokens each (never more than the network or its cache can hold).
    ///
    /// # Panics
    /// If what the executor says of itself makes no sense ([`foretoken_model::Capacity::problem`]), or it reads hidden
    /// rows beside tokens, as heads do.
    pub fn new(executor: Box<dyn Executor>, sequences_max: usize, context: usize) -> Self {
        let capacity = executor.capacity();
        let problem = capacity.problem();
        assert!(problem.is_none(), "an executor that says of itself {problem:?}");
        assert_eq!(capacity.hidden_in, None, "a target that reads hidden rows, which nobody tells it");
        let room = capacity.groups.iter().map(|group| group.room(capacity.rows_max)).min().unwrap_or(0);
        Self {
            pages: Pages::new(capacity),
            sources: Sources::new(capacity.sources.as_ref()),
            wanted: Wanted::default(),
            context: context.min(capacity.context_max).min(room),
            sequences_max: sequences_max.max(1),
            executor,
            drafters: Drafters::default(),
            shared: Shared::default(),
            meter: Meter::default(),
            clock: Box::new(SystemClock::default()),
            trials: Trials::default(),
            made: Vec::new(),
            times: StepTimes::default(),
            totals: PassTotals::default(),
            waiting: Vec::new(),
            waiting_max: usize::MAX,
            running: Vec::new(),
            scheduled: Vec::new(),
            scratch: Scratch::default(),
            events: Vec::new(),
            opened: 0,
            next_request: 0,
        }
    }

    /// Adds a drafter and returns its number, by which requests choose it.
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

    /// Goes by another clock than the system's.
    pub fn set_clock(&mut self, clock: Box<dyn Clock>) {
        self.clock = clock;
    }

    /// Lets every drafter learn a text from before or elsewhere, as [`Drafter::warm_up`].
    pub fn warm_up(&mut self, tokens: &[Token], prompt_len: usize, tenant: Option<Tenant>) {
        self.drafters.warm_up(tokens, prompt_len, tenant);
    }

    /// Names of the drafters, by number.
    pub fn drafter_names(&self) -> Vec<&str> {
        self.drafters.names()
    }

    /// Tokens that a text can have, prompt included.
    pub fn context(&self) -> usize {
        self.context
    }

    /// True if nothing waits or runs.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// The number that the next request gets. Requests are numbered in the order in which they are submitted, from 0 on
    /// if [`Engine::set_next_request`] says nothing else; one that is refused takes no number.
    pub fn next_request(&self) -> u64 {
        self.next_request
    }

    /// Counts on from this number; after `u64::MAX` comes 0.
    ///
    /// Under *rejection* and *block* the seed and this number together are what a request's coins and draws are made of
    /// ([`foretoken_speculation::Pass::request`]): a text can be had again by giving both again. As long as a drafter
    /// remembers a text, no other request of its seed may have its number, or the law of that request's text is not
    /// kept. So who teaches texts of earlier runs ([`Engine::warm_up`]) keeps the number beside the texts, and
    /// continues behind it. Under *exact* the number means nothing; the noise of *exact* is that of number 0, so who
    /// runs requests of both promises with one seed side by side begins with 1.
    pub fn set_next_request(&mut self, number: u64) {
        self.next_request = number;
    }

    /// Takes a request; it runs from the next step that has room for it.
    ///
    /// # Errors
    /// [`RequestError`] if it could never run; nothing is changed then.
    pub fn submit(&mut self, mut request: Request) -> Result<SequenceId, RequestError> {
        self.check(&request)?;
        let id = SequenceId(self.opened);
        self.opened += 1;
        // No more of it can come true.
        request.prediction.truncate(self.context);
        let mut sequence = Sequence::new(id, request, self.context, self.drafters.len());
        sequence.number = self.next_request;
        let Request { tenant, source, public_prefix, .. } = &sequence.request;
        let number = source.as_ref().map(|source| self.sources.add_text(*tenant, source));
        // Rows of a text about something are nobody's who writes about something else.
        let public_prefix = if number.is_some() { 0 } else { *public_prefix };
        let source = number.filter(|_| !is_made(Fault::PrefixOfAnotherSource)).unwrap_or(0);
        sequence.whose = Owner { tenant: *tenant, source };
        sequence.pages = self.pages.open(sequence.whose, public_prefix);
        self.drafters.say_needs(&mut sequence);
        self.next_request = self.next_request.wrapping_add(1);
        self.wait(sequence);
        Ok(id)
    }

    /// Ends a sequence at the next step. Unknown sequences are ignored: they have ended already.
    pub fn cancel(&mut self, sequence: SequenceId) {
        let mut all = self.waiting.iter_mut().chain(&mut self.running);
        if let Some(sequence) = all.find(|other| other.id == sequence) {
            sequence.finished = Some(FinishReason::Cancelled);
        }
    }

    /// Ends all sequences at the next step, also those that wait.
    pub fn cancel_all(&mut self) {
        let all = self.waiting.iter_mut().chain(&mut self.running);
        all.for_each(|sequence| sequence.finished = Some(FinishReason::Cancelled));
    }

    /// What the last step took.
    pub fn last_step(&self) -> StepTimes {
        self.times
    }

    /// One pass over everything that runs. Returns what happened, in order.
    pub fn step(&mut self, chance: &mut dyn Chance) -> &[Event] {
        let started = self.clock.now();
        self.events.clear();
        self.times = StepTimes::default();
        self.admit();
        let rows_max = rows_beside(&self.running, self.meter.costs(), self.executor.capacity().rows_max);
        let scoring_max = scoring_rows_max(self.executor.capacity().vocabulary);
        plan(&self.running, rows_max, scoring_max, &mut self.scheduled);
        let mut scheduled = std::mem::take(&mut self.scheduled);
        self.secure_pages(&mut scheduled);
        let drafted = self.draft(&scheduled, chance);
        let written: Vec<Written> = self.running.iter().map(Sequence::written).collect();
        self.run(&scheduled, chance);
        self.learn(&scheduled, &drafted, &written);
        self.scheduled = scheduled;
        self.copy_wanted_prefix();
        self.retire();
        self.times.all = self.clock.since(started).unwrap_or_default();
        &self.events
    }

    /// A pass over what is scheduled, and its consequences. If the executor refuses it, each sequence gets a pass of
    /// its own, so that only those end that cannot be run; to the others it makes no difference in whose company they
    /// are. Only the network's time is noted: the law of a token that is written has to be made whether the token was
    /// drafted or not.
    fn run(&mut self, scheduled: &[Scheduled], chance: &mut dyn Chance) {
        let started = self.clock.now();
        match (self.forward(scheduled), scheduled) {
            (Ok(()), _) => {
                let time = self.clock.since(started);
                let of = || scheduled.iter().map(|entry| &self.running[entry.at].rows);
                let rows = of().map(|rows| rows.tokens.len()).sum();
                let wanted = of().map(|rows| rows.wanted.len()).sum();
                let read = self.executor.read();
                self.made.extend(time.map(|time| Made { rows, wanted, seconds: time.as_secs_f64(), read }));
                self.totals.count(rows, read);
                self.times.rows += rows;
                self.times.passes += time.unwrap_or_default();
                self.settle(scheduled, chance);
            }
            (Err(error), [entry]) => self.running[entry.at].finished = Some(FinishReason::Failed(error.to_string())),
            (Err(_), scheduled) => scheduled.iter().for_each(|entry| self.run(std::slice::from_ref(entry), chance)),
        }
    }

    fn forward(&mut self, scheduled: &[Scheduled]) -> Result<(), ExecutorError> {
        if scheduled.is_empty() {
            return Ok(());
        }
        let vocabulary = self.executor.capacity().vocabulary;
        for entry in scheduled {
            let sequence = &mut self.running[entry.at];
            assert!(sequence.tree.len() <= entry.nodes_max, "{} nodes of {}", sequence.tree.len(), entry.nodes_max);
            sequence.lay_out_rows(entry.take, vocabulary);
            self.pages.assert_own(&sequence.pages, sequence.cached..sequence.cached + sequence.rows.tokens.len());
        }
        let running = &self.running;
        let span = |entry: &Scheduled| {
            let sequence = &running[entry.at];
            Span {
                sequence: sequence.id.0,
                tables: sequence.pages.tables(),
                start: sequence.cached,
                tokens: &sequence.rows.tokens,
                certain: entry.certain,
                computed: 0,
                parents: &sequence.rows.parents,
                wanted: &sequence.rows.wanted,
                hidden: &sequence.rows.hidden,
                hidden_in: HiddenInput::None,
            }
        };
        let spans: Vec<Span<'_>> = scheduled.iter().map(span).collect();
        self.executor.forward(&Batch { spans: &spans, hidden_layers: self.drafters.hidden_layers() })
    }

    /// Draws the consequences of a pass for each sequence in it.
    fn settle(&mut self, scheduled: &[Scheduled], chance: &mut dyn Chance) {
        let mut first_rows = FirstRows::default();
        for entry in scheduled {
            let sequence = &mut self.running[entry.at];
            let (start, prompt) = (sequence.cached, sequence.request.prompt.len());
            sequence.pages.set_passed(start + entry.certain);
            if sequence.cached < prompt {
                let done = (sequence.cached + entry.take).min(prompt);
                let shared = sequence.stats.prompt_tokens_shared;
                self.events.push(Event::Prompt { sequence: sequence.id, done, total: prompt, shared });
            }
            let SpanRows { wanted, hidden, .. } = &sequence.rows;
            let next = FirstRows { wanted: first_rows.wanted + wanted.len(), hidden: first_rows.hidden + hidden.len() };
            let wanted = first_rows.wanted + self.tell_scores(*entry, first_rows.wanted);
            let behind = FirstRows { wanted, ..first_rows };
            if self.running[entry.at].has_failed() {
                // A row that scores its prompt was no number.
            } else if entry.complete {
                self.settle_sequence(*entry, behind, chance);
            } else {
                let sequence = &mut self.running[entry.at];
                sequence.stats.prompt_passes += 1;
                let cached = sequence.cached + entry.take;
                sequence.set_cached(cached);
                self.pages.commit(&mut sequence.pages, &sequence.tokens[..cached]);
                if sequence.rows_left() == 0 {
                    sequence.finished.get_or_insert(FinishReason::Length);
                }
                self.tell_drafters(*entry, behind, cached, &[]);
            }
            if !self.running[entry.at].has_failed() {
                self.keep_checkpoint(entry.at, start + entry.take - usize::from(entry.complete));
            }
            first_rows = next;
        }
    }

    /// Verifies one tree, and keeps what was accepted.
    fn settle_sequence(&mut self, entry: Scheduled, first_rows: FirstRows, chance: &mut dyn Chance) {
        let Self { running, scratch, executor, pages, events, .. } = self;
        let vocabulary = executor.capacity().vocabulary;
        let outputs = executor.outputs();
        let sequence = &mut running[entry.at];
        let old_len = sequence.tokens.len();
        let row_of = |node: Option<NodeId>| first_rows.wanted + node.map_or(0, |node| 1 + node.index());
        let (tree, request, tokens) = (&sequence.tree, &sequence.request, &sequence.tokens);
        let (mut impossible, mut forced) = (Vec::new(), Vec::new());
        let measured = request.measure;
        let mut overlaps: Vec<(Option<NodeId>, u8, f64)> = Vec::new();
        let mut law = |node: Option<NodeId>| {
            let path = node.map_or(Vec::new(), |node| tree.path(node));
            let constraint = request.constraint.as_ref();
            let context = Context { tokens, prompt_len: request.prompt.len(), path: &path, constraint };
            if let Some(token) = request.sampling.forced(vocabulary, &context) {
                forced.push(node);
                return Law::point(token);
            }
            let law = possible_law(outputs, row_of(node), &request.sampling, &context, scratch);
            // A place may be asked for again, if what was refused as a part of a block is then accepted by itself.
            let is_new = measured && !overlaps.iter().any(|(asked, ..)| *asked == node);
            if let Some(p) = law.as_ref().ok().filter(|_| is_new) {
                overlaps.extend(tree.laws_under(node).map(|(source, q)| (node, source, p.overlap(q))));
            }
            law.unwrap_or_else(|why| {
                impossible.push((node, stuck::why_no_law(why, &request.sampling, &context, vocabulary)));
                Law::point(0)
            })
        };
        let start = sequence.place_of_noise() as u64;
        let pass = Pass { seed: request.seed, request: sequence.number, start };
        let mut verdict = verify(tree, &mut law, request.promise, pass, chance);
        let failed = stuck::cut_at_impossible(&mut verdict, &impossible);

        let moved = close_ranks(executor, sequence.pages.tables(), &verdict.path, old_len);
        let outputs = executor.outputs();
        let mut emitted = append_all(sequence, &verdict, outputs, row_of, &forced);
        // An end may come before the end of the path.
        let kept = if moved.is_ok() { verdict.path.len().min(emitted.len()) } else { 0 };
        sequence.set_cached(old_len + kept);
        pages.commit(&mut sequence.pages, &sequence.tokens[..old_len + kept]);
        let refused = !sequence.constraint_goes_on(old_len);
        stuck::end_if_stuck(sequence, failed, refused, moved);
        // Where a token was chosen that was written: block verification asks for laws beyond, and an end may come
        // before.
        let places = &verdict.path[..emitted.len().saturating_sub(1).min(verdict.path.len())];
        overlaps.retain(|(node, ..)| node.is_none_or(|node| places.contains(&node)));
        let overlaps: Vec<(u8, f64)> = overlaps.into_iter().map(|(_, source, overlap)| (source, overlap)).collect();
        // What a node is chosen by is the law of its parent.
        let is_forced = |node: NodeId| forced.contains(&sequence.tree.parent(node));
        let forced_nodes: Vec<NodeId> = verdict.path.iter().copied().filter(|node| is_forced(*node)).collect();
        sequence.count(&verdict.path, emitted.len(), |node| forced_nodes.contains(&node), &overlaps);
        if sequence.request.report_drafts && !sequence.tree.is_empty() {
            let drafted = sequence.drafted(&verdict.path[..verdict.path.len().min(emitted.len())]);
            events.push(Event::Drafts { sequence: sequence.id, drafted });
        }
        sequence.write_forced(vocabulary, &mut emitted);
        if !emitted.is_empty() {
            events.push(Event::Tokens { sequence: sequence.id, emitted });
        }
        self.tell_drafters(entry, first_rows, old_len, &verdict.path);
    }
}

/// Moves the accepted rows, which lie behind the root's in tree order, right behind it; if they do not lie there
/// already.
fn close_ranks(
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

/// Appends the chosen tokens until one of them ends the sequence. `forced`: the places where nothing was to choose.
fn append_all(
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
        let offer = node.and_then(|node| sequence.tree.offers_of(node).next());
        let Request { log_probabilities: wanted, top_log_probabilities: top_len, .. } = sequence.request;
        let row = row_of(chosen_at);
        let told = (wanted || top_len > 0).then(|| told(outputs, row, *token, top_len, &sequence.request.sampling));
        let (log_probability, top) = told.unzip();
        emitted.push(sequence.append(Emitted {
            token: *token,
            origin: match offer {
                _ if forced.contains(&chosen_at) => Origin::Forced,
                Some(offer) => Origin::Drafted(offer.source),
                None => Origin::Target,
            },
            depth: node.map_or(0, |node| sequence.tree.depth(node)),
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
