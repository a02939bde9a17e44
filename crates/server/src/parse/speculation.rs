//! Fields of speculation: the drafters, the length of drafts, the promise, and a lenience that breaks it.
//!
//! The names are llama.cpp's (`"speculative.n_max": 8`), also as an object (`"speculative": {"n_max": 8}`). Under
//! *exact* none of them changes the answer, except the lenience.

use foretoken::settings::check_lenience;
use foretoken::{BudgetKind, Order, Promise, Prompter, Request, SpecType};

use crate::error::{ApiError, shown};
use crate::fields::Fields;

/// The drafting method that a request names.
#[derive(Clone, Debug, PartialEq)]
enum DraftingMethod {
    /// As `--spec-type` names it.
    Specified(SpecType),
    /// The drafters of these numbers.
    Drafters(Vec<u8>),
}

impl DraftingMethod {
    /// The method of a word. `names`: the names of the server's drafters, as `/v1/models` lists them. Where several
    /// drafters are alike, these have a number (`draft-2`), which `--spec-type` does not know.
    fn of_word(word: &str, names: &[String]) -> Result<Self, ApiError> {
        let why = match word.parse::<SpecType>() {
            Ok(spec_type) => return Ok(Self::Specified(spec_type)),
            Err(why) => why,
        };
        let number = |name: &str| u8::try_from(names.iter().position(|known| known == name.trim())?).ok();
        let drafters: Option<Vec<u8>> = word.split([',', '+']).map(number).collect();
        let are_different = |all: &Vec<u8>| (1..all.len()).all(|i| !all[..i].contains(&all[i]));
        let wrong = || ApiError::field("speculative.type", format!("{why}, found {:?}", shown(word)));
        drafters.filter(are_different).map(Self::Drafters).ok_or_else(wrong)
    }
}

/// The speculation options of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SpeculationOptions {
    /// The drafting method; `None`: the server's.
    method: Option<DraftingMethod>,
    /// Maximum number of tokens drafted per pass; 0 is plain decoding.
    n_max: Option<usize>,
    n_min: Option<usize>,
    p_min: Option<f32>,
    promise: Option<Promise>,
    lossy_lenience: Option<f32>,
}

impl SpeculationOptions {
    /// Parses the fields. `names`: the names of the server's drafters.
    pub(super) fn parse(fields: &mut Fields, names: &[String]) -> Result<Self, ApiError> {
        fields.flatten("speculative")?;
        let method = fields.string("speculative.type")?;
        let method = method.map(|word| DraftingMethod::of_word(&word, names)).transpose()?;
        let promise = match fields.string("speculative.verify")?.as_deref() {
            None => None,
            Some("exact") => Some(Promise::Exact),
            Some("rejection") => Some(Promise::Rejection),
            Some("block") => Some(Promise::Block),
            Some(found) => {
                let expected = format!("expected exact, rejection or block, found {:?}", shown(found));
                return Err(ApiError::field("speculative.verify", expected));
            }
        };
        let options = Self {
            method,
            n_max: fields.count("speculative.n_max", 0, 1 << 20)?,
            n_min: fields.count("speculative.n_min", 0, 1 << 20)?,
            p_min: fields.number("speculative.p_min", 0.0, 1.0)?,
            promise,
            lossy_lenience: fields.number("speculative.lossy_lenience", f32::MIN, f32::MAX)?,
        };
        // No other server has such a field, so an unknown one is an error.
        match fields.unknown().iter().find(|name| name.starts_with("speculative.")) {
            Some(name) => {
                let expected = "expected type, n_max, n_min, p_min, verify or lossy_lenience, found another word";
                Err(ApiError::field(name, expected))
            }
            None => Ok(options),
        }
    }

    /// Whether nothing is drafted.
    fn is_plain(&self) -> bool {
        self.n_max == Some(0) || self.method == Some(DraftingMethod::Specified(SpecType::None))
    }

    /// Applies the options to a request, whose prediction is already set.
    pub(super) fn complete(&self, prompter: &Prompter, request: &mut Request) -> Result<(), ApiError> {
        if let Some(promise) = self.promise {
            request.promise = promise;
        }
        request.lossy_lenience = self.lossy_lenience.unwrap_or(request.lossy_lenience);
        check_lenience(request.lossy_lenience, request.promise, request.sampling.temperature)
            .map_err(|error| ApiError::of(&error))?;
        if self.is_plain() {
            request.drafters.clear();
            return Ok(());
        }
        let has_prediction = !request.prediction.is_empty();
        let spec_type = match &self.method {
            Some(DraftingMethod::Specified(spec_type)) => Some(spec_type),
            Some(DraftingMethod::Drafters(drafters)) => {
                (request.drafters, request.order) = (drafters.clone(), Order::Given);
                None
            }
            None => Some(&SpecType::Auto).filter(|_| has_prediction && request.order != Order::Given),
        };
        if let Some(spec_type) = spec_type {
            let method = prompter.method(spec_type, has_prediction).map_err(|error| ApiError::of(&error))?;
            (request.drafters, request.order) = (method.drafters, method.order);
        }
        let is_prediction = |number: &u8| prompter.is_prediction(*number);
        if has_prediction && !request.drafters.iter().any(is_prediction) {
            // A predicted output is always used, whichever other drafters are chosen.
            let numbers = 0..u8::try_from(prompter.names.len()).unwrap_or(u8::MAX);
            let first = numbers.into_iter().find(is_prediction);
            request.drafters.splice(0..0, first);
        }
        if let Some(n_max) = self.n_max {
            request.budget = with_nodes_max(&request.budget, n_max);
        }
        request.draft.n_min = self.n_min.or(request.draft.n_min);
        let (fewest, most) = (request.draft.n_min.unwrap_or(0), request.budget.nodes_max());
        if fewest > most {
            let limit = if self.n_max.is_some() { "speculative.n_max" } else { "the most tokens drafted per pass" };
            let expected = format!("expected at most {limit} ({most}), found {fewest}");
            return Err(ApiError::field("speculative.n_min", expected));
        }
        request.draft.p_min = self.p_min.or(request.draft.p_min);
        Ok(())
    }
}

/// The same budget with this maximum.
fn with_nodes_max(budget: &BudgetKind, nodes_max: usize) -> BudgetKind {
    match budget {
        BudgetKind::Auto { .. } => BudgetKind::Auto { nodes_max },
        BudgetKind::Fixed { .. } => BudgetKind::Fixed { nodes: nodes_max },
        BudgetKind::Heuristic { .. } => BudgetKind::Heuristic { nodes_max },
        BudgetKind::Confidence { .. } => BudgetKind::Confidence { nodes_max },
        BudgetKind::Threshold { .. } => BudgetKind::Threshold { nodes_max },
        BudgetKind::Oracle { text, .. } => BudgetKind::Oracle { text: text.clone(), nodes_max },
    }
}
