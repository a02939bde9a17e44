//! Grammars as constraints: a matcher of `text` becomes what laws are masked by.
//!
//! `text` says which tokens may come next and whether the text may end; which tokens end it is the request's to say.
//! Here the two are put together: end tokens are allowed exactly where the grammar may end, and where it can only end,
//! they are all that is left. A form may begin behind what a model thinks ([`thinking`]). Left out: the walk from node
//! to node of a draft tree (`speculation`).

mod thinking;

use std::sync::Arc;

use foretoken_speculation::{Constrained, Constraint, Ending, Token, TokenSet};
use foretoken_text::{Allowed, Grammar, Matcher, Spelling};

use crate::faults::{Fault, is_made};
pub use thinking::guided_behind;

/// The constraint of a text of this grammar that has not begun, with the tokens that end it. `spelling`: of the
/// vocabulary, to foresee how a text will be written where the grammar leaves one string; without it nothing is.
pub fn guided(grammar: &Arc<Grammar>, end_tokens: &[Token], spelling: Option<Arc<Spelling>>) -> Constrained {
    Constrained::new(Box::new(Guided::new(grammar, end_tokens, spelling)))
}

/// Bytes that end values: of strings, of members and elements, of objects and lists.
const ENDS: [u8; 4] = *b"\",}]";

/// A text of a grammar, and its end.
struct Guided {
    matcher: Matcher,
    ends: Arc<[Token]>,
    /// End tokens that were accepted; nothing but more of them may follow.
    ended: usize,
    spelling: Option<Arc<Spelling>>,
}

impl Guided {
    fn new(grammar: &Arc<Grammar>, end_tokens: &[Token], spelling: Option<Arc<Spelling>>) -> Self {
        Self { matcher: grammar.matcher(), ends: end_tokens.into(), ended: 0, spelling }
    }

    fn copy(&self) -> Self {
        let (matcher, ends, spelling) = (self.matcher.duplicate(), Arc::clone(&self.ends), self.spelling.clone());
        Self { matcher, ends, ended: self.ended, spelling }
    }

    fn may_end(&mut self) -> bool {
        self.ended > 0 || is_made(Fault::EndTooEarly) || self.matcher.may_end()
    }

    /// What the text may go on with; end tokens, too, as if they were tokens like others.
    fn allowed_text(&mut self) -> TokenSet {
        let set = |allowed: Allowed| TokenSet::of_words(allowed.words().to_vec());
        if is_made(Fault::MaskOfParent) {
            return set(self.matcher.parent().allowed().expect("within the limits"));
        }
        match self.matcher.allowed() {
            Ok(allowed) if self.ended == 0 => set(allowed),
            _ => TokenSet::none(),
        }
    }
}

impl Constraint for Guided {
    fn allowed(&mut self) -> TokenSet {
        let mut allowed = self.allowed_text();
        let may_end = self.may_end();
        for end in self.ends.iter() {
            if may_end { allowed.insert(*end) } else { allowed.remove(*end) }
        }
        allowed
    }

    fn accept(&mut self, token: Token) -> bool {
        if self.ends.contains(&token) {
            let may_end = self.may_end();
            self.ended += usize::from(may_end);
            return may_end;
        }
        self.ended == 0 && self.matcher.accept(token)
    }

    fn roll_back(&mut self, tokens: usize) {
        let of_end = tokens.min(self.ended);
        self.ended -= of_end;
        if !is_made(Fault::GrammarNotTakenBack) {
            self.matcher.roll_back(tokens - of_end);
        }
    }

    fn duplicate(&self) -> Box<dyn Constraint> {
        Box::new(self.copy())
    }

    fn failure(&self) -> Option<String> {
        self.matcher.failure().map(str::to_string)
    }

    fn endings(&mut self) -> Vec<Ending> {
        let Some(spelling) = self.spelling.as_ref().filter(|_| self.ended == 0) else { return Vec::new() };
        let ends = ENDS.iter().map(|byte| self.matcher.forced_behind(*byte)).filter(|bytes| !bytes.is_empty());
        let ends: Vec<Vec<u8>> = ends.collect();
        let ending = |bytes: &Vec<u8>| {
            let tokens = spelling.behind(self.matcher.accepted(), bytes);
            let others = spelling.beginnings(bytes).filter(|token| Some(token) != tokens.first()).collect();
            Ending { tokens, others }
        };
        ends.iter().map(ending).filter(|ending| !ending.tokens.is_empty()).collect()
    }

    fn foreseen(&mut self) -> Vec<Token> {
        let Some(spelling) = self.spelling.as_ref().filter(|_| self.ended == 0) else { return Vec::new() };
        let bytes = self.matcher.forced_bytes();
        if bytes.is_empty() { Vec::new() } else { spelling.behind(self.matcher.accepted(), &bytes) }
    }
}

#[cfg(test)]
mod tests {
    use foretoken_text::{GgufVocabulary, GrammarSource, Tokenizer};

    use super::*;

    /// What is left of a row of equal logits.
    fn left(constraint: &Constrained, path: &[Token], len: usize) -> Vec<Token> {
        let mut row = vec![1.0; len];
        constraint.mask(path, &mut row);
        (0..len as Token).filter(|token| row[*token as usize] == 1.0).collect()
    }

    #[test]
    fn a_text_ends_where_its_grammar_may_and_nowhere_else() {
        let words = ["a", "b", "ab", "<end>", "<stop>", "c"];
        let vocabulary = GgufVocabulary {
            model: "llama".into(),
            tokens: words.map(String::from).to_vec(),
            scores: vec![0.0; words.len()],
            token_types: words.iter().map(|word| if word.starts_with('<') { 3 } else { 1 }).collect(),
            ..GgufVocabulary::default()
        };
        let tokenizer = Tokenizer::from_gguf_vocabulary("toy", &vocabulary).expect("a good one");
        let grammar = Grammar::compile(&tokenizer, &GrammarSource::Regex("a(ba?)?".into())).expect("a good one");
        let constraint = guided(&grammar, &[3, 4], None);
        assert_eq!(left(&constraint, &[], 6), [0, 2]);
        assert_eq!(left(&constraint, &[0], 6), [1, 3, 4]);
        assert_eq!(left(&constraint, &[0, 1], 6), [0, 3, 4]);
        assert_eq!(left(&constraint, &[2, 0], 6), [3, 4], "it can only end");
        assert_eq!(left(&constraint, &[2, 0, 3], 6), [3, 4], "it has ended");
        assert_eq!(left(&constraint, &[1], 6), [0; 0], "no such path");
        assert_eq!(left(&constraint, &[0], 2), [1], "a draft model's row is shorter");
        assert_eq!(left(&constraint, &[2], 9), [0, 3, 4], "or longer");
        assert!(constraint.advance(&[0]));
        let copy = constraint.clone();
        assert!(constraint.advance(&[1, 3]) && !constraint.advance(&[0]));
        assert_eq!(left(&copy, &[], 6), [1, 3, 4], "a copy stays");
    }
}
