//! A tokenizer: text to tokens, and tokens to the bytes that they stand for.
//!
//! The `tokenizers` library encodes for a `tokenizer.json`, for `vocab.json` with `merges.txt`, for files of tiktoken
//! and for byte-level vocabularies in a GGUF file. SentencePiece vocabularies, in a GGUF file or as `tokenizer.model`,
//! are encoded by foretoken itself (see [`gguf_spm`] and [`sentencepiece`]), since the checkpoints were trained with
//! that algorithm. Decoding is the same for all: one table has the bytes of every token, and a text is their
//! concatenation. So incremental text, constraints and comparisons of vocabularies do not depend on the kind.
//!
//! Not supported: WordPiece's rules for spaces (such tokens decode to their own text), and offsets.

mod build_limits;
mod bytes;
mod decoding;
#[allow(unsafe_code)] // the only calls into Oniguruma, which set its limits
mod expressions;
mod folder;
mod gguf;
mod gguf_bpe;
mod gguf_spm;
mod gguf_unigram;
mod gguf_vocabulary;
mod growth;
mod guard;
mod library;
mod merges;
mod parts;
mod pre_tokenizer;
mod sentencepiece;
mod special;
mod tiktoken;

use std::any::Any;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use foretoken_weights::gguf::Metadata;

use crate::{TextError, Token};
pub(crate) use bytes::byte_token;
pub(crate) use decoding::Decoding;
pub(crate) use folder::{component, configuration, json_file, special_spelling};
pub(crate) use gguf_vocabulary::EXACT_SCORES;
pub use gguf_vocabulary::GgufVocabulary;
use guard::guarded;
pub(crate) use parts::{Method, Parts};
pub(crate) use pre_tokenizer::{DIGIT, DIGITS, FALCON_PUNCTUATION, GPT_2, name_of};
pub(crate) use sentencepiece::{FILE as SENTENCEPIECE_FILE, whole_vocabulary};
pub(crate) use special::{SpecialSpan, TURN_ENDS, turn_ends, unused_characters};
pub(crate) use tiktoken::{file as tiktoken_file, vocabulary as tiktoken_vocabulary};

/// Maximum number of tokens, more than any model has. A file that names a higher id would make the loader fill memory
/// with empty rows.
const MOST_TOKENS: usize = 1 << 24;

/// The tokenizer of one model. It is immutable and can be shared between threads.
#[derive(Debug)]
pub struct Tokenizer {
    name: String,
    parts: Parts,
    turn_end_tokens: Vec<Token>,
    fingerprint: u64,
    token_bytes_max: usize,
    derived: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl Tokenizer {
    /// Reads the tokenizer of a folder, with `tokenizer_config.json` if it is there: `tokenizer.json`, or else
    /// `qwen.tiktoken`, or else SentencePiece's `tokenizer.model` or `spiece.model` (or GLM-4's file of tiktoken of the
    /// first name), or else `vocab.json` with `merges.txt`.
    ///
    /// # Errors
    /// If none of them is there, or one of the files cannot be read or understood.
    pub fn from_dir(dir: &Path) -> Result<Self, TextError> {
        let has = |file: &str| dir.join(file).exists();
        Self::loaded(&dir.display().to_string(), || {
            if has("tokenizer.json") || !Self::is_in(dir) {
                folder::from_dir(dir)
            } else if tiktoken::file(dir).is_some() {
                tiktoken::from_dir(dir)
            } else if sentencepiece::FILES.into_iter().any(has) {
                sentencepiece::from_dir(dir)
            } else {
                merges::from_dir(dir)
            }
        })
    }

    /// Whether a folder has a tokenizer in one of the forms that [`Tokenizer::from_dir`] reads.
    pub fn is_in(dir: &Path) -> bool {
        let has = |file: &str| dir.join(file).exists();
        let one = ["tokenizer.json", "qwen.tiktoken"].into_iter().chain(sentencepiece::FILES).any(has);
        one || (has("vocab.json") && has("merges.txt"))
    }

    /// Makes a tokenizer from the bytes of a `tokenizer.model`. `name` identifies it in messages.
    ///
    /// # Errors
    /// If they are not a SentencePiece model, or one of a kind that is not supported.
    pub fn from_sentencepiece(name: &str, model: &[u8]) -> Result<Self, TextError> {
        let none = serde_json::Value::Null;
        Self::loaded(name, || sentencepiece::parts(name, model, &none, &none))
    }

    /// Makes a tokenizer from the contents of `tokenizer.json` and, if there is one, `tokenizer_config.json`.
    ///
    /// # Errors
    /// If one of them cannot be understood. `name` identifies the model in the message.
    pub fn from_json(
        name: &str,
        tokenizer_json: &[u8],
        tokenizer_config_json: Option<&[u8]>,
    ) -> Result<Self, TextError> {
        Self::loaded(name, || folder::from_json(name, tokenizer_json, tokenizer_config_json))
    }

    /// Makes a tokenizer from the metadata of a GGUF file. `name` identifies the file in messages.
    ///
    /// # Errors
    /// If the vocabulary is missing, contradicts itself, or is of a kind that is not supported.
    pub fn from_gguf(name: &str, metadata: &Metadata) -> Result<Self, TextError> {
        Self::from_gguf_vocabulary(name, &GgufVocabulary::from_metadata(name, metadata)?)
    }

    /// Makes a tokenizer from a vocabulary as GGUF files hold it.
    ///
    /// # Errors
    /// As [`Tokenizer::from_gguf`].
    pub fn from_gguf_vocabulary(name: &str, vocabulary: &GgufVocabulary) -> Result<Self, TextError> {
        Self::loaded(name, || gguf::parts(name, vocabulary))
    }

    /// Loads through [`guarded`], since loaders call the library.
    fn loaded(name: &str, load: impl FnOnce() -> Result<Parts, TextError>) -> Result<Self, TextError> {
        let parts = guarded(|| Ok(load())).map_err(|error| TextError::format(name, "a tokenizer", error))??;
        Ok(Self::from_parts(name, parts))
    }

    fn from_parts(name: &str, mut parts: Parts) -> Self {
        parts.end_tokens.sort_unstable();
        parts.end_tokens.dedup();
        let turn_end_tokens = turn_ends(&parts.spellings);
        let fingerprint = parts.spellings.fingerprint();
        let lengths = (0..parts.spellings.len() as Token).map(|token| parts.spellings.bytes(token).len());
        let token_bytes_max = lengths.max().unwrap_or(0).max(1);
        Self { name: name.to_owned(), turn_end_tokens, fingerprint, token_bytes_max, parts, derived: OnceLock::new() }
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    /// What grammars derive from the vocabulary and share between all users of the tokenizer: made at the first use,
    /// and of a type that this module does not know.
    pub(crate) fn derived<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let derived = self.derived.get_or_init(|| Arc::new(make()));
        Arc::clone(derived).downcast().expect("only one type is derived")
    }

    /// The name that it was loaded under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Encodes a text. Special tokens written in the text become those tokens, as templates need it; `add_special` adds
    /// the tokens that the model expects around a text (usually bos in front).
    ///
    /// # Errors
    /// If the library refuses the text, which does not happen with usual vocabularies.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<Token>, TextError> {
        let tokens = match &self.parts.method {
            Method::Library(library) => library.encode(text).map_err(|error| TextError::encode(&self.name, error))?,
            Method::SentencePiece(encoder) => encoder.encode(text, true),
        };
        if !add_special {
            return Ok(tokens);
        }
        Ok([&self.parts.prefix, tokens.as_slice(), &self.parts.suffix].concat())
    }

    /// Encodes a text of any length in pieces, because encoding at once takes some two hundred times its bytes of
    /// memory. Up to a MiB it is [`Tokenizer::encode`]. A longer text is split after the last line feed of each MiB, or
    /// within a line if there is none; only there the tokens may differ from those of the whole text (a vocabulary that
    /// inserts a space before a text does so before each piece). For texts that drafters learn from, not for prompts.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_in_pieces(&self, text: &str, add_special: bool) -> Result<Vec<Token>, TextError> {
        const PIECE_MAX_BYTES: usize = 1 << 20;
        if text.len() <= PIECE_MAX_BYTES {
            return self.encode(text, add_special);
        }
        let (mut tokens, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            let most = rest.floor_char_boundary(PIECE_MAX_BYTES);
            let line_end = rest[..most].rfind('\n').map_or(most, |at| at + 1);
            let (piece, behind) = rest.split_at(if most == rest.len() { most } else { line_end });
            tokens.extend(self.encode(piece, false)?);
            rest = behind;
        }
        if add_special {
            return Ok([&self.parts.prefix, tokens.as_slice(), &self.parts.suffix].concat());
        }
        Ok(tokens)
    }

    /// Encodes a text without special tokens: those written in it are ordinary text, so a user cannot end a turn by
    /// typing its end token. Adds nothing around it.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_plain(&self, text: &str) -> Result<Vec<Token>, TextError> {
        match &self.parts.method {
            Method::Library(library) => {
                library.encode_plain(text).map_err(|error| TextError::encode(&self.name, error))
            }
            Method::SentencePiece(encoder) => Ok(encoder.encode(text, false)),
        }
    }

    /// The special tokens that [`Tokenizer::encode`] matches in a text, in order.
    pub(crate) fn special_spans(&self, text: &str) -> Vec<SpecialSpan> {
        match &self.parts.method {
            Method::Library(library) => library.special_spans(text),
            Method::SentencePiece(encoder) => encoder.special_spans(text),
        }
    }

    /// Encodes a text with special tokens in these places (in order) and nowhere else. If these are all special tokens
    /// that are written in it, the result is that of [`Tokenizer::encode`]. Adds nothing around it.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub(crate) fn encode_with(&self, text: &str, special_spans: &[SpecialSpan]) -> Result<Vec<Token>, TextError> {
        match &self.parts.method {
            Method::Library(library) => {
                library.encode_with(text, special_spans).map_err(|error| TextError::encode(&self.name, error))
            }
            Method::SentencePiece(encoder) => Ok(encoder.encode_with(text, special_spans)),
        }
    }

    /// The token that begins a text (bos), if there is one.
    pub fn bos(&self) -> Option<Token> {
        self.parts.bos
    }

    /// Whether [`Tokenizer::encode`] with `add_special` puts bos in front.
    pub fn adds_bos(&self) -> bool {
        self.parts.bos.is_some() && self.parts.prefix.first().copied() == self.parts.bos
    }

    /// The end tokens that the tokenizer's own files name (`tokenizer_config.json`, the vocabulary of a GGUF file), in
    /// ascending order. `generation_config.json` and `config.json` take precedence; the caller that opens the model
    /// reads them.
    pub fn end_tokens(&self) -> &[Token] {
        &self.parts.end_tokens
    }

    /// Special tokens with the text of a well-known end-of-turn token, in ascending order. The files of some chat
    /// models do not list them as end tokens; a chat should stop there, too.
    pub fn turn_end_tokens(&self) -> &[Token] {
        &self.turn_end_tokens
    }

    /// One more than the highest token.
    pub fn vocabulary_len(&self) -> usize {
        self.parts.spellings.len()
    }

    /// Maximum number of bytes of a token, at least 1. A text with more bytes than this times the context length cannot
    /// fit.
    pub fn token_bytes_max(&self) -> usize {
        self.token_bytes_max
    }

    /// The bytes of a token; those of a special token are its spelling. Empty outside the vocabulary.
    pub fn token_bytes(&self, token: Token) -> &[u8] {
        self.parts.spellings.bytes(token)
    }

    /// Whether a token is special rather than text. `false` outside the vocabulary.
    pub fn is_special(&self, token: Token) -> bool {
        self.parts.spellings.is_special(token)
    }

    /// The special tokens with one of these spellings, in ascending order; none that ends a text or a turn. It scans
    /// the vocabulary, so call it when a model is opened. With the special tokens of a tool-call format
    /// ([`crate::ToolFormat::delimiters`]) it gives the tokens that a text has to show
    /// ([`crate::TextStream::show_special`]).
    pub fn special_tokens(&self, spellings: &[&str]) -> Vec<Token> {
        let is_end = |token| self.end_tokens().contains(&token) || self.turn_end_tokens().contains(&token);
        let is_named = |token| spellings.iter().any(|text| text.as_bytes() == self.token_bytes(token));
        let tokens = 0..self.vocabulary_len() as Token;
        tokens.filter(|&token| self.is_special(token) && is_named(token) && !is_end(token)).collect()
    }

    /// Whether encoding inserts a dummy prefix space before a text, which decoding drops.
    pub fn drops_first_space(&self) -> bool {
        self.parts.drops_first_space
    }

    /// The text of these tokens: their bytes put together, invalid UTF-8 replaced by U+FFFD.
    pub fn decode(&self, tokens: &[Token], skip_special: bool) -> String {
        let (mut state, mut text) = (Decoding::START, String::new());
        for &token in tokens {
            state.push(&self.parts, token, skip_special, &mut text);
        }
        text.push_str(state.rest());
        text
    }

    /// A 64-bit hash of the table from tokens to bytes.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Requires that both give the same bytes to the same tokens, as a draft model and its target must.
    ///
    /// # Errors
    /// Names the first token that differs, with both spellings.
    pub fn same_vocabulary(&self, other: &Self) -> Result<(), String> {
        let (ours, theirs) = (&self.parts.spellings, &other.parts.spellings);
        for token in 0..ours.len().max(theirs.len()) as Token {
            let (left, right) = (ours.bytes(token), theirs.bytes(token));
            if left != right {
                return Err(format!(
                    "token {token} is \"{}\" in {} and \"{}\" in {}",
                    left.escape_ascii(),
                    self.name,
                    right.escape_ascii(),
                    other.name
                ));
            }
        }
        if ours.len() != theirs.len() {
            return Err(format!("{} has {} tokens, {} has {}", self.name, ours.len(), other.name, theirs.len()));
        }
        Ok(())
    }
}
