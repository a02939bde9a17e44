//! A tokenizer: text to tokens, and tokens to the bytes that they stand for.
//!
//! Encoding is done by whoever knows how the checkpoint was trained: the `tokenizers` library for a `tokenizer.json`,
//! for `vocab.json` with `merges.txt` and for byte-level vocabularies in a GGUF file, our own merger for those of
//! SentencePiece, in a GGUF file or as `tokenizer.model` (see [`gguf_spm`] and [`sentencepiece`]). Decoding is the same
//! for all: at load every token gets its bytes in one table, and text is bytes put together. So incremental text,
//! constraints and comparisons of vocabularies never ask which kind it is.
//!
//! What it leaves out: WordPiece's rules for spaces (such tokens decode to their own text), training, offsets.

mod bytes;
mod decoding;
#[allow(unsafe_code)] // the one place that tells the library of expressions its bounds
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
mod outline;
mod parts;
mod pre_tokenizer;
mod sentencepiece;
mod special;

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use foretoken_weights::gguf::Metadata;

use crate::grammar::{Grammar, Tables};
use crate::{TextError, Token};
pub(crate) use bytes::byte_token;
pub(crate) use decoding::Decoding;
pub(crate) use folder::{component, configuration, json_file, special_spelling};
pub(crate) use gguf_vocabulary::EXACT_SCORES;
pub use gguf_vocabulary::GgufVocabulary;
use guard::guarded;
pub(crate) use parts::{Method, Parts};
pub(crate) use pre_tokenizer::{DIGIT, DIGITS, FALCON_PUNCTUATION, GPT_2, name_of};
pub(crate) use sentencepiece::{FILE as SENTENCEPIECE_FILE, merged_vocabulary};
pub(crate) use special::{SpecialSpan, TURN_ENDS, turn_ends, unused_characters};

/// No model has so many tokens; a file that names a higher one would only make us fill the memory with nothing.
const MOST_TOKENS: usize = 1 << 24;

/// The tokenizer of one model. It is immutable and can be shared between threads.
#[derive(Debug)]
pub struct Tokenizer {
    name: String,
    parts: Parts,
    turn_end_tokens: Vec<Token>,
    fingerprint: u64,
    token_bytes_max: usize,
    grammar_tables: OnceLock<Result<Arc<Tables>, String>>,
    grammars: Mutex<Vec<Arc<Grammar>>>,
}

impl Tokenizer {
    /// Reads the tokenizer of a folder, with `tokenizer_config.json` if it is there: `tokenizer.json`, or else
    /// SentencePiece's `tokenizer.model`, or else `vocab.json` with `merges.txt`.
    ///
    /// # Errors
    /// If none of them is there, or one of the files cannot be read or understood.
    pub fn from_dir(dir: &Path) -> Result<Self, TextError> {
        let has = |file: &str| dir.join(file).exists();
        Self::loaded(&dir.display().to_string(), || {
            if has("tokenizer.json") || !Self::is_in(dir) {
                folder::from_dir(dir)
            } else if has("tokenizer.model") {
                sentencepiece::from_dir(dir)
            } else {
                merges::from_dir(dir)
            }
        })
    }

    /// Whether a folder has a tokenizer in one of the forms that [`Tokenizer::from_dir`] reads.
    pub fn is_in(dir: &Path) -> bool {
        let has = |file: &str| dir.join(file).exists();
        has("tokenizer.json") || has("tokenizer.model") || (has("vocab.json") && has("merges.txt"))
    }

    /// Makes a tokenizer from the bytes of a `tokenizer.model`. `name` stands in messages where a file would.
    ///
    /// # Errors
    /// If they are no SentencePiece model, or one of a kind that is not supported.
    pub fn from_sentencepiece(name: &str, model: &[u8]) -> Result<Self, TextError> {
        let none = serde_json::Value::Null;
        Self::loaded(name, || sentencepiece::parts(name, model, &none, &none))
    }

    /// Makes a tokenizer from the contents of `tokenizer.json` and, if there is one, `tokenizer_config.json`.
    ///
    /// # Errors
    /// If one of them cannot be understood. `name` stands in the message where a file would.
    pub fn from_json(
        name: &str,
        tokenizer_json: &[u8],
        tokenizer_config_json: Option<&[u8]>,
    ) -> Result<Self, TextError> {
        Self::loaded(name, || folder::from_json(name, tokenizer_json, tokenizer_config_json))
    }

    /// Makes a tokenizer from the metadata of a GGUF file. `name` stands in messages where a file would.
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

    /// Loads by the library, as far as it does not fail.
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
        Self {
            name: name.to_owned(),
            turn_end_tokens,
            fingerprint,
            token_bytes_max,
            parts,
            grammar_tables: OnceLock::new(),
            grammars: Mutex::default(),
        }
    }

    /// What it was made of.
    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    /// What all grammars of the vocabulary share, made when it is first asked for.
    pub(crate) fn grammar_tables(&self) -> Result<Arc<Tables>, String> {
        self.grammar_tables.get_or_init(|| Tables::new(self)).clone()
    }

    /// The grammars that were compiled last.
    pub(crate) fn grammars(&self) -> &Mutex<Vec<Arc<Grammar>>> {
        &self.grammars
    }

    /// The name that it was loaded under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tokens of a text. Special tokens spelt out in the text become those tokens, as templates need it; with
    /// `add_special` the tokens that the model expects around a text (usually bos in front) are added.
    ///
    /// # Errors
    /// If the library refuses the text; none of the usual vocabularies does.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<Token>, TextError> {
        let tokens = match &self.parts.method {
            Method::Library(library) => library.encode(text).map_err(|error| TextError::encode(&self.name, error))?,
            Method::Pieces(merger) => merger.encode(text, true),
        };
        if !add_special {
            return Ok(tokens);
        }
        Ok([&self.parts.prefix, tokens.as_slice(), &self.parts.suffix].concat())
    }

    /// Tokens of a text of any length, which may be read in pieces: finding the tokens of a text at once takes some two
    /// hundred times its bytes of memory. Up to a MiB it is [`Tokenizer::encode`]. A longer one is cut behind the last
    /// line feed of each MiB, and within a line where it has none; only there tokens may be others than those of the
    /// whole (a vocabulary that invents a space before a text does so before each piece). For texts to learn from, not
    /// for prompts.
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

    /// Tokens of a text that is nothing but text: special tokens spelt out in it are words like any other, so a user
    /// cannot end a turn by typing its mark. Adds nothing around it.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_plain(&self, text: &str) -> Result<Vec<Token>, TextError> {
        match &self.parts.method {
            Method::Library(library) => {
                library.encode_plain(text).map_err(|error| TextError::encode(&self.name, error))
            }
            Method::Pieces(merger) => Ok(merger.encode(text, false)),
        }
    }

    /// Where [`Tokenizer::encode`] reads special tokens in a text, in its order.
    pub(crate) fn specials(&self, text: &str) -> Vec<SpecialSpan> {
        match &self.parts.method {
            Method::Library(library) => library.specials(text),
            Method::Pieces(merger) => merger.specials(text),
        }
    }

    /// Tokens of a text that has special tokens in these places, in its order, and nowhere else. Where these are all
    /// that it spells, the tokens are those of [`Tokenizer::encode`]. Adds nothing around it.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub(crate) fn encode_with(&self, text: &str, specials: &[SpecialSpan]) -> Result<Vec<Token>, TextError> {
        match &self.parts.method {
            Method::Library(library) => {
                library.encode_with(text, specials).map_err(|error| TextError::encode(&self.name, error))
            }
            Method::Pieces(merger) => Ok(merger.encode_with(text, specials)),
        }
    }

    /// The token that begins a text, if there is one.
    pub fn bos(&self) -> Option<Token> {
        self.parts.bos
    }

    /// Whether [`Tokenizer::encode`] with `add_special` puts bos in front.
    pub fn adds_bos(&self) -> bool {
        self.parts.bos.is_some() && self.parts.prefix.first().copied() == self.parts.bos
    }

    /// The tokens that end a text as far as the tokenizer's own files say (`tokenizer_config.json`, the vocabulary of a
    /// GGUF file), in ascending order. This is a fact and no decision: `generation_config.json` and `config.json` come
    /// first, and whoever opens the model has read them.
    pub fn end_tokens(&self) -> &[Token] {
        &self.parts.end_tokens
    }

    /// Special tokens that are spelt like the well-known marks at the end of a turn, in ascending order. The files of
    /// some chat models forget to list them; a chat should stop there too.
    pub fn turn_end_tokens(&self) -> &[Token] {
        &self.turn_end_tokens
    }

    /// One more than the highest token.
    pub fn vocabulary_len(&self) -> usize {
        self.parts.spellings.len()
    }

    /// Most bytes that a token stands for; at least 1. A text of more than this for each token that fits does not fit.
    pub fn token_bytes_max(&self) -> usize {
        self.token_bytes_max
    }

    /// The bytes that a token stands for; a special token stands for its own spelling. Empty outside the vocabulary.
    pub fn token_bytes(&self, token: Token) -> &[u8] {
        self.parts.spellings.bytes(token)
    }

    /// Whether a token is a mark rather than text. `false` outside the vocabulary.
    pub fn is_special(&self, token: Token) -> bool {
        self.parts.spellings.is_special(token)
    }

    /// The special tokens that are spelt like one of these, in ascending order; none that ends a text or a turn. It
    /// looks through the vocabulary, so it is for when a model is opened. With the marks of a form of tool calls
    /// ([`crate::ToolFormat::marks`]) they are what a text has to show ([`crate::TextStream::show_special`]).
    pub fn special_tokens(&self, spellings: &[&str]) -> Vec<Token> {
        let is_end = |token| self.end_tokens().contains(&token) || self.turn_end_tokens().contains(&token);
        let is_named = |token| spellings.iter().any(|text| text.as_bytes() == self.token_bytes(token));
        let tokens = 0..self.vocabulary_len() as Token;
        tokens.filter(|&token| self.is_special(token) && is_named(token) && !is_end(token)).collect()
    }

    /// Whether the first space of a text was invented by encoding, and is dropped again by decoding.
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

    /// A hash of the table from tokens to bytes: equal for equal tables, different for others as far as 64 bits go.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Whether both give the same bytes to the same tokens, as a draft model and its target must.
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
