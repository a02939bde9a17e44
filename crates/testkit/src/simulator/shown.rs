//! A run in words: a line for the engine, and one for each request that says what is not plain about it.

use std::fmt;

use foretoken_speculation::Sampling;

use super::{Arrival, Run, name};
use crate::toy::Fault;

impl fmt::Display for Run {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (([page_len, pages, rows_max], (seed, vocabulary, order)), texts_max) =
            ((self.executor, self.target), self.texts_max);
        write!(
            out,
            "{vocabulary} tokens of seed {seed}, each by the last {order}; {pages} pages of {page_len} positions"
        )?;
        if let Some([window, page_len]) = self.window {
            write!(out, " and a window of {window} in pages of {page_len}")?;
        }
        if let Some([slots, fails_every]) = self.states {
            let alone = if self.states_alone { " and nothing else" } else { "" };
            write!(out, "; {slots} states{alone}, pass {fails_every} of several texts fails, and so on")?;
        }
        if let Some([len_max, page_len, pages]) = self.encoder {
            write!(out, "; sources of up to {len_max} tokens in {pages} pages of {page_len}")?;
        }
        if self.far {
            write!(out, "; logits far away")?;
        }
        if self.ranks {
            write!(out, "; two ranks")?;
        }
        if self.experts {
            write!(out, "; experts")?;
        }
        write!(out, "; {rows_max} rows a pass, {texts_max} texts at a time")?;
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
        let Arrival { step, patience, prompt, source, tokens_max, sampling, constrained, told, stop, .. } = self;
        let Arrival { seed, drafters, budget, tenant, public_prefix, checkpoint, priority, .. } = self;
        write!(out, "step {step}: {tokens_max} tokens after {prompt:?}, about {source:?}")?;
        if *sampling != (Sampling { temperature: 0.0, ..Sampling::default() }) {
            write!(out, ", seed {seed}, {sampling:?}")?;
        }
        if !drafters.is_empty() {
            write!(out, ", drafters {drafters:?}, {budget:?}")?;
        }
        if let Some(patience) = patience {
            write!(out, ", cancelled after {patience} steps")?;
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
            write!(out, ", to be continued at {checkpoint}")?;
        }
        if self.scores_prompt {
            write!(out, ", its prompt scored")?;
        }
        if *constrained {
            write!(out, ", constrained")?;
        }
        if *told { Ok(()) } else { write!(out, ", without log-probabilities") }
    }
}
