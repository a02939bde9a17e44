//! The tables of a vocabulary that all of its grammars share: the tree of its tokens' bytes, and that of the tokens
//! that most strings allow as a whole.
//!
//! The library's end of a text is a token of its own behind the vocabulary. So nothing depends on which tokens end a
//! text, which is a request's to say, and one tree serves all.

use std::fmt;
use std::sync::{Arc, Mutex};

use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

use super::complaint::complaint;
use super::limits;
use super::strings::{Masks, Steps, Strings};
use crate::caught::caught;
use crate::{Token, Tokenizer};

/// The mark in front of special tokens in the tree, a byte that no text has.
pub(super) const MARK: u8 = TokTrie::SPECIAL_TOKEN_MARKER;
/// Longest token in the tree, in bytes; its depth has ten bits there. Longer ones are never allowed.
const TOKEN_MAX_BYTES: usize = 1000;
/// Items of the parser for one mask: some tenths of a second.
const MASK_ITEMS_MAX: usize = 2_000_000;

/// What all grammars of a vocabulary share.
pub(crate) struct Tables {
    factory: ParserFactory,
    strings: Strings,
    /// Tokens there are.
    len: usize,
}

impl Tables {
    /// The tables of a tokenizer.
    ///
    /// # Errors
    /// A vocabulary that the library has no room for.
    pub fn new(tokenizer: &Tokenizer) -> Result<Arc<Tables>, String> {
        let len = tokenizer.vocabulary_len();
        let mut words: Vec<Vec<u8>> = (0..len as Token).map(|token| word(tokenizer, token)).collect();
        words.push(Vec::new());
        let info = TokRxInfo::new(words.len() as u32, len as Token);
        let made = caught("grammars", || {
            // This environment says that its tokens are not those that the tokenizer would find, so the library forces
            // no tokens: masks are of all tokenizations.
            let strings = Strings::new(&words);
            let environment: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)));
            let slices = SlicedBiasComputer::general_slices();
            (strings, ParserFactory::new(&environment, InferenceCapabilities::default(), &slices))
        })?;
        let (strings, factory) = made;
        let mut factory = factory.map_err(|error| complaint(&error.to_string()))?;
        factory.quiet();
        let limits = factory.limits_mut();
        (limits.verbose_errors, limits.step_max_items) = (false, MASK_ITEMS_MAX);
        (limits.step_lexer_fuel, limits.max_lexer_states) = limits::of_library();
        Ok(Arc::new(Tables { factory, strings, len }))
    }

    pub fn factory(&self) -> &ParserFactory {
        &self.factory
    }

    /// What computes the masks of a parser that is known to do this.
    pub(super) fn masks<'a>(&'a self, library: &'a SlicedBiasComputer, steps: &'a mut Steps) -> Masks<'a> {
        Masks { strings: &self.strings, library, steps: Mutex::new(steps) }
    }

    /// Tokens there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The token of a byte alone.
    pub fn byte(&self, byte: u8) -> Option<Token> {
        self.factory.tok_env().tok_trie().token_id(&[byte])
    }

    /// The bytes of a token in the tree, special ones behind a mark.
    pub fn bytes(&self, token: Token) -> &[u8] {
        self.factory.tok_env().tok_trie().token(token)
    }

    /// Whether a token can be a part of a text at all.
    pub fn has(&self, token: Token) -> bool {
        (token as usize) < self.len && self.factory.tok_env().tok_trie().token_len(token) > 0
    }
}

impl fmt::Debug for Tables {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tables").field("len", &self.len).finish_non_exhaustive()
    }
}

/// The bytes of a token in the tree; none for one that is never allowed.
fn word(tokenizer: &Tokenizer, token: Token) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(token);
    match tokenizer.is_special(token) {
        _ if bytes.is_empty() || bytes.len() > TOKEN_MAX_BYTES || bytes.contains(&MARK) => Vec::new(),
        true => [&[MARK], bytes].concat(),
        false => bytes.to_vec(),
    }
}
