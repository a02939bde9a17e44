//! What the loaders make of a model's files, and [`super::Tokenizer`] is made of.
//!
//! Left out: everything that follows from it.

use super::bytes::Spellings;
use super::gguf_spm::Merger;
use super::library::Library;
use crate::Token;

/// How this vocabulary turns text into tokens.
#[derive(Debug)]
pub(crate) enum Method {
    Library(Box<Library>),
    Pieces(Box<Merger>),
}

/// Everything that a file says about a tokenizer; the loaders fill it in.
#[derive(Debug)]
pub(crate) struct Parts {
    pub method: Method,
    pub spellings: Spellings,
    /// Put before a text that is encoded with special tokens, usually `bos` or nothing.
    pub prefix: Vec<Token>,
    /// Put after it, usually nothing.
    pub suffix: Vec<Token>,
    pub bos: Option<Token>,
    pub end_tokens: Vec<Token>,
    /// Whether encoding invents a space before the text, so that decoding has to drop one.
    pub drops_first_space: bool,
}
