//! Grammars as constraints: turns a matcher of `text` into a mask for laws.
//!
//! The matcher says which tokens may come next and whether the output may end; the request says which tokens end it.
//! Here the two are combined: end tokens are allowed exactly where the grammar may end, and where it can only end,
//! nothing else is allowed. A grammar may begin after a model's thoughts ([`thinking`]).

mod thinking;

use std::sync::Arc;

use foretoken_speculation::{Constrained, Constraint, Ending, Token, TokenSet};
use foretoken_text::{Allowed, Grammar, Matcher, Spelling};

use crate::faults::{Fault, is_made};
pub use thinking::{ThinkingWords, guided_after_thoughts};

/// How strings are tokenized that the grammar determines byte by byte.
#[derive(Clone, Debug, Default)]
pub enum Forcing {
    /// The model chooses among all tokenizations.
    #[default]
    None,
    /// The model chooses, and drafters may draft the usual tokenization.
    Foreseen(Arc<Spelling>),
    /// Only the usual tokenization is allowed, except for its last token, which may be merged with what follows. This
    /// changes the law: the model might have tokenized the string otherwise, and continued otherwise after it.
    Canonical(Arc<Spelling>),
}

/// The constraint of an output of this grammar that has not begun, with the tokens that end it.
pub fn guided(grammar: &Arc<Grammar>, end_tokens: &[Token], forcing: Forcing) -> Constrained {
    Constrained::new(Box::new(Guided::new(grammar, end_tokens, forcing)))
}

/// Bytes that end JSON values: strings, members and elements, objects and lists.
const ENDS: [u8; 4] = *b"\",}]";

/// A matcher of a grammar together with the end tokens.
struct Guided {
    matcher: Matcher,
    ends: Arc<[Token]>,
    /// End tokens that were accepted; only more of them may follow.
    ended: usize,
    forcing: Forcing,
}

impl Guided {
    fn new(grammar: &Arc<Grammar>, end_tokens: &[Token], forcing: Forcing) -> Self {
        Self { matcher: grammar.matcher(), ends: end_tokens.into(), ended: 0, forcing }
    }

    /// The usual tokenization, while the output has not ended.
    fn spelling(&self) -> Option<Arc<Spelling>> {
        match &self.forcing {
            Forcing::Foreseen(spelling) | Forcing::Canonical(spelling) if self.ended == 0 => Some(Arc::clone(spelling)),
            _ => None,
        }
    }

    /// The only token allowed next under [`Forcing::Canonical`]; an end token is never one.
    fn canonical(&mut self) -> Option<Token> {
        if !matches!(self.forcing, Forcing::Canonical(_)) {
            return None;
        }
        match self.foreseen()[..] {
            [token, _, ..] if !self.ends.contains(&token) && self.matcher.accept(token) => {
                self.matcher.roll_back(1);
                Some(token)
            }
            _ => None,
        }
    }

    fn copy(&self) -> Self {
        let (matcher, ends, forcing) = (self.matcher.duplicate(), Arc::clone(&self.ends), self.forcing.clone());
        Self { matcher, ends, ended: self.ended, forcing }
    }

    fn may_end(&mut self) -> bool {
        self.ended > 0 || is_made(Fault::EndTooEarly) || self.matcher.may_end()
    }

    /// The tokens that the grammar allows next, without regard to end tokens, and whether the output may end.
    fn allowed_by_grammar(&mut self) -> (TokenSet, bool) {
        let set = |allowed: &Allowed| TokenSet::of_words(allowed.words().to_vec());
        if is_made(Fault::MaskOfParent) {
            let mut parent = self.matcher.duplicate();
            parent.roll_back(parent.accepted().len().min(1));
            return (set(&parent.allowed().expect("within the limits")), self.may_end());
        }
        match self.matcher.allowed() {
            Ok(allowed) if self.ended == 0 => (set(&allowed), allowed.may_end() || is_made(Fault::EndTooEarly)),
            _ => (TokenSet::none(), self.may_end()),
        }
    }
}

impl Constraint for Guided {
    fn allowed(&mut self) -> TokenSet {
        if let Some(token) = self.canonical() {
            let mut only = TokenSet::none();
            only.insert(token);
            return only;
        }
        let (mut allowed, may_end) = self.allowed_by_grammar();
        for end in self.ends.iter() {
            if may_end { allowed.insert(*end) } else { allowed.remove(*end) }
        }
        allowed
    }

    fn leaves_choice(&mut self) -> bool {
        // A forced byte may leave only one token; if the output may end, the end token may be the only one.
        self.ended == 0 && self.matcher.leaves_choice()
    }

    fn accept(&mut self, token: Token) -> bool {
        if self.ends.contains(&token) {
            let may_end = self.may_end();
            self.ended += usize::from(may_end);
            return may_end;
        }
        let is_usual = self.canonical().is_none_or(|usual| usual == token);
        is_usual && self.ended == 0 && self.matcher.accept(token)
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

    fn name(&self) -> &'static str {
        self.matcher.grammar().source().name()
    }

    fn has_given_up(&self) -> bool {
        self.matcher.has_given_up()
    }

    fn failure(&self) -> Option<String> {
        self.matcher.failure().map(str::to_string)
    }

    fn endings(&mut self) -> Vec<Ending> {
        let Some(spelling) = self.spelling() else { return Vec::new() };
        let ends = ENDS.iter().map(|byte| self.matcher.forced_after(*byte)).filter(|bytes| !bytes.is_empty());
        let ends: Vec<Vec<u8>> = ends.collect();
        let ending = |bytes: &Vec<u8>| {
            let tokens = spelling.after(self.matcher.accepted(), bytes);
            let others = spelling.beginnings(bytes).filter(|token| Some(token) != tokens.first()).collect();
            Ending { tokens, others }
        };
        ends.iter().map(ending).filter(|ending| !ending.tokens.is_empty()).collect()
    }

    fn foreseen(&mut self) -> Vec<Token> {
        let Some(spelling) = self.spelling() else { return Vec::new() };
        let bytes = self.matcher.forced_bytes();
        if bytes.is_empty() { Vec::new() } else { spelling.after(self.matcher.accepted(), &bytes) }
    }
}

#[cfg(test)]
mod tests {
    use foretoken_speculation::{Context, Sampling};
    use foretoken_text::{GgufVocabulary, GrammarSource, Tokenizer};

    use super::*;

    /// The tokens that the mask leaves of a row of equal logits.
    fn left(constraint: &Constrained, path: &[Token], len: usize) -> Vec<Token> {
        let mut row = vec![1.0; len];
        constraint.mask(path, &mut row);
        (0..len as Token).filter(|token| row[*token as usize] == 1.0).collect()
    }

    #[test]
    fn an_output_may_end_exactly_where_its_grammar_may() {
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
        let constraint = guided(&grammar, &[3, 4], Forcing::None);
        assert_eq!(left(&constraint, &[], 6), [0, 2]);
        assert_eq!(left(&constraint, &[0], 6), [1, 3, 4]);
        assert_eq!(left(&constraint, &[0, 1], 6), [0, 3, 4]);
        assert_eq!(left(&constraint, &[2, 0], 6), [3, 4], "only an end may follow");
        assert_eq!(left(&constraint, &[2, 0, 3], 6), [3, 4], "it has ended");
        assert_eq!(left(&constraint, &[1], 6), [0; 0], "no such path");
        assert_eq!(left(&constraint, &[0], 2), [1], "a draft model's row may be shorter than the vocabulary");
        assert_eq!(left(&constraint, &[2], 9), [0, 3, 4], "a draft model's row may be longer than the vocabulary");
        assert!(constraint.advance(&[0]));
        let copy = constraint.clone();
        assert!(constraint.advance(&[1, 3]) && !constraint.advance(&[0]));
        assert_eq!(left(&copy, &[], 6), [1, 3, 4], "advancing the original does not advance a copy");
    }

    #[test]
    fn leaves_choice_implies_several_allowed_tokens_and_only_allowed_tokens_are_accepted() {
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo-target");
        let tokenizer = Tokenizer::from_dir(std::path::Path::new(model)).expect("a good one");
        let schema = r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 4}, "kind": {"enum":
            ["a", "ab", "c"]}, "size": {"type": "integer"}}, "required": ["name", "kind"]}"#;
        let source = GrammarSource::JsonSchema { schema: schema.into(), flexible: false };
        let grammar = Grammar::compile(&tokenizer, &source).expect("a good one");
        let (len, mut chance, mut known) = (tokenizer.vocabulary_len(), 1u64, [0, 0]);
        for _ in 0..100 {
            let mut guided = Guided::new(&grammar, &[0], Forcing::None);
            for _ in 0..60 {
                let leaves_choice = guided.leaves_choice();
                let allowed: Vec<Token> = guided.allowed().below(len).collect();
                assert!(!leaves_choice || allowed.len() > 1, "after {:?}", guided.matcher.accepted());
                known[usize::from(leaves_choice)] += usize::from(allowed.len() > 1);
                chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let any = (chance >> 33) as usize % len;
                assert_eq!(guided.accept(any as Token), allowed.contains(&(any as Token)), "token {any}");
                if allowed.contains(&(any as Token)) {
                    guided.roll_back(1);
                }
                let next = allowed[(chance >> 40) as usize % allowed.len()];
                assert!(guided.accept(next), "token {next}");
                if next == 0 {
                    break;
                }
            }
        }
        assert!(known[1] > known[0] && known[0] > 0, "{known:?}: several tokens may spell forced bytes");
    }

    #[test]
    fn only_canonical_forcing_restricts_the_law_to_the_usual_tokenization() {
        let words = ["a", "b", "ab", "<end>", "abc", "c", "d"];
        let vocabulary = GgufVocabulary {
            model: "llama".into(),
            tokens: words.map(String::from).to_vec(),
            scores: vec![-9.0, -9.0, -2.0, 0.0, -1.0, -9.0, -9.0],
            token_types: words.iter().map(|word| if word.starts_with('<') { 3 } else { 1 }).collect(),
            ..GgufVocabulary::default()
        };
        let tokenizer = Arc::new(Tokenizer::from_gguf_vocabulary("toy", &vocabulary).expect("a good one"));
        let grammar = Grammar::compile(&tokenizer, &GrammarSource::Regex("dabcdab(c|d)".into())).expect("a good one");
        let spelling = Arc::new(Spelling::new(Arc::clone(&tokenizer)));
        let sampling = Sampling { end_tokens: vec![3], ..Sampling::default() };
        let forced = |forcing: Forcing| {
            let constraint = guided(&grammar, &[3], forcing);
            let mut tokens = Vec::new();
            let forced = |path: &[Token]| {
                sampling.forced(words.len(), &Context { path, constraint: Some(&constraint), ..Context::EMPTY })
            };
            while let Some(token) = forced(&tokens) {
                tokens.push(token);
            }
            (left(&constraint, &tokens, words.len()), tokens)
        };
        let foreseen = guided(&grammar, &[3], Forcing::Foreseen(Arc::clone(&spelling))).foreseen(&[6]);
        assert_eq!(foreseen, [4, 6, 2], "abc, d, ab");
        // Only one token spells the first byte; the bytes after it can be tokenized in several ways.
        for forcing in [Forcing::None, Forcing::Foreseen(Arc::clone(&spelling))] {
            assert_eq!(forced(forcing), (vec![0, 2, 4], vec![6]));
        }
        // The last token may be merged with what follows, so the model chooses it.
        assert_eq!(forced(Forcing::Canonical(spelling)), (vec![0, 2, 4], vec![6, 4, 6]));
    }
}
