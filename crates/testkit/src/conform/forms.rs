//! The meaning of a case's form: a constraint for the engine, and for the oracle a table without the forbidden tokens.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use foretoken_engine::{Forcing, ThinkingWords, guided, guided_after_thoughts};
use foretoken_speculation::{Constrained, Token};
use foretoken_text::{Grammar, GrammarSource, Spelling, Thinking, ThinkingTags};

use super::{Case, Form};
use crate::forbidding::Forbidding;
use crate::table::Table;
use crate::vocabulary;

/// The tags around thoughts in toys.
const TAGS: ThinkingTags = ThinkingTags { open: "bb", close: "aba" };

/// The constraint of a case, if it has one.
pub(super) fn constraint(case: &Case) -> Option<Constrained> {
    match case.form {
        Form::Free => None,
        Form::Forbidding => Some(Constrained::new(Box::new(Forbidding::new(case.target.1)))),
        Form::Grammar(expression) => {
            Some(guided(&grammar(case, expression), &case.sampling.end_tokens, foreseen(case)))
        }
        Form::AfterThoughts(expression) => {
            let (grammar, tokenizer) = (grammar(case, expression), vocabulary::target(case.target.1));
            let (ends, forcing) = (&case.sampling.end_tokens, foreseen(case));
            let words = Arc::new(ThinkingWords::new(&tokenizer, TAGS));
            Some(guided_after_thoughts(&grammar, ends, forcing, &words, Thinking::Possible))
        }
    }
}

/// The tokens of forced strings in a case's target, computed once per vocabulary.
fn foreseen(case: &Case) -> Forcing {
    static CACHE: Mutex<BTreeMap<usize, Arc<Spelling>>> = Mutex::new(BTreeMap::new());
    let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    let make = || Arc::new(Spelling::new(vocabulary::target(case.target.1)));
    Forcing::Foreseen(Arc::clone(cache.entry(case.target.1).or_insert_with(make)))
}

/// The grammar of a case, over the words of its target; it is compiled once.
fn grammar(case: &Case, expression: &str) -> Arc<Grammar> {
    static CACHE: Mutex<BTreeMap<(usize, String), Arc<Grammar>>> = Mutex::new(BTreeMap::new());
    let name = (case.target.1, expression.to_string());
    let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    let compile = || {
        let source = GrammarSource::Regex(expression.to_string());
        Grammar::compile(&vocabulary::target(case.target.1), &source).expect("a good expression")
    };
    Arc::clone(cache.entry(name).or_insert_with(compile))
}

/// The table from which the oracle decodes a case: the target's, without the tokens that the constraint forbids.
pub(super) fn specified(table: &Table, case: &Case) -> Table {
    match case.form {
        Form::Free => table.clone(),
        Form::Forbidding => Forbidding::applied_to(table, case.prompt.len()),
        Form::Grammar(expression) => {
            let (table, grammar, case) = (table.clone(), grammar(case, expression), case.clone());
            Table::new(case.target.1, move |tokens| masked(table.logits(tokens), &grammar, &case, tokens))
        }
        Form::AfterThoughts(expression) => {
            let (table, grammar, case) = (table.clone(), grammar(case, expression), case.clone());
            Table::new(case.target.1, move |tokens| {
                let (mut row, written) = (table.logits(tokens), &tokens[case.prompt.len()..]);
                for (token, logit) in (0..).zip(&mut row) {
                    if !is_after_thoughts(&grammar, &case.sampling.end_tokens, &[written, &[token]].concat()) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
                row
            })
        }
    }
}

/// Whether these tokens can begin an output of optional thoughts and then the grammar, decided from all of them.
fn is_after_thoughts(grammar: &Arc<Grammar>, ends: &[Token], tokens: &[Token]) -> bool {
    let is_shown = |token: &Token| !vocabulary::word(*token).starts_with('<') && !ends.contains(token);
    let text_of = |tokens: &[Token]| -> String {
        tokens.iter().filter(|token| is_shown(token)).map(|token| vocabulary::word(*token)).collect()
    };
    let is_of_grammar = |tokens: &[Token]| {
        let mut matcher = grammar.matcher();
        tokens.iter().all(|token| if ends.contains(token) { matcher.may_end() } else { matcher.accept(*token) })
    };
    let text = text_of(tokens);
    let Some(thoughts) = text.strip_prefix(TAGS.open) else {
        return (TAGS.open.starts_with(&text) && tokens.iter().all(is_shown)) || is_of_grammar(tokens);
    };
    let Some(len) = thoughts.find(TAGS.close) else { return !tokens.iter().any(|token| ends.contains(token)) };
    let end = TAGS.open.len() + len + TAGS.close.len();
    let before = (0..=tokens.len()).find(|count| text_of(&tokens[..*count]).len() == end);
    before.is_some_and(|count| {
        !tokens[..count].iter().any(|token| ends.contains(token)) && is_of_grammar(&tokens[count..])
    })
}

/// A row of the target without the tokens that the grammar forbids, by a new matcher that is asked token by token.
fn masked(mut row: Vec<f32>, grammar: &Arc<Grammar>, case: &Case, tokens: &[Token]) -> Vec<f32> {
    let mut matcher = grammar.matcher();
    // After an end token nothing is decoded.
    if tokens[case.prompt.len()..].iter().all(|token| matcher.accept(*token)) {
        let may_end = matcher.may_end();
        for (token, logit) in (0..).zip(&mut row) {
            let is_end = case.sampling.end_tokens.contains(&token);
            if !(if is_end { may_end } else { matcher.duplicate().accept(token) }) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    row
}
