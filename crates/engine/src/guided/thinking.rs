//! A grammar that begins after a model's thoughts.
//!
//! Thoughts are unconstrained until the closing tag is written, in one token or in several: the shown bytes of the
//! output are matched against the tag. The token that completes the tag may have only white space after it; then a
//! little more white space is allowed, which models usually write there and which is not part of an answer; then the
//! grammar begins. If the model decides itself whether it thinks, the output either follows the grammar from its first
//! token or begins with the opening tag: both are tracked until only one is possible. No output may end within its
//! thoughts, and thoughts that begin after the first tokens of an answer are not supported.
//!
//! What is allowed depends on the tokens alone, and each step records the state before it, so that a rollback is exact.

use std::sync::Arc;

use foretoken_speculation::{Constrained, Constraint, Ending, Token, TokenSet};
use foretoken_text::{Grammar, Thinking, ThinkingTags, Tokenizer};

use super::{Forcing, Guided};

/// White space allowed between the closing tag and the answer, in bytes: two line ends of any kind.
const GAP_MAX: usize = 4;

/// The constraint of an output with optional thoughts, between the tags of `words`, followed by an answer of this
/// grammar. `end_tokens` and `forcing` are as for [`guided`](super::guided).
pub fn guided_after_thoughts(
    grammar: &Arc<Grammar>,
    end_tokens: &[Token],
    forcing: Forcing,
    words: &Arc<ThinkingWords>,
    thinking: Thinking,
) -> Constrained {
    if thinking == Thinking::Ended {
        return super::guided(grammar, end_tokens, forcing);
    }
    let guided = || Guided::new(grammar, end_tokens, forcing.clone());
    let is_begun = thinking == Thinking::Begun;
    Constrained::new(Box::new(AfterThoughts {
        words: Arc::clone(words),
        direct: (!is_begun).then(guided),
        after: guided(),
        state: if is_begun { State::Thoughts(0) } else { State::Start { opened: 0, may_answer: true } },
        history: Vec::new(),
    }))
}

/// The part of the output that the next token belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The beginning: this many bytes of the opening tag are written, and the tokens may also be a direct answer.
    Start { opened: usize, may_answer: bool },
    /// The thoughts; the output ends with this many bytes of the closing tag.
    Thoughts(usize),
    /// After the thoughts and this many bytes of white space.
    Gap(usize),
    /// An answer without thoughts before it.
    Direct,
    /// An answer after thoughts.
    Answer,
}

/// The matcher that accepted a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AcceptedBy {
    Neither,
    Direct,
    After,
}

/// An answer after optional thoughts, as a constraint.
struct AfterThoughts {
    words: Arc<ThinkingWords>,
    /// The matcher of an answer without thoughts; `None` if thoughts have already begun.
    direct: Option<Guided>,
    /// The matcher of an answer after thoughts.
    after: Guided,
    state: State,
    /// For each token the state before it, and the matcher that accepted it.
    history: Vec<(State, AcceptedBy)>,
}

/// The tokens of a vocabulary that matter for these tags. Finding them reads the whole vocabulary, so it is done once
/// for all requests of a model.
pub struct ThinkingWords {
    tokenizer: Arc<Tokenizer>,
    tags: ThinkingTags,
    /// Special tokens that are shown: the tags.
    shown: Vec<Token>,
    /// Tokens that may complete the closing tag and have something other than white space after it.
    crossing: Vec<Token>,
    /// Tokens of white space.
    blank: Vec<Token>,
    /// Tokens that may begin or continue the opening tag: each is a part of it, or contains the whole rest of it.
    opening: Vec<Token>,
}

impl ThinkingWords {
    /// Classifies the tokens of a tokenizer's vocabulary.
    pub fn new(tokenizer: &Arc<Tokenizer>, tags: ThinkingTags) -> Self {
        let shown = tokenizer.special_tokens(&tags.shown());
        let mut words = Self {
            tokenizer: Arc::clone(tokenizer),
            tags,
            shown,
            crossing: Vec::new(),
            blank: Vec::new(),
            opening: Vec::new(),
        };
        let (open, close) = (tags.open.as_bytes(), tags.close.as_bytes());
        let last = close[close.len() - 1];
        for token in 0..tokenizer.vocabulary_len() as Token {
            let bytes = words.bytes(token);
            if bytes.is_empty() {
                continue;
            }
            let crosses = |at: usize| bytes[at] == last && !is_gap(&bytes[at + 1..]);
            let (is_crossing, is_blank) = ((0..bytes.len()).any(crosses), is_gap(bytes));
            let is_opening = (0..open.len()).any(|from| open_step(tags, from, bytes).is_some());
            words.crossing.extend(is_crossing.then_some(token));
            words.blank.extend(is_blank.then_some(token));
            words.opening.extend(is_opening.then_some(token));
        }
        words
    }

    /// The bytes that a token adds to the shown output.
    fn bytes(&self, token: Token) -> &[u8] {
        let is_hidden = self.tokenizer.is_special(token) && !self.shown.contains(&token);
        if is_hidden { &[] } else { self.tokenizer.token_bytes(token) }
    }
}

/// Whether the bytes are white space that may precede an answer.
fn is_gap(bytes: &[u8]) -> bool {
    bytes.len() <= GAP_MAX && bytes.iter().all(u8::is_ascii_whitespace)
}

/// The state after these bytes, in thoughts that end with `seen` bytes of the closing tag; `None` if the bytes
/// complete the tag and something other than white space follows it.
fn close_step(tags: ThinkingTags, mut seen: usize, bytes: &[u8]) -> Option<State> {
    let close = tags.close.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        // The longest prefix of the tag that the output ends with.
        while seen > 0 && close[seen] != *byte {
            seen = (0..seen).rev().find(|len| close[..seen].ends_with(&close[..*len])).unwrap_or(0);
        }
        seen += usize::from(close[seen] == *byte);
        if seen == close.len() {
            let rest = &bytes[at + 1..];
            return is_gap(rest).then_some(State::Gap(rest.len()));
        }
    }
    Some(State::Thoughts(seen))
}

/// The state after these bytes if they continue the opening tag after its first `opened` bytes, `None` otherwise.
fn open_step(tags: ThinkingTags, opened: usize, bytes: &[u8]) -> Option<State> {
    let rest = &tags.open.as_bytes()[opened..];
    if bytes.is_empty() {
        return None;
    }
    match bytes.strip_prefix(rest) {
        Some(thoughts) => close_step(tags, 0, thoughts),
        None => rest.starts_with(bytes).then_some(State::Start { opened: opened + bytes.len(), may_answer: false }),
    }
}

impl AfterThoughts {
    fn ends(&self) -> &[Token] {
        &self.after.ends
    }

    /// The matcher of the answer that the output is in, or may begin here.
    fn answer(&mut self) -> Option<&mut Guided> {
        match self.state {
            State::Start { may_answer: false, .. } | State::Thoughts(_) => None,
            State::Start { .. } | State::Direct => self.direct.as_mut(),
            State::Gap(_) | State::Answer => Some(&mut self.after),
        }
    }
}

impl Constraint for AfterThoughts {
    fn allowed(&mut self) -> TokenSet {
        let words = Arc::clone(&self.words);
        let mut allowed = self.answer().map_or(TokenSet::none(), Guided::allowed);
        match self.state {
            State::Start { opened, .. } => {
                let opens = |token: &&Token| {
                    !self.ends().contains(token) && open_step(words.tags, opened, words.bytes(**token)).is_some()
                };
                words.opening.iter().filter(opens).for_each(|token| allowed.insert(*token));
            }
            State::Thoughts(seen) => {
                allowed = TokenSet::all();
                let crosses = |token: &&Token| close_step(words.tags, seen, words.bytes(**token)).is_none();
                let refused = words.crossing.iter().filter(crosses).chain(self.ends());
                refused.for_each(|token| allowed.remove(*token));
            }
            State::Gap(written) => {
                let fits =
                    |token: &&Token| written + words.bytes(**token).len() <= GAP_MAX && !self.ends().contains(token);
                words.blank.iter().filter(fits).for_each(|token| allowed.insert(*token));
            }
            State::Direct | State::Answer => {}
        }
        allowed
    }

    fn leaves_choice(&mut self) -> bool {
        match self.state {
            State::Thoughts(_) => true,
            State::Start { .. } | State::Gap(_) => false,
            State::Direct | State::Answer => self.answer().is_some_and(Guided::leaves_choice),
        }
    }

    fn foreseen(&mut self) -> Vec<Token> {
        if matches!(self.state, State::Start { .. }) {
            return Vec::new(); // no token is certain while both thoughts and a direct answer are possible
        }
        self.answer().map_or(Vec::new(), Guided::foreseen)
    }

    fn endings(&mut self) -> Vec<Ending> {
        self.answer().map_or(Vec::new(), Guided::endings)
    }

    fn accept(&mut self, token: Token) -> bool {
        let is_end = self.ends().contains(&token);
        let bytes = self.words.bytes(token);
        let tags = self.words.tags;
        let (state, accepted_by) = match self.state {
            State::Start { opened, may_answer } => {
                let opens = open_step(tags, opened, bytes).filter(|_| !is_end);
                let is_direct = may_answer && self.direct.as_mut().is_some_and(|guided| guided.accept(token));
                let state = match opens {
                    Some(State::Start { opened, .. }) => State::Start { opened, may_answer: is_direct },
                    Some(other) => other,
                    None if is_direct => State::Direct,
                    None => return false,
                };
                (state, if is_direct { AcceptedBy::Direct } else { AcceptedBy::Neither })
            }
            State::Thoughts(_) if is_end => return false,
            State::Thoughts(seen) => match close_step(tags, seen, bytes) {
                Some(state) => (state, AcceptedBy::Neither),
                None => return false,
            },
            State::Gap(written) => {
                let is_blank = !is_end && !bytes.is_empty() && is_gap(bytes) && written + bytes.len() <= GAP_MAX;
                match self.after.accept(token) {
                    true => (State::Answer, AcceptedBy::After),
                    false if is_blank => (State::Gap(written + bytes.len()), AcceptedBy::Neither),
                    false => return false,
                }
            }
            State::Direct => match self.direct.as_mut().is_some_and(|guided| guided.accept(token)) {
                true => (State::Direct, AcceptedBy::Direct),
                false => return false,
            },
            State::Answer => match self.after.accept(token) {
                true => (State::Answer, AcceptedBy::After),
                false => return false,
            },
        };
        self.history.push((self.state, accepted_by));
        self.state = state;
        true
    }

    fn roll_back(&mut self, tokens: usize) {
        let (mut direct_tokens, mut after_tokens) = (0, 0);
        for (state, accepted_by) in self.history.drain(self.history.len() - tokens..).rev() {
            self.state = state;
            direct_tokens += usize::from(accepted_by == AcceptedBy::Direct);
            after_tokens += usize::from(accepted_by == AcceptedBy::After);
        }
        if let Some(guided) = &mut self.direct {
            guided.roll_back(direct_tokens);
        }
        self.after.roll_back(after_tokens);
    }

    fn duplicate(&self) -> Box<dyn Constraint> {
        Box::new(Self {
            words: Arc::clone(&self.words),
            direct: self.direct.as_ref().map(Guided::copy),
            after: self.after.copy(),
            state: self.state,
            history: self.history.clone(),
        })
    }

    fn name(&self) -> &'static str {
        self.after.name()
    }

    fn has_given_up(&self) -> bool {
        match self.state {
            State::Start { may_answer: false, .. } | State::Thoughts(_) | State::Gap(_) => false,
            State::Start { .. } | State::Direct => self.direct.as_ref().is_some_and(Guided::has_given_up),
            State::Answer => self.after.has_given_up(),
        }
    }

    fn failure(&self) -> Option<String> {
        match self.state {
            State::Start { .. } | State::Direct => self.direct.as_ref().and_then(Guided::failure),
            State::Thoughts(_) | State::Gap(_) | State::Answer => self.after.failure(),
        }
    }
}

#[cfg(test)]
mod tests {
    use foretoken_text::{GgufVocabulary, GrammarSource};
    use proptest::prelude::*;

    use super::*;

    const WORDS: [&str; 17] = [
        "<think>", "</think>", "<", "/think>", "think", ">", ">\n", ">a", "\n", "\n\n", "a", "b", "ab", "</", "/",
        "<end>", "k>\n",
    ];
    const END: Token = 15;

    fn tokenizer(is_special: bool) -> Arc<Tokenizer> {
        let kind = |word: &&str| match *word {
            "<end>" => 3,
            "<think>" | "</think>" if is_special => 3,
            _ => 1,
        };
        let vocabulary = GgufVocabulary {
            model: "llama".into(),
            tokens: WORDS.map(String::from).to_vec(),
            scores: vec![0.0; WORDS.len()],
            token_types: WORDS.iter().map(kind).collect(),
            ..GgufVocabulary::default()
        };
        Arc::new(Tokenizer::from_gguf_vocabulary("toy", &vocabulary).expect("a good one"))
    }

    fn constraint(is_special: bool, thinking: Thinking, regex: &str) -> Constrained {
        let tokenizer = tokenizer(is_special);
        let grammar = Grammar::compile(&tokenizer, &GrammarSource::Regex(regex.into())).expect("a good one");
        let tags = ThinkingTags::of_source("</think>").expect("it is one");
        guided_after_thoughts(
            &grammar,
            &[END],
            Forcing::None,
            &Arc::new(ThinkingWords::new(&tokenizer, tags)),
            thinking,
        )
    }

    /// The words that may follow this path.
    fn left(constraint: &Constrained, path: &[&str]) -> Vec<&'static str> {
        let number = |word: &&str| WORDS.iter().position(|other| other == word).expect("a word") as Token;
        let path: Vec<Token> = path.iter().map(number).collect();
        let mut row = vec![1.0; WORDS.len()];
        constraint.mask(&path, &mut row);
        WORDS.into_iter().zip(row).filter(|(_, logit)| *logit == 1.0).map(|(word, _)| word).collect()
    }

    #[test]
    fn thoughts_are_unconstrained_up_to_the_tag_and_the_grammar_holds_after_it() {
        for is_special in [true, false] {
            let begun = constraint(is_special, Thinking::Begun, "ab?");
            let free: Vec<&str> = WORDS.into_iter().filter(|word| *word != "<end>").collect();
            assert_eq!(left(&begun, &[]), free);
            assert_eq!(left(&begun, &["b", "<"]), free);
            let all_but =
                |words: &[&str]| free.iter().copied().filter(|word| !words.contains(word)).collect::<Vec<_>>();
            assert_eq!(
                left(&begun, &["</", "think"]),
                all_but(&[">a"]),
                "only white space or the grammar may follow the tag"
            );
            assert_eq!(left(&begun, &["</", "think", "<"]), free);
            let after_tag = ["\n", "\n\n", "a", "ab"];
            assert_eq!(left(&begun, &["a", "</think>"]), after_tag);
            assert_eq!(left(&begun, &["<", "<", "/think>"]), after_tag);
            assert_eq!(left(&begun, &["</", "think", ">\n", "\n\n"]), ["\n", "a", "ab"], "white space is limited");
            assert_eq!(left(&begun, &["</think>", "\n", "a"]), ["b", "<end>"]);
            assert_eq!(left(&begun, &["</think>", "ab"]), ["<end>"]);
            assert_eq!(left(&begun, &["</think>", "b"]), [""; 0], "no such path");
        }
    }

    #[test]
    fn a_model_may_answer_at_once_or_think_first() {
        let possible = constraint(true, Thinking::Possible, "ab?");
        assert_eq!(left(&possible, &[]), ["<think>", "<", "a", "ab"]);
        assert_eq!(left(&possible, &["a"]), ["b", "<end>"]);
        assert_eq!(left(&possible, &["<"]), ["think"]);
        assert_eq!(left(&possible, &["<", "think", ">"]).len(), WORDS.len() - 1);
        assert_eq!(left(&possible, &["<think>", "b", "</think>", "\n", "a"]), ["b", "<end>"]);
        assert_eq!(left(&constraint(true, Thinking::Ended, "ab?"), &[]), ["a", "ab"]);
        // If the answer may begin like the tag, both are tracked.
        let alike = constraint(true, Thinking::Possible, "<(a|think>b)");
        assert_eq!(left(&alike, &["<"]), ["think", "a"]);
        assert_eq!(left(&alike, &["<", "a"]), ["<end>"]);
        assert_eq!(left(&alike, &["<", "think", ">"]).len(), WORDS.len() - 1, "the tag begins thoughts");
    }

    proptest! {
        #[test]
        fn the_allowed_tokens_depend_on_the_path_alone(
            paths in prop::collection::vec(prop::collection::vec(0..WORDS.len() as Token, 0..7), 1..20),
            written in prop::collection::vec(0..WORDS.len() as Token, 0..4),
            is_special in any::<bool>(),
            thinking in prop::sample::select(vec![Thinking::Begun, Thinking::Possible]),
            regex in prop::sample::select(vec!["ab?", "<(a|think>b)", "\na*"]),
        ) {
            let walked = constraint(is_special, thinking, regex);
            let advanced = walked.advance(&written);
            let row = |constraint: &Constrained, path: &[Token]| {
                let mut row = vec![1.0; WORDS.len()];
                constraint.mask(path, &mut row);
                row
            };
            for path in &paths {
                let fresh = constraint(is_special, thinking, regex);
                prop_assert_eq!(fresh.advance(&written), advanced);
                if !advanced {
                    return Ok(());
                }
                let expected = row(&fresh, path);
                prop_assert_eq!(row(&walked, path), expected.clone());
                prop_assert_eq!(row(&walked.clone(), path), expected.clone());
                // The mask leaves exactly the tokens that are accepted.
                for token in 0..WORDS.len() as Token {
                    let longer = [path.as_slice(), &[token]].concat();
                    prop_assert_eq!(walked.allows(&longer), expected[token as usize] == 1.0, "{:?} {}", path, token);
                }
            }
        }
    }
}
