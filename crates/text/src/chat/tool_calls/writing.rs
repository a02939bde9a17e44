//! The grammar of calls that a model may write, from the description by which they are read.
//!
//! A form's graph ([`super::grammar`]) is followed as the reader follows it, and each place becomes a rule of a grammar
//! in Lark's notation: marks stand for themselves (as tokens where the vocabulary has them as special ones), names are
//! those of the request's functions, and arguments are held to the function's schema ([`super::arguments`]). What a
//! place may lead to depends on what was written before it, the function and its last argument, so a rule is of a place
//! and of that ([`State`]). Of the ways in which a form is read, it is written in its own ([`JsonCall`]), with white
//! space where the reader skips some.
//!
//! Left out: texts beside forced calls, and closing marks that a form may lack at the end of an answer: they are
//! written.

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
    /// The JSON Schema of its arguments; `None`: it has none.
    pub parameters: Option<Value>,
    /// Whether its arguments keep to the schema, or are any object.
    pub is_strict: bool,
}

/// Where calls stand in an answer that is held to their form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallsWanted {
    /// The answer is calls, one or more.
    Forced,
    /// The answer is text in which calls may stand.
    Free,
}

impl ToolFormat {
    /// The grammar of answers in which calls of these functions stand, in this form. With `several` there may be more
    /// than one. Where calls are [`CallsWanted::Forced`] every function's arguments keep to its schema; where they are
    /// free, those of functions that are not strict may be any object in forms whose arguments are JSON.
    ///
    /// # Errors
    /// What cannot be expressed, as a place (`[0].function.parameters`, of the list of tools; empty where it is the
    /// form) and what was expected and found there.
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
            let why = "expected calls that a mark begins, to tell them from text, found a model whose calls have none";
            return Err((String::new(), why.to_string()));
        }
        let all = functions.iter().enumerate();
        let arguments = all.map(|(number, function)| {
            let is_held = function.is_strict || wanted == CallsWanted::Forced;
            Arguments::new(function, number, is_held).map_err(|found| found.of(number))
        });
        let arguments = arguments.collect::<Result<Vec<_>, _>>()?;
        // One look through the vocabulary for all marks; of tokens that are spelt alike, the first.
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
            known: HashMap::new(),
        };
        let start = match wanted {
            CallsWanted::Forced => writer.forced()?,
            CallsWanted::Free => writer.free()?,
        };
        let rules = writer.rules.join("\n");
        Ok(GrammarSource::ToolCalls(format!("{start}\n{rules}\nWS: / |\\n{{1,2}}[ \\t]{{0,20}}/\n")))
    }

    /// How it writes a call in JSON.
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

/// What was written of a call before a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    /// The function, once its name is written.
    function: Option<usize>,
    /// Of arguments that are written one by one, how many were written or left out.
    passed: usize,
    /// The argument whose name was written last.
    key: Option<usize>,
    /// All arguments are written.
    is_complete: bool,
    /// A call is written.
    has_called: bool,
    space: Space,
}

/// The white space that may be written at a place: all that is skipped, or what may end the word before.
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
    /// The rules of places, by what was written before; `None` for places from which no call can be ended.
    known: HashMap<(usize, State), Option<String>>,
}

impl Writer<'_> {
    /// The first rule of an answer that is calls.
    fn forced(&mut self) -> Result<String, Problem> {
        let grammar = self.grammar;
        let first = self.opened(grammar.first.iter().chain(grammar.opens))?;
        let goes_on = |mark: &&Mark| !matches!(mark.then, Node::Whole);
        let more = self.opened(grammar.opens.iter().chain(grammar.behind.iter().filter(goes_on)))?;
        let more = if self.several { format!("({more})*") } else { String::new() };
        Ok(format!("start: ({first}) {more} {}", self.tail()))
    }

    /// The rules of an answer that is text in which calls may stand.
    fn free(&mut self) -> Result<String, Problem> {
        let opens = self.grammar.opens;
        let (mut texts, mut alternatives) = (Vec::new(), vec!["FREE?".to_string()]);
        let behind = if self.several { "start" } else { "FREE?" };
        let tail = self.tail();
        for mark in opens {
            let Some(then) = self.place(mark.then, State::default())? else { continue };
            let before = match self.special(mark.text) {
                Some(token) => format!("FREE? {token}"),
                None => {
                    texts.push(escaped(mark.text));
                    let rule = format!("before_{}[suffix={}]: /(?s:.*)/", texts.len(), quoted(mark.text));
                    self.rules.push(rule);
                    format!("before_{}", texts.len())
                }
            };
            alternatives.push(format!("{before} {then} {tail} {behind}"));
        }
        let free = match texts.as_slice() {
            [] => "FREE: /(?s:.+)/".to_string(),
            texts => format!("FREE: /(?s:.+)/ & ~/(?s:.*)({})(?s:.*)/", texts.join("|")),
        };
        self.rules.push(free);
        Ok(format!("start: {}", alternatives.join(" | ")))
    }

    /// The mark that may stand behind all calls, if there is one.
    fn tail(&self) -> String {
        let marks = self.grammar.behind.iter().filter(|mark| matches!(mark.then, Node::Whole));
        marks.map(|mark| format!("(WS? {})?", self.mark(mark.text))).collect::<Vec<_>>().join(" ")
    }

    /// The alternatives of what these marks begin.
    fn opened(&mut self, marks: impl Iterator<Item = &'static Mark>) -> Result<String, Problem> {
        let marks: Vec<&Mark> = marks.collect();
        Ok(self.alternatives(&marks, None, State::default())?.join(" | "))
    }

    /// The rule of a place, or `None` if no call can be ended from there.
    fn place(&mut self, node: &'static Node, state: State) -> Result<Option<String>, Problem> {
        if matches!(node, Node::Whole) {
            return Ok(Some(String::new()));
        }
        let key = (std::ptr::from_ref(node) as usize, state);
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let name = format!("place_{}", self.known.len());
        self.known.insert(key, Some(name.clone()));
        let alternatives = self.node(node, state)?;
        if alternatives.is_empty() {
            self.known.insert(key, None);
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
                let then = self.place(then, State { has_called: true, ..State::default() })?;
                Ok(one(then.map(|then| format!("{}{calls} {then}", state.space()))))
            }
            Node::Arguments { then } => {
                let Some(function) = state.function.filter(|_| !state.is_complete) else { return Ok(Vec::new()) };
                let arguments = self.json_rule(&self.arguments[function].document());
                let then = self.place(then, State { is_complete: true, space: Space::Any, ..state })?;
                Ok(one(then.map(|then| format!("{}{arguments} {then}", state.space()))))
            }
            Node::Literal { syntax, then } => {
                let Some(function) = state.function.filter(|_| !state.is_complete) else { return Ok(Vec::new()) };
                let arguments = self.arguments[function].clone();
                let literal = arguments.literal(syntax, self).map_err(|found| found.of(function))?;
                let then = self.place(then, State { is_complete: true, ..state })?;
                Ok(one(then.map(|then| format!("{literal} {then}"))))
            }
            Node::Word { field, ends, then } => self.word(field, ends, then, state),
            Node::Text { field: Field::Value { has_lines }, end, then } => {
                let Some((function, key)) = state.function.zip(state.key) else { return Ok(Vec::new()) };
                let arguments = self.arguments[function].clone();
                let value = arguments.between(key, has_lines, end, self).map_err(|found| found.of(function))?;
                let then = self.place(then, State { passed: key + 1, key: None, ..state })?;
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
                let then = self.place(then, called)?;
                Ok(one(then))
            }
            Node::Whole => Ok(vec![String::new()]),
        }
    }

    /// What may stand where one of these marks is expected.
    fn alternatives(
        &mut self,
        marks: &[&'static Mark],
        otherwise: Option<&'static Node>,
        state: State,
    ) -> Result<Vec<String>, Problem> {
        let is_key = |mark: &&&Mark| matches!(mark.then, Node::Word { field: Field::Key, .. });
        let has_keys = marks.iter().any(|mark| is_key(&mark));
        let mut all = Vec::new();
        let (space, tight) = (state.space(), state);
        let state = State { space: Space::Any, ..state };
        for mark in marks {
            let is_other = match (mark.text, mark.then) {
                // JSON where this form has marks around each argument, or a list where it has objects.
                ("{", Node::Arguments { .. }) => has_keys,
                ("[", Node::Calls { .. }) => mark.is_part_of_next && !self.json.is_list,
                ("{", Node::Calls { .. }) => self.json.is_list,
                _ => false,
            };
            if is_other {
                continue;
            }
            let before = if mark.is_part_of_next { tight } else { state };
            let Some(then) = self.place(mark.then, before)? else { continue };
            all.push(match mark.is_part_of_next {
                true => then,
                false => format!("{space}{} {then}", self.mark(mark.text)),
            });
        }
        if let Some(otherwise) = otherwise {
            all.extend(self.place(otherwise, state)?);
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
                    let then = self.place(then, State { function: Some(number), space, ..state })?;
                    all.extend(then.map(|then| format!("WS? {} {then}", quoted(name))));
                }
                if field == Field::Kind {
                    let then = self.place(then, State { space, ..state })?;
                    all.extend(then.map(|then| format!("WS? \"function\" {then}")));
                }
                Ok(all)
            }
            Field::Id => Ok(self
                .place(then, State { space, ..state })?
                .map(|then| format!("/[a-zA-Z0-9]{{9}}/ {then}"))
                .into_iter()
                .collect()),
            Field::Key => self.keys(then, State { space, ..state }, quoted),
            Field::Value { .. } => Ok(Vec::new()),
        }
    }

    /// The arguments whose names may come next, each written in this way.
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
        let next = self.arguments[function].next(state.passed).map_err(|found| found.of(function))?;
        for (key, name) in next {
            let then = self.place(then, State { key: Some(key), ..state })?;
            all.extend(then.map(|then| format!("{} {then}", written(&name))));
        }
        Ok(all)
    }

    /// The schema of calls as JSON.
    fn calls(&self) -> Value {
        let JsonCall { name, arguments, number, is_list } = self.json;
        let mut whole = serde_json::Map::new();
        let mut calls = Vec::new();
        for (function, held) in self.functions.iter().zip(&self.arguments) {
            let mut properties = serde_json::Map::new();
            properties.extend(
                number.map(|number| (number.to_string(), json!({ "type": "string", "pattern": "^[0-9]{1,2}$" }))),
            );
            properties.insert(name.to_string(), json!({ "const": function.name }));
            properties.insert(arguments.to_string(), held.schema());
            let required: Vec<String> = properties.keys().filter(|key| Some(key.as_str()) != number).cloned().collect();
            calls.push(json!({ "type": "object", "properties": properties, "required": required,
                "additionalProperties": false }));
            whole.extend(held.definitions());
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

    /// A special token that is spelt so, as grammars name it.
    fn special(&self, text: &str) -> Option<String> {
        self.special.get(text).map(|token| format!("<[{token}]>"))
    }
}

impl Writer<'_> {
    /// A mark.
    pub(super) fn mark(&self, text: &str) -> String {
        self.special(text).unwrap_or_else(|| quoted(text))
    }

    /// A text up to a mark, and the mark.
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

    /// A rule of this kind for these words; the same one for the same words.
    pub(super) fn rule(&mut self, kind: &str, words: &str) -> String {
        let behind = |rule: &String| {
            rule.split_once(": ").filter(|(_, behind)| *behind == words).map(|(name, _)| name.to_string())
        };
        self.rules.iter().find_map(behind).unwrap_or_else(|| {
            let name = format!("{kind}_{}", self.rules.len());
            self.rules.push(format!("{name}: {words}"));
            name
        })
    }
}

/// A text as grammars write it.
pub(super) fn quoted(text: &str) -> String {
    super::call::quoted(text)
}

/// A text as a regular expression in a grammar.
fn escaped(text: &str) -> String {
    let signs = |c: char| if c.is_ascii_punctuation() { format!("\\x{:02x}", u32::from(c)) } else { c.to_string() };
    text.chars().map(signs).collect()
}
