//! A parser of the library at one place of a text, and what is asked of it.
//!
//! Every question is guarded: what the library panics at is an error, and so is what it takes too much for
//! ([`super::limits`]). Left out: what becomes of a text whose parser gave up ([`super::matcher`]).

use std::sync::Arc;

use llguidance::TokenParser;
use llguidance::earley::CGrammar;
use llguidance::toktrie::{Recognizer, SimpleVob};

use super::complaint::{complaint, expected};
use super::limits::{Limits, Taken};
use super::strings::{self, Steps};
use super::tables::Tables;
use crate::Token;
use crate::caught::caught;

/// A parser, with what was found of its lexer.
pub(super) struct Parser {
    library: TokenParser,
    steps: Steps,
    tables: Arc<Tables>,
}

/// What a parser is asked for at one place of a text.
pub(super) type Question<T> = fn(&mut Parser, Token) -> Result<T, String>;

impl Parser {
    /// At the beginning of a text.
    pub fn new(library: TokenParser, tables: Arc<Tables>) -> Parser {
        Parser { library, steps: Steps::default(), tables }
    }

    /// The same place of the same text, for somebody else: nothing is shared that either changes.
    pub fn duplicate(&self) -> Parser {
        let (steps, tables) = (self.steps.clone(), Arc::clone(&self.tables));
        Parser { library: self.library.deep_clone(), steps, tables }
    }

    /// The answer to a question, if it was found within the limits.
    ///
    /// # Errors
    /// It was not; the message says at which limit, or what the library has to say.
    pub fn within<T>(&mut self, limits: Limits, token: Token, question: Question<T>) -> Result<T, String> {
        let given_up = |found: String| expected("a form that can be followed", found);
        let answer = caught("grammars", || question(self, token)).and_then(|answer| answer).map_err(given_up)?;
        // Where its lexer has given up, the library says that nothing may come next.
        if let Some(error) = self.library.parser.get_error() {
            return Err(given_up(complaint(&error.message())));
        }
        limits.hold(self.taken()).map(|()| answer)
    }

    /// What it has taken so far.
    pub fn taken(&self) -> Taken {
        Taken::of(&self.library.parser.lexer_stats())
    }

    /// The grammar, as the library has it.
    pub fn library_grammar(&self) -> &CGrammar {
        self.library.parser.grammar()
    }

    /// Whether the text has ended: its grammar can go on with nothing.
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
        let masks = self.tables.masks(&library, &mut self.steps);
        Ok((Some(self.library.parser.compute_bias(&masks, &[])), may_end))
    }

    /// The tokens that may come next by the library's own walk, and whether [`Parser::mask`] has a quicker way here.
    #[cfg(test)]
    pub fn library_mask(&mut self) -> (SimpleVob, bool) {
        let Self { library, steps, tables } = self;
        library.invalidate_bias_cache();
        let walked = library.parser.compute_bias(&*tables.factory().slicer(), &[]);
        library.invalidate_bias_cache();
        (walked, library.parser.with_recognizer(|parser| strings::room(parser, steps)).is_some())
    }

    /// Whether both of two letters may come next, and are tokens.
    pub fn has_choice(&mut self) -> bool {
        let Self { library, tables, .. } = self;
        library.parser.with_recognizer(|parser| {
            parser.trie_started("choice");
            let have_come = [b'a', b'b'].into_iter().all(|byte| {
                let comes = tables.byte(byte).is_some() && parser.try_push_byte(byte);
                parser.pop_bytes(usize::from(comes));
                comes
            });
            parser.trie_finished();
            have_come
        })
    }

    /// Finds out where plain characters lead from here, for masks that come later; how many may come, as there.
    pub fn look_ahead(&mut self) -> Option<usize> {
        let Self { library, steps, .. } = self;
        library.parser.with_recognizer(|parser| strings::room(parser, steps))
    }

    /// The bytes that have to come next. The parser goes on behind them, where the text has yet to come to, and back.
    pub fn forced_bytes(&mut self) -> Result<Vec<u8>, String> {
        let parser = &mut self.library.parser;
        let bytes = parser.force_bytes().to_vec();
        parser.rollback(0).map_err(|error| complaint(&error.to_string()))?;
        Ok(bytes)
    }

    /// Goes on with a token, if it may come next.
    pub fn go_on(&mut self, token: Token) -> Result<bool, String> {
        let library = &mut self.library;
        let is_valid = library.validate_token(token).map_err(|error| complaint(&error.to_string()))?;
        if is_valid {
            let gone = library.consume_token(token).and_then(|_| library.check_stop());
            gone.map_err(|error| complaint(&error.to_string()))?;
        }
        Ok(is_valid)
    }

    /// Takes back so many tokens that were accepted last; false if it cannot.
    pub fn roll_back(&mut self, tokens: usize) -> bool {
        let is_back = caught("grammars", || self.library.rollback(tokens).is_ok());
        // The library keeps its last mask by its place in the text, and forgets none when the text there is another.
        self.library.invalidate_bias_cache();
        is_back == Ok(true)
    }
}
