//! Limits on the length and the nesting depth of a template, checked before it is parsed.
//!
//! The template engine (minijinja) parses, compiles and frees templates recursively, and limits only some of that:
//! fifty thousand `-` in a row end the process. So the tokens of the engine's own lexer are counted first. Every
//! operator counts as one level, which is an upper bound: a comma starts over, a bracket adds the depth within. Blocks
//! are counted by their keywords, `elif` as one more level.
//!
//! Constant expressions are evaluated while a template is compiled, which is not metered. Only repeated lists can be
//! large, so these are bounded here, too. Running a template is limited in [`super::metered`].

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

/// Longest template in bytes. The longest of known models have some ten thousand.
const SOURCE_MAX_BYTES: usize = 1 << 20;

/// Deepest expression. A chain of fifty `~` is long.
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
        // The parser reports what the lexer refuses.
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
    outer: Level,
    /// Number of tokens; whether the first is `set` and no `=` has come yet.
    tokens: usize,
    awaits_value: bool,
    is_set: bool,
    /// What is needed to find large lists of constants.
    has_list: bool,
    follows_value: bool,
    stars: usize,
    largest: u64,
}

/// The tokens between two commas, and the depth of the brackets among them.
#[derive(Clone, Copy, Default)]
struct Level {
    tokens: usize,
    inner: usize,
    /// The depth before the last comma.
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
                // The factor may be a computed number.
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
