//! The description of a tool-call format: a graph of delimiters and values.
//!
//! A format is data ([`super::formats`]) that one parser follows ([`super::reader`]). So waiting for the rest of a
//! delimiter and returning a failed attempt as text are implemented once, and a new format needs no code.

use super::literal::Syntax;

/// A delimiter and what follows it.
pub(super) struct Delimiter {
    pub text: &'static str,
    /// Whether the delimiter is the beginning of the next value.
    pub is_part_of_next: bool,
    pub then: &'static Node,
}

/// A delimiter that is consumed.
pub(super) const fn delimiter(text: &'static str, then: &'static Node) -> Delimiter {
    Delimiter { text, is_part_of_next: false, then }
}

/// The beginning of the next value, which is not consumed.
pub(super) const fn begins(text: &'static str, then: &'static Node) -> Delimiter {
    Delimiter { text, is_part_of_next: true, then }
}

/// A field of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Name,
    /// `function` if the name follows, else the name itself.
    Kind,
    Id,
    Key,
    /// The value of the last key. With `has_lines`, a line break at either end belongs to the delimiters.
    Value {
        has_lines: bool,
    },
}

/// A node of the graph: what comes next.
pub(super) enum Node {
    /// One of these delimiters, after optional white space; no delimiter is a prefix of another.
    Delimiters {
        delimiters: &'static [Delimiter],
        /// The node if none of them comes next; `None` if there is no call then.
        otherwise: Option<&'static Node>,
        /// Whether the calls are complete if the text ends before the delimiter or inside it, since all values were
        /// complete.
        may_end: bool,
    },
    /// A call as a JSON object, or a list of calls. A bare one has no delimiters around it.
    Calls { is_bare: bool, then: &'static Node },
    /// The arguments of the named call as a JSON object.
    Arguments { then: &'static Node },
    /// The arguments in another notation, after their opening bracket.
    Literal { syntax: &'static Syntax, then: &'static Node },
    /// A word up to one of these bytes.
    Word { field: Field, ends: &'static [u8], then: &'static Node },
    /// Everything up to and including this delimiter, whose first byte must occur in it only once.
    Text { field: Field, end: &'static str, then: &'static Node },
    /// Consumes nothing: name and arguments are a call.
    Call { then: &'static Node },
    /// Consumes nothing: the calls read so far are complete.
    Complete,
}

/// The end of calls that need no closing delimiter.
pub(super) static COMPLETE: Node = Node::Complete;

/// The format of calls in an answer.
pub(super) struct Grammar {
    /// Delimiters that begin calls anywhere.
    pub opens: &'static [Delimiter],
    /// Delimiters that begin calls only at the beginning of the answer.
    pub first: &'static [Delimiter],
    /// Delimiters that may follow calls, or begin further ones.
    pub after_calls: &'static [Delimiter],
    /// All delimiters that may be special tokens of the vocabulary.
    pub delimiters: &'static [&'static str],
}

/// How a format writes a call in JSON (the reader accepts more variants).
#[derive(Clone, Copy, Debug)]
pub(super) struct JsonCall {
    pub name: &'static str,
    pub arguments: &'static str,
    /// A field before them with the number of the call, as a string.
    pub number: Option<&'static str>,
    /// Whether calls are always a list.
    pub is_list: bool,
}
