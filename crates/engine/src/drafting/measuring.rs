//! Measures drafters with a network before the first request: the time of a step, and of reading a token.

use foretoken_speculation::budget::Limits;
use foretoken_speculation::{Ask, DraftTree, Opening, Probes, Sampling, SequenceId, StepOutput, Token};

use super::{Drafters, Member, guarded, hidden_rows};
use crate::chance::Race;
use crate::clock::Clock;
use crate::planner::{DrafterCall, Meter};
use crate::sequence::HiddenRows;

/// The sequence on which drafters are measured; no request has it.
const MEASURED_SEQUENCE: SequenceId = SequenceId(u64::MAX);
/// Tokens that a drafter reads in its measurement: enough to distinguish the time of reading from that of a step.
const MEASURED_TOKENS: usize = 32;

impl Drafters {
    /// Measures the step and the reading of each drafter with a network, on a sequence of its own. `vocabulary`: number
    /// of tokens; `width`: elements of the target's hidden states.
    pub(crate) fn measure(&mut self, meter: &mut Meter, clock: &dyn Clock, [vocabulary, width]: [usize; 2]) {
        for number in 0..self.members.len() as u8 {
            let member = &mut self.members[usize::from(number)];
            let known = meter.costs().drafter(number).step > 0.0;
            if known || !matches!(guarded(|| member.drafter.work()), Ok(Some(_))) {
                continue;
            }
            // A drafter that fails here fails again for a request, where it is reported.
            guarded(|| member.measure_network(number, meter, clock, [vocabulary, width])).ok();
            guarded(|| member.drafter.close(MEASURED_SEQUENCE)).ok();
        }
    }
}

impl Member {
    /// Measures a few steps of drafting, then the reading of a few tokens.
    fn measure_network(&mut self, number: u8, meter: &mut Meter, clock: &dyn Clock, [vocabulary, width]: [usize; 2]) {
        // Various tokens: a single one might have no text, and a draft model with another vocabulary would have nothing
        // to read.
        let tokens: Vec<Token> =
            (0..3 + MEASURED_TOKENS).map(|i| (7919 * (i + 1) % vocabulary.max(1)) as Token).collect();
        // A source of one token, for drafters whose network has an encoder.
        let (prompt, source) = (&tokens[..1], &tokens[..1]);
        self.drafter.open(&Opening { source, ..Opening::new(MEASURED_SEQUENCE, prompt) });
        let (mut calls, mut observed) = (Vec::new(), 0);
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        for (len, nodes_max) in [(1, 4), (2, 4), (3, 4), (3 + MEASURED_TOKENS, 1)] {
            let (mut tree, mut probes) = (DraftTree::new(), Probes::default());
            let (tokens, limits) = (&tokens[..len], Limits::nodes(nodes_max));
            observed = self.observe_zeros(tokens, observed, width);
            let ask = Ask {
                source: number,
                ..Ask::new(MEASURED_SEQUENCE, tokens, &sampling, limits, &mut tree, &mut probes)
            };
            let before = self.work();
            let started = clock.now();
            self.drafter.draft(&mut [ask], &mut Race);
            let time = clock.since(started).unwrap_or_default();
            calls.extend(before.zip(self.work()).map(|(before, after)| DrafterCall::between(before, after, 1, time)));
        }
        // The first draft finds cold caches, and of the two after it one may be an outlier.
        let step_seconds = |call: &DrafterCall| call.seconds / call.passes.max(1) as f64;
        if let [_, second, third, reading] = calls[..] {
            let faster = if step_seconds(&third) < step_seconds(&second) { third } else { second };
            [faster, reading].into_iter().for_each(|call| meter.learn_call(number, call));
        }
    }

    /// Lets the drafter observe hidden states of zeros from this position on, if it needs any. Returns the position up
    /// to which it has them.
    fn observe_zeros(&mut self, tokens: &[Token], from: usize, width: usize) -> usize {
        let to = tokens.len() - 1;
        if hidden_rows(&self.needs) == HiddenRows::All && to > from {
            let (sequence, zeros, tree) = (MEASURED_SEQUENCE, vec![0.0; width], DraftTree::new());
            let hidden = vec![&zeros[..]; self.needs.hidden_layers.len() * (to - from)];
            let (emitted, path, probes, hidden_from) = (&[][..], &[][..], &[][..], from);
            let hidden = &hidden[..];
            self.drafter.observe(&[StepOutput {
                sequence,
                tokens,
                emitted,
                tree: &tree,
                path,
                probes,
                hidden_from,
                hidden,
            }]);
        }
        to
    }
}
