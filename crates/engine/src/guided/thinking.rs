//! A form that begins behind what a model thinks aloud.
//!
//! Thoughts are free until the mark behind them is written, be it one token or the bytes of several: the text's bytes
//! are followed, as far as they are shown. The token that ends the mark ends with it, or has white space behind; then a
//! little white space is free, too, which models write there by habit and which is no part of an answer; and then the
//! grammar begins. Where the model itself decides whether it thinks, an answer is one of the grammar from its beginning
//! on, or begins with the mark: both are followed until it is known which. No text ends in its thoughts.
//!
//! What is allowed depends on the tokens alone, and each step keeps what was before it, so the way back is exact. Left
//! out: thoughts behind the beginning of an answer.

use std::sync::Arc;

use foretoken_speculation::{Constrained, Constraint, Ending, Token, TokenSet};
use foretoken_text::{Grammar, Thinking, ThinkingMarks, Tokenizer};

use super::{Forcing, Guided};

/// White space between the mark and the answer, in bytes: two line ends of any kind.
const GAP_MAX: usize = 4;

/// The constraint of a text that may think, between the marks of these words, before it has the form of this grammar.
/// `end_tokens` and `forcing` as of [`guided`](super::guided).
pub fn guided_behind(
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
    Constrained::new(Box::new(Behind {
        words: Arc::clone(words),
        direct: (!is_begun).then(guided),
        behind: guided(),
        place: if is_begun { Place::Thoughts(0) } else { Place::First { opened: 0, may_answer: true } },
        before: Vec::new(),
    }))
}

/// Where a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// At its beginning: so many bytes of the first mark, and whether it may be an answer at once.
    First { opened: usize, may_answer: bool },
    /// In the thoughts, behind so many bytes of the mark that ends them.
    Thoughts(usize),
    /// Behind them, and behind so many bytes of white space.
    Gap(usize),
    /// In an answer without thoughts before it.
    Direct,
    /// In an answer behind them.
    Behind,
}

/// Which matcher has taken a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Nobody,
    Direct,
    Behind,
}

struct Behind {
    words: Arc<ThinkingWords>,
    /// The answer that is one from the beginning on.
    direct: Option<Guided>,
    behind: Guided,
    place: Place,
    /// For each token where the text was before it, and who took it.
    before: Vec<(Place, Taken)>,
}

/// What is known of a vocabulary's tokens beside these marks. All tokens are looked at to know it, so it is made once
/// for all texts of a model.
pub struct ThinkingWords {
    tokenizer: Arc<Tokenizer>,
    marks: ThinkingMarks,
    /// Special tokens that are shown: the marks.
    shown: Vec<Token>,
    /// Tokens that may end the last mark with something behind it that is no white space.
    crossing: Vec<Token>,
    /// Tokens of white space.
    blank: Vec<Token>,
    /// Tokens that may begin or go on with the first mark, each a part of it or with the whole rest of it.
    opening: Vec<Token>,
}

impl ThinkingWords {
    /// That of a tokenizer's vocabulary.
    pub fn new(tokenizer: &Arc<Tokenizer>, marks: ThinkingMarks) -> Self {
        let shown = tokenizer.special_tokens(&marks.shown());
        let mut words = Self {
            tokenizer: Arc::clone(tokenizer),
            marks,
            shown,
            crossing: Vec::new(),
            blank: Vec::new(),
            opening: Vec::new(),
        };
        let (open, close) = (marks.open.as_bytes(), marks.close.as_bytes());
        let last = close[close.len() - 1];
        for token in 0..tokenizer.vocabulary_len() as Token {
            let bytes = words.bytes(token);
            if bytes.is_empty() {
                continue;
            }
            let crosses = |at: usize| bytes[at] == last && !is_gap(&bytes[at + 1..]);
            let (is_crossing, is_blank) = ((0..bytes.len()).any(crosses), is_gap(bytes));
            let is_opening = (0..open.len()).any(|from| open_step(marks, from, bytes).is_some());
            words.crossing.extend(is_crossing.then_some(token));
            words.blank.extend(is_blank.then_some(token));
            words.opening.extend(is_opening.then_some(token));
        }
        words
    }

    /// What a token adds to the text as it is shown.
    fn bytes(&self, token: Token) -> &[u8] {
        let is_hidden = self.tokenizer.is_special(token) && !self.shown.contains(&token);
        if is_hidden { &[] } else { self.tokenizer.token_bytes(token) }
    }
}

/// White space that may stand before an answer.
fn is_gap(bytes: &[u8]) -> bool {
    bytes.len() <= GAP_MAX && bytes.iter().all(u8::is_ascii_whitespace)
}

/// Where thoughts are behind these bytes; `None` if they end within them, and something else than white space follows.
fn close_step(marks: ThinkingMarks, mut seen: usize, bytes: &[u8]) -> Option<Place> {
    let close = marks.close.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        // The longest beginning of the mark that the text ends with.
        while seen > 0 && close[seen] != *byte {
            seen = (0..seen).rev().find(|len| close[..seen].ends_with(&close[..*len])).unwrap_or(0);
        }
        seen += usize::from(close[seen] == *byte);
        if seen == close.len() {
            let rest = &bytes[at + 1..];
            return is_gap(rest).then_some(Place::Gap(rest.len()));
        }
    }
    Some(Place::Thoughts(seen))
}

/// Where a text is that goes on with the first mark, behind so much of it; `None` if it does not.
fn open_step(marks: ThinkingMarks, opened: usize, bytes: &[u8]) -> Option<Place> {
    let rest = &marks.open.as_bytes()[opened..];
    if bytes.is_empty() {
        return None;
    }
    match bytes.strip_prefix(rest) {
        Some(behind) => close_step(marks, 0, behind),
        None => rest.starts_with(bytes).then_some(Place::First { opened: opened + bytes.len(), may_answer: false }),
    }
}

impl Behind {
    fn ends(&self) -> &[Token] {
        &self.behind.ends
    }

    /// The answer that the text is in, or may begin with here.
    fn answer(&mut self) -> Option<&mut Guided> {
        match self.place {
            Place::First { may_answer: false, .. } | Place::Thoughts(_) => None,
            Place::First { .. } | Place::Direct => self.direct.as_mut(),
            Place::Gap(_) | Place::Behind => Some(&mut self.behind),
        }
    }
}

impl Constraint for Behind {
    fn allowed(&mut self) -> TokenSet {
        let words = Arc::clone(&self.words);
        let mut allowed = self.answer().map_or(TokenSet::none(), Guided::allowed);
        match self.place {
            Place::First { opened, .. } => {
                let opens = |token: &&Token| {
                    !self.ends().contains(token) && open_step(words.marks, opened, words.bytes(**token)).is_some()
                };
                words.opening.iter().filter(opens).for_each(|token| allowed.insert(*token));
            }
            Place::Thoughts(seen) => {
                allowed = TokenSet::all();
                let crosses = |token: &&Token| close_step(words.marks, seen, words.bytes(**token)).is_none();
                let refused = words.crossing.iter().filter(crosses).chain(self.ends());
                refused.for_each(|token| allowed.remove(*token));
            }
            Place::Gap(written) => {
                let fits =
                    |token: &&Token| written + words.bytes(**token).len() <= GAP_MAX && !self.ends().contains(token);
                words.blank.iter().filter(fits).for_each(|token| allowed.insert(*token));
            }
            Place::Direct | Place::Behind => {}
        }
        allowed
    }

    fn leaves_choice(&mut self) -> bool {
        match self.place {
            Place::Thoughts(_) => true,
            Place::First { .. } | Place::Gap(_) => false,
            Place::Direct | Place::Behind => self.answer().is_some_and(Guided::leaves_choice),
        }
    }

    fn foreseen(&mut self) -> Vec<Token> {
        if matches!(self.place, Place::First { .. }) {
            return Vec::new(); // nothing is certain before it is known whether the model thinks
        }
        self.answer().map_or(Vec::new(), Guided::foreseen)
    }

    fn endings(&mut self) -> Vec<Ending> {
        self.answer().map_or(Vec::new(), Guided::endings)
    }

    fn accept(&mut self, token: Token) -> bool {
        let is_end = self.ends().contains(&token);
        let bytes = self.words.bytes(token);
        let marks = self.words.marks;
        let (place, taken) = match self.place {
            Place::First { opened, may_answer } => {
                let opens = open_step(marks, opened, bytes).filter(|_| !is_end);
                let takes = may_answer && self.direct.as_mut().is_some_and(|guided| guided.accept(token));
                let place = match opens {
                    Some(Place::First { opened, .. }) => Place::First { opened, may_answer: takes },
                    Some(other) => other,
                    None if takes => Place::Direct,
                    None => return false,
                };
                (place, if takes { Taken::Direct } else { Taken::Nobody })
            }
            Place::Thoughts(_) if is_end => return false,
            Place::Thoughts(seen) => match close_step(marks, seen, bytes) {
                Some(place) => (place, Taken::Nobody),
                None => return false,
            },
            Place::Gap(written) => {
                let is_blank = !is_end && !bytes.is_empty() && is_gap(bytes) && written + bytes.len() <= GAP_MAX;
                match self.behind.accept(token) {
                    true => (Place::Behind, Taken::Behind),
                    false if is_blank => (Place::Gap(written + bytes.len()), Taken::Nobody),
                    false => return false,
                }
            }
            Place::Direct => match self.direct.as_mut().is_some_and(|guided| guided.accept(token)) {
                true => (Place::Direct, Taken::Direct),
                false => return false,
            },
            Place::Behind => match self.behind.accept(token) {
                true => (Place::Behind, Taken::Behind),
                false => return false,
            },
        };
        self.before.push((self.place, taken));
        self.place = place;
        true
    }

    fn roll_back(&mut self, tokens: usize) {
        let (mut direct, mut behind) = (0, 0);
        for (place, taken) in self.before.drain(self.before.len() - tokens..).rev() {
            self.place = place;
            direct += usize::from(taken == Taken::Direct);
            behind += usize::from(taken == Taken::Behind);
        }
        if let Some(guided) = &mut self.direct {
            guided.roll_back(direct);
        }
        self.behind.roll_back(behind);
    }

    fn duplicate(&self) -> Box<dyn Constraint> {
        Box::new(Self {
            words: Arc::clone(&self.words),
            direct: self.direct.as_ref().map(Guided::copy),
            behind: self.behind.copy(),
            place: self.place,
            before: self.before.clone(),
        })
    }

    fn name(&self) -> &'static str {
        self.behind.name()
    }

    fn has_given_up(&self) -> bool {
        match self.place {
            Place::First { may_answer: false, .. } | Place::Thoughts(_) | Place::Gap(_) => false,
            Place::First { .. } | Place::Direct => self.direct.as_ref().is_some_and(Guided::has_given_up),
            Place::Behind => self.behind.has_given_up(),
        }
    }

    fn failure(&self) -> Option<String> {
        match self.place {
            Place::First { .. } | Place::Direct => self.direct.as_ref().and_then(Guided::failure),
            Place::Thoughts(_) | Place::Gap(_) | Place::Behind => self.behind.failure(),
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

    fn constraint(is_special: bool, thinking: Thinking, form: &str) -> Constrained {
        let tokenizer = tokenizer(is_special);
        let grammar = Grammar::compile(&tokenizer, &GrammarSource::Regex(form.into())).expect("a good one");
        let marks = ThinkingMarks::of_source("</think>").expect("it is one");
        guided_behind(&grammar, &[END], Forcing::None, &Arc::new(ThinkingWords::new(&tokenizer, marks)), thinking)
    }

    /// The words that may follow these.
    fn left(constraint: &Constrained, path: &[&str]) -> Vec<&'static str> {
        let number = |word: &&str| WORDS.iter().position(|other| other == word).expect("a word") as Token;
        let path: Vec<Token> = path.iter().map(number).collect();
        let mut row = vec![1.0; WORDS.len()];
        constraint.mask(&path, &mut row);
        WORDS.into_iter().zip(row).filter(|(_, logit)| *logit == 1.0).map(|(word, _)| word).collect()
    }

    #[test]
    fn thoughts_are_free_up_to_the_mark_and_the_form_holds_behind_it() {
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
                "what follows the mark is of the form, or white"
            );
            assert_eq!(left(&begun, &["</", "think", "<"]), free);
            let behind = ["\n", "\n\n", "a", "ab"];
            assert_eq!(left(&begun, &["a", "</think>"]), behind);
            assert_eq!(left(&begun, &["<", "<", "/think>"]), behind);
            assert_eq!(left(&begun, &["</", "think", ">\n", "\n\n"]), ["\n", "a", "ab"], "white space ends");
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
        // A form that begins as the mark does: both are followed.
        let alike = constraint(true, Thinking::Possible, "<(a|think>b)");
        assert_eq!(left(&alike, &["<"]), ["think", "a"]);
        assert_eq!(left(&alike, &["<", "a"]), ["<end>"]);
        assert_eq!(left(&alike, &["<", "think", ">"]).len(), WORDS.len() - 1, "the mark begins thoughts");
    }

    proptest! {
        #[test]
        fn the_way_does_not_matter(
            paths in prop::collection::vec(prop::collection::vec(0..WORDS.len() as Token, 0..7), 1..20),
            written in prop::collection::vec(0..WORDS.len() as Token, 0..4),
            is_special in any::<bool>(),
            thinking in prop::sample::select(vec![Thinking::Begun, Thinking::Possible]),
            form in prop::sample::select(vec!["ab?", "<(a|think>b)", "\na*"]),
        ) {
            let walked = constraint(is_special, thinking, form);
            let advanced = walked.advance(&written);
            let row = |constraint: &Constrained, path: &[Token]| {
                let mut row = vec![1.0; WORDS.len()];
                constraint.mask(path, &mut row);
                row
            };
            for path in &paths {
                let fresh = constraint(is_special, thinking, form);
                prop_assert_eq!(fresh.advance(&written), advanced);
                if !advanced {
                    return Ok(());
                }
                let expected = row(&fresh, path);
                prop_assert_eq!(row(&walked, path), expected.clone());
                prop_assert_eq!(row(&walked.clone(), path), expected.clone());
                // What is left by the mask is what is accepted.
                for token in 0..WORDS.len() as Token {
                    let longer = [path.as_slice(), &[token]].concat();
                    prop_assert_eq!(walked.allows(&longer), expected[token as usize] == 1.0, "{:?} {}", path, token);
                }
            }
        }
    }
}
