//! A row of a network's outputs as a law: the one place where the two meet.
//!
//! A row in which anything is NaN has no law: the network has failed, and a text from the rest of the row would look
//! like any other. Where nothing but the likeliest token is asked for, the row itself is not looked at:
//! [`Outputs::has_nan`] and [`Outputs::argmax`] say it, and an executor whose logits lie far away need not bring them
//! over. One that could say whole laws would be asked here. Left out: the settings and what they mean (`speculation`).

use foretoken_model::Outputs;
use foretoken_speculation::{Context, Law, Sampling, Scratch};

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
    let law = match is_argmax(sampling, context) {
        true => outputs.argmax(row).map(Law::point),
        false => sampling.possible_law_with(outputs.row(row), context, scratch),
    };
    law.ok_or(NoLaw::NoToken)
}

/// Whether the law is the likeliest token of the row as the network says it: greedy, and no logit is changed before.
fn is_argmax(sampling: &Sampling, context: &Context<'_>) -> bool {
    sampling.temperature == 0.0
        && context.constraint.is_none()
        && (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.0, 0.0, 0.0)
        && sampling.logit_bias.is_empty()
        && sampling.banned_tokens.is_empty()
        && (sampling.tokens_min == 0 || sampling.end_tokens.is_empty())
}

#[cfg(test)]
mod tests {
    use foretoken_model::HostOutputs;
    use foretoken_speculation::{Constrained, Constraint, Token};

    use super::*;

    /// Forbids one token.
    struct Never(Token);

    impl Constraint for Never {
        fn mask(&mut self, logits: &mut [f32]) {
            logits[self.0 as usize] = f32::NEG_INFINITY;
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
    fn the_short_way_gives_the_same_laws() {
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
        assert!(is_argmax(&greedy, &free) && !is_argmax(&greedy, &bound));
        assert!(!edited.iter().any(|sampling| is_argmax(sampling, &free)));
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
