//! Turns a row of a network's outputs into a law.
//!
//! A row that contains NaN has no law: the network has failed, and an output drawn from the rest of the row would look
//! like any other. If the settings need only the most probable token or the k largest logits, the row itself is not
//! read, and with a constraint only if that forbids the most probable token: [`Outputs::has_nan`], [`Outputs::argmax`]
//! and [`Outputs::largest`] suffice, and an executor whose logits lie on another device need not copy them. Laws and
//! log-probabilities have the same bits either way.

use foretoken_model::Outputs;
use foretoken_speculation::{Constrained, Context, Law, RawLaw, Sampling, Scratch, Token};

/// Why there is no law.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoLaw {
    /// A logit is NaN: the network has failed.
    NotNumbers,
    /// All logits are minus infinity, or the settings leave no token.
    NoToken,
}

/// The law of the token after the `row`th wanted row, as [`Sampling::possible_law_with`], or why there is none.
pub(crate) fn possible_law(
    outputs: &dyn Outputs,
    row: usize,
    sampling: &Sampling,
    context: &Context<'_>,
    scratch: &mut Scratch,
) -> Result<Law, NoLaw> {
    if outputs.has_nan(row) {
        return Err(NoLaw::NotNumbers);
    }
    let needed = sampling.largest_needed(context);
    if needed.or_else(|| sampling.largest_needed(&Context { constraint: None, ..*context })).is_some()
        && sampling.temperature == 0.0
    {
        let best = outputs.argmax(row).ok_or(NoLaw::NoToken)?;
        // If the most probable of all tokens is allowed, it is the most probable of the allowed ones: no mask is
        // needed.
        let is_allowed = |constraint: &Constrained| constraint.allows(&[context.path, &[best]].concat());
        if context.constraint.is_none_or(is_allowed) {
            return Ok(Law::point(best));
        }
    }
    let law = if let Some(largest) = needed.and_then(|count| outputs.largest(row, count)) {
        sampling.law_of_largest(&largest.logits, scratch)
    } else {
        sampling.possible_law_with(outputs.row(row), context, scratch)
    };
    law.ok_or(NoLaw::NoToken)
}

/// What is reported of the `row`th wanted row: the log-probability of a token under the raw law, and the `top_len` most
/// probable tokens with theirs. `sampling`: the settings that the token was drawn by; they decide how many of the
/// largest logits to ask for first.
pub(crate) fn raw_log_probabilities(
    outputs: &dyn Outputs,
    row: usize,
    token: Token,
    top_len: usize,
    sampling: &Sampling,
) -> (f32, Vec<(Token, f32)>) {
    let count = sampling.largest_needed(&Context::EMPTY).unwrap_or(1).max(top_len);
    let largest = outputs.largest(row, count).filter(|largest| largest.has(token));
    let raw = match &largest {
        Some(largest) => RawLaw::of_largest(&largest.logits, largest.log_sum),
        None => RawLaw::new(outputs.row(row)),
    };
    (raw.log_probability(token), raw.top(top_len))
}

#[cfg(test)]
mod tests {
    use foretoken_model::HostOutputs;
    use foretoken_speculation::{Constraint, TokenSet};

    use super::*;

    /// Forbids one token.
    struct Never(Token);

    impl Constraint for Never {
        fn allowed(&mut self) -> TokenSet {
            let mut allowed = TokenSet::all();
            allowed.remove(self.0);
            allowed
        }

        fn accept(&mut self, token: Token) -> bool {
            token != self.0
        }

        fn roll_back(&mut self, _: usize) {}

        fn duplicate(&self) -> Box<dyn Constraint> {
            Box::new(Never(self.0))
        }
    }

    #[test]
    fn laws_from_the_largest_logits_equal_those_from_the_whole_row() {
        let rows: [&[f32]; 6] = [
            &[f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY],
            &[0.5, 2.0, 2.0, -1.0],
            &[f32::NAN, f32::NEG_INFINITY, -3.0, f32::NAN],
            &[f32::NEG_INFINITY, f32::NAN, f32::NEG_INFINITY, f32::NAN],
            &[1.0, f32::MAX, f32::INFINITY, 0.0],
            &[0.0, 0.0, f32::INFINITY, f32::INFINITY],
        ];
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        let edited = [
            Sampling { banned_tokens: vec![1], ..greedy.clone() },
            Sampling { logit_bias: vec![(1, -9.0)], ..greedy.clone() },
            Sampling { repetition_penalty: 1.5, ..greedy.clone() },
            Sampling { presence_penalty: 0.5, ..greedy.clone() },
            Sampling { frequency_penalty: 0.5, ..greedy.clone() },
            Sampling { tokens_min: 2, end_tokens: vec![1], ..greedy.clone() },
            Sampling::default(),
        ];
        let tokens: [Token; 2] = [1, 2];
        let constrained = Constrained::new(Box::new(Never(1)));
        let free = Context { tokens: &tokens, prompt_len: 1, ..Context::EMPTY };
        let bound = Context { constraint: Some(&constrained), ..free };
        assert_eq!([greedy.largest_needed(&free), greedy.largest_needed(&bound)], [Some(1), None]);
        assert!(!edited.iter().any(|sampling| sampling.largest_needed(&free).is_some()));
        for row in rows {
            let outputs = HostOutputs { vocabulary: row.len(), logits: row.to_vec(), ..HostOutputs::default() };
            for (sampling, context) in edited.iter().chain([&greedy]).flat_map(|each| [(each, &free), (each, &bound)]) {
                let scratch = &mut Scratch::default();
                let found = possible_law(&outputs, 0, sampling, context, scratch);
                let expected = match row.iter().any(|logit| logit.is_nan()) {
                    true => Err(NoLaw::NotNumbers),
                    false => sampling.possible_law_with(row, context, scratch).ok_or(NoLaw::NoToken),
                };
                assert_eq!(found, expected, "{row:?} {sampling:?}");
            }
        }
    }
}
