//! How calls are described: marks and values that follow each other, as a small graph.
//!
//! A form of calls is data ([`super::forms`]), which one reader follows ([`super::reader`]). So there is one place that
//! knows how to wait for the rest of a mark and how to give a failed attempt back as text, and adding a form is writing
//! down what it looks like.

use super::literal::Syntax;

/// A mark and what comes behind it.
pub(super) struct Mark {
    pub text: &'static str,
    /// Whether the mark is the beginning of what comes next.
    pub is_part_of_next: bool,
    pub then: &'static Node,
}

/// A mark that stands before something else.
pub(super) const fn mark(text: &'static str, then: &'static Node) -> Mark {
    Mark { text, is_part_of_next: false, then }
}

/// What something begins with that is read as a whole.
pub(super) const fn begins(text: &'static str, then: &'static Node) -> Mark {
    Mark { text, is_part_of_next: true, then }
}

/// What is known of a call before all of it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Name,
    /// `function`, if a name follows that is read instead of it, or else the name.
    Kind,
    Id,
    Key,
    /// The value of the last key. With `has_lines`, a line break at either end belongs to the marks around it.
    Value {
        has_lines: bool,
    },
}

/// What comes next.
pub(super) enum Node {
    /// One of these marks, behind white space; no mark is the beginning of another.
    Marks {
        marks: &'static [Mark],
        /// Where to go on if none of them comes; there is no call if this is `None`.
        otherwise: Option<&'static Node>,
        /// Whether the calls are complete if the text ends here, before the mark or inside it: their values were
        /// whole, and the mark would have said nothing more.
        may_end: bool,
    },
    /// A call as a JSON object, or a list of them. A bare one has no marks around it that show what it is.
    Calls { is_bare: bool, then: &'static Node },
    /// The arguments of the named call as a JSON object.
    Arguments { then: &'static Node },
    /// The arguments in another form, behind their opening bracket.
    Literal { syntax: &'static Syntax, then: &'static Node },
    /// A word up to one of these bytes.
    Word { field: Field, ends: &'static [u8], then: &'static Node },
    /// Everything up to this mark, whose first byte occurs in it once, and the mark.
    Text { field: Field, end: &'static str, then: &'static Node },
    /// Nothing: name and arguments are a call.
    Call { then: &'static Node },
    /// Nothing: what was read since the last calls is certain.
    Whole,
}

/// The end of calls that need no closing mark.
pub(super) static WHOLE: Node = Node::Whole;

/// How calls stand in an answer.
pub(super) struct Grammar {
    /// What begins calls wherever it stands.
    pub opens: &'static [Mark],
    /// What begins them only at the beginning of the answer.
    pub first: &'static [Mark],
    /// What may follow calls besides, or go on with them.
    pub behind: &'static [Mark],
    /// All marks that the vocabulary may have as special tokens.
    pub marks: &'static [&'static str],
}

/// How a form writes a call in JSON, of the ways in which it is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct JsonCall {
    pub name: &'static str,
    pub arguments: &'static str,
    /// A field before them that counts the calls, in strings.
    pub number: Option<&'static str>,
    /// Whether calls are a list, also if there is one.
    pub is_list: bool,
}
