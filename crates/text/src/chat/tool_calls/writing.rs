//! Grammars of tool calls for guided decoding, made from the description that the reader follows.
//!
//! A format's graph ([`super::grammar`]) is traversed, and each node becomes a rule of a grammar in Lark's notation:
//! delimiters are literals (or special tokens if the vocabulary has them), names are those of the request's functions,
//! and arguments have to match the function's schema ([`super::arguments`]). What may follow a node depends on what was
//! written before, the function and its last argument, so there is a rule for each node and [`State`]. The reader
//! accepts variants of a format; the grammar has only the format's own ([`JsonCall`]), with white space where the
//! reader skips it.
//!
//! Forced calls have no text besides them, and closing delimiters are always written.

mod nodes;

use std::collections::HashMap;

use serde_json::{Value, json};

use super::ToolFormat;
use super::arguments::{Arguments, Problem};
use super::grammar::{Delimiter, Grammar, JsonCall, Node};
use crate::grammar::with_options;
use crate::{GrammarSource, Token, Tokenizer};
use nodes::State;

/// A function that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolFunction {
    /// Its name.
    pub name: String,
    /// The JSON Schema of its arguments; `None` if it has none.
    pub parameters: Option<Value>,
    /// Whether its arguments have to match the schema; otherwise they may be any object.
    pub is_strict: bool,
}

/// Whether a constrained answer consists of calls or may have calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallsWanted {
    /// The answer consists of one or more calls.
    Forced,
    /// The answer is text that may contain calls.
    Free,
}

impl ToolFormat {
    /// The grammar of answers with calls of these functions in this format. With `several` there may be more than one
    /// call. If calls are [`CallsWanted::Forced`] all arguments have to match their schema; otherwise arguments of
    /// functions that are not strict may be any object, in formats with JSON arguments.
    ///
    /// # Errors
    /// If something cannot be expressed: the location in the list of tools (`[0].function.parameters`; empty for the
    /// format itself), and what was expected and found there.
    pub fn grammar_of_calls(
        self,
        tokenizer: &Tokenizer,
        functions: &[ToolFunction],
        wanted: CallsWanted,
        several: bool,
    ) -> Result<GrammarSource, (String, String)> {
        let grammar = self.grammar();
        let is_word = |delimiter: &Delimiter| delimiter.text.starts_with(|first: char| first.is_ascii_alphabetic());
        if wanted == CallsWanted::Free && (!grammar.first.is_empty() || grammar.opens.iter().any(is_word)) {
            let why = "expected a format whose calls begin with a delimiter, to tell them from text, found one without";
            return Err((String::new(), why.to_string()));
        }
        let all = functions.iter().enumerate();
        let arguments = all.map(|(number, function)| {
            let is_enforced = function.is_strict || wanted == CallsWanted::Forced;
            Arguments::new(function, number, is_enforced).map_err(|found| found.in_function(number))
        });
        let arguments = arguments.collect::<Result<Vec<_>, _>>()?;
        // One scan of the vocabulary for all delimiters; of tokens with the same text, the first.
        let tokens = tokenizer.special_tokens(grammar.delimiters);
        let special_token = |delimiter: &&'static str| {
            let token = tokens.iter().find(|token| tokenizer.token_bytes(**token) == delimiter.as_bytes());
            token.map(|token| (*delimiter, *token))
        };
        let mut writer = Writer {
            grammar,
            json: self.json_call(),
            special: grammar.delimiters.iter().filter_map(special_token).collect(),
            functions,
            arguments,
            several,
            rules: Vec::new(),
            cached: HashMap::new(),
        };
        let start = match wanted {
            CallsWanted::Forced => writer.forced()?,
            CallsWanted::Free => writer.free()?,
        };
        let rules = writer.rules.join("\n");
        Ok(GrammarSource::ToolCalls(format!("{start}\n{rules}\nWS: / |\\n{{1,2}}[ \\t]{{0,20}}/\n")))
    }

    /// How the format writes a call in JSON.
    fn json_call(self) -> JsonCall {
        let json = |name, arguments, is_list| JsonCall { name, arguments, number: None, is_list };
        match self {
            Self::CommandR => json("tool_name", "parameters", true),
            Self::CommandR7b => JsonCall { number: Some("tool_call_id"), ..json("tool_name", "parameters", true) },
            Self::LlamaJson | Self::InternLm => json("name", "parameters", false),
            Self::Hermes | Self::Generic => json("name", "arguments", false),
            _ => json("name", "arguments", true),
        }
    }
}

/// Writes the rules of one grammar.
pub(super) struct Writer<'a> {
    grammar: &'static Grammar,
    json: JsonCall,
    /// The delimiters that are special tokens.
    special: HashMap<&'static str, Token>,
    functions: &'a [ToolFunction],
    arguments: Vec<Arguments>,
    several: bool,
    rules: Vec<String>,
    /// The rules of nodes by state; `None` if no call can be completed from there.
    cached: HashMap<(usize, State), Option<String>>,
}

impl Writer<'_> {
    /// The start rule of an answer that consists of calls.
    fn forced(&mut self) -> Result<String, Problem> {
        let grammar = self.grammar;
        let first = self.opened(grammar.first.iter().chain(grammar.opens))?;
        let begins_calls = |delimiter: &&Delimiter| !matches!(delimiter.then, Node::Complete);
        let more = self.opened(grammar.opens.iter().chain(grammar.after_calls.iter().filter(begins_calls)))?;
        let more = if self.several { format!("({more})*") } else { String::new() };
        Ok(format!("start: ({first}) {more} {}", self.tail()))
    }

    /// The start rule of an answer that may contain calls.
    fn free(&mut self) -> Result<String, Problem> {
        let opens = self.grammar.opens;
        let (mut texts, mut alternatives) = (Vec::new(), vec!["FREE?".to_string()]);
        let following = if self.several { "start" } else { "FREE?" };
        let tail = self.tail();
        for delimiter in opens {
            let Some(then) = self.node_rule(delimiter.then, State::default())? else { continue };
            let before = match self.special(delimiter.text) {
                Some(token) => format!("FREE? {token}"),
                None => {
                    texts.push(escaped(delimiter.text));
                    let rule = format!("before_{}[suffix={}]: /(?s:.*)/", texts.len(), quoted(delimiter.text));
                    self.rules.push(rule);
                    format!("before_{}", texts.len())
                }
            };
            alternatives.push(format!("{before} {then} {tail} {following}"));
        }
        let free = match texts.as_slice() {
            [] => "FREE: /(?s:.+)/".to_string(),
            texts => format!("FREE: /(?s:.+)/ & ~/(?s:.*)({})(?s:.*)/", texts.join("|")),
        };
        self.rules.push(free);
        Ok(format!("start: {}", alternatives.join(" | ")))
    }

    /// The delimiter that may follow all calls, if there is one.
    fn tail(&self) -> String {
        let delimiters = self.grammar.after_calls.iter().filter(|delimiter| matches!(delimiter.then, Node::Complete));
        delimiters.map(|delimiter| format!("(WS? {})?", self.delimiter(delimiter.text))).collect::<Vec<_>>().join(" ")
    }

    /// The alternatives that begin with these delimiters.
    fn opened(&mut self, delimiters: impl Iterator<Item = &'static Delimiter>) -> Result<String, Problem> {
        let delimiters: Vec<&Delimiter> = delimiters.collect();
        Ok(self.alternatives(&delimiters, None, State::default())?.join(" | "))
    }

    /// The schema of calls as JSON.
    fn calls(&self) -> Value {
        let JsonCall { name, arguments, number, is_list } = self.json;
        let mut whole = serde_json::Map::new();
        let mut calls = Vec::new();
        for (function, function_arguments) in self.functions.iter().zip(&self.arguments) {
            let mut properties = serde_json::Map::new();
            properties.extend(
                number.map(|number| (number.to_string(), json!({ "type": "string", "pattern": "^[0-9]{1,2}$" }))),
            );
            properties.insert(name.to_string(), json!({ "const": function.name }));
            properties.insert(arguments.to_string(), function_arguments.schema());
            let required: Vec<String> = properties.keys().filter(|key| Some(key.as_str()) != number).cloned().collect();
            calls.push(json!({ "type": "object", "properties": properties, "required": required,
                "additionalProperties": false }));
            whole.extend(function_arguments.definitions());
        }
        let call = json!({ "anyOf": calls });
        whole.extend(
            match is_list {
                true => json!({ "type": "array", "items": call, "minItems": 1 }),
                false => call,
            }
            .as_object()
            .cloned()
            .unwrap_or_default(),
        );
        if is_list && !self.several {
            whole.insert("maxItems".to_string(), json!(1));
        }
        Value::Object(whole)
    }

    /// The special token of this text, in Lark's notation.
    fn special(&self, text: &str) -> Option<String> {
        self.special.get(text).map(|token| format!("<[{token}]>"))
    }
}

impl Writer<'_> {
    /// A delimiter, as a special token or a literal.
    pub(super) fn delimiter(&self, text: &str) -> String {
        self.special(text).unwrap_or_else(|| quoted(text))
    }

    /// Any text up to and including a delimiter.
    pub(super) fn up_to(&mut self, end: &str) -> String {
        if let Some(token) = self.special(end) {
            return format!("/(?s:.*)/ {token}");
        }
        let name = format!("text_{}", self.rules.len());
        self.rules.push(format!("{name}[suffix={}]: /(?s:.*)/", quoted(end)));
        name
    }

    /// A rule for JSON of this schema.
    pub(super) fn json_rule(&mut self, schema: &Value) -> String {
        let rule = format!("%json {}", with_options(schema, true));
        self.rule("json", &rule)
    }

    /// A rule with this body; the same body gives the same rule.
    pub(super) fn rule(&mut self, kind: &str, body: &str) -> String {
        let same =
            |rule: &String| rule.split_once(": ").filter(|(_, other)| *other == body).map(|(name, _)| name.to_string());
        self.rules.iter().find_map(same).unwrap_or_else(|| {
            let name = format!("{kind}_{}", self.rules.len());
            self.rules.push(format!("{name}: {body}"));
            name
        })
    }
}

/// A text as a literal of a grammar.
pub(super) fn quoted(text: &str) -> String {
    super::call::quoted(text)
}

/// A text as a regular expression in a grammar.
fn escaped(text: &str) -> String {
    let escape = |c: char| if c.is_ascii_punctuation() { format!("\\x{:02x}", u32::from(c)) } else { c.to_string() };
    text.chars().map(escape).collect()
}
