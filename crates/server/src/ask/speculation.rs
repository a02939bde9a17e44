//! Fields of speculation: who drafts for this request, how far, and what is promised.
//!
//! llama.cpp's names (`"speculative.n_max": 8`), which may also stand in an object (`"speculative": {"n_max": 8}`).
//! Nothing of it changes a text under *exact*.

use foretoken::{BudgetKind, Order, Promise, Prompter, Request, SpecType};

use crate::error::{ApiError, shown};
use crate::fields::Fields;

/// What a request says of speculation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SpeculationAsk {
    /// Who drafts; `None`: as the server was started.
    spec_type: Option<SpecType>,
    /// Most tokens drafted a pass; 0 is plain decoding.
    n_max: Option<usize>,
    n_min: Option<usize>,
    p_min: Option<f32>,
    promise: Option<Promise>,
}

impl SpeculationAsk {
    pub(super) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        fields.flatten("speculative")?;
        let spec_type = match fields.text("speculative.type")? {
            None => None,
            Some(word) => Some(
                word.parse()
                    .map_err(|why| ApiError::field("speculative.type", format!("{why}, found {:?}", shown(&word))))?,
            ),
        };
        let promise = match fields.text("speculative.verify")?.as_deref() {
            None => None,
            Some("exact") => Some(Promise::Exact),
            Some("rejection") => Some(Promise::Rejection),
            Some("block") => Some(Promise::Block),
            Some(found) => {
                let expected = format!("expected exact, rejection or block, found {:?}", shown(found));
                return Err(ApiError::field("speculative.verify", expected));
            }
        };
        let ask = Self {
            spec_type,
            n_max: fields.count("speculative.n_max", 0, 1 << 20)?,
            n_min: fields.count("speculative.n_min", 0, 1 << 20)?,
            p_min: fields.number("speculative.p_min", 0.0, 1.0)?,
            promise,
        };
        // These are ours, so a wrong word is a mistake and no other server's field.
        match fields.unknown().iter().find(|name| name.starts_with("speculative.")) {
            Some(name) => {
                Err(ApiError::field(name, "expected type, n_max, n_min, p_min or verify, found another word"))
            }
            None => Ok(ask),
        }
    }

    /// Whether nothing is drafted, whoever could.
    fn is_plain(&self) -> bool {
        self.n_max == Some(0) || self.spec_type == Some(SpecType::None)
    }

    /// Puts it into a request, which has its prediction already.
    pub(super) fn complete(&self, prompter: &Prompter, request: &mut Request) -> Result<(), ApiError> {
        if let Some(promise) = self.promise {
            request.promise = promise;
        }
        if self.is_plain() {
            request.drafters.clear();
            return Ok(());
        }
        let has_prediction = !request.prediction.is_empty();
        if let Some(spec_type) = &self.spec_type {
            let method = prompter.method(spec_type, has_prediction).map_err(|error| ApiError::of(&error))?;
            (request.drafters, request.order) = (method.drafters, method.order);
        } else if has_prediction && request.order != Order::Given {
            let method = prompter.method(&SpecType::Auto, true).map_err(|error| ApiError::of(&error))?;
            (request.drafters, request.order) = (method.drafters, method.order);
        }
        let follows = |number: &u8| prompter.is_prediction(*number);
        if has_prediction && !request.drafters.iter().any(follows) {
            // Who says what is expected wants it looked at, whoever else drafts.
            let numbers = 0..u8::try_from(prompter.names.len()).unwrap_or(u8::MAX);
            let first = numbers.into_iter().find(follows);
            request.drafters.splice(0..0, first);
        }
        if let Some(n_max) = self.n_max {
            request.budget = up_to(&request.budget, n_max);
        }
        request.draft.n_min = self.n_min.or(request.draft.n_min);
        let (fewest, most) = (request.draft.n_min.unwrap_or(0), request.budget.nodes_max());
        if fewest > most {
            let limit = if self.n_max.is_some() { "speculative.n_max" } else { "what is drafted a pass at most" };
            let expected = format!("expected at most {limit} ({most}), found {fewest}");
            return Err(ApiError::field("speculative.n_min", expected));
        }
        request.draft.p_min = self.p_min.or(request.draft.p_min);
        Ok(())
    }
}

/// The same budget with this maximum.
fn up_to(budget: &BudgetKind, nodes_max: usize) -> BudgetKind {
    match budget {
        BudgetKind::Auto { .. } => BudgetKind::Auto { nodes_max },
        BudgetKind::Fixed { .. } => BudgetKind::Fixed { nodes: nodes_max },
        BudgetKind::Heuristic { .. } => BudgetKind::Heuristic { nodes_max },
        BudgetKind::Confidence { .. } => BudgetKind::Confidence { nodes_max },
        BudgetKind::Threshold { .. } => BudgetKind::Threshold { nodes_max },
        BudgetKind::Oracle { text, .. } => BudgetKind::Oracle { text: text.clone(), nodes_max },
    }
}
