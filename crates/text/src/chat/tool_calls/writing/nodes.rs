//! The rules of a format's nodes: what may come next in a call, by what was written before.

use super::super::arguments::Problem;
use super::super::grammar::{Delimiter, Field, Node};
use super::super::reader::is_word;
use super::{Writer, quoted};

/// What was written of a call before a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct State {
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

/// The white space that may be written at a node: any that the reader skips, or only white space that may end the word
/// before.
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

impl Writer<'_> {
    /// The rule of a node, or `None` if no call can be completed from there.
    pub(super) fn node_rule(&mut self, node: &'static Node, state: State) -> Result<Option<String>, Problem> {
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
            Node::Delimiters { delimiters, otherwise, .. } => {
                self.alternatives(&delimiters.iter().collect::<Vec<_>>(), otherwise, state)
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
                let end = self.delimiter(end);
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

    /// The alternatives where one of these delimiters is expected.
    pub(super) fn alternatives(
        &mut self,
        delimiters: &[&'static Delimiter],
        otherwise: Option<&'static Node>,
        state: State,
    ) -> Result<Vec<String>, Problem> {
        let is_key = |delimiter: &&&Delimiter| matches!(delimiter.then, Node::Word { field: Field::Key, .. });
        let has_keys = delimiters.iter().any(|delimiter| is_key(&delimiter));
        let mut all = Vec::new();
        let (space, before_space) = (state.space(), state);
        let state = State { space: Space::Any, ..state };
        for delimiter in delimiters {
            let is_other = match (delimiter.text, delimiter.then) {
                // Variants that only the reader accepts: JSON instead of separate arguments, a list instead of objects.
                ("{", Node::Arguments { .. }) => has_keys,
                ("[", Node::Calls { .. }) => delimiter.is_part_of_next && !self.json.is_list,
                ("{", Node::Calls { .. }) => self.json.is_list,
                _ => false,
            };
            if is_other {
                continue;
            }
            let before = if delimiter.is_part_of_next { before_space } else { state };
            let Some(then) = self.node_rule(delimiter.then, before)? else { continue };
            all.push(match delimiter.is_part_of_next {
                true => then,
                false => format!("{space}{} {then}", self.delimiter(delimiter.text)),
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
}
