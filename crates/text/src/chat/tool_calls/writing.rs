//! Grammars of tool calls for guided decoding, made from the description that the reader follows.
//!
//! A format's graph ([`super::grammar`]) is traversed, and each node becomes a rule of a grammar in Lark's notation:
//! marks are literals (or special tokens if the vocabulary has them), names are those of the request's functions, and
//! arguments have to match the function's schema ([`super::arguments`]). What may follow a node depends on what was
//! written before, the function and its last argument, so there is a rule for each node and [`State`]. Of the variants
//! that the reader accepts only the format's own is written ([`JsonCall`]), with white space where the reader skips it.
//!
//! Forced calls have no text beside them, and closing marks are always written.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::ToolFormat;
use super::arguments::{Arguments, Problem};
use super::grammar::{Field, Grammar, JsonCall, Mark, Node};
use super::reader::is_word;
use crate::grammar::with_options;
use crate::{GrammarSource, Token, Tokenizer};

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
        let is_word = |mark: &Mark| mark.text.starts_with(|first: char| first.is_ascii_alphabetic());
        if wanted == CallsWanted::Free && (!grammar.first.is_empty() || grammar.opens.iter().any(is_word)) {
            let why =
                "expected a format whose calls begin with a mark, to distinguish them from text, found one without";
            return Err((String::new(), why.to_string()));
        }
        let all = functions.iter().enumerate();
        let arguments = all.map(|(number, function)| {
            let is_enforced = function.is_strict || wanted == CallsWanted::Forced;
            Arguments::new(function, number, is_enforced).map_err(|found| found.in_function(number))
        });
        let arguments = arguments.collect::<Result<Vec<_>, _>>()?;
        // One scan of the vocabulary for all marks; of tokens with the same text, the first.
        let tokens = tokenizer.special_tokens(grammar.marks);
        let of = |mark: &&'static str| {
            let token = tokens.iter().find(|token| tokenizer.token_bytes(**token) == mark.as_bytes());
            token.map(|token| (*mark, *token))
        };
        let mut writer = Writer {
            grammar,
            json: self.json_call(),
            special: grammar.marks.iter().filter_map(of).collect(),
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

/// What was written of a call before a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    /// The function, once its name is written.
    function: Option<usize>,
    /// If arguments are written separately: how many were written or left out.
    passed: usize,
    /// The argument whose name was written last.
    key: Option<usize>,
    /// Whether all arguments are written.
    is_complete: bool,
    /// Whether a call is written.
    has_called: bool,
    space: Space,
}

/// The white space that may be written at a node: any that the reader skips, or only such that may end the word before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Space {
    #[default]
    Any,
    Line,
    None,
}

impl State {
    fn space(self) -> &'static str {
        match self.space {
            Space::Any => "WS? ",
            Space::Line => "\"\\n\"? ",
            Space::None => "",
        }
    }
}

/// Writes the rules of one grammar.
pub(super) struct Writer<'a> {
    grammar: &'static Grammar,
    json: JsonCall,
    /// The marks that are special tokens.
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
        let begins_calls = |mark: &&Mark| !matches!(mark.then, Node::Complete);
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
        for mark in opens {
            let Some(then) = self.node_rule(mark.then, State::default())? else { continue };
            let before = match self.special(mark.text) {
                Some(token) => format!("FREE? {token}"),
                None => {
                    texts.push(escaped(mark.text));
                    let rule = format!("before_{}[suffix={}]: /(?s:.*)/", texts.len(), quoted(mark.text));
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

    /// The mark that may follow all calls, if there is one.
    fn tail(&self) -> String {
        let marks = self.grammar.after_calls.iter().filter(|mark| matches!(mark.then, Node::Complete));
        marks.map(|mark| format!("(WS? {})?", self.mark(mark.text))).collect::<Vec<_>>().join(" ")
    }

    /// The alternatives that begin with these marks.
    fn opened(&mut self, marks: impl Iterator<Item = &'static Mark>) -> Result<String, Problem> {
        let marks: Vec<&Mark> = marks.collect();
        Ok(self.alternatives(&marks, None, State::default())?.join(" | "))
    }

    /// The rule of a node, or `None` if no call can be completed from there.
    fn node_rule(&mut self, node: &'static Node, state: State) -> Result<Option<String>, Problem> {
        if matches!(node, Node::Complete) {
            return Ok(Some(String::new()));
        }
        let key = (std::ptr::from_ref(node) as usize, state);
        if let Some(cached) = self.cached.get(&key) {
            return Ok(cached.clone());
        }
        let name = format!("place_{}", self.cached.len());
        self.cached.insert(key, Some(name.clone()));
        let alternatives = self.node(node, state)?;
        if alternatives.is_empty() {
            self.cached.insert(key, None);
            return Ok(None);
        }
        let alternatives: Vec<&str> =
            alternatives.iter().map(|one| if one.trim().is_empty() { "\"\"" } else { one.as_str() }).collect();
        self.rules.push(format!("{name}: {}", alternatives.join(" | ")));
        Ok(Some(name))
    }

    fn node(&mut self, node: &'static Node, state: State) -> Result<Vec<String>, Problem> {
        let one = |text: Option<String>| text.into_iter().collect();
        match *node {
            Node::Marks { marks, otherwise, .. } => {
                self.alternatives(&marks.iter().collect::<Vec<_>>(), otherwise, state)
            }
            Node::Calls { then, .. } => {
                if state.has_called && !self.several {
                    return Ok(Vec::new());
                }
                let calls = self.json_rule(&self.calls());
                let then = self.node_rule(then, State { has_called: true, ..State::default() })?;
                Ok(one(then.map(|then| format!("{}{calls} {then}", state.space()))))
            }
            Node::Arguments { then } => {
                let Some(function) = state.function.filter(|_| !state.is_complete) else { return Ok(Vec::new()) };
                let arguments = self.json_rule(&self.arguments[function].document());
                let then = self.node_rule(then, State { is_complete: true, space: Space::Any, ..state })?;
                Ok(one(then.map(|then| format!("{}{arguments} {then}", state.space()))))
            }
            Node::Literal { syntax, then } => {
                let Some(function) = state.function.filter(|_| !state.is_complete) else { return Ok(Vec::new()) };
                let arguments = self.arguments[function].clone();
                let literal = arguments.literal(syntax, self).map_err(|found| found.in_function(function))?;
                let then = self.node_rule(then, State { is_complete: true, ..state })?;
                Ok(one(then.map(|then| format!("{literal} {then}"))))
            }
            Node::Word { field, ends, then } => self.word(field, ends, then, state),
            Node::Text { field: Field::Value { has_lines }, end, then } => {
                let Some((function, key)) = state.function.zip(state.key) else { return Ok(Vec::new()) };
                let arguments = self.arguments[function].clone();
                let value =
                    arguments.between(key, has_lines, end, self).map_err(|found| found.in_function(function))?;
                let then = self.node_rule(then, State { passed: key + 1, key: None, ..state })?;
                Ok(one(then.map(|then| format!("{value} {then}"))))
            }
            Node::Text { end, then, .. } => {
                let end = self.mark(end);
                self.keys(then, state, |key| format!("{} {end}", quoted(key)))
            }
            Node::Call { then } => {
                let Some(function) = state.function else { return Ok(Vec::new()) };
                if !state.is_complete && !self.arguments[function].may_end(state.passed) {
                    return Ok(Vec::new());
                }
                let called = State { has_called: true, ..State::default() };
                let then = self.node_rule(then, called)?;
                Ok(one(then))
            }
            Node::Complete => Ok(vec![String::new()]),
        }
    }

    /// The alternatives where one of these marks is expected.
    fn alternatives(
        &mut self,
        marks: &[&'static Mark],
        otherwise: Option<&'static Node>,
        state: State,
    ) -> Result<Vec<String>, Problem> {
        let is_key = |mark: &&&Mark| matches!(mark.then, Node::Word { field: Field::Key, .. });
        let has_keys = marks.iter().any(|mark| is_key(&mark));
        let mut all = Vec::new();
        let (space, before_space) = (state.space(), state);
        let state = State { space: Space::Any, ..state };
        for mark in marks {
            let is_other = match (mark.text, mark.then) {
                // Variants that only the reader accepts: JSON instead of separate arguments, a list instead of objects.
                ("{", Node::Arguments { .. }) => has_keys,
                ("[", Node::Calls { .. }) => mark.is_part_of_next && !self.json.is_list,
                ("{", Node::Calls { .. }) => self.json.is_list,
                _ => false,
            };
            if is_other {
                continue;
            }
            let before = if mark.is_part_of_next { before_space } else { state };
            let Some(then) = self.node_rule(mark.then, before)? else { continue };
            all.push(match mark.is_part_of_next {
                true => then,
                false => format!("{space}{} {then}", self.mark(mark.text)),
            });
        }
        if let Some(otherwise) = otherwise {
            all.extend(self.node_rule(otherwise, state)?);
        }
        Ok(all)
    }

    fn word(&mut self, field: Field, ends: &[u8], then: &'static Node, state: State) -> Result<Vec<String>, Problem> {
        let space = match (ends.contains(&b' '), ends.contains(&b'\n')) {
            (true, _) => Space::Any,
            (false, true) => Space::Line,
            (false, false) => Space::None,
        };
        match field {
            Field::Name | Field::Kind => {
                if state.function.is_some() || (state.has_called && !self.several) {
                    return Ok(Vec::new());
                }
                let functions = self.functions;
                let mut all = Vec::new();
                for (number, function) in functions.iter().enumerate() {
                    let name = &function.name;
                    if name.is_empty() || name.bytes().any(|byte| ends.contains(&byte) || !is_word(byte)) {
                        let found = format!("expected a name of letters, digits, - and _, found {name:?}");
                        return Err((format!("[{number}].function.name"), found));
                    }
                    let then = self.node_rule(then, State { function: Some(number), space, ..state })?;
                    all.extend(then.map(|then| format!("WS? {} {then}", quoted(name))));
                }
                if field == Field::Kind {
                    let then = self.node_rule(then, State { space, ..state })?;
                    all.extend(then.map(|then| format!("WS? \"function\" {then}")));
                }
                Ok(all)
            }
            Field::Id => Ok(self
                .node_rule(then, State { space, ..state })?
                .map(|then| format!("/[a-zA-Z0-9]{{9}}/ {then}"))
                .into_iter()
                .collect()),
            Field::Key => self.keys(then, State { space, ..state }, quoted),
            Field::Value { .. } => Ok(Vec::new()),
        }
    }

    /// The alternatives for the name of the next argument, each written by `written`.
    fn keys(
        &mut self,
        then: &'static Node,
        state: State,
        written: impl Fn(&str) -> String,
    ) -> Result<Vec<String>, Problem> {
        let Some(function) = state.function.filter(|_| !state.is_complete && state.key.is_none()) else {
            return Ok(Vec::new());
        };
        let mut all = Vec::new();
        let next = self.arguments[function].next(state.passed).map_err(|found| found.in_function(function))?;
        for (key, name) in next {
            let then = self.node_rule(then, State { key: Some(key), ..state })?;
            all.extend(then.map(|then| format!("{} {then}", written(&name))));
        }
        Ok(all)
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
    /// A mark, as a special token or a literal.
    pub(super) fn mark(&self, text: &str) -> String {
        self.special(text).unwrap_or_else(|| quoted(text))
    }

    /// Any text up to and including a mark.
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
