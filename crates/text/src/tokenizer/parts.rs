//! The data that loaders read from a model's files and [`super::Tokenizer`] is built from.

use super::bytes::Spellings;
use super::gguf_spm::SentencePieceEncoder;
use super::library::Library;
use crate::Token;

/// How this vocabulary turns text into tokens.
#[derive(Debug)]
pub(crate) enum Method {
    Library(Box<Library>),
    SentencePiece(Box<SentencePieceEncoder>),
}

/// A tokenizer as its files describe it; the loaders fill it in.
#[derive(Debug)]
pub(crate) struct Parts {
    pub method: Method,
    pub spellings: Spellings,
    /// Tokens before a text that is encoded with special tokens, usually `bos` or none.
    pub prefix: Vec<Token>,
    /// Tokens after it, usually none.
    pub suffix: Vec<Token>,
    pub bos: Option<Token>,
    pub end_tokens: Vec<Token>,
    /// Whether encoding inserts a dummy prefix space before the text, which decoding has to drop.
    pub drops_first_space: bool,
}
