//! Grammars for guided decoding (structured outputs): which tokens may come next.
//!
//! The source of a grammar is a JSON Schema, a regular expression, a grammar in Lark's or llama.cpp's notation (GBNF),
//! or a list of choices ([`GrammarSource`]). It is compiled once ([`Grammar`]) over tables that are made once for each
//! vocabulary ([`tables`]). Each sequence has a [`Matcher`], which computes the allowed tokens, accepts a token, and
//! rolls back. The library is `llguidance`: an Earley parser over derivatives of regular expressions, and one traversal
//! of the token trie for each mask.
//!
//! **A grammar constrains bytes, in every tokenization.** A token is allowed if its bytes may come next. Tokens are
//! never forced, even if the bytes are, because which tokens spell them is the model's choice. So a model's output is
//! its own distribution under the mask. Special tokens are allowed only where a grammar names them.
//!
//! Sources are untrusted: their size is bounded and so is the stack depth that they lead the library to ([`depth`]),
//! the library's own limits hold for compiling and for each mask, and its panics become errors. A grammar says only
//! that a text may end, not which tokens end it.

mod depth;
mod gbnf;
mod lark;
mod library_errors;
mod limits;
mod matcher;
mod parser;
mod schema;
mod strings;
mod tables;
mod warm_up;

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::TokenParser;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};

use crate::caught::caught;
use crate::{TextError, Token, Tokenizer};
use library_errors::{expected, locate_in_regex, readable, without_location};
use limits::Limits;
pub use matcher::{Allowed, Matcher};
use parser::Parser;
pub(crate) use schema::{check as check_schema, with_options};
pub(crate) use tables::Tables;

/// The source of a grammar that a text has to match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrammarSource {
    /// A JSON Schema. Properties come in the schema's order; keywords that cannot be enforced are refused.
    JsonSchema {
        /// The schema, in JSON.
        schema: String,
        /// Whether whitespace is allowed between the parts: a space, or one or two line ends and up to 20 blanks.
        flexible: bool,
    },
    /// A regular expression that the whole text matches, in the syntax of Rust's `regex`.
    Regex(String),
    /// A grammar in Lark's notation, as `llguidance` reads it.
    Lark(String),
    /// A grammar in llama.cpp's notation (GBNF).
    Gbnf(String),
    /// One of these texts.
    Choices(Vec<String>),
    /// Tool calls in a model's format, as [`crate::ToolFormat::grammar_of_calls`] writes them in Lark's notation. It
    /// may use JSON options that users' grammars may not ([`GrammarSource::Lark`]), and this is not checked, so it must
    /// not come from a user.
    ToolCalls(String),
}

/// Longest source, in bytes: a schema of thousands of properties fits.
const SOURCE_MAX_BYTES: usize = 1 << 20;
/// How many compiled grammars of a vocabulary are cached.
const CACHED_MAX: usize = 16;

impl GrammarSource {
    /// Its name in messages, which is also the name of its setting.
    pub fn name(&self) -> &'static str {
        match self {
            Self::JsonSchema { .. } => "json_schema",
            Self::Regex(_) => "regex",
            Self::Lark(_) | Self::Gbnf(_) => "grammar",
            Self::Choices(_) => "choices",
            Self::ToolCalls(_) => "tools",
        }
    }

    /// A grammar of unknown notation: Lark's rules have `:` after their name, llama.cpp's `::=`.
    pub fn of_grammar(text: String) -> Self {
        if gbnf::is_gbnf(&text) { Self::Gbnf(text) } else { Self::Lark(text) }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::JsonSchema { schema: text, .. } => text.len(),
            Self::Regex(text) | Self::Lark(text) | Self::Gbnf(text) | Self::ToolCalls(text) => text.len(),
            Self::Choices(choices) => choices.iter().map(String::len).sum(),
        }
    }
}

/// A grammar that is compiled for a vocabulary. It can be shared between threads.
pub struct Grammar {
    source: GrammarSource,
    /// The parser at the beginning of a text. Its lexer's tables grow as it is used, so each sequence has a copy.
    initial: Mutex<Parser>,
    limits: Limits,
    tables: Arc<Tables>,
}

impl Grammar {
    /// Compiles a grammar for the vocabulary of a tokenizer, whose tables are made when they are first needed. Grammars
    /// that were compiled last are cached.
    ///
    /// # Errors
    /// If the source is invalid, too large, asks for what cannot be enforced (the message names the place in a schema),
    /// or matches no text of this vocabulary.
    pub fn compile(tokenizer: &Tokenizer, source: &GrammarSource) -> Result<Arc<Grammar>, TextError> {
        let refuse = |found: String| TextError::grammar(source.name(), found);
        if source.bytes() > SOURCE_MAX_BYTES {
            return Err(refuse(format!("expected at most {SOURCE_MAX_BYTES} bytes, found {}", source.bytes())));
        }
        if let Some(grammar) = cached(tokenizer, source, None) {
            return Ok(grammar);
        }
        let tables = derived(tokenizer).tables(tokenizer).map_err(refuse)?;
        let compile = || compiled(&tables, source);
        let compiled = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(depth::STACK_BYTES).spawn_scoped(scope, compile);
            let thread = thread.map_err(|error| format!("expected a thread to compile it, found: {error}"))?;
            thread.join().unwrap_or_else(|_| Err("the library of grammars failed".to_string()))
        });
        let mut initial = Parser::new(compiled.map_err(refuse)?, Arc::clone(&tables));
        // The first mask is computed here, once for all sequences.
        let limits = Limits::new(initial.usage());
        let (tokens, may_end) = initial.query(limits, 0, |initial, _| initial.mask()).map_err(refuse)?;
        if !may_end && tokens.is_none_or(|tokens| tokens.is_zero()) {
            let name = tokenizer.name();
            return Err(refuse(format!(
                "expected a grammar that the vocabulary of {name} can write, found one that no token can begin"
            )));
        }
        let initial = warm_up::warmed_up(initial, &tables);
        let limits = Limits::new(initial.usage());
        let grammar = Arc::new(Grammar { source: source.clone(), initial: Mutex::new(initial), limits, tables });
        grammar.matcher().compute_first_masks().map_err(refuse)?;
        Ok(cached(tokenizer, source, Some(&grammar)).unwrap_or(grammar))
    }

    /// What it was compiled from.
    pub fn source(&self) -> &GrammarSource {
        &self.source
    }

    /// The first of these tokens that the grammar names in a place where no other is allowed. If these tokens end a
    /// text, no text can match there.
    pub fn named_token(&self, tokens: &[Token]) -> Option<Token> {
        let initial = self.initial.lock().unwrap_or_else(PoisonError::into_inner);
        initial.library_grammar().lexer_spec().lexemes.iter().find_map(|lexeme| {
            let token = tokens.iter().find(|token| lexeme.contains_token(**token))?;
            let is_other = |token: Token| lexeme.contains_token(token) && !tokens.contains(&token);
            let has_others = (0..self.tables.len() as Token).any(is_other);
            (!has_others).then_some(*token)
        })
    }

    /// A matcher at the beginning of a text.
    pub fn matcher(self: &Arc<Self>) -> Matcher {
        Matcher::new(Arc::clone(self))
    }

    /// The parser at the beginning of a text.
    fn initial(&self) -> Parser {
        self.initial.lock().unwrap_or_else(PoisonError::into_inner).duplicate()
    }
}

impl PartialEq for Grammar {
    /// Grammars are equal if they have the same source and the same tables.
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source && Arc::ptr_eq(&self.tables, &other.tables)
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Grammar").field("source", &self.source).finish_non_exhaustive()
    }
}

/// What all grammars of a vocabulary share.
#[derive(Default)]
struct Derived {
    tables: OnceLock<Result<Arc<Tables>, String>>,
    /// The grammars that were compiled last.
    grammars: Mutex<Vec<Arc<Grammar>>>,
}

impl Derived {
    /// The tables, made at the first use.
    fn tables(&self, tokenizer: &Tokenizer) -> Result<Arc<Tables>, String> {
        self.tables.get_or_init(|| Tables::new(tokenizer)).clone()
    }
}

fn derived(tokenizer: &Tokenizer) -> Arc<Derived> {
    tokenizer.derived(Derived::default)
}

/// The cached grammar of a source, which becomes the most recently used. `new` is cached unless another thread has
/// compiled the same source meanwhile.
fn cached(tokenizer: &Tokenizer, source: &GrammarSource, new: Option<&Arc<Grammar>>) -> Option<Arc<Grammar>> {
    let derived = derived(tokenizer);
    let mut cached = derived.grammars.lock().unwrap_or_else(PoisonError::into_inner);
    let index = cached.iter().position(|grammar| grammar.source == *source);
    let grammar = index.map(|index| cached.remove(index)).or_else(|| new.cloned())?;
    if cached.len() == CACHED_MAX {
        cached.remove(0);
    }
    cached.push(Arc::clone(&grammar));
    Some(grammar)
}

/// The parser of a source, or an error message.
fn compiled(tables: &Tables, source: &GrammarSource) -> Result<TokenParser, String> {
    let invalid = |found: String| expected("a valid grammar", found);
    match source {
        GrammarSource::JsonSchema { schema, flexible } => schema::compiled(tables, schema, *flexible),
        GrammarSource::Regex(expression) => parser(tables, GrammarWithLexer::from_regex(expression))
            .map_err(|found| expected("an expression that can be enforced", locate_in_regex(expression, found))),
        GrammarSource::Lark(text) => lark::compiled(tables, text),
        // Written by this crate, with JSON options that users may not set.
        GrammarSource::ToolCalls(text) => {
            lark::check_depth(text, &lark::schemas(text))?;
            parser(tables, GrammarWithLexer::from_lark(text.clone()))
                .map_err(|found| expected("functions whose calls can be enforced", without_location(found)))
        }
        GrammarSource::Gbnf(text) => {
            parser(tables, gbnf::grammar(text)?).map_err(|found| invalid(without_location(found)))
        }
        GrammarSource::Choices(choices) => {
            if choices.is_empty() || choices.iter().any(String::is_empty) {
                return Err("expected at least one choice, none of them empty, found fewer".to_string());
            }
            let choices: Vec<String> = choices.iter().map(|choice| literal(choice)).collect();
            parser(tables, GrammarWithLexer::from_regex(&choices.join("|")))
                .map_err(|found| invalid(without_location(found)))
        }
    }
}

/// The parser of the library's grammar; an error if no finite text matches it.
fn parser(tables: &Tables, grammar: GrammarWithLexer) -> Result<TokenParser, String> {
    let made = caught("grammars", || tables.factory().create_parser(TopLevelGrammar::from_grammar(grammar)))?;
    let mut parser = made.map_err(|error| readable(&error.to_string()))?;
    parser.start_without_prompt();
    if !lark::has_end(parser.parser.grammar()) {
        return Err("expected a grammar with finite texts, found rules that never end".to_string());
    }
    Ok(parser)
}

/// A regular expression for a literal text.
fn literal(text: &str) -> String {
    let mut expression = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii() && !character.is_ascii_alphanumeric() {
            expression.push_str(&format!("\\x{:02x}", u32::from(character)));
        } else {
            expression.push(character);
        }
    }
    expression
}

#[cfg(test)]
mod tests;
