//! Queries to the library's parser at one position of a text.
//!
//! Every query is guarded: a panic of the library is an error, and so is exceeding the limits ([`super::limits`]).
//! [`super::matcher`] handles these errors.

use std::sync::Arc;

use llguidance::TokenParser;
use llguidance::earley::CGrammar;
use llguidance::toktrie::{Recognizer, SimpleVob};

use super::library_errors::{expected, readable};
use super::limits::{LexerUsage, Limits};
use super::strings::{self, Transitions};
use super::tables::Tables;
use crate::Token;
use crate::caught::caught;

/// A parser, with the known transitions of its lexer.
pub(super) struct Parser {
    library: TokenParser,
    transitions: Transitions,
    tables: Arc<Tables>,
}

/// A query to a parser at one position of a text.
pub(super) type Query<T> = fn(&mut Parser, Token) -> Result<T, String>;

impl Parser {
    /// At the beginning of a text.
    pub fn new(library: TokenParser, tables: Arc<Tables>) -> Parser {
        Parser { library, transitions: Transitions::default(), tables }
    }

    /// An independent copy in the same state.
    pub fn duplicate(&self) -> Parser {
        let (transitions, tables) = (self.transitions.clone(), Arc::clone(&self.tables));
        Parser { library: self.library.deep_clone(), transitions, tables }
    }

    /// Answers a query within the limits.
    ///
    /// # Errors
    /// If a limit was exceeded, which the message names, or the library fails.
    pub fn query<T>(&mut self, limits: Limits, token: Token, ask: Query<T>) -> Result<T, String> {
        let given_up = |found: String| expected("a grammar that the parser can follow", found);
        let answer = caught("grammars", || ask(self, token)).and_then(|answer| answer).map_err(given_up)?;
        // If its lexer has given up, the library answers that nothing may come next.
        if let Some(error) = self.library.parser.get_error() {
            return Err(given_up(readable(&error.message())));
        }
        limits.check(self.usage()).map(|()| answer)
    }

    /// What it has used so far.
    pub fn usage(&self) -> LexerUsage {
        LexerUsage::of(&self.library.parser.lexer_stats())
    }

    /// The library's compiled grammar.
    pub fn library_grammar(&self) -> &CGrammar {
        self.library.parser.grammar()
    }

    /// Whether the text has ended: nothing can follow.
    pub fn has_stopped(&self) -> bool {
        self.library.stopped()
    }

    /// Whether the text may end here.
    pub fn may_end(&mut self) -> bool {
        self.has_stopped() || self.library.is_accepting()
    }

    /// The tokens that may come next, if the text has not ended, and whether it may end.
    pub fn mask(&mut self) -> Result<(Option<SimpleVob>, bool), String> {
        if self.has_stopped() {
            return Ok((None, true));
        }
        let may_end = self.library.is_accepting();
        let library = self.tables.factory().slicer();
        let masks = self.tables.mask_computer(&library, &mut self.transitions);
        Ok((Some(self.library.parser.compute_bias(&masks, &[])), may_end))
    }

    /// The mask by the library's own traversal, and whether [`Parser::mask`] takes the fast path here.
    #[cfg(test)]
    pub fn library_mask(&mut self) -> (SimpleVob, bool) {
        let Self { library, transitions, tables } = self;
        library.invalidate_bias_cache();
        let mask = library.parser.compute_bias(&*tables.factory().slicer(), &[]);
        library.invalidate_bias_cache();
        (mask, library.parser.with_recognizer(|parser| strings::plain_chars_max(parser, transitions)).is_some())
    }

    /// Whether two letters are both allowed, as tokens.
    pub fn has_choice(&mut self) -> bool {
        let Self { library, tables, .. } = self;
        library.parser.with_recognizer(|parser| {
            parser.trie_started("choice");
            let both_allowed = [b'a', b'b'].into_iter().all(|byte| {
                let allowed = tables.byte(byte).is_some() && parser.try_push_byte(byte);
                parser.pop_bytes(usize::from(allowed));
                allowed
            });
            parser.trie_finished();
            both_allowed
        })
    }

    /// Computes the lexer's transitions for plain characters from here, for later masks; returns how many may come
    /// next.
    pub fn look_ahead(&mut self) -> Option<usize> {
        let Self { library, transitions, .. } = self;
        library.parser.with_recognizer(|parser| strings::plain_chars_max(parser, transitions))
    }

    /// The forced bytes. The parser advances over them and rolls back.
    pub fn forced_bytes(&mut self) -> Result<Vec<u8>, String> {
        let parser = &mut self.library.parser;
        let bytes = parser.force_bytes().to_vec();
        parser.rollback(0).map_err(|error| readable(&error.to_string()))?;
        Ok(bytes)
    }

    /// Accepts a token if it is allowed.
    pub fn advance(&mut self, token: Token) -> Result<bool, String> {
        let library = &mut self.library;
        let is_valid = library.validate_token(token).map_err(|error| readable(&error.to_string()))?;
        if is_valid {
            let accepted = library.consume_token(token).and_then(|_| library.check_stop());
            accepted.map_err(|error| readable(&error.to_string()))?;
        }
        Ok(is_valid)
    }

    /// Rolls back the last tokens; false if it cannot.
    pub fn roll_back(&mut self, tokens: usize) -> bool {
        let is_back = caught("grammars", || self.library.rollback(tokens).is_ok());
        // The library caches its last mask by position, and does not invalidate it when the text before it changes.
        self.library.invalidate_bias_cache();
        is_back == Ok(true)
    }
}
