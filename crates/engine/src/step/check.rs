//! Which requests are refused, before anything is changed for them.

use foretoken_model::{Capacity, Group, SourceCapacity};
use foretoken_speculation::{Promise, Token};

use super::Engine;
use crate::beams::BeamSearch;
use crate::request::{BudgetKind, Request, RequestError};

impl Engine {
    /// Whether a request would be accepted now; nothing is changed.
    ///
    /// # Errors
    /// As [`Engine::submit`].
    pub fn check(&self, request: &Request) -> Result<(), RequestError> {
        // Requests for which there is a place wait only until the next step, and do not count.
        let places = self.sequences_max.saturating_sub(self.running.len());
        if self.waiting.len() >= self.waiting_max.saturating_add(places) {
            return Err(RequestError::Queue { waiting_max: self.waiting_max });
        }
        let vocabulary = self.executor.capacity().vocabulary;
        let unknown = |token: &Token| *token as usize >= vocabulary;
        if request.prompt.is_empty() {
            return Err(RequestError::EmptyPrompt);
        }
        if request.prompt.len() >= self.context {
            return Err(RequestError::PromptTooLong { found: request.prompt.len(), context: self.context });
        }
        check_source(request, self.executor.capacity().sources.as_ref())?;
        if let Some(index) = request.prediction.iter().position(unknown) {
            return Err(RequestError::Prediction { index, found: request.prediction[index], vocabulary });
        }
        if let Some(index) = request.prompt.iter().position(unknown) {
            return Err(RequestError::Token { index, found: request.prompt[index], vocabulary });
        }
        let problem = request.sampling.problem();
        if let Some(problem) = problem.or_else(|| request.draft.problem(&request.sampling)) {
            return Err(RequestError::Sampling(problem));
        }
        if request.top_log_probabilities > Request::TOP_LOG_PROBABILITIES_MAX {
            return Err(RequestError::TopLogProbabilities { found: request.top_log_probabilities });
        }
        let (n_min, nodes_max) = (request.draft.n_min.unwrap_or(0), request.budget.nodes_max());
        if n_min > nodes_max && !request.drafters.is_empty() {
            return Err(RequestError::Limits { n_min, nodes_max });
        }
        let biased = request.sampling.logit_bias.iter().map(|(token, _)| ("logit_bias", token));
        let banned = request.sampling.banned_tokens.iter().map(|token| ("banned_tokens", token));
        if let Some((field, found)) = biased.chain(banned).find(|(_, token)| unknown(token)) {
            return Err(RequestError::SamplingToken { field, found: *found, vocabulary });
        }
        self.check_beams(request)?;
        let temperature = request.sampling.temperature;
        let oracle = matches!(request.budget, BudgetKind::Oracle { .. });
        if oracle && request.promise != Promise::Exact && temperature != 0.0 {
            return Err(RequestError::Oracle { promise: request.promise, temperature });
        }
        check_lenience(request, oracle)?;
        let count = self.drafters.len();
        for (i, found) in request.drafters.iter().copied().enumerate() {
            if usize::from(found) >= count {
                return Err(RequestError::Drafter { found, count });
            }
            if request.drafters[..i].contains(&found) {
                return Err(RequestError::DrafterTwice { found });
            }
        }
        Ok(())
    }
}

/// Checks that a lenience is in its range, and stands beside nothing that it would break.
fn check_lenience(request: &Request, oracle: bool) -> Result<(), RequestError> {
    let Request { lossy_lenience: found, promise, .. } = *request;
    if !(found > 0.0 && found <= 1.0) {
        return Err(RequestError::Lenience { found });
    }
    if found < 1.0 && promise != Promise::Rejection && request.sampling.temperature != 0.0 {
        return Err(RequestError::LenientPromise { promise });
    }
    if found < 1.0 && oracle {
        return Err(RequestError::LenientOracle { found });
    }
    Ok(())
}

impl Engine {
    /// Checks a beam search, if the request asks for one: what it is combined with, and that its rows fit.
    fn check_beams(&self, request: &Request) -> Result<(), RequestError> {
        let Some(settings) = request.beams else { return Ok(()) };
        check_beams(request, settings)?;
        let Capacity { rows_max, groups, .. } = self.executor.capacity();
        let (beams, prompt) = (settings.beams, request.prompt.len());
        if beams > *rows_max {
            let expected = format!("at most {rows_max} (the rows of a pass)");
            return Err(RequestError::Beams { field: "beams", expected, found: beams.to_string() });
        }
        // At worst the hypotheses have nothing in common but the prompt.
        let fits = |tokens: usize| {
            let rows = tokens.saturating_mul(beams);
            let held = |group: &Group| group.pages_held(prompt.saturating_add(rows), rows.max(*rows_max));
            groups.iter().all(|group| held(group) <= group.pages)
        };
        let asked = request.tokens_max.unwrap_or(usize::MAX).min(self.context - prompt);
        if !fits(asked) {
            let most = (1..asked).rev().find(|tokens| fits(*tokens)).unwrap_or(0);
            let expected = format!("at most {most} (the room of the cache for {beams} hypotheses)");
            return Err(RequestError::Beams { field: "tokens_max", expected, found: asked.to_string() });
        }
        Ok(())
    }
}

/// Checks what a beam search cannot be combined with.
fn check_beams(request: &Request, beams: BeamSearch) -> Result<(), RequestError> {
    let fails = |field, expected: &str, found: String| {
        Err(RequestError::Beams { field, expected: expected.to_string(), found })
    };
    let BeamSearch { beams, length_penalty, returned, .. } = beams;
    let (temperature, tops) = (request.sampling.temperature, request.top_log_probabilities);
    match request {
        _ if beams < 2 => fails("beams", "at least 2", beams.to_string()),
        _ if !(1..=beams).contains(&returned) => fails("returned", &format!("1 to {beams}"), returned.to_string()),
        _ if !length_penalty.is_finite() => fails("length_penalty", "a number", length_penalty.to_string()),
        _ if temperature != 0.0 => fails("temperature", "0", temperature.to_string()),
        _ if request.lossy_lenience != 1.0 => fails("lossy_lenience", "1", request.lossy_lenience.to_string()),
        Request { tokens_max: Some(0), .. } => fails("tokens_max", "at least 1", "0".to_string()),
        Request { prompt_log_probabilities: true, .. } => fails("prompt_log_probabilities", "none", "some".to_string()),
        Request { log_probabilities: true, .. } => fails("log_probabilities", "none", "some".to_string()),
        _ if tops > 0 => fails("top_log_probabilities", "none", tops.to_string()),
        _ if !request.prediction.is_empty() => {
            fails("prediction", "none", format!("{} tokens", request.prediction.len()))
        }
        Request { budget: BudgetKind::Oracle { .. }, .. } => fails("budget", "none by an oracle", "one".to_string()),
        _ => Ok(()),
    }
}

/// Checks that a request has a source if and only if there is an encoder, and that the encoder can read it.
fn check_source(request: &Request, capacity: Option<&SourceCapacity>) -> Result<(), RequestError> {
    let (source, capacity) = match (&request.source, capacity) {
        (None, None) => return Ok(()),
        (Some(_), None) => return Err(RequestError::SourceWithoutEncoder),
        (None, Some(_)) => return Err(RequestError::NoSource),
        (Some(source), Some(capacity)) => (source, capacity),
    };
    let (found, most, vocabulary) = (source.len(), capacity.longest(), capacity.vocabulary);
    if found == 0 || found > most {
        return Err(RequestError::SourceLength { found, most });
    }
    match source.iter().position(|token| *token as usize >= vocabulary) {
        Some(index) => Err(RequestError::SourceToken { index, found: source[index], vocabulary }),
        None => Ok(()),
    }
}
