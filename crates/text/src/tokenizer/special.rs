//! Special tokens: their places in a text, placeholder characters for them, and which of them end a turn.

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

/// Characters that occur in none of these texts; no letters, digits or white space, most of them for private use.
pub(crate) fn unused_characters(texts: &[&str]) -> impl Iterator<Item = char> + use<> {
    /// The first character of Unicode's private use area.
    const FIRST: char = '\u{e000}';
    let used: HashSet<char> = texts.iter().flat_map(|text| text.chars()).filter(|&found| found >= FIRST).collect();
    (FIRST..=char::MAX).filter(move |found| !found.is_alphanumeric() && !found.is_whitespace() && !used.contains(found))
}

/// End-of-turn tokens of chat models. llama.cpp looks for the same spellings.
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

/// Tokens that begin what follows an answer in vocabularies of ChatGLM and GLM-4, and end it thereby.
const GLM_TURN_ENDS: [&str; 2] = ["<|user|>", "<|observation|>"];

/// The end-of-turn tokens of a vocabulary. If it has `<|return|>`, `<|end|>` ends only a message, not the turn. A
/// vocabulary with `[gMASK]` is one of GLM.
pub(crate) fn turn_ends(spellings: &Spellings) -> Vec<Token> {
    let has_text = |token: Token, text: &str| spellings.bytes(token) == text.as_bytes();
    let special = (0..spellings.len() as Token).filter(|&token| spellings.is_special(token));
    let is_glm = special.clone().any(|token| has_text(token, "[gMASK]"));
    let further = if is_glm { &GLM_TURN_ENDS[..] } else { &[] };
    let is_end = |token: Token| TURN_ENDS.iter().chain(further).any(|end| has_text(token, end));
    let mut ends: Vec<Token> = special.filter(|&token| is_end(token)).collect();
    if ends.iter().any(|&token| has_text(token, "<|return|>")) {
        ends.retain(|&token| !has_text(token, "<|end|>"));
    }
    ends
}
