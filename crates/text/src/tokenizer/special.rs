//! Special tokens: where they lie in a text, what can stand for them, and which of them end a turn.
//!
//! Left out: which tokens are special; the vocabulary's files say that.

use std::collections::HashSet;
use std::ops::Range;

use super::bytes::Spellings;
use crate::Token;

/// A special token in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpecialSpan {
    /// Its bytes in the text.
    pub range: Range<usize>,
    pub token: Token,
}

/// Characters that none of these texts has: no letters, digits or white space, most of them without any meaning.
pub(crate) fn unused_characters(texts: &[&str]) -> impl Iterator<Item = char> + use<> {
    /// Where Unicode begins to leave characters for private use.
    const FIRST: char = '\u{e000}';
    let used: HashSet<char> = texts.iter().flat_map(|text| text.chars()).filter(|&found| found >= FIRST).collect();
    (FIRST..=char::MAX).filter(move |found| !found.is_alphanumeric() && !found.is_whitespace() && !used.contains(found))
}

/// What chat models write at the end of their turn. llama.cpp looks for the same spellings.
pub(crate) const TURN_ENDS: [&str; 15] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<|eot|>",
    "<end_of_utterance>",
    "[EOT]",
    "[e~[",
    "<|END_OF_TURN_TOKEN|>",
    "< EOT >",
    "_<EOT>",
];

/// The special tokens among them. Where there is `<|return|>`, `<|end|>` only ends a message and more may follow.
pub(crate) fn turn_ends(spellings: &Spellings) -> Vec<Token> {
    let is = |token: Token, text: &str| spellings.bytes(token) == text.as_bytes();
    let special = (0..spellings.len() as Token).filter(|&token| spellings.is_special(token));
    let mut ends: Vec<Token> = special.filter(|&token| TURN_ENDS.iter().any(|end| is(token, end))).collect();
    if ends.iter().any(|&token| is(token, "<|return|>")) {
        ends.retain(|&token| !is(token, "<|end|>"));
    }
    ends
}
