//! A run as text: one line for the engine, and one for each request with its settings that are not default.

use std::fmt;

use foretoken_speculation::Sampling;

use super::{Arrival, Run, name};
use crate::toy::Fault;

impl fmt::Display for Run {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Run { executor: [page_len, pages, rows_max], target: (seed, vocabulary, order), sequences_max, .. } = self;
        write!(
            out,
            "{vocabulary} tokens of seed {seed}, each by the last {order}; {pages} pages of {page_len} positions"
        )?;
        if let Some([window, page_len]) = self.window {
            write!(out, " and a window of {window} in pages of {page_len}")?;
        }
        if let Some([slots, fails_every]) = self.states {
            let alone = if self.states_alone { " and nothing else" } else { "" };
            write!(out, "; {slots} states{alone}, every {fails_every}th pass fails if it has several sequences")?;
        }
        if let Some([len_max, page_len, pages]) = self.encoder {
            write!(out, "; sources of up to {len_max} tokens in {pages} pages of {page_len}")?;
        }
        if self.remote_logits {
            write!(out, "; remote logits")?;
        }
        if self.ranks {
            write!(out, "; two ranks")?;
        }
        if self.experts {
            write!(out, "; experts")?;
        }
        write!(out, "; {rows_max} rows per pass, {sequences_max} sequences at a time")?;
        for (i, number) in self.drafters.iter().enumerate() {
            write!(out, "; drafter {i}: {}", name(*number))?;
        }
        if self.fault != Fault::None {
            write!(out, "; {:?}", self.fault)?;
        }
        self.arrivals.iter().try_for_each(|arrival| write!(out, "\n  {arrival}"))
    }
}

impl fmt::Display for Arrival {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Arrival { step, cancel_after, prompt, source, tokens_max, sampling, constrained, stop, .. } = self;
        let Arrival { seed, drafters, budget, tenant, public_prefix, checkpoint, priority, .. } = self;
        write!(out, "step {step}: {tokens_max} tokens after {prompt:?}, source {source:?}")?;
        if *sampling != (Sampling { temperature: 0.0, ..Sampling::default() }) {
            write!(out, ", seed {seed}, {sampling:?}")?;
        }
        if !drafters.is_empty() {
            write!(out, ", drafters {drafters:?}, {budget:?}")?;
        }
        if let Some(cancel_after) = cancel_after {
            write!(out, ", cancelled after {cancel_after} steps")?;
        }
        if let Some(stop) = stop {
            write!(out, ", until {stop:?}")?;
        }
        let numbers =
            [("tenant", tenant.0 as i64), ("public", *public_prefix as i64), ("priority", (*priority).into())];
        numbers
            .iter()
            .filter(|(_, number)| *number != 0)
            .try_for_each(|(what, number)| write!(out, ", {what} {number}"))?;
        if let Some(checkpoint) = checkpoint {
            write!(out, ", checkpoint at {checkpoint}")?;
        }
        if self.scores_prompt {
            write!(out, ", its prompt scored")?;
        }
        if let Some(beams) = self.beams {
            write!(out, ", {beams:?}")?;
        }
        if *constrained {
            write!(out, ", constrained")?;
        }
        if self.log_probabilities { Ok(()) } else { write!(out, ", without log-probabilities") }
    }
}
