//! The simulator runs engines with many random requests, and compares every output with the naive decoder.
//!
//! [`Run::of`] draws a run from a seed: a table, so few pages and rows that requests wait, drafters from the register,
//! and requests that arrive and are cancelled at any step, with shared prefixes, samplers, stop strings, constraints
//! and beam searches. [`Run::check`] checks that the tokens of each request and the bits of their log-probabilities are
//! those of [`decode`], that hypotheses are those of the naive search ([`beams::search`]), that its text ends where a
//! naive search finds the stop string, that every request ends exactly once, that no page is lost or held twice, that a
//! tenant shares only prefixes that it may know, that the rows of draft models are those of their tables, and that the
//! engine becomes idle. Some drafters fail sometimes. A run that fails is shrunk ([`Run::shrunk`]) before it is
//! printed, with one line per request.
//!
//! Only *exact* is simulated: under *rejection* the output of a seed depends on the other requests. Costs are fixed, so
//! no clock is involved. The executor fails only in passes of several sequences; other failures are tested elsewhere.

mod arrivals;
mod display;
mod failing;
mod open;
mod shrink;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foretoken_engine::{Engine, Event, FinishReason, Race, RequestError, Scored, panic_message};
use foretoken_model::Executor;
use foretoken_speculation::{Drafter, SequenceId, Token, log_probability};

use crate::beams::{self, Found};
use crate::conform::{self, drafters};
use crate::experts::{Experts, ExpertsExecutor, ManualClock};
use crate::forbidding::Forbidding;
use crate::oracle::{self, decode};
use crate::ranks::RanksExecutor;
use crate::table::Table;
use crate::toy::{Fault, ToyExecutor};
use crate::vocabulary;
use failing::Failing;
use open::{OpenRequest, Sharable};

pub use arrivals::Arrival;

/// The number of steps after which the bookkeeping of pages is checked.
const STEPS_PER_CHECK: usize = 4;
/// How many of the most probable tokens are requested with each token of a scored prompt.
const TOP: usize = 2;

/// A run of an engine, as data.
#[derive(Clone, Debug)]
pub struct Run {
    /// The seed of the target's table, its vocabulary, and the number of last tokens that its rows depend on.
    pub target: (u64, usize, usize),
    /// The numbers of positions per page, of pages, and of rows per pass.
    pub executor: [usize; 3],
    /// The executor's sliding window, if it has one, and the number of positions per page of its group.
    pub window: Option<[usize; 2]>,
    /// If the executor has recurrent states: the number of slots, and which passes fail if they have several sequences
    /// ([`ToyExecutor::with_failing_passes`]).
    pub states: Option<[usize; 2]>,
    /// Whether the executor has no cache but these states.
    pub states_alone: bool,
    /// If the executor has an encoder: the maximum number of tokens of a source, the number of positions per page of
    /// it, and of pages.
    pub encoder: Option<[usize; 3]>,
    /// Whether the executor's logits are remote.
    pub remote_logits: bool,
    /// Whether the executor is two ranks: then it has neither states nor an encoder, and local logits.
    pub ranks: bool,
    /// Whether the executor has experts, and local logits.
    pub experts: bool,
    /// Maximum number of sequences that run at a time.
    pub sequences_max: usize,
    /// The engine's drafters, by their indexes in the register; an index beyond its end is a drafter that fails
    /// sometimes.
    pub drafters: Vec<usize>,
    /// The requests, in the order in which they arrive.
    pub arrivals: Vec<Arrival>,
    /// The fault of the executor.
    pub fault: Fault,
    /// Whether the bookkeeping of pages is checked besides the outputs.
    pub pages_are_checked: bool,
}

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// Number of requests that ended.
    pub requests: usize,
    /// Number of requests that were cancelled before they were complete.
    pub cancelled: usize,
    /// Number of tokens written.
    pub tokens: usize,
    /// Number of tokens of prompts that were scored.
    pub scored: usize,
    /// Number of written tokens that had been drafted.
    pub accepted: usize,
    /// Number of tokens of prompts whose rows were shared.
    pub shared: usize,
    /// Number of shared tokens that were restored from checkpoints of recurrent states.
    pub continued: usize,
    /// Number of preemptions.
    pub preemptions: usize,
    /// Number of drafters that failed and were dropped for a request.
    pub dropped: usize,
    /// Number of beam searches that ended with their hypotheses.
    pub searches: usize,
    /// Number of their steps without a pass, and of rows that passes did not compute again.
    pub included: usize,
    /// Number of steps of the engine.
    pub steps: usize,
}

/// A token with the bits of its log-probability, 0 without one, and of the most probable tokens at its position.
type ScoredToken = (Token, u32, Vec<(Token, u32)>);

/// The expected output of a request.
#[derive(Default)]
struct Expected {
    tokens: Vec<(Token, u32)>,
    /// The tokens of its prompt, if they are scored.
    scored: Vec<ScoredToken>,
    text: String,
    stopped: bool,
    /// The hypotheses of a beam search, the best first.
    beams: Vec<Found>,
}

impl Run {
    /// Runs the engine and compares every output with the naive decoder.
    ///
    /// # Errors
    /// The first failure, panics included.
    pub fn check(&self) -> Result<Summary, String> {
        catch_unwind(AssertUnwindSafe(|| self.run()))
            .unwrap_or_else(|panic| Err(format!("panic: {}", panic_message(&*panic))))
    }

    /// The run's engine, and the counter of sequences that are open in the executor.
    fn engine(&self) -> (Engine, Arc<AtomicUsize>) {
        let (table, (executor, open)) = (self.table(), self.toy());
        let mut engine = Engine::new(executor, self.sequences_max, usize::MAX);
        let registered = drafters();
        for number in &self.drafters {
            let failing = || -> Box<dyn Drafter> { Box::new(Failing { vocabulary: table.vocabulary() }) };
            engine.add_drafter(registered.get(*number).map_or_else(failing, |drafter| (drafter.make)(&table)));
        }
        engine.hold_costs(conform::costs(self.drafters.len()));
        (engine, open)
    }

    /// The run's executor, and the counter of sequences that are open in it.
    fn toy(&self) -> (Box<dyn Executor>, Arc<AtomicUsize>) {
        let (table, [page_len, pages, rows_max]) = (self.table(), self.executor);
        if self.ranks {
            let toy = RanksExecutor::new(table, page_len, pages, rows_max).with_fault(self.fault);
            let open = toy.open_count();
            let toy = match self.window {
                Some([window, _]) => toy.with_window(window, self.sequences_max),
                None => toy,
            };
            return (Box::new(toy), open);
        }
        let mut toy = ToyExecutor::new(table, page_len, pages, rows_max);
        if let Some([window, page_len]) = self.window {
            toy = toy.with_window_in_pages(window, page_len, self.sequences_max);
        }
        if let Some([slots, fails_every]) = self.states {
            toy = toy.with_states(slots).with_failing_passes(fails_every);
            toy = if self.states_alone { toy.without_rows() } else { toy };
        }
        if let Some([len_max, page_len, pages]) = self.encoder {
            toy = toy.with_encoder(len_max, page_len, pages);
        }
        let open = toy.open_count();
        let toy = toy.with_fault(self.fault);
        if self.experts {
            return (Box::new(ExpertsExecutor::new(toy, Experts::default(), ManualClock::default())), open);
        }
        (toy.boxed(self.remote_logits), open)
    }

    fn table(&self) -> Table {
        let (seed, vocabulary, order) = self.target;
        Table::seeded(vocabulary, order, seed)
    }

    /// The source of a request, if there is an encoder, cut to the length that it reads.
    fn source<'a>(&self, arrival: &'a Arrival) -> Option<&'a [Token]> {
        self.encoder.map(|[len_max, ..]| &arrival.source[..len_max.min(arrival.source.len())])
    }

    fn run(&self) -> Result<Summary, String> {
        let ((mut engine, open_count), mut summary) = (self.engine(), Summary::default());
        let mut coming = self.arrivals.iter().peekable();
        let mut open: BTreeMap<SequenceId, OpenRequest<'_>> = BTreeMap::new();
        let mut sharable: Vec<Sharable> = Vec::new();
        // Each step writes or reads something, so a few times the number of all tokens is a bound on the steps.
        let work: usize = self.arrivals.iter().map(|arrival| arrival.prompt.len() + arrival.tokens_max + 4).sum();
        let last = self.arrivals.iter().map(|arrival| arrival.step).max().unwrap_or(0);
        while coming.peek().is_some() || !engine.is_idle() {
            while let Some(arrival) = coming.next_if(|arrival| arrival.step <= summary.steps) {
                let source = self.source(arrival).unwrap_or_default();
                let expected = self.expected(arrival, engine.context());
                let opened = OpenRequest::new((arrival, source), expected, sharable.len());
                match engine.submit(arrival.request(self)) {
                    Ok(id) => {
                        sharable.push(opened.sharable());
                        open.insert(id, opened);
                    }
                    // The request is too long for the context; other refusals are errors.
                    Err(_) if arrival.prompt.len() >= engine.context() => {}
                    // There is no room for all hypotheses.
                    Err(RequestError::Beams { field: "beams" | "tokens_max", .. }) => {}
                    Err(error) => return Err(format!("{arrival}: refused: {error}")),
                }
            }
            for (id, open) in &mut open {
                if open.cancel_after == Some(0) {
                    engine.cancel(*id);
                }
                open.cancel_after = open.cancel_after.and_then(|steps| steps.checked_sub(1));
            }
            for event in engine.step(&mut Race) {
                check_event(event, &mut open, &sharable, &mut summary)?;
            }
            if self.pages_are_checked && summary.steps.is_multiple_of(STEPS_PER_CHECK) {
                engine.check_pages()?;
            }
            summary.steps += 1;
            if summary.steps > last + 8 * work + 100 {
                return Err(format!("{} requests are not done after {} steps", open.len(), summary.steps));
            }
        }
        if self.pages_are_checked {
            engine.check_pages()?;
        }
        let still_open = open_count.load(Ordering::Relaxed);
        if still_open > 0 {
            return Err(format!("{still_open} sequences are open in the executor, and none runs"));
        }
        summary.continued = if self.states.is_some() { summary.shared } else { 0 };
        match open.keys().next() {
            Some(id) => Err(format!("{id:?} did not end")),
            None => Ok(summary),
        }
    }

    /// The expected output of a request, by the naive decoder.
    fn expected(&self, arrival: &Arrival, context: usize) -> Expected {
        let table = self.source(arrival).map_or(self.table(), |source| self.table().with_source(source));
        let room = context.saturating_sub(arrival.prompt.len()).min(arrival.tokens_max);
        if let Some(settings) = &arrival.beams {
            let beams = beams::search(&table, &arrival.sampling, &arrival.prompt, settings, room);
            return Expected { beams, ..Expected::default() };
        }
        let law =
            if arrival.constrained { Forbidding::applied_to(&table, arrival.prompt.len()) } else { table.clone() };
        let mut tokens = decode(&law, &arrival.sampling, arrival.seed, &arrival.prompt, room);
        let mut all = arrival.prompt.clone();
        let (mut text, mut stopped_after) = (String::new(), None);
        for (i, (token, bits)) in tokens.iter_mut().enumerate() {
            // Log-probabilities are those of the model without the constraint.
            *bits = if arrival.log_probabilities { log_probability(&table.logits(&all), *token).to_bits() } else { 0 };
            all.push(*token);
            if !arrival.sampling.end_tokens.contains(token) {
                text.push_str(vocabulary::word(*token));
            }
            if let Some(at) = arrival.stop.as_deref().and_then(|stop| text.find(stop)) {
                text.truncate(at);
                stopped_after = Some(i + 1);
                break;
            }
        }
        tokens.truncate(stopped_after.unwrap_or(tokens.len()));
        let stopped = stopped_after.is_some();
        let score = |(i, token): (usize, &Token)| {
            let row = (i > 0).then(|| table.logits(&arrival.prompt[..i]));
            let bits = row.as_ref().map_or(0, |row| log_probability(row, *token).to_bits());
            (*token, bits, row.map_or(Vec::new(), |row| oracle::top(&row, TOP)))
        };
        let scored = if arrival.scores_prompt { &arrival.prompt[..] } else { &[] };
        let scored = scored.iter().enumerate().map(score).collect();
        Expected { tokens, scored, text, stopped, beams: Vec::new() }
    }
}

/// Records an event, and compares the output so far.
fn check_event(
    event: &Event,
    open: &mut BTreeMap<SequenceId, OpenRequest<'_>>,
    sharable: &[Sharable],
    summary: &mut Summary,
) -> Result<(), String> {
    match event {
        Event::Prompt { .. } | Event::Drafts { .. } => {}
        Event::Beams { sequence, beams } => {
            let one = open.get_mut(sequence).ok_or_else(|| format!("{sequence:?} has beams after its end"))?;
            one.compare_beams(beams)?;
            summary.searches += 1;
        }
        Event::PromptScored { sequence, scored } => {
            let one = open.get_mut(sequence).ok_or_else(|| format!("{sequence:?} is scored after its end"))?;
            let bits = |value: Option<f32>| value.map_or(0, f32::to_bits);
            let scored_token = |one: &Scored| (one.token, bits(one.log_probability), conform::bits(&one.top));
            one.scored.extend(scored.iter().map(scored_token));
            summary.scored += scored.len();
            one.compare_scored(false)?;
        }
        Event::DrafterFailed { message, .. } if message == failing::MESSAGE => summary.dropped += 1,
        Event::DrafterFailed { sequence, drafter, message } => {
            return Err(format!("{sequence:?}: drafter {drafter} failed: {message}"));
        }
        Event::Tokens { sequence, emitted } => {
            let one = open.get_mut(sequence).ok_or_else(|| format!("{sequence:?} writes after its end"))?;
            let bits = |emitted: &foretoken_engine::Emitted| emitted.log_probability.map_or(0, f32::to_bits);
            one.tokens.extend(emitted.iter().map(|emitted| (emitted.token, bits(emitted))));
            one.text.push_str(&event.text());
            one.compare(false)?;
        }
        Event::Finished { sequence, reason, stats, .. } => {
            let mut one = open.remove(sequence).ok_or_else(|| format!("{sequence:?} ends twice"))?;
            one.text.push_str(&event.text());
            let cut = *reason == FinishReason::Cancelled;
            if cut && one.arrival.cancel_after.is_none() {
                return Err(format!("{}: cancelled without being asked to", one.arrival));
            }
            if matches!(reason, FinishReason::Failed(_)) && !one.tokens_are_impossible() {
                return Err(format!("{}: {reason:?}", one.arrival));
            }
            if !cut && !one.has_beams && !one.expected.beams.is_empty() {
                return Err(format!("{}: expected {:?}, found no beams", one.arrival, one.expected.beams));
            }
            one.compare(!cut)?;
            one.compare_scored(!cut)?;
            one.compare_shared(stats.prompt_tokens_shared, sharable)?;
            summary.requests += 1;
            summary.cancelled += usize::from(cut);
            summary.tokens += one.tokens.len();
            summary.accepted += stats.accepted;
            summary.included += stats.beams.included + stats.beams.kept;
            summary.shared += stats.prompt_tokens_shared;
            summary.preemptions += stats.preemptions;
        }
    }
    Ok(())
}

/// The name of a drafter of a run.
fn name(number: usize) -> &'static str {
    drafters().get(number).map_or("one that fails now and then", |drafter| drafter.name)
}
