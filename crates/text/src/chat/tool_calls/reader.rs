//! Finds calls in an answer while it is being written.
//!
//! The reader follows a [`Grammar`]. Text that may be part of a call is held back; it is read on from where the last
//! piece ended, and never again from its beginning. Where an attempt fails, everything up to the byte that cannot be
//! part of it is text, and the search for the next mark goes on with that byte. (Looking for marks inside the failed
//! attempt as well would take time in proportion to the square of a text made for it.)
//!
//! Left out: reasoning. Who parts it from the answer shows the reader the answer alone.

use std::fmt;

use super::ToolFormat;
use super::call::{ToolCall, Types, calls_of, quoted};
use super::grammar::{Field, Grammar, Mark, Node};
use super::json::JsonScan;
use super::literal::LiteralScan;
use super::scan::Scanned;
use crate::chat::Json;

/// The longest name of a tool, in bytes. The API has 64.
const WORD_LEN_MAX: usize = 256;

/// A part of an answer. What was written is, byte for byte, the texts and `written` of all its pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPiece {
    /// Text that is part of no call.
    Text(String),
    /// One call or several that the model wrote as one.
    Calls {
        /// The calls in their order. None where only a mark follows calls that were told before.
        calls: Vec<ToolCall>,
        /// What they were written as, with the marks around them and white space between them and calls before. Who
        /// does not want calls shows this.
        written: String,
    },
}

/// What is being read.
#[derive(Clone, Copy)]
enum Place {
    /// The beginning of the answer.
    First,
    /// Text.
    Text,
    /// Part of a call.
    Node(&'static Node),
    /// Right behind a call.
    Behind,
}

/// The part of a call that is being read, if it is longer than a mark. It began `from` there in what is held.
#[derive(Clone, Debug)]
enum Scan {
    Json { from: usize, scan: JsonScan },
    Literal(LiteralScan),
    Word { from: usize },
    Text { from: usize },
}

/// What has come of reading on.
enum Step {
    /// More text is needed.
    Wait,
    Go(&'static Node),
    /// The next byte is not part of a call.
    Fail,
}

/// Parts a model's answer into text and calls of tools, while it is being written.
///
/// Only what is well-formed to its end is a call. What was begun and is not, or was cut, comes out as the text that it
/// is. A closing mark may be missing at the end of the answer where the call is complete without it.
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
    place: Place,
    scan: Option<Scan>,
    /// What was pushed and has not come out.
    held: String,
    /// Where of it the reader goes on.
    at: usize,
    /// Where of it begins what has not come out. Zero between pushes.
    start: usize,
    name: String,
    id: Option<String>,
    key: String,
    /// Arguments that were written as one object.
    arguments: Option<String>,
    /// Arguments that were written one by one, so far: an object without its last bracket.
    listed: String,
    /// Calls that are complete, if what is around them will be.
    pending: Vec<ToolCall>,
    pieces: Vec<AnswerPiece>,
}

impl ToolCallReader {
    /// A reader of an answer in this form. `tools` are those of the request, as templates are given them
    /// ([`crate::ChatInput::tools`]); they say which arguments are strings where a form has no quotes. A call of a
    /// tool that is not among them is a call like others.
    pub fn new(format: ToolFormat, tools: &[Json]) -> Self {
        let grammar = format.grammar();
        Self {
            format,
            grammar,
            types: Types::new(tools),
            place: if grammar.first.is_empty() { Place::Text } else { Place::First },
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

    /// Adds a piece of the answer, and says what is certain now.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPiece> {
        self.held.push_str(text);
        while self.reads_on() {}
        self.held.drain(..self.start);
        self.at -= self.start;
        if let Some(Scan::Json { from, .. } | Scan::Word { from } | Scan::Text { from }) = &mut self.scan {
            *from -= self.start;
        }
        self.start = 0;
        std::mem::take(&mut self.pieces)
    }

    /// What was held back, now that the answer has ended. The reader is then at the beginning of another answer.
    pub fn finish(&mut self) -> Vec<AnswerPiece> {
        let may_end = matches!(self.place, Place::Node(Node::Marks { may_end: true, .. }));
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

    /// Reads on in what is held; whether there may be more to read.
    fn reads_on(&mut self) -> bool {
        let step = match self.place {
            Place::Text => return self.find_mark(),
            Place::First => self.marks(&[self.grammar.first, self.grammar.opens], None),
            Place::Behind => self.marks(&[self.grammar.behind, self.grammar.opens], None),
            Place::Node(Node::Whole) => {
                self.emit_calls(self.at);
                self.place = Place::Behind;
                return true;
            }
            Place::Node(node) => self.node(node),
        };
        match step {
            Step::Wait => return false,
            Step::Go(node) => self.place = Place::Node(node),
            Step::Fail => {
                // Never inside a character, since all of them accept the whole character or fail at its first byte.
                self.at = self.held.floor_char_boundary(self.at);
                self.emit_text(self.at);
                self.pending.clear();
                self.forget_call();
                self.place = Place::Text;
            }
        }
        self.scan = None;
        true
    }

    /// Releases text up to the next mark that begins calls, or up to what may become one.
    fn find_mark(&mut self) -> bool {
        let opens = self.grammar.opens;
        let bytes = self.held.as_bytes();
        let is_first = |byte: &u8| opens.iter().any(|open| open.text.as_bytes()[0] == *byte);
        while let Some(next) = bytes[self.at..].iter().position(is_first) {
            let rest = &bytes[self.at + next..];
            if let Some(open) = opens.iter().find(|open| rest.starts_with(open.text.as_bytes())) {
                self.at += next;
                self.emit_text(self.at);
                self.at += open.text.len();
                self.place = Place::Node(open.then);
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
            Node::Marks { marks, otherwise, .. } => self.marks(&[marks], otherwise),
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
            Node::Whole => Step::Go(node),
        }
    }

    fn marks(&mut self, marks: &[&'static [Mark]], otherwise: Option<&'static Node>) -> Step {
        self.skip_space();
        let rest = &self.held.as_bytes()[self.at..];
        let mut all = marks.iter().flat_map(|marks| marks.iter());
        if let Some(found) = all.clone().find(|mark| rest.starts_with(mark.text.as_bytes())) {
            self.at += if found.is_part_of_next { 0 } else { found.text.len() };
            return Step::Go(found.then);
        }
        if all.any(|mark| mark.text.as_bytes().starts_with(rest)) {
            return Step::Wait;
        }
        otherwise.map_or(Step::Fail, Step::Go)
    }

    fn skip_space(&mut self) {
        let rest = &self.held.as_bytes()[self.at..];
        self.at += rest.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(rest.len());
    }

    /// Reads an object or a list; where it began, once it has ended.
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
                self.keep(field, from, self.at);
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
                self.keep(field, from, self.at + len);
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

    /// Keeps a part of a call.
    fn keep(&mut self, field: Field, from: usize, to: usize) {
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

/// Shows bytes to a scanner until it has enough; what it said last, and how many bytes are part of the value.
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

/// What names of tools are made of: no white space, and nothing that forms have around names.
pub(super) fn is_word(byte: u8) -> bool {
    !byte.is_ascii_whitespace() && !byte.is_ascii_control() && !b"<>[]{}()\"'\\`,;=".contains(&byte)
}

impl fmt::Debug for ToolCallReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ToolCallReader");
        shown.field("format", &self.format).field("held", &self.held).field("at", &self.at).finish_non_exhaustive()
    }
}
