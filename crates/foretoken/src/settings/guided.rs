//! Settings of guided decoding: the grammar that a text has to match.
//!
//! Each of the four kinds of grammar has its own setting. The grammar is compiled when the sampling parameters are
//! decided ([`SamplingSettings::decided`](super::SamplingSettings::decided)), so an invalid one is refused before
//! anything is generated. The crate `text` compiles grammars, and `engine` applies them.

use std::sync::Arc;

use foretoken_speculation::Token;
use foretoken_text::{Grammar, GrammarSource, TextError, Tokenizer};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Message};
use crate::names::{NamedValue, OneOf};

/// The grammar that a text has to match: at most one of `json_schema`, `regex`, `grammar` and `choices`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuidedSettings {
    /// A JSON Schema, as JSON text. Properties come in the schema's order; keywords and formats that cannot be enforced
    /// are refused with their path.
    pub json_schema: Option<String>,
    /// Whether whitespace is allowed between the parts of JSON.
    pub json_whitespace: bool,
    /// A regular expression that the whole text matches.
    pub regex: Option<String>,
    /// A grammar in Lark's notation, or in that of llama.cpp (GBNF), which is recognised by `::=`.
    pub grammar: Option<String>,
    /// The text is one of these.
    pub choices: Vec<String>,
    /// The generation of strings that the grammar forces.
    pub grammar_forcing: GrammarForcing,
}

/// The generation of strings that a grammar forces, such as names of properties.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GrammarForcing {
    /// The model generates them, in any tokens that spell them; the usual tokens are drafted.
    #[default]
    Off,
    /// They are written without running the model, in the tokens that encoding the text gives. This changes the
    /// distribution of texts: it is not the model's under the grammar's mask.
    Canonical,
}

impl OneOf for GrammarForcing {
    const VALUES: &'static [NamedValue<Self>] = &[
        NamedValue::new(Self::Off, &["off"], "The model generates them"),
        NamedValue::new(Self::Canonical, &["canonical"], "They are written as encoding the text would"),
    ];
}

impl GuidedSettings {
    /// The grammar, if there is one.
    ///
    /// # Errors
    /// Several grammars are set, or whitespace is allowed without a JSON Schema.
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
            let several = Message::setting(setting).and(": expected one form of the text, found ");
            return Err(Error::Setting(several.and_setting(other).and(" beside it")));
        }
        if flexible && first.as_ref().is_none_or(|(setting, _)| *setting != "json_schema") {
            let missing = Message::setting("json_whitespace").and(": expected ").and_setting("json_schema");
            return Err(Error::Setting(missing.and(" beside it, found none")));
        }
        Ok(first.map(|(_, source)| source))
    }

    /// The grammar, compiled for a vocabulary, if there is one.
    ///
    /// # Errors
    /// As [`GuidedSettings::source`]; the grammar is invalid or cannot be enforced; or the model has no tokenizer.
    pub(super) fn compiled(&self, tokenizer: Option<&Tokenizer>) -> Result<Option<Arc<Grammar>>, Error> {
        let Some(source) = self.source()? else { return Ok(None) };
        let setting = source.name();
        let tokenizer = tokenizer.ok_or_else(|| Error::needs_tokenizer(setting))?;
        match Grammar::compile(tokenizer, &source) {
            Ok(grammar) => Ok(Some(grammar)),
            Err(TextError::Grammar { found, .. }) => Err(Error::setting(setting, format!(": {found}"))),
            Err(error) => Err(error.into()),
        }
    }
}

/// Refuses a grammar if no token ends a text, since the text could then not end where the grammar does, and a grammar
/// that names an end token, since nothing can follow that. `ends`: the end tokens.
pub(crate) fn check_ends(grammar: &Grammar, tokenizer: &Tokenizer, ends: &[Token]) -> Result<(), Error> {
    if ends.is_empty() {
        let expected = Message::setting(grammar.source().name()).and(": expected tokens that end a text, found none (");
        return Err(Error::Setting(expected.and_setting("ignore_eos").and(", or a model without any)")));
    }
    // The grammar of tool calls may name an end token, which then ends the text.
    let is_tool_calls = matches!(grammar.source(), GrammarSource::ToolCalls(_));
    let Some(end) = grammar.named_token(ends).filter(|_| !is_tool_calls) else { return Ok(()) };
    let spelt = String::from_utf8_lossy(tokenizer.token_bytes(end)).into_owned();
    let expected = format!(": expected no token that ends a text, for it may end where its form does, found {spelt}");
    Err(Error::setting(grammar.source().name(), expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_at_most_one_grammar() {
        let text = |text: &str| Some(text.to_string());
        let parsed = |settings: GuidedSettings| settings.source().map_err(|error| error.to_string());
        let none = GuidedSettings::default;
        assert_eq!(parsed(none()), Ok(None));
        let choices = vec!["a".to_string()];
        let settings = GuidedSettings { choices: choices.clone(), ..none() };
        assert_eq!(parsed(settings), Ok(Some(GrammarSource::Choices(choices.clone()))));
        let settings = GuidedSettings { regex: text("a"), choices, ..none() };
        assert_eq!(parsed(settings), Err("regex: expected one form of the text, found choices beside it".to_string()));
        let settings = GuidedSettings { json_whitespace: true, regex: text("a"), ..none() };
        let beside = "json_whitespace: expected json_schema beside it, found none";
        assert_eq!(parsed(settings), Err(beside.to_string()));
    }
}
