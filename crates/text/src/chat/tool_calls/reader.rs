//! An incremental parser of tool calls.
//!
//! The parser follows a [`Grammar`]. Text that may be part of a call is held back; each piece is parsed from where the
//! last one ended, never from the beginning again. If an attempt fails, everything before the failing byte is text, and
//! the search for the next delimiter continues with that byte. (Searching for delimiters inside the failed attempt as
//! well would take quadratic time for a hostile text.) Reasoning has to be separated before.

use std::fmt;

use super::ToolFormat;
use super::call::{ToolCall, Types, calls_of, quoted};
use super::grammar::{Delimiter, Field, Grammar, Node};
use super::json::JsonScan;
use super::literal::LiteralScan;
use super::scan::Scanned;
use crate::chat::Json;

/// The longest name of a tool, in bytes. OpenAI's API allows 64.
const WORD_LEN_MAX: usize = 256;

/// A part of an answer. The texts and `written` of all pieces give the answer, byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPiece {
    /// Text outside calls.
    Text(String),
    /// One call or several that the model wrote as one.
    Calls {
        /// The calls in order. Empty if only a delimiter follows calls that were returned before.
        calls: Vec<ToolCall>,
        /// Their text, with the delimiters around them and white space before them, for callers that do not use calls.
        written: String,
    },
}

/// The state of the parser.
#[derive(Clone, Copy)]
enum State {
    /// At the beginning of the answer.
    First,
    /// In text.
    Text,
    /// In a call.
    Node(&'static Node),
    /// Directly after a call.
    AfterCall,
}

/// The value that is being scanned; it begins at `from` in the held text.
#[derive(Clone, Debug)]
enum Scan {
    Json { from: usize, scan: JsonScan },
    Literal(LiteralScan),
    Word { from: usize },
    Text { from: usize },
}

/// The result of one parser step.
enum Step {
    /// More text is needed.
    Wait,
    Go(&'static Node),
    /// The next byte is not part of a call.
    Fail,
}

/// Separates a model's answer into text and tool calls while it is generated.
///
/// Only a complete and well-formed call is returned as one. An incomplete or malformed one is returned as text. At the
/// end of the answer a closing delimiter may be missing if the call is complete without it.
///
/// ```
/// use foretoken_text::{AnswerPiece, ToolCallReader, ToolFormat};
///
/// let mut reader = ToolCallReader::new(ToolFormat::Hermes, &[]);
/// let mut pieces = reader.push("Let me see. <tool_call>{\"name\": \"weather\", \"argu");
/// pieces.extend(reader.push("ments\": {\"city\": \"Paris\"}}</tool_call>"));
/// pieces.extend(reader.finish());
/// assert_eq!(pieces[0], AnswerPiece::Text("Let me see. ".into()));
/// let AnswerPiece::Calls { calls, .. } = &pieces[1] else { panic!("expected calls") };
/// assert_eq!((calls[0].name.as_str(), calls[0].arguments.as_str()), ("weather", r#"{"city": "Paris"}"#));
/// ```
#[derive(Clone)]
pub struct ToolCallReader {
    format: ToolFormat,
    grammar: &'static Grammar,
    types: Types,
    state: State,
    scan: Option<Scan>,
    /// Text that was pushed and is held back.
    held: String,
    /// The position in `held` where parsing continues.
    at: usize,
    /// The position in `held` of the text that was not returned yet. Zero between pushes.
    start: usize,
    name: String,
    id: Option<String>,
    key: String,
    /// Arguments that are written as one object.
    arguments: Option<String>,
    /// Arguments that are written separately, so far: an object without its closing bracket.
    listed: String,
    /// Calls that are complete except for the delimiters around them.
    pending: Vec<ToolCall>,
    pieces: Vec<AnswerPiece>,
}

impl ToolCallReader {
    /// A reader of an answer in this format. `tools` are those of the request, as templates get them
    /// ([`crate::ChatInput::tools`]); their schemas say which arguments are strings if the format has no quotes. Calls
    /// of other tools are returned, too.
    pub fn new(format: ToolFormat, tools: &[Json]) -> Self {
        let grammar = format.grammar();
        Self {
            format,
            grammar,
            types: Types::new(tools),
            state: if grammar.first.is_empty() { State::Text } else { State::First },
            scan: None,
            held: String::new(),
            at: 0,
            start: 0,
            name: String::new(),
            id: None,
            key: String::new(),
            arguments: None,
            listed: String::new(),
            pending: Vec::new(),
            pieces: Vec::new(),
        }
    }

    /// Adds a piece of the answer, and returns what is certain now.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPiece> {
        self.held.push_str(text);
        while self.advance() {}
        self.held.drain(..self.start);
        self.at -= self.start;
        if let Some(Scan::Json { from, .. } | Scan::Word { from } | Scan::Text { from }) = &mut self.scan {
            *from -= self.start;
        }
        self.start = 0;
        std::mem::take(&mut self.pieces)
    }

    /// Returns what was held back, at the end of the answer, and resets the reader for another answer.
    pub fn finish(&mut self) -> Vec<AnswerPiece> {
        let may_end = matches!(self.state, State::Node(Node::Delimiters { may_end: true, .. }));
        let end = self.held.len();
        if may_end && !self.pending.is_empty() {
            self.emit_calls(end);
        } else {
            self.emit_text(end);
        }
        let pieces = std::mem::take(&mut self.pieces);
        let types = std::mem::take(&mut self.types);
        *self = Self { types, ..Self::new(self.format, &[]) };
        pieces
    }

    /// Parses the held text one step further; returns whether to continue.
    fn advance(&mut self) -> bool {
        let step = match self.state {
            State::Text => return self.find_delimiter(),
            State::First => self.delimiters(&[self.grammar.first, self.grammar.opens], None),
            State::AfterCall => self.delimiters(&[self.grammar.after_calls, self.grammar.opens], None),
            State::Node(Node::Complete) => {
                self.emit_calls(self.at);
                self.state = State::AfterCall;
                return true;
            }
            State::Node(node) => self.node(node),
        };
        match step {
            Step::Wait => return false,
            Step::Go(node) => self.state = State::Node(node),
            Step::Fail => {
                // Scanners accept a whole character or fail at its first byte, so this is a character boundary.
                self.at = self.held.floor_char_boundary(self.at);
                self.emit_text(self.at);
                self.pending.clear();
                self.forget_call();
                self.state = State::Text;
            }
        }
        self.scan = None;
        true
    }

    /// Returns text up to the next opening delimiter, or up to what may become one.
    fn find_delimiter(&mut self) -> bool {
        let opens = self.grammar.opens;
        let bytes = self.held.as_bytes();
        let is_first = |byte: &u8| opens.iter().any(|open| open.text.as_bytes()[0] == *byte);
        while let Some(next) = bytes[self.at..].iter().position(is_first) {
            let rest = &bytes[self.at + next..];
            if let Some(open) = opens.iter().find(|open| rest.starts_with(open.text.as_bytes())) {
                self.at += next;
                self.emit_text(self.at);
                self.at += open.text.len();
                self.state = State::Node(open.then);
                return true;
            }
            if opens.iter().any(|open| open.text.as_bytes().starts_with(rest)) {
                self.at += next;
                self.emit_text(self.at);
                return false;
            }
            self.at += next + 1;
        }
        self.at = self.held.len();
        self.emit_text(self.at);
        false
    }

    fn node(&mut self, node: &'static Node) -> Step {
        match *node {
            Node::Delimiters { delimiters, otherwise, .. } => self.delimiters(&[delimiters], otherwise),
            Node::Calls { is_bare, then } => match self.json(is_bare) {
                Ok(json) => match calls_of(&self.held[json..self.at], is_bare) {
                    Some(calls) => {
                        self.pending.extend(calls);
                        Step::Go(then)
                    }
                    None => Step::Fail,
                },
                Err(step) => step,
            },
            Node::Arguments { then } => match self.json(false) {
                Ok(json) if self.held[json..].starts_with('{') => {
                    self.arguments = Some(self.held[json..self.at].to_owned());
                    Step::Go(then)
                }
                Ok(_) => Step::Fail,
                Err(step) => step,
            },
            Node::Literal { syntax, then } => {
                let mut scan = match self.scan.take() {
                    Some(Scan::Literal(scan)) => scan,
                    _ => LiteralScan::new(syntax),
                };
                let (scanned, read) = scanned(&self.held.as_bytes()[self.at..], |byte| scan.push(byte));
                self.at += read;
                match scanned {
                    Scanned::More => {
                        self.scan = Some(Scan::Literal(scan));
                        Step::Wait
                    }
                    Scanned::Done => scan.into_json().map_or(Step::Fail, |json| {
                        self.arguments = Some(json);
                        Step::Go(then)
                    }),
                    Scanned::Fails => Step::Fail,
                }
            }
            Node::Word { field, ends, then } => self.word(field, ends, then),
            Node::Text { field, end, then } => self.text(field, end, then),
            Node::Call { then } => {
                self.end_call();
                Step::Go(then)
            }
            Node::Complete => Step::Go(node),
        }
    }

    fn delimiters(&mut self, delimiters: &[&'static [Delimiter]], otherwise: Option<&'static Node>) -> Step {
        self.skip_space();
        let rest = &self.held.as_bytes()[self.at..];
        let mut all = delimiters.iter().flat_map(|delimiters| delimiters.iter());
        if let Some(found) = all.clone().find(|delimiter| rest.starts_with(delimiter.text.as_bytes())) {
            self.at += if found.is_part_of_next { 0 } else { found.text.len() };
            return Step::Go(found.then);
        }
        if all.any(|delimiter| delimiter.text.as_bytes().starts_with(rest)) {
            return Step::Wait;
        }
        otherwise.map_or(Step::Fail, Step::Go)
    }

    fn skip_space(&mut self) {
        let rest = &self.held.as_bytes()[self.at..];
        self.at += rest.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(rest.len());
    }

    /// Scans an object or a list; returns where it begins, once it has ended.
    fn json(&mut self, checks_fields: bool) -> Result<usize, Step> {
        let (from, mut scan) = match self.scan.take() {
            Some(Scan::Json { from, scan }) => (from, scan),
            _ => {
                self.skip_space();
                match self.held.as_bytes().get(self.at) {
                    None => return Err(Step::Wait),
                    Some(b'{' | b'[') => (self.at, JsonScan::new(checks_fields)),
                    Some(_) => return Err(Step::Fail),
                }
            }
        };
        let (scanned, read) = scanned(&self.held.as_bytes()[self.at..], |byte| scan.push(byte));
        self.at += read;
        match scanned {
            Scanned::More => {
                self.scan = Some(Scan::Json { from, scan });
                Err(Step::Wait)
            }
            Scanned::Done => Ok(from),
            Scanned::Fails => Err(Step::Fail),
        }
    }

    fn word(&mut self, field: Field, ends: &[u8], then: &'static Node) -> Step {
        let from = match self.scan {
            Some(Scan::Word { from }) => from,
            _ => {
                self.skip_space();
                self.at
            }
        };
        let rest = &self.held.as_bytes()[self.at..];
        if rest.is_empty() && from == self.at {
            return Step::Wait;
        }
        let is_word = |byte: &u8| !ends.contains(byte) && (is_word(*byte) || (field == Field::Key && *byte == b' '));
        let len = rest.iter().position(|byte| !is_word(byte));
        self.at += len.unwrap_or(rest.len());
        if self.at - from > WORD_LEN_MAX {
            return Step::Fail;
        }
        match len {
            None => {
                self.scan = Some(Scan::Word { from });
                Step::Wait
            }
            Some(_) if self.at > from && ends.contains(&self.held.as_bytes()[self.at]) => {
                self.store(field, from, self.at);
                Step::Go(then)
            }
            Some(_) => Step::Fail,
        }
    }

    fn text(&mut self, field: Field, end: &str, then: &'static Node) -> Step {
        let from = match self.scan {
            Some(Scan::Text { from }) => from,
            _ => self.at,
        };
        let rest = &self.held.as_bytes()[self.at..];
        match rest.windows(end.len()).position(|window| window == end.as_bytes()) {
            Some(len) => {
                self.store(field, from, self.at + len);
                self.at += len + end.len();
                Step::Go(then)
            }
            None => {
                self.at += (rest.len() + 1).saturating_sub(end.len());
                self.scan = Some(Scan::Text { from });
                Step::Wait
            }
        }
    }

    /// Stores a field of a call.
    fn store(&mut self, field: Field, from: usize, to: usize) {
        let text = &self.held[from..to];
        match field {
            Field::Name | Field::Kind => self.name = text.to_owned(),
            Field::Id => self.id = Some(text.to_owned()),
            Field::Key => self.key = text.trim_end().to_owned(),
            Field::Value { has_lines } => {
                let text = if has_lines { text.strip_prefix('\n').unwrap_or(text) } else { text };
                let text = if has_lines { text.strip_suffix('\n').unwrap_or(text) } else { text };
                let value = self.types.json_of(&self.name, &self.key, text);
                self.listed.push_str(if self.listed.is_empty() { "{" } else { ", " });
                self.listed.push_str(&format!("{}: {value}", quoted(&self.key)));
            }
        }
    }

    fn end_call(&mut self) {
        let listed = || if self.listed.is_empty() { "{}".to_owned() } else { format!("{}}}", self.listed) };
        let arguments = self.arguments.take().unwrap_or_else(listed);
        self.pending.push(ToolCall { name: std::mem::take(&mut self.name), arguments, id: self.id.take() });
        self.forget_call();
    }

    fn forget_call(&mut self) {
        self.name.clear();
        self.id = None;
        self.key.clear();
        self.arguments = None;
        self.listed.clear();
    }

    fn emit_text(&mut self, to: usize) {
        let text = &self.held[self.start..to];
        if !text.is_empty() {
            match self.pieces.last_mut() {
                Some(AnswerPiece::Text(before)) => before.push_str(text),
                _ => self.pieces.push(AnswerPiece::Text(text.to_owned())),
            }
        }
        self.start = to;
    }

    fn emit_calls(&mut self, to: usize) {
        let calls = std::mem::take(&mut self.pending);
        self.pieces.push(AnswerPiece::Calls { calls, written: self.held[self.start..to].to_owned() });
        self.start = to;
    }
}

/// Passes bytes to a scanner until the value ends or fails; returns its last result and how many bytes belong to the
/// value.
fn scanned(bytes: &[u8], mut push: impl FnMut(u8) -> Scanned) -> (Scanned, usize) {
    for (at, &byte) in bytes.iter().enumerate() {
        match push(byte) {
            Scanned::More => {}
            Scanned::Done => return (Scanned::Done, at + 1),
            Scanned::Fails => return (Scanned::Fails, at),
        }
    }
    (Scanned::More, bytes.len())
}

/// Whether a byte may be part of a tool's name: no white space, and no punctuation that formats have around names.
pub(super) fn is_word(byte: u8) -> bool {
    !byte.is_ascii_whitespace() && !byte.is_ascii_control() && !b"<>[]{}()\"'\\`,;=".contains(&byte)
}

impl fmt::Debug for ToolCallReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ToolCallReader");
        shown.field("format", &self.format).field("held", &self.held).field("at", &self.at).finish_non_exhaustive()
    }
}
