//! What draft models read without drafting: long texts, in pieces.
//!
//! A draft model has to have read a text before it can draft for it. Where others wait for the pass it reads in pieces:
//! a prompt beside the target's own passes over it, as far as these are, and whatever else it has not read, as after a
//! long rest, in as many passes as that takes. Until then it is not asked. A drafter that is not worth asking does not
//! read either.
//!
//! Left out: how long others may be kept waiting (`scheduler`).

use foretoken_speculation::ReadAsk;

use super::{DraftPass, Drafters, SUSPECT_CALLS, guarded, hidden_rows};
use crate::meter::Call;
use crate::sequence::{HiddenRows, Sequence};
use crate::weighing::{READ_ALONG, Who};

/// Tokens of a piece, where it is not known what reading takes; and the least of any piece, so that texts come to an
/// end.
const PIECE_MIN: usize = 16;

/// "Read this text up to there."
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    number: u8,
    /// The sequence's place among the running ones.
    at: usize,
    until: usize,
}

impl Drafters {
    /// A drafter that could be asked for a tree of so many nodes; `None` if it cannot answer.
    pub(super) fn who(&self, number: u8, sequence: &Sequence, nodes_max: usize) -> Option<Who> {
        let member = &self.members[usize::from(number)];
        let (drafter, probes) = (&member.drafter, member.needs.probes_max);
        let told = guarded(|| (drafter.work().is_some(), drafter.unread(sequence.id, sequence.tokens.len())));
        let (has_network, unread) = told.ok()?;
        Some(Who { number, has_network, unread, probes, nodes_max })
    }

    /// Lets the draft models of a sequence whose prompt is being read read it as far as the target does in this pass,
    /// `take` tokens more, if they are worth asking for it. Seconds that they take a token.
    pub(crate) fn read_along(&self, at: usize, take: usize, sequence: &Sequence, pass: &mut DraftPass<'_>) -> f64 {
        let mut seconds = 0.0;
        for number in sequence.drafters.iter().copied().filter(|number| !sequence.stuck.contains(number)) {
            let Some(who) = self.who(number, sequence, sequence.budget.limits().nodes_max) else { continue };
            let is_auto = sequence.request.budget.is_auto();
            let is_worth = || pass.weighing.is_worth_asking(sequence, pass.meter.costs(), who, &[]);
            // Who reads the target's hidden states reads what was told before this pass.
            let needs_told = hidden_rows(&self.members[usize::from(number)].needs) == HiddenRows::All;
            let told = if needs_told { sequence.told() + 1 } else { usize::MAX };
            let (done, until) = (sequence.tokens.len() - who.unread, told.min(sequence.cached + take));
            if who.has_network && until > done && (!is_auto || is_worth()) {
                let until = until.min(done.saturating_add(self.piece(number, pass)));
                pass.note_reading(Reading { number, at, until }, until - done);
                seconds += pass.meter.costs().drafter(number).catch_up;
            }
        }
        seconds
    }

    /// Whether a drafter that is asked has so much to read that it reads a piece of it instead of drafting, or waits
    /// until others have read.
    pub(super) fn reads(&self, number: u8, at: usize, sequence: &Sequence, pass: &mut DraftPass<'_>) -> bool {
        if pass.read_seconds == f64::INFINITY || sequence.stuck.contains(&number) {
            return false;
        }
        let who = self.who(number, sequence, sequence.nodes_max);
        let Some(who) = who.filter(|who| who.has_network && who.unread > READ_ALONG) else { return false };
        let piece = self.piece(number, pass);
        if who.unread <= piece {
            // It reads the rest as it drafts.
            pass.charge_reading(number, who.unread);
            return false;
        }
        let until = sequence.tokens.len() - who.unread + piece;
        pass.note_reading(Reading { number, at, until }, piece);
        true
    }

    /// Tokens of a text that a drafter may read in what is left of the pass. The first piece of a pass is never empty.
    pub(super) fn piece(&self, number: u8, pass: &DraftPass<'_>) -> usize {
        let token = pass.meter.costs().drafter(number).catch_up;
        let least = if pass.reading.is_empty() { PIECE_MIN } else { 0 };
        match pass.read_seconds {
            f64::INFINITY => usize::MAX,
            seconds if token > 0.0 => ((seconds / token) as usize).max(least),
            _ => PIECE_MIN,
        }
    }

    /// Lets the drafters read what was noted, each all of its texts together.
    pub(crate) fn read(&mut self, running: &mut [Sequence], pass: &mut DraftPass<'_>) {
        for number in 0..self.members.len() as u8 {
            // Whoever failed as it drafted is gone already.
            let is_left = |reading: &Reading| running[reading.at].drafters.contains(&number);
            let of = pass.reading.iter().copied().filter(|reading| reading.number == number);
            let readings: Vec<Reading> = of.filter(is_left).collect();
            let together = if self.members[usize::from(number)].suspect > 0 { 1 } else { readings.len().max(1) };
            readings.chunks(together).for_each(|readings| self.read_together(number, readings, running, pass));
        }
    }

    fn read_together(&mut self, number: u8, readings: &[Reading], running: &mut [Sequence], pass: &mut DraftPass<'_>) {
        let ask = |reading: &Reading| {
            let Sequence { id, tokens, request, .. } = &running[reading.at];
            let (prompt_len, until) = (request.prompt.len(), reading.until);
            let (sampling, promise) = (&request.sampling, request.promise);
            ReadAsk { sequence: *id, tokens, prompt_len, until, sampling, promise }
        };
        let asks: Vec<ReadAsk<'_>> = readings.iter().map(ask).collect();
        let member = &mut self.members[usize::from(number)];
        member.suspect = member.suspect.saturating_sub(1);
        let unread = |ask: &ReadAsk<'_>| guarded(|| member.drafter.unread(ask.sequence, ask.tokens.len())).ok();
        let unread_before: Vec<Option<usize>> = asks.iter().map(unread).collect();
        let (before, started) = (member.work(), pass.clock.now());
        let read = guarded(|| member.drafter.read(&asks));
        let time = pass.clock.since(started);
        let unread = |ask: &ReadAsk<'_>| guarded(|| member.drafter.unread(ask.sequence, ask.tokens.len())).ok();
        let is_stuck: Vec<bool> = asks.iter().zip(unread_before).map(|(ask, before)| unread(ask) >= before).collect();
        let work = before.zip(member.work()).zip(time);
        let call = work.map(|((before, after), time)| Call::between(before, after, asks.len(), time));
        // What was refused, or taken over from others, says nothing.
        let says = |call: &Call| call.passes > 0 && call.read > 0 && !pass.is_late(call);
        if let Some(call) = call.filter(says) {
            pass.meter.learn_call(number, call);
        }
        for (reading, _) in readings.iter().zip(is_stuck).filter(|(_, is_stuck)| *is_stuck) {
            running[reading.at].stuck.push(number);
        }
        let time = time.unwrap_or_default();
        pass.time += time;
        let share = time / readings.len() as u32;
        for reading in readings {
            running[reading.at].stats.drafters[usize::from(number)].time += share;
        }
        match (read, readings) {
            (Ok(()), _) => {}
            (Err(message), [reading]) => self.drop_for(number, &mut running[reading.at], message, pass.events),
            (Err(_), _) => member.suspect = SUSPECT_CALLS,
        }
    }
}

impl DraftPass<'_> {
    /// Notes that so many tokens of a text are to be read, if there are any.
    fn note_reading(&mut self, reading: Reading, tokens: usize) {
        self.charge_reading(reading.number, tokens);
        self.reading.extend((tokens > 0).then_some(reading));
    }

    /// Takes the time of so many tokens from what may be read in the pass.
    fn charge_reading(&mut self, number: u8, tokens: usize) {
        self.read_seconds -= tokens as f64 * self.meter.costs().drafter(number).catch_up;
        self.read_seconds = self.read_seconds.max(0.0);
    }
}
