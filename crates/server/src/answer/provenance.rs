//! The origin of each token, and the drafted tokens.

use foretoken::report::{digits, origin};
use foretoken::{Drafted, Emitted, Origin, Prompter};
use serde_json::{Value, json};

use super::log_probabilities::token_text;

/// The tokens of an answer: origin, depth in the draft, pass, and the probabilities under the laws of the target (p)
/// and of the drafter (q).
pub(crate) fn tokens_json(emitted: &[Emitted], prompter: &Prompter) -> Value {
    let one = |emitted: &Emitted| {
        json!({
            "token": emitted.token,
            "text": emitted.text,
            "origin": origin(emitted.origin, &prompter.names),
            "depth": emitted.depth,
            "pass": emitted.pass,
            "p": digits(emitted.p),
            "q": emitted.q.map(|q| digits(f64::from(q))),
        })
    };
    emitted.iter().map(one).collect()
}

/// The tokens of draft trees that were verified.
pub(crate) fn drafts_json(drafted: &[Drafted], prompter: &Prompter) -> Value {
    let one = |drafted: &Drafted| {
        json!({
            "drafter": origin(Origin::Drafted(drafted.drafter), &prompter.names),
            "depth": drafted.depth,
            "token": drafted.token,
            "text": token_text(prompter, drafted.token),
            "accepted": drafted.accepted,
        })
    };
    drafted.iter().map(one).collect()
}
