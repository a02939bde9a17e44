//! The description of a tool-call format: a graph of marks (delimiters) and values.
//!
//! A format is data ([`super::formats`]) that one parser follows ([`super::reader`]). So waiting for the rest of a mark
//! and returning a failed attempt as text are implemented once, and a new format needs no code.

use super::literal::Syntax;

/// A mark and what follows it.
pub(super) struct Mark {
    pub text: &'static str,
    /// Whether the mark is the beginning of the next value.
    pub is_part_of_next: bool,
    pub then: &'static Node,
}

/// A mark that is consumed.
pub(super) const fn mark(text: &'static str, then: &'static Node) -> Mark {
    Mark { text, is_part_of_next: false, then }
}

/// The beginning of the next value, which is not consumed.
pub(super) const fn begins(text: &'static str, then: &'static Node) -> Mark {
    Mark { text, is_part_of_next: true, then }
}

/// A field of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Name,
    /// `function` if the name follows, else the name itself.
    Kind,
    Id,
    Key,
    /// The value of the last key. With `has_lines`, a line break at either end belongs to the marks.
    Value {
        has_lines: bool,
    },
}

/// A node of the graph: what comes next.
pub(super) enum Node {
    /// One of these marks, behind optional white space; no mark is a prefix of another.
    Marks {
        marks: &'static [Mark],
        /// The node if none of them comes; `None` if there is no call then.
        otherwise: Option<&'static Node>,
        /// Whether the calls are complete if the text ends before the mark or inside it, since all values were
        /// complete.
        may_end: bool,
    },
    /// A call as a JSON object, or a list of calls. A bare one has no marks around it.
    Calls { is_bare: bool, then: &'static Node },
    /// The arguments of the named call as a JSON object.
    Arguments { then: &'static Node },
    /// The arguments in another notation, behind their opening bracket.
    Literal { syntax: &'static Syntax, then: &'static Node },
    /// A word up to one of these bytes.
    Word { field: Field, ends: &'static [u8], then: &'static Node },
    /// Everything up to and including this mark, whose first byte must occur in it only once.
    Text { field: Field, end: &'static str, then: &'static Node },
    /// Consumes nothing: name and arguments are a call.
    Call { then: &'static Node },
    /// Consumes nothing: the calls read so far are complete.
    Complete,
}

/// The end of calls that need no closing mark.
pub(super) static COMPLETE: Node = Node::Complete;

/// The format of calls in an answer.
pub(super) struct Grammar {
    /// Marks that begin calls anywhere.
    pub opens: &'static [Mark],
    /// Marks that begin calls only at the beginning of the answer.
    pub first: &'static [Mark],
    /// Marks that may follow calls, or begin further ones.
    pub after_calls: &'static [Mark],
    /// All marks that may be special tokens of the vocabulary.
    pub marks: &'static [&'static str],
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
