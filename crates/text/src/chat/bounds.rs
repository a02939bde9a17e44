//! Limits on the length and the nesting depth of a template, checked before it is parsed.
//!
//! The template engine (minijinja) parses, compiles and frees templates recursively, and limits only some of that:
//! fifty thousand `-` in a row end the process. So the tokens of the engine's own lexer are counted first, for an upper
//! bound of the depth: in an expression nearly every token counts as one level, a comma starts the count again, and a
//! bracket adds the depth inside it. Blocks are counted by their keywords; an `elif` is one more level.
//!
//! Constant expressions are evaluated while a template is compiled, which is not metered. Only repeated lists can be
//! large, so these are bounded here, too. Running a template is limited in [`super::metered`].

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

/// Longest template in bytes. The longest of known models have some ten thousand.
const SOURCE_MAX_BYTES: usize = 1 << 20;

/// Deepest expression. Fifty `~` in a row, which are fifty levels, would be many.
const EXPRESSION_MAX_DEPTH: usize = 250;

/// Deepest nesting of blocks; an `elif` is one further level.
const BLOCK_MAX_DEPTH: usize = 60;

/// Maximum number of repetitions of a list of constants by `*`.
const REPEATED_MAX: u64 = 1024;

/// Checks the limits; the error names the line.
pub(super) fn check(source: &str, syntax: &SyntaxConfig) -> Result<(), String> {
    if source.len() > SOURCE_MAX_BYTES {
        return Err(format!("expected at most {SOURCE_MAX_BYTES} bytes, found {}", source.len()));
    }
    let (mut expression, mut blocks) = (Expression::default(), Vec::new());
    let mut begins_block = false;
    for token in tokenize(source, false, syntax.clone()) {
        // What the lexer refuses is reported by the parser, later.
        let Ok((token, span)) = token else { return Ok(()) };
        let deep = |what: &str, most: usize, found: usize| {
            format!("line {}: expected {what} at most {most} levels deep, found {found}", span.start_line)
        };
        match token {
            Token::BlockStart | Token::VariableStart => expression = Expression::default(),
            _ => expression.push(&token),
        }
        if expression.depth() > EXPRESSION_MAX_DEPTH {
            return Err(deep("an expression", EXPRESSION_MAX_DEPTH, expression.depth()));
        }
        if expression.repeats_too_much() {
            let line = span.start_line;
            return Err(format!(
                "line {line}: expected a list repeated once, at most {REPEATED_MAX} times, found more"
            ));
        }
        if let (true, Token::Ident(word)) = (begins_block, &token) {
            match *word {
                "elif" => blocks.iter_mut().last().into_iter().for_each(|levels| *levels += 1),
                word if word.starts_with("end") => drop(blocks.pop()),
                "for" | "if" | "with" | "set" | "autoescape" | "filter" | "block" | "macro" | "call" => blocks.push(1),
                _ => {}
            }
            // A `set` with a value has no end tag, so it does not add a level.
            let depth: usize = blocks.iter().sum();
            if depth > BLOCK_MAX_DEPTH {
                return Err(deep("blocks", BLOCK_MAX_DEPTH, depth));
            }
        }
        if matches!(token, Token::Assign) && expression.is_set() {
            blocks.pop();
        }
        begins_block = matches!(token, Token::BlockStart);
    }
    Ok(())
}

/// An upper bound of the depth of an expression's tree, by its tokens so far.
#[derive(Default)]
struct Expression {
    /// The brackets that are open, from the outermost.
    levels: Vec<Level>,
    /// The tokens outside all brackets.
    outer: Level,
    /// Number of tokens so far.
    tokens: usize,
    /// Whether the first token is `set` and no `=` has come yet.
    awaits_value: bool,
    /// Whether the last token is the `=` of a `set`.
    is_set: bool,
    /// Whether a list is written. This and the next three fields are for finding large lists of constants.
    has_list: bool,
    /// Whether the last token ends a value, so that a bracket after it does not begin a list.
    follows_value: bool,
    /// Number of `*`.
    stars: usize,
    /// The largest number, which may be how often a list is repeated.
    largest: u64,
}

/// The tokens in one pair of brackets, or outside all of them.
#[derive(Clone, Copy, Default)]
struct Level {
    /// Number of tokens after the last comma.
    tokens: usize,
    /// The depth of the brackets among these tokens.
    inner: usize,
    /// The depth of the tokens before that comma.
    before: usize,
}

impl Level {
    fn depth(self) -> usize {
        self.before.max(self.tokens + self.inner)
    }
}

impl Expression {
    fn last(&mut self) -> &mut Level {
        self.levels.last_mut().unwrap_or(&mut self.outer)
    }

    fn push(&mut self, token: &Token<'_>) {
        self.is_set = matches!(token, Token::Assign) && std::mem::take(&mut self.awaits_value);
        self.awaits_value |= self.tokens == 0 && matches!(token, Token::Ident("set"));
        self.tokens += 1;
        let follows_value = self.follows_value;
        self.follows_value = matches!(
            token,
            Token::Ident(_) | Token::Str(_) | Token::String(_) | Token::BracketClose | Token::ParenClose
        );
        match token {
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => {
                self.has_list |= matches!(token, Token::BracketOpen) && !follows_value;
                self.levels.push(Level::default());
            }
            Token::ParenClose | Token::BracketClose | Token::BraceClose => {
                let depth = self.levels.pop().unwrap_or_default().depth();
                let level = self.last();
                level.tokens += 1;
                level.inner = level.inner.max(depth);
            }
            Token::Comma => {
                let level = self.last();
                *level = Level { before: level.depth(), ..Level::default() };
            }
            Token::Mul => {
                self.stars += 1;
                self.last().tokens += 1;
            }
            Token::Pow => {
                // A list may then be repeated as often as a computed number says.
                self.largest = u64::MAX;
                self.last().tokens += 1;
            }
            Token::Int(number) => self.largest = self.largest.max(*number),
            Token::Int128(_) => self.largest = u64::MAX,
            Token::Str(_) | Token::String(_) | Token::Float(_) | Token::Colon => {}
            _ => self.last().tokens += 1,
        }
    }

    /// The depth so far, open brackets included.
    fn depth(&self) -> usize {
        self.outer.depth() + self.levels.iter().map(|level| 1 + level.depth()).sum::<usize>()
    }

    fn repeats_too_much(&self) -> bool {
        self.has_list && (self.stars > 1 || (self.stars == 1 && self.largest > REPEATED_MAX))
    }

    fn is_set(&self) -> bool {
        self.is_set && self.levels.is_empty()
    }
}
