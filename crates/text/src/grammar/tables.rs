//! The tables that all grammars of a vocabulary share: the token trie, and the tokens of plain characters for masks
//! inside strings.
//!
//! The library's end token is an additional one after the vocabulary. So the tables do not depend on which tokens end a
//! text, which each request may set.

use std::fmt;
use std::sync::{Arc, Mutex};

use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

use super::library_errors::readable;
use super::limits;
use super::strings::{MaskComputer, StringMasks, Transitions};
use crate::caught::caught;
use crate::{Token, Tokenizer};

/// The byte in front of special tokens in the trie; no text has it.
pub(super) const SPECIAL_MARKER: u8 = TokTrie::SPECIAL_TOKEN_MARKER;
/// Longest token in the trie, in bytes, whose depth has ten bits. Longer ones are never allowed.
const TOKEN_MAX_BYTES: usize = 1000;
/// Maximum number of parser items for one mask: some tenths of a second.
const MASK_ITEMS_MAX: usize = 2_000_000;

/// What all grammars of a vocabulary share.
pub(crate) struct Tables {
    factory: ParserFactory,
    strings: StringMasks,
    /// The size of the vocabulary.
    len: usize,
}

impl Tables {
    /// The tables of a tokenizer.
    ///
    /// # Errors
    /// A vocabulary that the library has no room for.
    pub fn new(tokenizer: &Tokenizer) -> Result<Arc<Tables>, String> {
        let len = tokenizer.vocabulary_len();
        let mut words: Vec<Vec<u8>> = (0..len as Token).map(|token| trie_bytes(tokenizer, token)).collect();
        words.push(Vec::new());
        let info = TokRxInfo::new(words.len() as u32, len as Token);
        let made = caught("grammars", || {
            // This environment declares that its tokens are not canonical, so the library forces no tokens: masks allow
            // all tokenizations.
            let strings = StringMasks::new(&words);
            let environment: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)));
            let slices = SlicedBiasComputer::general_slices();
            (strings, ParserFactory::new(&environment, InferenceCapabilities::default(), &slices))
        })?;
        let (strings, factory) = made;
        let mut factory = factory.map_err(|error| readable(&error.to_string()))?;
        factory.quiet();
        let limits = factory.limits_mut();
        (limits.verbose_errors, limits.step_max_items) = (false, MASK_ITEMS_MAX);
        (limits.step_lexer_fuel, limits.max_lexer_states) = limits::library_limits();
        Ok(Arc::new(Tables { factory, strings, len }))
    }

    pub fn factory(&self) -> &ParserFactory {
        &self.factory
    }

    /// The mask computer of a parser with these known transitions.
    pub(super) fn mask_computer<'a>(
        &'a self,
        library: &'a SlicedBiasComputer,
        transitions: &'a mut Transitions,
    ) -> MaskComputer<'a> {
        MaskComputer { strings: &self.strings, library, transitions: Mutex::new(transitions) }
    }

    /// The size of the vocabulary.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The token of a single byte.
    pub fn byte(&self, byte: u8) -> Option<Token> {
        self.factory.tok_env().tok_trie().token_id(&[byte])
    }

    /// The bytes of a token in the trie; special ones have the marker in front.
    pub fn bytes(&self, token: Token) -> &[u8] {
        self.factory.tok_env().tok_trie().token(token)
    }

    /// Whether a token is in the trie, so that it can be allowed.
    pub fn contains(&self, token: Token) -> bool {
        (token as usize) < self.len && self.factory.tok_env().tok_trie().token_len(token) > 0
    }
}

impl fmt::Debug for Tables {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tables").field("len", &self.len).finish_non_exhaustive()
    }
}

/// The bytes of a token in the trie; empty for one that is never allowed.
fn trie_bytes(tokenizer: &Tokenizer, token: Token) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(token);
    match tokenizer.is_special(token) {
        _ if bytes.is_empty() || bytes.len() > TOKEN_MAX_BYTES || bytes.contains(&SPECIAL_MARKER) => Vec::new(),
        true => [&[SPECIAL_MARKER], bytes].concat(),
        false => bytes.to_vec(),
    }
}
