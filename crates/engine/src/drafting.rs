//! The drafters of an engine, and how they are asked: in order, in batches, by the clock, and at their own risk.
//!
//! A drafter can do no harm. If it panics in a batch it is asked one request at a time for a while; if it panics for one
//! request alone, it is dropped for that request, whose text goes on without it, and a counter shows it. What it had
//! offered before stands: a drawn token must be offered whatever it is, and a tree is whole after every offer. A drafter
//! that goes on without room is dropped too, and its offers are cut where the room ended ([`lawful_offers`]). One that
//! offers a token that does not exist is dropped as well; the offer stands and is refused, since its probability is zero.
//! (One thing cannot be mended: who draws, looks, and panics instead of offering bends the law of *rejection* by that draw.)
//!
//! Several drafters of one request fill a tree of candidates, of which [`merge`] takes the best. Under *exact* each may
//! fill the whole budget; under the other promises, where draws cannot be taken back, they share it ([`share`]).

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use foretoken_speculation::budget::{Limits, foreseen};
use foretoken_speculation::draft::{lawful_offers, merge, retain, share};
use foretoken_speculation::{Ask, Chance, Drafter, News, SequenceId, Tenant, Token};

use crate::output::Event;
use crate::request::BudgetKind;
use crate::scheduler::Part;
use crate::sequence::Sequence;

/// All drafters of an engine, by number.
#[derive(Default)]
pub(crate) struct Team {
    members: Vec<Member>,
}

struct Member {
    drafter: Box<dyn Drafter>,
    /// For so many calls it is asked one request at a time, because it panicked for some request of a batch.
    suspect: usize,
}

/// For how many calls a drafter that panicked in a batch is asked one request at a time.
const SUSPECT_CALLS: usize = 64;

impl Team {
    /// Adds a drafter and returns its number.
    pub(crate) fn add(&mut self, drafter: Box<dyn Drafter>) -> u8 {
        let number = u8::try_from(self.members.len()).ok().filter(|number| *number < u8::MAX);
        self.members.push(Member { drafter, suspect: 0 });
        number.expect("at most 255 drafters")
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.members.iter().map(|member| member.drafter.name()).collect()
    }

    /// Lets every drafter learn a text from before or elsewhere.
    pub(crate) fn warm_up(&mut self, tokens: &[Token], prompt_len: usize, tenant: Option<Tenant>) {
        self.members.iter_mut().for_each(|member| member.drafter.warm_up(tokens, prompt_len, tenant));
    }

    /// Tells the drafters of a sequence that it begins.
    pub(crate) fn open(&mut self, sequence: &mut Sequence, events: &mut Vec<Event>) {
        for number in sequence.drafters.clone() {
            let drafter = &mut self.members[usize::from(number)].drafter;
            let request = &sequence.request;
            let opened = guarded(|| {
                drafter.open(sequence.id, &request.prompt, request.tenant);
                drafter.probes_max()
            });
            match opened {
                Ok(probes_max) => sequence.probes_max += probes_max,
                Err(message) => self.drop_for(number, sequence, message, events),
            }
        }
    }

    /// Tells the drafters of a sequence that it has ended.
    pub(crate) fn close(&mut self, sequence: &Sequence) {
        for number in &sequence.drafters {
            let drafter = &mut self.members[usize::from(*number)].drafter;
            // It has ended: whatever goes wrong now can harm no text.
            guarded(|| drafter.close(sequence.id)).ok();
        }
    }

    /// Tells the drafters of a sequence what came of a pass. `cached`: the length that everyone goes back to. `news` is
    /// given the drafter's number, for the rows that it asked for.
    pub(crate) fn settle<'n>(
        &mut self,
        sequence: SequenceId,
        numbers: &[u8],
        cached: usize,
        news: impl Fn(u8, &mut dyn FnMut(News<'_>)) + 'n,
    ) -> Vec<(u8, String)> {
        let mut failures = Vec::new();
        for number in numbers {
            let drafter = &mut self.members[usize::from(*number)].drafter;
            let told = guarded(|| {
                drafter.keep(sequence, cached);
                news(*number, &mut |news| drafter.observe(&[news]));
            });
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
        events.push(Event::DrafterFailed { sequence: sequence.id, drafter: number, message });
    }

    /// Fills the trees of all sequences that take part in the pass and may draft.
    pub(crate) fn draft(
        &mut self,
        running: &mut [Sequence],
        parts: &[Part],
        vocabulary: usize,
        chance: &mut dyn Chance,
        events: &mut Vec<Event>,
    ) {
        running.iter_mut().for_each(|sequence| sequence.clear_draft());
        let mut nodes_max = vec![0; running.len()];
        for part in parts {
            nodes_max[part.at] = part.nodes_max;
            running[part.at].probes.clear(part.probes_max);
        }
        let rounds = running.iter().map(|sequence| sequence.drafters.len()).max().unwrap_or(0);
        for round in 0..rounds {
            // Whom each sequence asks in this round, settled before anybody is dropped.
            let turns: Vec<Option<u8>> = running
                .iter()
                .zip(&nodes_max)
                .map(|(sequence, nodes)| sequence.turns.get(round).copied().filter(|_| *nodes > 0))
                .collect();
            for number in 0..self.members.len() as u8 {
                let at: Vec<usize> = (0..running.len()).filter(|at| turns[*at] == Some(number)).collect();
                let together = if self.members[usize::from(number)].suspect > 0 { 1 } else { at.len().max(1) };
                for at in at.chunks(together) {
                    let before: Vec<_> =
                        at.iter().map(|at| Asked::now(&mut running[*at], nodes_max[*at], round)).collect();
                    self.ask(number, &before, at, running, chance, events);
                    for (at, before) in at.iter().zip(before) {
                        let breach = before.breach(&mut running[*at], vocabulary);
                        // It may have panicked as well, and be gone already.
                        let message = breach.filter(|_| running[*at].drafters.contains(&number));
                        if let Some(message) = message {
                            self.drop_for(number, &mut running[*at], message, events);
                        }
                    }
                }
            }
        }
        for (sequence, nodes) in running.iter_mut().zip(nodes_max) {
            if let BudgetKind::Oracle { text, .. } = &sequence.request.budget {
                let written = (sequence.tokens.len() - sequence.request.prompt.len()).min(text.len());
                let several = sequence.turns.len() > 1;
                let drafted = if several { &mut sequence.candidates } else { &mut sequence.tree };
                let mut path = foreseen(drafted, &text[written..]);
                path.truncate(nodes);
                retain(drafted, |offer| path.contains(&offer.node));
                if several {
                    std::mem::swap(&mut sequence.candidates, &mut sequence.tree);
                }
            } else if sequence.turns.len() > 1 {
                let promise = sequence.request.promise;
                merge(promise, &mut sequence.candidates, &sequence.calibration, nodes, &mut sequence.tree);
            }
        }
    }

    /// Asks one drafter for drafts of the sequences `at`, together.
    fn ask(
        &mut self,
        number: u8,
        asked: &[Asked],
        at: &[usize],
        running: &mut [Sequence],
        chance: &mut dyn Chance,
        events: &mut Vec<Event>,
    ) {
        let mut limits = at.iter().zip(asked).map(|(at, asked)| (*at, asked.limits)).peekable();
        let mut asks: Vec<Ask<'_>> = Vec::with_capacity(at.len());
        asks.extend(running.iter_mut().enumerate().filter_map(|(i, sequence)| {
            let (_, limits) = limits.next_if(|(at, _)| *at == i)?;
            Some(ask_of(sequence, limits, number))
        }));
        let member = &mut self.members[usize::from(number)];
        member.suspect = member.suspect.saturating_sub(1);
        let started = Instant::now();
        let drafted = guarded(|| member.drafter.draft(&mut asks, chance));
        let time = started.elapsed() / at.len() as u32;
        for at in at {
            running[*at].stats.drafters[usize::from(number)].time += time;
            running[*at].worth.spend(number, time);
        }
        match (drafted, at) {
            (Ok(()), _) => {}
            (Err(message), [at]) => self.drop_for(number, &mut running[*at], message, events),
            (Err(_), _) => member.suspect = SUSPECT_CALLS,
        }
    }
}

/// How far a drafter may go for a sequence, and what there was before it was asked.
struct Asked {
    limits: Limits,
    offers: usize,
    probes: usize,
}

impl Asked {
    /// `nodes_max`: of the whole pass.
    fn now(sequence: &mut Sequence, nodes_max: usize, round: usize) -> Asked {
        let nodes_max = match sequence.turns.len() {
            1 => nodes_max,
            turns => share(sequence.request.promise, nodes_max, sequence.candidates.len(), turns - 1 - round),
        };
        let limits = Limits { nodes_max, ..sequence.budget.limits() };
        Asked { limits, offers: sequence.drafted_into().offers().len(), probes: sequence.probes.len() }
    }

    /// What the drafter did that it may not do. Its offers are cut where that is needed.
    fn breach(&self, sequence: &mut Sequence, vocabulary: usize) -> Option<String> {
        let is_unknown = |token: &Token| *token as usize >= vocabulary;
        let probe = sequence.probes.tokens()[self.probes..].iter().copied().find(is_unknown);
        let tree = sequence.drafted_into();
        let offered = tree.offers()[self.offers..].iter().map(|offer| tree.token(offer.node)).find(is_unknown);
        let found = tree.len();
        if let Some(lawful) = lawful_offers(tree, self.offers, self.limits.nodes_max) {
            retain(tree, |offer| (offer.index as usize) < lawful);
            return Some(format!("expected a tree of at most {} nodes, found {found}", self.limits.nodes_max));
        }
        offered.or(probe).map(|found| format!("expected tokens below {vocabulary} (the vocabulary), found {found}"))
    }
}

fn ask_of(sequence: &mut Sequence, limits: Limits, number: u8) -> Ask<'_> {
    let several = sequence.turns.len() > 1;
    Ask {
        sequence: sequence.id,
        tokens: &sequence.tokens,
        prompt_len: sequence.request.prompt.len(),
        sampling: &sequence.request.sampling,
        settings: sequence.request.draft,
        promise: sequence.request.promise,
        seed: sequence.request.seed,
        request: sequence.number,
        limits,
        tree: if several { &mut sequence.candidates } else { &mut sequence.tree },
        probes: &mut sequence.probes,
        source: number,
    }
}

/// Runs what may panic, and says what it said.
fn guarded<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    // A drafter's own state may be left in pieces. It is then asked for one request at a time, and dropped where it
    // fails again; everything else that it can reach is whole after each call.
    catch_unwind(AssertUnwindSafe(run)).map_err(message)
}

fn message(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_else(|| "a panic".to_string())
}
