//! Who produced each token, and what was drafted in vain.

use foretoken::report::{digits, origin};
use foretoken::{Drafted, Emitted, Origin, Prompter};
use serde_json::{Value, json};

use super::log_probabilities::text_of;

/// The tokens of a text: who, how deep in the draft, in which pass, with which probabilities under the laws of the
/// target (p) and of the drafter (q).
pub(crate) fn of_tokens(emitted: &[Emitted], prompter: &Prompter) -> Value {
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
pub(crate) fn of_drafts(drafted: &[Drafted], prompter: &Prompter) -> Value {
    let one = |drafted: &Drafted| {
        json!({
            "drafter": origin(Origin::Drafted(drafted.drafter), &prompter.names),
            "depth": drafted.depth,
            "token": drafted.token,
            "text": text_of(prompter, drafted.token),
            "accepted": drafted.accepted,
        })
    };
    drafted.iter().map(one).collect()
}
