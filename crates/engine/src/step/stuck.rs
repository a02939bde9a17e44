//! Sequences that cannot continue, and the messages that say why.
//!
//! A message begins with the field of the request that is the reason, if there is one: the constraint, or the least
//! number of tokens. So an interface can name its own field. If the network itself left no possible token, the message
//! begins with the position.

use foretoken_model::ExecutorError;
use foretoken_speculation::{Context, NodeId, Sampling, Token, Verdict};

use crate::law::NoLaw;
use crate::output::FinishReason;
use crate::sequence::Sequence;

/// Why there is no law of the next token. `vocabulary`: number of tokens.
pub(super) fn why_no_law(why: NoLaw, sampling: &Sampling, context: &Context<'_>, vocabulary: usize) -> String {
    let position = context.tokens.len() + context.path.len();
    if why == NoLaw::NotNumbers {
        return not_numbers(position);
    }
    if let Some(constraint) = context.constraint {
        let (name, written, least) = (constraint.name(), position - context.prompt_len, sampling.tokens_min);
        let place = format!("at token {} of the text", written + 1);
        if let Some(failure) = constraint.failure(context.path) {
            return format!("{name}: {failure} ({place})");
        }
        let is_end = |token: Token| sampling.end_tokens.contains(&token);
        let (has_tokens, only_ends) = constraint.with_allowed(context.path, |allowed| {
            (allowed.below(vocabulary).next().is_some(), allowed.below(vocabulary).all(is_end))
        });
        if !has_tokens {
            return format!("{name}: expected a token that the text can go on with, found none ({place})");
        }
        if only_ends && written < least {
            return format!("tokens_min: expected at most {written}, where the form of the text ends, found {least}");
        }
        if sampling.logit_bias.is_empty() && sampling.banned_tokens.is_empty() {
            return format!("{name}: expected a token that the model has a logit for, found none ({place})");
        }
    }
    format!(
        "token {position}: expected a possible one, found none: all logits are minus infinity, or all tokens are \
         banned or forbidden"
    )
}

/// The message if the logits of the token at this position are not numbers.
pub(super) fn not_numbers(position: usize) -> String {
    format!("token {position}: expected logits that are numbers, found NaN: the model's weights cannot be right")
}

/// The message if a constraint refuses a token before this position that it allowed.
pub(super) fn refuses_what_it_allowed(position: usize) -> String {
    format!("token {position}: expected a constraint that accepts what it allowed, found one that refuses it")
}

/// Cuts a verdict before the first token that was chosen without a law, and returns why there was none.
///
/// Such a node has a placeholder law, so that verification can finish; the tokens before it, which plain decoding would
/// have written too, stay.
pub(super) fn cut_at_impossible(verdict: &mut Verdict, impossible: &[(Option<NodeId>, String)]) -> Option<String> {
    let chosen_at = std::iter::once(None).chain(verdict.path.iter().copied().map(Some));
    let why = |node: Option<NodeId>| impossible.iter().find(|(at, _)| *at == node).map(|(_, why)| why.clone());
    let (cut, why) = chosen_at.enumerate().find_map(|(i, node)| Some((i, why(node)?)))?;
    verdict.path.truncate(cut);
    verdict.tokens.truncate(cut);
    verdict.probabilities.truncate(cut);
    Some(why)
}

/// Ends a sequence that cannot continue, if it has not ended: no next token was possible, its constraint refuses what
/// was written, or its accepted rows could not be moved. Verified tokens are still emitted.
pub(super) fn end_if_stuck(
    sequence: &mut Sequence,
    impossible: Option<String>,
    refused: bool,
    moved: Result<(), ExecutorError>,
) {
    let reason = match (impossible, moved) {
        (Some(why), _) => why,
        (None, Err(error)) => error.to_string(),
        (None, Ok(())) if refused => refuses_what_it_allowed(sequence.text.tokens.len()),
        (None, Ok(())) => return,
    };
    sequence.finished.get_or_insert(FinishReason::Failed(reason));
}
