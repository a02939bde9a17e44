//! Grammars: which tokens may come next, where a text has to be of a form.
//!
//! A form is a JSON Schema, a regular expression, a grammar in Lark's notation or llama.cpp's
//! (GBNF), or a list of choices
//! ([`GrammarSource`]). It is compiled once ([`Grammar`]) over tables that are made once a vocabulary ([`tables`]), and
//! each text walks it with a [`Matcher`] of its own: which tokens may come next, go on with one, take some back. The
//! work is `llguidance`'s: Earley's parser over derivatives of expressions, and one walk through the tree of all tokens
//! for each mask.
//!
//! **What is allowed are bytes, in every tokenization.** A token is allowed where its bytes may come next, and that is
//! all: nothing is forced, also where the bytes are, for which token spells them is the model's choice. So what a model
//! writes is its own distribution under the mask. Special tokens are allowed only where a grammar names them.
//!
//! Whoever wrote the form may mean harm: sources are of a bounded size and lead the library to a bounded depth of its
//! stack ([`depth`]), its own limits hold for compiling and for each mask, and what it panics at is an error. Left out:
//! which tokens end a text (a grammar says only that it may end), and what becomes of a text that is cut before.

mod complaint;
mod depth;
mod gbnf;
mod lark;
mod limits;
mod matcher;
mod parser;
mod rehearsal;
mod schema;
mod strings;
mod tables;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::TokenParser;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};

use crate::caught::caught;
use crate::{TextError, Token, Tokenizer};
use complaint::{complaint, expected, of_ours, of_regex};
use limits::Limits;
pub use matcher::{Allowed, Matcher};
use parser::Parser;
pub(crate) use schema::{check as check_schema, with_options};
pub(crate) use tables::Tables;

/// The form that a text has to have, as somebody wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrammarSource {
    /// A JSON Schema. Properties come in the schema's order; keywords that cannot be enforced are refused.
    JsonSchema {
        /// The schema, in JSON.
        schema: String,
        /// Whether whitespace may stand between the parts: a space, or one or two line ends and up to 20 blanks.
        /// Without it there is none.
        flexible: bool,
    },
    /// A regular expression that the whole text matches, in the syntax of Rust's `regex`.
    Regex(String),
    /// A grammar in Lark's notation, as `llguidance` reads it.
    Lark(String),
    /// A grammar in the notation of llama.cpp, character by character.
    Gbnf(String),
    /// One of these texts.
    Choices(Vec<String>),
    /// Calls of tools in a model's form, as [`crate::ToolFormat::grammar_of_calls`] writes them in Lark's notation. It
    /// may use options of JSON that a grammar of others may not ([`GrammarSource::Lark`]), and that is not looked at,
    /// so nobody else should write one.
    ToolCalls(String),
}

/// Longest source, in bytes: a schema of thousands of properties fits.
const SOURCE_MAX_BYTES: usize = 1 << 20;
/// How many compiled forms of a vocabulary are kept for whoever asks for one again.
const KNOWN_MAX: usize = 16;

impl GrammarSource {
    /// What it is called in messages; the name of its setting, too.
    pub fn name(&self) -> &'static str {
        match self {
            Self::JsonSchema { .. } => "json_schema",
            Self::Regex(_) => "regex",
            Self::Lark(_) | Self::Gbnf(_) => "grammar",
            Self::Choices(_) => "choices",
            Self::ToolCalls(_) => "tools",
        }
    }

    /// A grammar of unknown notation: Lark's rules have `:` behind their name, llama.cpp's `::=`.
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

/// A form that was compiled for a vocabulary. It can be shared between threads.
pub struct Grammar {
    source: GrammarSource,
    /// Where every text begins. Its lexer's tables grow as it is used, so each text has a copy.
    first: Mutex<Parser>,
    limits: Limits,
    tables: Arc<Tables>,
}

impl Grammar {
    /// Compiles a form for the vocabulary of a tokenizer, whose tables are made when they are first needed. A form that
    /// was compiled lately is not compiled again.
    ///
    /// # Errors
    /// A source that cannot be understood, is too large, asks for what cannot be enforced (of a schema the message
    /// names the place), or that no text of this vocabulary can have.
    pub fn compile(tokenizer: &Tokenizer, source: &GrammarSource) -> Result<Arc<Grammar>, TextError> {
        let refuse = |found: String| TextError::grammar(source.name(), found);
        if source.bytes() > SOURCE_MAX_BYTES {
            return Err(refuse(format!("expected at most {SOURCE_MAX_BYTES} bytes, found {}", source.bytes())));
        }
        if let Some(grammar) = known(tokenizer, source, None) {
            return Ok(grammar);
        }
        let tables = tokenizer.grammar_tables().map_err(refuse)?;
        let compile = || compiled(&tables, source);
        let compiled = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(depth::STACK_BYTES).spawn_scoped(scope, compile);
            let thread = thread.map_err(|error| format!("expected a thread to compile it, found: {error}"))?;
            thread.join().unwrap_or_else(|_| Err("the library of grammars failed".to_string()))
        });
        let mut first = Parser::new(compiled.map_err(refuse)?, Arc::clone(&tables));
        // Asked here, the first mask is every text's.
        let limits = Limits::new(first.taken());
        let (tokens, may_end) = first.within(limits, 0, |first, _| first.mask()).map_err(refuse)?;
        if !may_end && tokens.is_none_or(|tokens| tokens.is_zero()) {
            let name = tokenizer.name();
            return Err(refuse(format!(
                "expected a form that a text of {name} can have, found one that none can begin"
            )));
        }
        let first = rehearsal::rehearsed(first, &tables);
        let limits = Limits::new(first.taken());
        let grammar = Arc::new(Grammar { source: source.clone(), first: Mutex::new(first), limits, tables });
        grammar.matcher().ask_behind_beginning().map_err(refuse)?;
        Ok(known(tokenizer, source, Some(&grammar)).unwrap_or(grammar))
    }

    /// What it was compiled from.
    pub fn source(&self) -> &GrammarSource {
        &self.source
    }

    /// Of these tokens one that the form names, where no other may stand in its place: no text can have it there if
    /// these end texts.
    pub fn names(&self, tokens: &[Token]) -> Option<Token> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.library_grammar().lexer_spec().lexemes.iter().find_map(|lexeme| {
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
    fn first(&self) -> Parser {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).duplicate()
    }
}

impl PartialEq for Grammar {
    /// The same form for the same tables.
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source && Arc::ptr_eq(&self.tables, &other.tables)
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Grammar").field("source", &self.source).finish_non_exhaustive()
    }
}

/// The grammar of a source among those that were asked for last, of which it is the latest now. One that is new is kept
/// if somebody else has not compiled it meanwhile.
fn known(tokenizer: &Tokenizer, source: &GrammarSource, new: Option<&Arc<Grammar>>) -> Option<Arc<Grammar>> {
    let mut known = tokenizer.grammars().lock().unwrap_or_else(PoisonError::into_inner);
    let place = known.iter().position(|grammar| grammar.source == *source);
    let grammar = place.map(|place| known.remove(place)).or_else(|| new.cloned())?;
    if known.len() == KNOWN_MAX {
        known.remove(0);
    }
    known.push(Arc::clone(&grammar));
    Some(grammar)
}

/// The parser of a source, or what is wrong with it.
fn compiled(tables: &Tables, source: &GrammarSource) -> Result<TokenParser, String> {
    let understood = |found: String| expected("what can be understood", found);
    match source {
        GrammarSource::JsonSchema { schema, flexible } => schema::compiled(tables, schema, *flexible),
        GrammarSource::Regex(expression) => parser(tables, GrammarWithLexer::from_regex(expression))
            .map_err(|found| expected("an expression that can be kept to", of_regex(expression, found))),
        GrammarSource::Lark(text) => lark::compiled(tables, text),
        // Ours, with the options of JSON that others may not give.
        GrammarSource::ToolCalls(text) => {
            lark::check_depth(text, &lark::schemas(text))?;
            parser(tables, GrammarWithLexer::from_lark(text.clone()))
                .map_err(|found| expected("functions whose calls can be held to a form", of_ours(found)))
        }
        GrammarSource::Gbnf(text) => parser(tables, gbnf::grammar(text)?).map_err(|found| understood(of_ours(found))),
        GrammarSource::Choices(choices) => {
            if choices.is_empty() || choices.iter().any(String::is_empty) {
                return Err("expected at least one choice, none of them empty, found fewer".to_string());
            }
            let choices: Vec<String> = choices.iter().map(|choice| literal(choice)).collect();
            parser(tables, GrammarWithLexer::from_regex(&choices.join("|"))).map_err(|found| understood(of_ours(found)))
        }
    }
}

/// The parser of a grammar of the library, which some text can finish.
fn parser(tables: &Tables, grammar: GrammarWithLexer) -> Result<TokenParser, String> {
    let made = caught("grammars", || tables.factory().create_parser(TopLevelGrammar::from_grammar(grammar)))?;
    let mut parser = made.map_err(|error| complaint(&error.to_string()))?;
    parser.start_without_prompt();
    if !lark::has_end(parser.parser.grammar()) {
        return Err("expected a form that a text can have, found rules that never come to an end".to_string());
    }
    Ok(parser)
}

/// The regular expression of a text.
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
