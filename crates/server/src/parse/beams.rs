//! Fields of beam search, with vLLM's names: `use_beam_search`, with `n` or `best_of` beams, `length_penalty` and
//! `early_stopping`.
//!
//! The answers are the best `n` hypotheses of one search. A search has no random numbers, so a temperature of the
//! server or the model gives way, and one of the request has to be 0. Whatever describes single tokens is refused
//! beside it.

use foretoken::EarlyStopping;
use foretoken::settings::{BEAMS_MAX, Named, SamplingSettings};
use serde_json::Value;

use crate::error::{ApiError, shown};
use crate::fields::Fields;

/// The field that turns a search on.
pub(crate) const FIELD: &str = "use_beam_search";

/// Sets the search of a request, which returns `answers` hypotheses of `best_of` beams. `temperature`: the request's
/// own, if it has one. A search of one beam is a greedy answer.
pub(super) fn parse(
    fields: &mut Fields,
    sampling: &mut SamplingSettings,
    temperature: Option<f32>,
    (answers, best_of): (usize, usize),
) -> Result<(), ApiError> {
    let is_search = fields.boolean(FIELD)?.unwrap_or(false);
    let length_penalty = fields.number("length_penalty", f32::MIN, f32::MAX)?;
    let early_stopping = early_stopping(fields)?;
    if !is_search {
        let of_search = [
            ("length_penalty", length_penalty.is_some_and(|penalty| penalty != 1.0)),
            ("early_stopping", early_stopping.is_some_and(|stopping| stopping != EarlyStopping::False)),
        ];
        let expected = format!("expected \"{FIELD}\": true beside it, found none");
        return match of_search.into_iter().find(|(_, is_set)| *is_set) {
            Some((field, _)) => Err(ApiError::field(field, expected)),
            None => Ok(()),
        };
    }
    if let Some(found) = temperature.filter(|temperature| *temperature != 0.0) {
        return Err(ApiError::field("temperature", format!("expected 0 beside {FIELD}, found {found}")));
    }
    if best_of > BEAMS_MAX {
        let field = if best_of > answers { "best_of" } else { "n" };
        return Err(ApiError::field(field, format!("expected at most {BEAMS_MAX} beams, found {best_of}")));
    }
    (sampling.temperature, sampling.num_beams, sampling.n_best) = (Some(0.0), best_of, answers);
    if sampling.has_beams() {
        (sampling.length_penalty, sampling.early_stopping) = (length_penalty, early_stopping);
    }
    Ok(())
}

/// When a search stops: true, false, or "never".
fn early_stopping(fields: &mut Fields) -> Result<Option<EarlyStopping>, ApiError> {
    let Some(value) = fields.value("early_stopping")? else { return Ok(None) };
    let name = match &value {
        Value::Bool(is_early) => Some(is_early.to_string()),
        Value::String(name) if name == "never" => Some(name.clone()),
        _ => None,
    };
    let wrong = || {
        let found = shown(&value.to_string());
        ApiError::field("early_stopping", format!("expected true, false or \"never\", found {found}"))
    };
    name.as_deref().and_then(EarlyStopping::named).map(Some).ok_or_else(wrong)
}
