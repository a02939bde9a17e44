//! The drafters of an engine, and how they are asked: in order, in batches, by the clock, and at their own risk.
//!
//! A drafter can do no harm. If it panics in a batch it is asked one request at a time for a while; if it panics for
//! one request alone, it is dropped for that request, whose text goes on without it, and a counter shows it. What it
//! had offered before stands: a drawn token must be offered whatever it is, and a tree is whole after every offer. A
//! drafter that goes on without room is dropped too, and its offers are cut where the room ended ([`lawful_offers`]).
//! One that offers a token that does not exist is dropped as well; the offer stands and is refused, since its
//! probability is zero. One that takes far too long twice in a row is dropped for good (`late`). (One thing cannot be
//! mended: who draws, looks, and panics instead of offering bends the law of *rejection* by that draw.)
//!
//! All drafters of a request fill one tree of candidates, of which [`foretoken_speculation::choose`] takes what is
//! verified. Under *exact* each may fill the whole budget; under the other promises, where draws cannot be taken back,
//! they share it ([`share`]). Where drafts are weighed by their costs, whoever does not pay is not asked (`weighing`).

mod late;
mod reading;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use foretoken_speculation::budget::Limits;
use foretoken_speculation::{
    Ask, Chance, Costs, DraftSettings, DraftTree, Drafter, Needs, News, Opening, Probes, Promise, Sampling, SequenceId,
    Tenant, Token, Work, lawful_offers, retain, share,
};

use crate::chance::Race;
use crate::clock::Clock;
use crate::meter::{Call, Meter};
use crate::output::Event;
use crate::panics::panic_message;
use crate::request::Request;
use crate::sequence::{HiddenRows, Sequence};
use crate::weighing::{Trials, Weighing, Who, unique};

pub(crate) use reading::Reading;

/// All drafters of an engine, by number.
#[derive(Default)]
pub(crate) struct Drafters {
    members: Vec<Member>,
    /// All layers whose hidden states somebody needs, ascending.
    hidden_layers: Vec<usize>,
}

struct Member {
    drafter: Box<dyn Drafter>,
    needs: Needs,
    /// For so many calls it is asked one request at a time, because it panicked for some request of a batch.
    suspect: usize,
    /// How often in a row it took far too long.
    late: usize,
    /// Why it is not asked any more, in this engine.
    out: Option<String>,
}

/// For how many calls a drafter that panicked in a batch is asked one request at a time.
const SUSPECT_CALLS: usize = 64;

impl Drafters {
    /// Adds a drafter and returns its number.
    pub(crate) fn add(&mut self, drafter: Box<dyn Drafter>) -> u8 {
        let number = u8::try_from(self.members.len()).ok().filter(|number| *number < u8::MAX);
        let needs = drafter.needs();
        self.hidden_layers.extend(&needs.hidden_layers);
        self.hidden_layers.sort_unstable();
        self.hidden_layers.dedup();
        self.members.push(Member { drafter, needs, suspect: 0, late: 0, out: None });
        number.expect("at most 255 drafters")
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.members.iter().map(|member| member.drafter.name()).collect()
    }

    /// All layers whose hidden states somebody needs.
    pub(crate) fn hidden_layers(&self) -> &[usize] {
        &self.hidden_layers
    }

    /// Those of these drafters that need hidden states of the prompt, or of what `is_written`.
    pub(crate) fn readers(&self, numbers: &[u8], is_written: bool) -> Vec<u8> {
        let needed = if is_written { HiddenRows::Written } else { HiddenRows::All };
        let reads = |number: &u8| hidden_rows(&self.members[usize::from(*number)].needs) >= needed;
        numbers.iter().copied().filter(reads).collect()
    }

    /// Lets every drafter learn a text from before or elsewhere.
    pub(crate) fn warm_up(&mut self, tokens: &[Token], prompt_len: usize, tenant: Option<Tenant>) {
        self.members.iter_mut().for_each(|member| member.drafter.warm_up(tokens, prompt_len, tenant));
    }

    /// Tells the drafters of a sequence that it begins.
    pub(crate) fn open(&mut self, sequence: &mut Sequence, events: &mut Vec<Event>) {
        let is_constrained = sequence.request.constraint.is_some();
        let drafts = |Member { out, needs, .. }: &Member| out.is_none() && (is_constrained || !needs.constraint);
        sequence.drafters.retain(|number| drafts(&self.members[usize::from(*number)]));
        self.say_needs(sequence);
        for number in sequence.drafters.clone() {
            let member = &mut self.members[usize::from(number)];
            let Request { prompt, tenant, prediction, .. } = &sequence.request;
            let opening = Opening { sequence: sequence.id, prompt, tenant: *tenant, prediction };
            if let Err(message) = guarded(|| member.drafter.open(&opening)) {
                self.drop_for(number, sequence, message, events);
            }
        }
    }

    /// Says what rows the drafters that a sequence still has need besides their trees.
    pub(crate) fn say_needs(&self, sequence: &mut Sequence) {
        let needs = || sequence.drafters.iter().map(|number| &self.members[usize::from(*number)].needs);
        let probes_max = needs().map(|needs| needs.probes_max).sum();
        let hidden_rows = needs().map(hidden_rows).max().unwrap_or(HiddenRows::None);
        (sequence.probes_max, sequence.hidden_rows) = (probes_max, hidden_rows);
    }

    /// Tells the drafters of a sequence that it has ended.
    pub(crate) fn close(&mut self, sequence: &Sequence) {
        for number in &sequence.drafters {
            let drafter = &mut self.members[usize::from(*number)].drafter;
            // It has ended: whatever goes wrong now can harm no text.
            guarded(|| drafter.close(sequence.id)).ok();
        }
    }

    /// Tells these drafters what came of a pass; what those say that failed at it. `news` is given the drafter's number
    /// and which of [`Drafters::hidden_layers`] it needs, for the rows that it asked for.
    pub(crate) fn tell(
        &mut self,
        numbers: &[u8],
        news: impl Fn(u8, &[usize], &mut dyn FnMut(News<'_>)),
    ) -> Vec<(u8, String)> {
        let mut failures = Vec::new();
        for number in numbers {
            let Member { drafter, needs, .. } = &mut self.members[usize::from(*number)];
            let all = &self.hidden_layers;
            let which = |layer: &usize| all.binary_search(layer).expect("added with its drafter");
            let layers: Vec<usize> = needs.hidden_layers.iter().map(which).collect();
            let told = guarded(|| news(*number, &layers, &mut |news| drafter.observe(&[news])));
            failures.extend(told.err().map(|message| (*number, message)));
        }
        failures
    }

    /// From now on the sequence does without this drafter.
    pub(crate) fn drop_for(&mut self, number: u8, sequence: &mut Sequence, message: String, events: &mut Vec<Event>) {
        sequence.drafters.retain(|other| *other != number);
        sequence.stats.drafters[usize::from(number)].failures += 1;
        let drafter = &mut self.members[usize::from(number)].drafter;
        guarded(|| drafter.close(sequence.id)).ok();
        self.say_needs(sequence);
        events.push(Event::DrafterFailed { sequence: sequence.id, drafter: number, message });
    }

    /// Lets the drafters of all sequences that take part in the pass and may draft offer their candidates.
    pub(crate) fn draft(&mut self, running: &mut [Sequence], pass: &mut DraftPass<'_>, chance: &mut dyn Chance) {
        self.drop_late(running, pass);
        // Whom each sequence asks in each round, settled before anybody is dropped.
        let turns: Vec<Vec<Option<u8>>> =
            running.iter().enumerate().map(|(at, sequence)| self.turns(at, sequence, pass)).collect();
        let rounds = turns.iter().map(Vec::len).max().unwrap_or(0);
        let asked = turns.iter().flatten().flatten().filter(|number| !pass.resting.contains(number));
        asked.for_each(|number| pass.trials.clear(*number));
        for round in 0..rounds {
            let to_come = |at: &usize| turns[*at][round + 1..].iter().flatten().count();
            for number in 0..self.members.len() as u8 {
                let is_turn = |at: &usize| turns[*at].get(round) == Some(&Some(number));
                let is_asked = |at: &usize| is_turn(at) && running[*at].drafters.contains(&number);
                let at: Vec<usize> = (0..running.len()).filter(is_asked).collect();
                let together = if self.members[usize::from(number)].suspect > 0 { 1 } else { at.len().max(1) };
                for at in at.chunks(together) {
                    let before: Vec<_> = at.iter().map(|at| Asked::now(&mut running[*at], to_come(at))).collect();
                    self.ask(number, &before, at, running, pass, chance);
                    for (at, before) in at.iter().zip(before) {
                        running[*at].asked.push(number);
                        let breach = before.breach(&mut running[*at], pass.vocabulary);
                        // It may have panicked as well, and be gone already.
                        let message = breach.filter(|_| running[*at].drafters.contains(&number));
                        if let Some(message) = message {
                            self.drop_for(number, &mut running[*at], message, pass.events);
                        }
                    }
                }
            }
        }
    }

    /// The drafters of a sequence in the order in which they would be asked, `None` for one that is not.
    fn turns(&self, at: usize, sequence: &Sequence, pass: &mut DraftPass<'_>) -> Vec<Option<u8>> {
        if sequence.nodes_max == 0 {
            return Vec::new();
        }
        let mut before: Vec<u8> = Vec::with_capacity(sequence.turns.len());
        let turn = |number: &u8| {
            let tried = pass.tried.len();
            let mut is_asked = !self.is_early(*number, sequence) && self.is_asked(*number, sequence, &before, pass);
            if is_asked && self.reads(*number, at, sequence, pass) {
                // What it reads was its price.
                pass.tried.truncate(tried);
                is_asked = false;
            }
            before.extend(is_asked.then_some(*number));
            is_asked.then_some(*number)
        };
        let is_last = |number: &&u8| self.members[usize::from(**number)].needs.constraint;
        let turns = sequence.turns.iter();
        turns.clone().filter(|number| !is_last(number)).chain(turns.filter(is_last)).map(turn).collect()
    }

    /// Whether a drafter needs the target's hidden states of the whole text, and was not told all of them yet: then it
    /// has nothing to draft from.
    fn is_early(&self, number: u8, sequence: &Sequence) -> bool {
        let needs = &self.members[usize::from(number)].needs;
        hidden_rows(needs) == HiddenRows::All && sequence.told() + 1 < sequence.tokens.len()
    }

    /// Whether a sequence asks this drafter, having asked those `before`.
    fn is_asked(&self, number: u8, sequence: &Sequence, before: &[u8], pass: &mut DraftPass<'_>) -> bool {
        if !sequence.request.budget.is_auto() {
            return true;
        }
        // One that cannot even say this is asked, and dropped if it fails again.
        let Some(who) = self.who(number, sequence, sequence.nodes_max) else { return true };
        let costs = pass.meter.costs();
        // What is forced cannot be noticed late.
        if !self.members[usize::from(number)].needs.constraint && !pass.weighing.is_due(sequence, costs, who) {
            return false;
        }
        if pass.weighing.is_worth_asking(sequence, costs, who, before) {
            return true;
        }
        pass.resting.push(number);
        // A long text is read in pieces, each of which has its price.
        let piece = Who { unread: who.unread.min(self.piece(number, pass)), ..who };
        let price = pass.weighing.trial(sequence, costs, piece);
        let is_tried = pass.trials.spend(number, price);
        pass.tried.extend(is_tried.then_some((number, price)));
        is_tried
    }

    /// Asks one drafter for drafts of the sequences `at`, together.
    fn ask(
        &mut self,
        number: u8,
        asked: &[Asked],
        at: &[usize],
        running: &mut [Sequence],
        pass: &mut DraftPass<'_>,
        chance: &mut dyn Chance,
    ) {
        let mut limits = at.iter().zip(asked).map(|(at, asked)| (*at, asked.limits)).peekable();
        let mut asks: Vec<Ask<'_>> = Vec::with_capacity(at.len());
        let (weighing, costs) = (pass.weighing, pass.meter.costs());
        asks.extend(running.iter_mut().enumerate().filter_map(|(i, sequence)| {
            let (_, limits) = limits.next_if(|(at, _)| *at == i)?;
            Some(ask_of(sequence, limits, number, &weighing, costs))
        }));
        let member = &mut self.members[usize::from(number)];
        member.suspect = member.suspect.saturating_sub(1);
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
        let call = work.map(|((before, after), time)| Call::between(before, after, at.len(), time));
        let is_late = call.as_ref().is_some_and(|call| pass.is_late(call));
        // What took so long says nothing of what it takes as a rule.
        if let Some(call) = call.filter(|_| !is_late) {
            pass.meter.learn_call(number, call);
            pass.seconds += call.expected(pass.meter.costs().drafter(number));
            let tried = pass.tried.iter().filter(|tried| tried.0 == number);
            // Where all were tried it is known what that took; by what is known of costs where these are held.
            let (count, price) = tried.fold((0, 0.0), |(count, sum), tried| (count + 1, sum + tried.1));
            if count == at.len() && !pass.meter.is_held() {
                pass.trials.charge(number, call.seconds - price);
            }
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
            (Err(_), _) => member.suspect = SUSPECT_CALLS,
        }
        self.drop_late(running, pass);
    }

    /// Measures what a step of each drafter with a network takes, and what it takes to read, on a text that is
    /// forgotten. `vocabulary`: tokens there are; `width`: elements of the target's hidden states.
    pub(crate) fn measure(&mut self, meter: &mut Meter, clock: &dyn Clock, [vocabulary, width]: [usize; 2]) {
        for number in 0..self.members.len() as u8 {
            let member = &mut self.members[usize::from(number)];
            let known = meter.costs().drafter(number).step > 0.0;
            if known || !matches!(guarded(|| member.drafter.work()), Ok(Some(_))) {
                continue;
            }
            // Whatever fails here fails again when it matters, and is told then.
            guarded(|| member.rehearse(number, meter, clock, [vocabulary, width])).ok();
            guarded(|| member.drafter.close(REHEARSAL)).ok();
        }
    }
}

/// Of which tokens a drafter needs hidden states.
fn hidden_rows(needs: &Needs) -> HiddenRows {
    match (needs.hidden_layers.is_empty(), needs.prompt_rows) {
        (true, _) => HiddenRows::None,
        (false, false) => HiddenRows::Written,
        (false, true) => HiddenRows::All,
    }
}

/// The sequence of a rehearsal, which no request has.
const REHEARSAL: SequenceId = SequenceId(u64::MAX);
/// Tokens that a rehearsal reads.
const REHEARSAL_LEN: usize = 32;

impl Member {
    /// What its network did so far, nothing if it has none; `None` if it cannot say.
    fn work(&self) -> Option<Work> {
        guarded(|| self.drafter.work().unwrap_or_default()).ok()
    }

    /// Drafts a few steps, then reads a few tokens.
    fn rehearse(&mut self, number: u8, meter: &mut Meter, clock: &dyn Clock, [vocabulary, width]: [usize; 2]) {
        // Any tokens: one alone could be without a text, which an assistant with other tokens would have nothing to do
        // for.
        let tokens: Vec<Token> =
            (0..3 + REHEARSAL_LEN).map(|i| (7919 * (i + 1) % vocabulary.max(1)) as Token).collect();
        self.drafter.open(&Opening::new(REHEARSAL, &tokens[..1]));
        let (mut calls, mut told) = (Vec::new(), 0);
        for (len, nodes_max) in [(1, 4), (2, 4), (3, 4), (3 + REHEARSAL_LEN, 1)] {
            let (mut tree, mut probes) = (DraftTree::new(), Probes::default());
            told = self.tell_nothing(&tokens[..len], told, width);
            let ask = Ask {
                sequence: REHEARSAL,
                tokens: &tokens[..len],
                written_len: len,
                prompt_len: 1,
                constraint: None,
                sampling: &Sampling { temperature: 0.0, ..Sampling::default() },
                settings: DraftSettings::default(),
                promise: Promise::Exact,
                seed: 0,
                request: 0,
                outlook: None,
                limits: Limits::nodes(nodes_max),
                tree: &mut tree,
                probes: &mut probes,
                source: number,
            };
            let before = self.work();
            let started = clock.now();
            self.drafter.draft(&mut [ask], &mut Race);
            let time = clock.since(started).unwrap_or_default();
            calls.extend(before.zip(self.work()).map(|(before, after)| Call::between(before, after, 1, time)));
        }
        // The first draft meets cold caches, and of the two after it one may have met a bad moment.
        let a_step = |call: &Call| call.seconds / call.passes.max(1) as f64;
        if let [_, second, third, reading] = calls[..] {
            let better = if a_step(&third) < a_step(&second) { third } else { second };
            [better, reading].into_iter().for_each(|call| meter.learn_call(number, call));
        }
    }

    /// Tells a rehearsal's hidden states, all zeros, from this position on, if the drafter needs them; up to where.
    fn tell_nothing(&mut self, tokens: &[Token], from: usize, width: usize) -> usize {
        let to = tokens.len() - 1;
        if hidden_rows(&self.needs) == HiddenRows::All && to > from {
            let (sequence, zeros, tree) = (REHEARSAL, vec![0.0; width], DraftTree::new());
            let hidden = vec![&zeros[..]; self.needs.hidden_layers.len() * (to - from)];
            let (emitted, path, probes, hidden_from) = (&[][..], &[][..], &[][..], from);
            let hidden = &hidden[..];
            self.drafter.observe(&[News { sequence, tokens, emitted, tree: &tree, path, probes, hidden_from, hidden }]);
        }
        to
    }
}

/// What drafting in one pass goes by, and what it leaves behind.
pub(crate) struct DraftPass<'a> {
    /// What the decisions go by.
    pub(crate) weighing: Weighing,
    /// Where times are learned.
    pub(crate) meter: &'a mut Meter,
    /// What the time is asked of.
    pub(crate) clock: &'a dyn Clock,
    /// What may be spent on drafters that rest.
    pub(crate) trials: &'a mut Trials,
    /// Tokens there are.
    pub(crate) vocabulary: usize,
    /// What happened.
    pub(crate) events: &'a mut Vec<Event>,
    /// What drafting takes by what is known of costs, in seconds.
    pub(crate) seconds: f64,
    /// What it took by the clock.
    pub(crate) time: Duration,
    /// Drafters that are not worth asking for some sequence.
    pub(crate) resting: Vec<u8>,
    /// Those that are tried all the same, once for each sequence, and at which price.
    pub(crate) tried: Vec<(u8, f64)>,
    /// Seconds for which draft models may still read in this pass; a text that takes longer is read in pieces.
    pub(crate) read_seconds: f64,
    /// Who reads of which running sequence, and up to where.
    pub(crate) reading: Vec<Reading>,
}

/// How far a drafter may go for a sequence, and what there was before it was asked.
struct Asked {
    limits: Limits,
    offers: usize,
    probes: usize,
}

impl Asked {
    /// For a drafter after which so many others are asked.
    fn now(sequence: &mut Sequence, to_come: usize) -> Asked {
        let nodes_max = share(sequence.request.promise, sequence.nodes_max, sequence.candidates.len(), to_come);
        let limits = Limits { nodes_max, ..sequence.budget.limits() };
        Asked { limits, offers: sequence.candidates.offers().len(), probes: sequence.probes.len() }
    }

    /// What the drafter did that it may not do. Its offers are cut where that is needed.
    fn breach(&self, sequence: &mut Sequence, vocabulary: usize) -> Option<String> {
        let is_unknown = |token: &Token| *token as usize >= vocabulary;
        let probe = sequence.probes.tokens()[self.probes..].iter().copied().find(is_unknown);
        let tree = &mut sequence.candidates;
        let offered = tree.offers()[self.offers..].iter().map(|offer| tree.token(offer.node)).find(is_unknown);
        let found = tree.len();
        if let Some(lawful) = lawful_offers(tree, self.offers, self.limits.nodes_max) {
            retain(tree, |offer| (offer.index as usize) < lawful);
            return Some(format!("expected a tree of at most {} nodes, found {found}", self.limits.nodes_max));
        }
        offered.or(probe).map(|found| format!("expected tokens below {vocabulary} (the vocabulary), found {found}"))
    }
}

fn ask_of<'a>(
    sequence: &'a mut Sequence,
    limits: Limits,
    number: u8,
    weighing: &Weighing,
    costs: &'a Costs,
) -> Ask<'a> {
    let Sequence {
        id,
        tokens,
        request,
        experience,
        candidates,
        probes,
        nodes_before,
        asked,
        number: request_number,
        ..
    } = sequence;
    let unique = unique(experience, asked, number);
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
        outlook: request.budget.is_auto().then(|| weighing.outlook(*nodes_before, experience, costs, unique)),
        limits,
        tree: candidates,
        probes,
        source: number,
    }
}

/// Runs what may panic, and says what it said.
fn guarded<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    // A drafter's own state may be left in pieces. It is then asked for one request at a time, and dropped where it
    // fails again; everything else that it can reach is whole after each call.
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| panic_message(&*panic))
}
