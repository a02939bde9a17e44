//! Settings of guided texts: the form that a text has to have.
//!
//! There is one of four, each with a setting of its own. It is compiled when the law is decided
//! ([`SamplingSettings::decided`](super::SamplingSettings::decided)), so a form that cannot be kept to is refused
//! before anything is written. Left out: what a grammar is (`text`), and how a text is held to it (`engine`).

use std::sync::Arc;

use foretoken_speculation::Token;
use foretoken_text::{Grammar, GrammarSource, TextError, Tokenizer};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Message};

/// The form that a text has to have: at most one of these. Without any, everything may be written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuidedSettings {
    /// A JSON Schema, as JSON text. Properties come in the schema's order; keywords and formats that cannot be enforced
    /// are refused by their place.
    pub json_schema: Option<String>,
    /// Whether whitespace may stand between the parts of JSON; without it there is none.
    pub json_whitespace: bool,
    /// A regular expression that the whole text matches.
    pub regex: Option<String>,
    /// A grammar in Lark's notation, or in that of llama.cpp (GBNF), which its `::=` tells.
    pub grammar: Option<String>,
    /// The text is one of these.
    pub choices: Vec<String>,
    /// What becomes of strings that the form leaves no choice about; without a form nothing.
    pub grammar_forcing: GrammarForcing,
}

/// What becomes of strings that a form leaves no choice about: names of properties, say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GrammarForcing {
    /// The model spells them, in whatever tokens it likes; the usual ones are drafted.
    #[default]
    Off,
    /// They are spelt in the tokens that encoding the text gives, without asking. That is another law than the model's
    /// under its mask.
    Canonical,
}

impl GuidedSettings {
    /// The form, if there is one.
    ///
    /// # Errors
    /// There are several, or whitespace is to be flexible in something that is no JSON.
    pub fn source(&self) -> Result<Option<GrammarSource>, Error> {
        let Self { json_schema, json_whitespace: flexible, regex, grammar, choices, .. } = self.clone();
        let choices = Some(choices).filter(|choices| !choices.is_empty());
        let sources = [
            json_schema.map(|schema| ("json_schema", GrammarSource::JsonSchema { schema, flexible })),
            regex.map(|expression| ("regex", GrammarSource::Regex(expression))),
            grammar.map(|grammar| ("grammar", GrammarSource::of_grammar(grammar))),
            choices.map(|choices| ("choices", GrammarSource::Choices(choices))),
        ];
        let mut given = sources.into_iter().flatten();
        let first = given.next();
        if let (Some((setting, _)), Some((other, _))) = (&first, given.next()) {
            let alone = Message::setting(setting).and(": expected one form of the text, found ");
            return Err(Error::Setting(alone.and_setting(other).and(" beside it")));
        }
        if flexible && first.as_ref().is_none_or(|(setting, _)| *setting != "json_schema") {
            let beside = Message::setting("json_whitespace").and(": expected ").and_setting("json_schema");
            return Err(Error::Setting(beside.and(" beside it, found none")));
        }
        Ok(first.map(|(_, source)| source))
    }

    /// The form, compiled for a vocabulary, if there is one.
    ///
    /// # Errors
    /// As [`GuidedSettings::source`]; the form cannot be understood or kept to; or the model has no tokenizer.
    pub(super) fn compiled(&self, tokenizer: Option<&Tokenizer>) -> Result<Option<Arc<Grammar>>, Error> {
        let Some(source) = self.source()? else { return Ok(None) };
        let setting = source.name();
        let refuse = |words: String| Err(Error::Setting(Message::setting(setting).and(words)));
        let Some(tokenizer) = tokenizer else {
            return refuse(": expected a model with a tokenizer, found one without".to_string());
        };
        match Grammar::compile(tokenizer, &source) {
            Ok(grammar) => Ok(Some(grammar)),
            Err(TextError::Grammar { found, .. }) => refuse(format!(": {found}")),
            Err(error) => Err(error.into()),
        }
    }
}

/// Refuses a form where no token ends a text, so that none could end where the form does; and one that names a token by
/// which texts end, for behind it there is no more text. `ends`: these tokens.
pub(crate) fn check_ends(grammar: &Grammar, tokenizer: &Tokenizer, ends: &[Token]) -> Result<(), Error> {
    if ends.is_empty() {
        let expected = Message::setting(grammar.source().name()).and(": expected tokens that end a text, found none (");
        return Err(Error::Setting(expected.and_setting("ignore_eos").and(", or a model without any)")));
    }
    // Calls may have such a mark behind them, which is then the end.
    let is_ours = matches!(grammar.source(), GrammarSource::ToolCalls(_));
    let Some(end) = grammar.names(ends).filter(|_| !is_ours) else { return Ok(()) };
    let spelt = String::from_utf8_lossy(tokenizer.token_bytes(end)).into_owned();
    let expected = format!(": expected no token that ends a text, for it may end where its form does, found {spelt}");
    Err(Error::Setting(Message::setting(grammar.source().name()).and(expected)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_form_or_none() {
        let text = |text: &str| Some(text.to_string());
        let said = |settings: GuidedSettings| settings.source().map_err(|error| error.to_string());
        let none = GuidedSettings::default;
        assert_eq!(said(none()), Ok(None));
        let choices = vec!["a".to_string()];
        let settings = GuidedSettings { choices: choices.clone(), ..none() };
        assert_eq!(said(settings), Ok(Some(GrammarSource::Choices(choices.clone()))));
        let settings = GuidedSettings { regex: text("a"), choices, ..none() };
        assert_eq!(said(settings), Err("regex: expected one form of the text, found choices beside it".to_string()));
        let settings = GuidedSettings { json_whitespace: true, regex: text("a"), ..none() };
        let beside = "json_whitespace: expected json_schema beside it, found none";
        assert_eq!(said(settings), Err(beside.to_string()));
    }
}
