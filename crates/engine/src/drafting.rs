//! The drafters of an engine, and their calls: in order, in batches, timed, and with their faults isolated.
//!
//! No fault of a drafter changes an output. If a drafter panics in a batch, it is asked for one request at a time for a
//! while; if it panics for a single request, it is dropped for that request, which continues without it, and a counter
//! is increased. Its offers before the panic stay: a drawn token must be offered whatever it is, and a tree is valid
//! after every offer. A drafter that exceeds its budget is dropped for the request, and its offers are cut at the end
//! of the budget ([`lawful_offers`]). One that offers a token outside the vocabulary is dropped as well; the offer
//! stays and is rejected, since its probability is 0. One that exceeds a time limit twice in a row is dropped for all
//! requests (`late`). One fault cannot be isolated: a drafter that draws a token and panics before it offers it changes
//! the law of *rejection* by that draw.
//!
//! All drafters of a request fill one tree of candidates, from which the planner chooses the nodes to verify. Under
//! *exact* each may fill the whole budget; under the other promises, where draws cannot be dropped, they share it
//! ([`share`]). The planner also decides which drafters are asked (`planner`).

mod beams;
mod late;
mod measuring;
mod reading;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use foretoken_speculation::budget::Limits;
use foretoken_speculation::{
    Ask, Chance, Drafter, Needs, Opening, StepOutput, Tenant, Token, Work, lawful_offers, retain, share,
};

pub(crate) use beams::BeamLimits;

use crate::clock::Clock;
use crate::output::Event;
use crate::panics::panic_message;
use crate::planner::{DrafterCall, DrafterCandidate, PassPlan};
use crate::request::Request;
use crate::sequence::{HiddenRows, Sequence, SequenceDraft, SequenceText};

/// All drafters of an engine, by number.
#[derive(Default)]
pub(crate) struct Drafters {
    members: Vec<Member>,
    /// All layers whose hidden states some drafter needs, ascending.
    hidden_layers: Vec<usize>,
}

/// A drafter and what the engine knows of it.
struct Member {
    drafter: Box<dyn Drafter>,
    needs: Needs,
    /// The number of calls for which it is asked for one request at a time, because it panicked in a batch.
    isolated_calls: usize,
    /// The number of calls in a row that exceeded the time limit.
    late_calls: usize,
    /// Why it is no longer asked in this engine.
    dropped_because: Option<String>,
}

/// The number of calls for which a drafter that panicked in a batch is asked for one request at a time.
const ISOLATED_CALLS: usize = 64;

impl Drafters {
    /// Adds a drafter and returns its number.
    pub(crate) fn add(&mut self, drafter: Box<dyn Drafter>) -> u8 {
        let number = u8::try_from(self.members.len()).ok().filter(|number| *number < u8::MAX);
        let needs = drafter.needs();
        self.hidden_layers.extend(&needs.hidden_layers);
        self.hidden_layers.sort_unstable();
        self.hidden_layers.dedup();
        self.members.push(Member { drafter, needs, isolated_calls: 0, late_calls: 0, dropped_because: None });
        number.expect("at most 255 drafters")
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// All layers whose hidden states some drafter needs, ascending.
    pub(crate) fn hidden_layers(&self) -> &[usize] {
        &self.hidden_layers
    }

    /// The drafters among these that need hidden states: of generated tokens if `is_generated`, else of the prompt.
    pub(crate) fn readers(&self, numbers: &[u8], is_generated: bool) -> Vec<u8> {
        let needed = if is_generated { HiddenRows::Generated } else { HiddenRows::All };
        let reads = |number: &u8| hidden_rows(&self.members[usize::from(*number)].needs) >= needed;
        numbers.iter().copied().filter(reads).collect()
    }

    /// Lets every drafter learn an earlier text, as [`Drafter::warm_up`].
    pub(crate) fn warm_up(&mut self, tokens: &[Token], prompt_len: usize, tenant: Option<Tenant>) {
        self.members.iter_mut().for_each(|member| member.drafter.warm_up(tokens, prompt_len, tenant));
    }

    /// Opens a sequence in its drafters.
    pub(crate) fn open(&mut self, sequence: &mut Sequence, events: &mut Vec<Event>) {
        let is_constrained = sequence.request.constraint.is_some();
        let drafts = |Member { dropped_because, needs, .. }: &Member| {
            dropped_because.is_none() && (is_constrained || !needs.constraint)
        };
        sequence.draft.drafters.retain(|number| drafts(&self.members[usize::from(*number)]));
        if sequence.request.beams.is_some() {
            // One draft model drafts for all hypotheses.
            sequence.draft.drafters.retain(|number| self.drafts_beams(*number));
            sequence.draft.drafters.truncate(1);
        }
        self.update_needs(sequence);
        for number in sequence.draft.drafters.clone() {
            let member = &mut self.members[usize::from(number)];
            let Request { prompt, tenant, prediction, source, .. } = &sequence.request;
            let source = source.as_deref().unwrap_or_default();
            let opening = Opening { sequence: sequence.id, prompt, tenant: *tenant, prediction, source };
            if let Err(message) = guarded(|| member.drafter.open(&opening)) {
                self.drop_for(number, sequence, message, events);
            }
        }
    }

    /// Updates which rows a sequence's remaining drafters need besides their trees.
    pub(crate) fn update_needs(&self, sequence: &mut Sequence) {
        let needs = || sequence.draft.drafters.iter().map(|number| &self.members[usize::from(*number)].needs);
        let probes_max = needs().map(|needs| needs.probes_max).sum();
        let hidden_rows = needs().map(hidden_rows).max().unwrap_or(HiddenRows::None);
        (sequence.draft.probes_max, sequence.draft.hidden_rows) = (probes_max, hidden_rows);
    }

    /// Closes a sequence in its drafters.
    pub(crate) fn close(&mut self, sequence: &Sequence) {
        for number in &sequence.draft.drafters {
            let drafter = &mut self.members[usize::from(*number)].drafter;
            // The sequence has ended, so a failure has no effect on it.
            guarded(|| drafter.close(sequence.id)).ok();
        }
    }

    /// Lets these drafters observe a pass. Returns the messages of those that failed. `outputs` is called with a
    /// drafter's number, the indices in [`Drafters::hidden_layers`] of the layers that it needs, and its `observe`.
    pub(crate) fn observe(
        &mut self,
        numbers: &[u8],
        outputs: impl Fn(u8, &[usize], &mut dyn FnMut(StepOutput<'_>)),
    ) -> Vec<(u8, String)> {
        let mut failures = Vec::new();
        for number in numbers {
            let Member { drafter, needs, .. } = &mut self.members[usize::from(*number)];
            let all = &self.hidden_layers;
            let which = |layer: &usize| all.binary_search(layer).expect("the layers of every drafter were added");
            let layers: Vec<usize> = needs.hidden_layers.iter().map(which).collect();
            let observed = guarded(|| outputs(*number, &layers, &mut |output| drafter.observe(&[output])));
            failures.extend(observed.err().map(|message| (*number, message)));
        }
        failures
    }

    /// Drops this drafter for the sequence, which continues without it.
    pub(crate) fn drop_for(&mut self, number: u8, sequence: &mut Sequence, message: String, events: &mut Vec<Event>) {
        sequence.draft.drafters.retain(|other| *other != number);
        sequence.stats.drafters[usize::from(number)].failures += 1;
        let drafter = &mut self.members[usize::from(number)].drafter;
        guarded(|| drafter.close(sequence.id)).ok();
        self.update_needs(sequence);
        events.push(Event::DrafterFailed { sequence: sequence.id, drafter: number, message });
    }

    /// Asks the drafters of all sequences of the pass for candidates.
    pub(crate) fn draft(&mut self, running: &mut [Sequence], pass: &mut DraftPass<'_>, chance: &mut dyn Chance) {
        self.drop_late(running, pass);
        // The drafter of each sequence in each round, decided before any drafter is dropped.
        let turns: Vec<Vec<Option<u8>>> =
            running.iter().enumerate().map(|(at, sequence)| self.turns(at, sequence, pass)).collect();
        let rounds = turns.iter().map(Vec::len).max().unwrap_or(0);
        pass.plan.clear_trials(turns.iter().flatten().flatten().copied());
        for round in 0..rounds {
            let to_come = |at: &usize| turns[*at][round + 1..].iter().flatten().count();
            for number in 0..self.members.len() as u8 {
                let is_turn = |at: &usize| turns[*at].get(round) == Some(&Some(number));
                let is_asked = |at: &usize| is_turn(at) && running[*at].draft.drafters.contains(&number);
                let at: Vec<usize> = (0..running.len()).filter(is_asked).collect();
                let together = if self.members[usize::from(number)].isolated_calls > 0 { 1 } else { at.len().max(1) };
                for at in at.chunks(together) {
                    let bounds: Vec<_> = at.iter().map(|at| CallBounds::now(&mut running[*at], to_come(at))).collect();
                    self.ask(number, &bounds, at, running, pass, chance);
                    for (at, bounds) in at.iter().zip(bounds) {
                        running[*at].draft.asked.push(number);
                        let violation = bounds.violation(&mut running[*at], pass.vocabulary);
                        // The drafter may have panicked as well, and have been dropped already.
                        let message = violation.filter(|_| running[*at].draft.drafters.contains(&number));
                        if let Some(message) = message {
                            self.drop_for(number, &mut running[*at], message, pass.events);
                        }
                    }
                }
            }
        }
    }

    /// The drafters of a sequence in the order in which they are asked, `None` for one that is not.
    fn turns(&self, at: usize, sequence: &Sequence, pass: &mut DraftPass<'_>) -> Vec<Option<u8>> {
        if sequence.draft.nodes_max == 0 {
            return Vec::new();
        }
        let mut before: Vec<u8> = Vec::with_capacity(sequence.draft.asking_order.len());
        let turn = |number: &u8| {
            // A drafter that panics here is asked, and dropped if it panics again.
            let asks = |candidate| pass.plan.is_asked(at, candidate, sequence, &before);
            let is_asked = !self.lacks_hidden_states(*number, sequence)
                && self.candidate(*number, sequence, sequence.draft.nodes_max).is_none_or(asks);
            before.extend(is_asked.then_some(*number));
            is_asked.then_some(*number)
        };
        let is_last = |number: &&u8| self.members[usize::from(**number)].needs.constraint;
        let turns = sequence.draft.asking_order.iter();
        turns.clone().filter(|number| !is_last(number)).chain(turns.filter(is_last)).map(turn).collect()
    }

    /// Whether a drafter needs the target's hidden states of the whole sequence and has not observed all of them, so
    /// that it cannot draft.
    fn lacks_hidden_states(&self, number: u8, sequence: &Sequence) -> bool {
        let needs = &self.members[usize::from(number)].needs;
        hidden_rows(needs) == HiddenRows::All && sequence.hidden_observed() + 1 < sequence.text.tokens.len()
    }

    /// What the planner needs to know of a drafter that may be asked for a tree of `nodes_max` nodes; `None` if it
    /// panics.
    fn candidate(&self, number: u8, sequence: &Sequence, nodes_max: usize) -> Option<DrafterCandidate> {
        let Member { drafter, needs, .. } = &self.members[usize::from(number)];
        let answer = guarded(|| (drafter.work().is_some(), drafter.unread(sequence.id, sequence.text.tokens.len())));
        let (has_network, unread) = answer.ok()?;
        Some(DrafterCandidate {
            number,
            has_network,
            needs_constraint: needs.constraint,
            reads_hidden: hidden_rows(needs) == HiddenRows::All,
            unread,
            probes: needs.probes_max,
            nodes_max,
        })
    }

    /// Asks one drafter for drafts of the sequences `at`, in one call.
    fn ask(
        &mut self,
        number: u8,
        bounds: &[CallBounds],
        at: &[usize],
        running: &mut [Sequence],
        pass: &mut DraftPass<'_>,
        chance: &mut dyn Chance,
    ) {
        let mut limits = at.iter().zip(bounds).map(|(at, bounds)| (*at, bounds.limits)).peekable();
        let mut asks: Vec<Ask<'_>> = Vec::with_capacity(at.len());
        asks.extend(running.iter_mut().enumerate().filter_map(|(i, sequence)| {
            let (_, limits) = limits.next_if(|(at, _)| *at == i)?;
            Some(ask_of(sequence, limits, number, &pass.plan))
        }));
        let member = &mut self.members[usize::from(number)];
        member.isolated_calls = member.isolated_calls.saturating_sub(1);
        let before = member.work();
        let started = pass.clock.now();
        let drafted = guarded(|| member.drafter.draft(&mut asks, chance));
        let time = pass.clock.since(started);
        drop(asks);
        let after = member.work();
        let drafted = drafted.and_then(|()| match before.zip(after) {
            Some((before, after)) if after.not_numbers > before.not_numbers => {
                Err("expected logits that are numbers, found NaN".to_string())
            }
            _ => Ok(()),
        });
        let work = before.zip(after).zip(time);
        let call = work.map(|((before, after), time)| DrafterCall::between(before, after, at.len(), time));
        let is_late = call.as_ref().is_some_and(|call| pass.is_late(call));
        // A time beyond the limit is an outlier and is not learned.
        if let Some(call) = call.filter(|_| !is_late) {
            pass.plan.learn_drafting(number, call, at.len());
        }
        let time = time.unwrap_or_default();
        member.note_time(is_late, time);
        pass.time += time;
        let share = time / at.len() as u32;
        for at in at {
            running[*at].stats.drafters[usize::from(number)].time += share;
        }
        match (drafted, at) {
            (Ok(()), _) => {}
            (Err(message), [at]) => self.drop_for(number, &mut running[*at], message, pass.events),
            (Err(_), _) => member.isolated_calls = ISOLATED_CALLS,
        }
        self.drop_late(running, pass);
    }
}

/// The tokens whose hidden states a drafter needs.
fn hidden_rows(needs: &Needs) -> HiddenRows {
    match (needs.hidden_layers.is_empty(), needs.prompt_rows) {
        (true, _) => HiddenRows::None,
        (false, false) => HiddenRows::Generated,
        (false, true) => HiddenRows::All,
    }
}

impl Member {
    /// The counters of its network, zeros if it has none; `None` if it panics.
    fn work(&self) -> Option<Work> {
        guarded(|| self.drafter.work().unwrap_or_default()).ok()
    }
}

/// The inputs of drafting in one pass, and its results besides the candidates.
pub(crate) struct DraftPass<'a> {
    /// Decides which drafters are asked, and how far each goes.
    pub(crate) plan: PassPlan<'a>,
    pub(crate) clock: &'a dyn Clock,
    /// Number of tokens.
    pub(crate) vocabulary: usize,
    pub(crate) events: &'a mut Vec<Event>,
    /// Time of the drafters by the clock.
    pub(crate) time: Duration,
}

/// The limits of a call for one sequence, and the number of offers and probes before it.
struct CallBounds {
    limits: Limits,
    offers: usize,
    probes: usize,
}

impl CallBounds {
    /// The bounds of a drafter, after which `to_come` others are asked.
    fn now(sequence: &mut Sequence, to_come: usize) -> CallBounds {
        let nodes_max =
            share(sequence.request.promise, sequence.draft.nodes_max, sequence.draft.candidates.len(), to_come);
        let limits = Limits { nodes_max, ..sequence.draft.budget.limits() };
        CallBounds { limits, offers: sequence.draft.candidates.offers().len(), probes: sequence.draft.probes.len() }
    }

    /// The rule that the drafter has broken, if any. Offers beyond its limit are removed.
    fn violation(&self, sequence: &mut Sequence, vocabulary: usize) -> Option<String> {
        let is_unknown = |token: &Token| *token as usize >= vocabulary;
        let probe = sequence.draft.probes.tokens()[self.probes..].iter().copied().find(is_unknown);
        let tree = &mut sequence.draft.candidates;
        let offered = tree.offers()[self.offers..].iter().map(|offer| tree.token(offer.node)).find(is_unknown);
        let found = tree.len();
        if let Some(lawful) = lawful_offers(tree, self.offers, self.limits.nodes_max) {
            retain(tree, |offer| (offer.index as usize) < lawful);
            return Some(format!("expected a tree of at most {} nodes, found {found}", self.limits.nodes_max));
        }
        offered.or(probe).map(|found| format!("expected tokens below {vocabulary} (the vocabulary), found {found}"))
    }
}

/// The ask of a drafter for a sequence.
fn ask_of<'a>(sequence: &'a mut Sequence, limits: Limits, number: u8, plan: &'a PassPlan<'_>) -> Ask<'a> {
    let Sequence { id, request_number, request, text: SequenceText { tokens, .. }, draft, .. } = sequence;
    let SequenceDraft { experience, candidates, probes, nodes_before, asked, .. } = draft;
    let is_auto = request.budget.is_auto();
    Ask {
        sequence: *id,
        tokens,
        written_len: tokens.len(),
        prompt_len: request.prompt.len(),
        sampling: &request.sampling,
        constraint: request.constraint.as_ref(),
        settings: request.draft,
        promise: request.promise,
        seed: request.seed,
        request: *request_number,
        outlook: is_auto.then(|| plan.outlook(number, *nodes_before, experience, asked)),
        limits,
        tree: candidates,
        probes,
        source: number,
    }
}

/// Runs a call that may panic, and returns the panic's message.
fn guarded<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    // After a panic the drafter's own state may be inconsistent: it is asked for one request at a time, and dropped for
    // those in which it fails again. All other state that it can reach is consistent after each call.
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| panic_message(&*panic))
}
