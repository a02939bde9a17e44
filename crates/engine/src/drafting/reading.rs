//! Lets draft models read the chunks of their prefill, without drafting. `planner/reading.rs` decides the chunks.

use foretoken_speculation::ReadAsk;

use super::{DraftPass, Drafters, ISOLATED_CALLS, guarded};
use crate::planner::{DrafterCall, ReadChunk, Scheduled};
use crate::sequence::{Sequence, SequenceText};

impl Drafters {
    /// Plans that the draft models of a sequence read its prompt as far as the target does in this pass, if they are
    /// worth asking. Returns the seconds that they take per token.
    pub(crate) fn read_along(&self, entry: &Scheduled, sequence: &Sequence, pass: &mut DraftPass<'_>) -> f64 {
        let nodes_max = sequence.draft.budget.limits().nodes_max;
        let drafters = sequence.draft.drafters.iter().copied();
        drafters
            .filter(|number| !sequence.draft.read_stalled.contains(number))
            .filter_map(|number| self.candidate(number, sequence, nodes_max))
            .map(|candidate| pass.plan.read_along(entry, candidate, sequence))
            .sum()
    }

    /// Lets the drafters read the planned chunks, each drafter all of its chunks in one call.
    pub(crate) fn read(&mut self, running: &mut [Sequence], pass: &mut DraftPass<'_>) {
        for number in 0..self.members.len() as u8 {
            // A drafter may have failed and been dropped while it drafted.
            let is_left = |chunk: &ReadChunk| running[chunk.index].draft.drafters.contains(&number);
            let planned = pass.plan.read_chunks.iter().copied().filter(|chunk| chunk.number == number);
            let chunks: Vec<ReadChunk> = planned.filter(is_left).collect();
            let together = if self.members[usize::from(number)].isolated_calls > 0 { 1 } else { chunks.len().max(1) };
            chunks.chunks(together).for_each(|chunks| self.read_together(number, chunks, running, pass));
        }
    }

    fn read_together(&mut self, number: u8, chunks: &[ReadChunk], running: &mut [Sequence], pass: &mut DraftPass<'_>) {
        let ask = |chunk: &ReadChunk| {
            let Sequence { id, text: SequenceText { tokens, .. }, request, .. } = &running[chunk.index];
            let (prompt_len, until) = (request.prompt.len(), chunk.until);
            let (sampling, promise) = (&request.sampling, request.promise);
            ReadAsk { sequence: *id, tokens, prompt_len, until, sampling, promise }
        };
        let asks: Vec<ReadAsk<'_>> = chunks.iter().map(ask).collect();
        let member = &mut self.members[usize::from(number)];
        member.isolated_calls = member.isolated_calls.saturating_sub(1);
        let unread = |ask: &ReadAsk<'_>| guarded(|| member.drafter.unread(ask.sequence, ask.tokens.len())).ok();
        let unread_before: Vec<Option<usize>> = asks.iter().map(unread).collect();
        let (before, started) = (member.work(), pass.clock.now());
        let read = guarded(|| member.drafter.read(&asks));
        let time = pass.clock.since(started);
        let unread = |ask: &ReadAsk<'_>| guarded(|| member.drafter.unread(ask.sequence, ask.tokens.len())).ok();
        let is_stalled: Vec<bool> = asks.iter().zip(unread_before).map(|(ask, before)| unread(ask) >= before).collect();
        let work = before.zip(member.work()).zip(time);
        let call = work.map(|((before, after), time)| DrafterCall::between(before, after, asks.len(), time));
        // Only calls in which the network read tokens have a time per token.
        let is_measurement = |call: &DrafterCall| call.passes > 0 && call.read > 0 && !pass.is_late(call);
        if let Some(call) = call.filter(is_measurement) {
            pass.plan.learn_reading(number, call);
        }
        for (chunk, _) in chunks.iter().zip(is_stalled).filter(|(_, is_stalled)| *is_stalled) {
            running[chunk.index].draft.read_stalled.push(number);
        }
        let time = time.unwrap_or_default();
        pass.time += time;
        let share = time / chunks.len() as u32;
        for chunk in chunks {
            running[chunk.index].stats.drafters[usize::from(number)].time += share;
        }
        match (read, chunks) {
            (Ok(()), _) => {}
            (Err(message), [chunk]) => self.drop_for(number, &mut running[chunk.index], message, pass.events),
            (Err(_), _) => member.isolated_calls = ISOLATED_CALLS,
        }
    }
}
