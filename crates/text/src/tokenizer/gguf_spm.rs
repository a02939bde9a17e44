//! SentencePiece's byte-pair encoding, as GGUF files hold it: a score per token and no merges.
//!
//! The rule: begin with single characters; of all neighbours whose union is a token, merge the pair with the highest
//! score, the leftmost of equals; repeat. Characters that end up in no token become bytes, `<0xNN>`.
//!
//! The `tokenizers` library wants a list of merges, each pair with a rank of its own. Such a list can be made from the
//! scores, but two pairs with the same union ("a"+"bc" and "ab"+"c") then get different ranks where the rule says
//! leftmost first, and it shows in runs of one character. So the rule is written out here; it is short.
//!
//! Around it, as in llama.cpp: marks are cut out first, and a space is invented before the text and after every mark.
//! Unlike llama.cpp, marks and bytes are never the result of a merge (in SentencePiece they are not either), so that
//! typing `</s>` cannot end a text. Unused tokens are taken for ordinary ones.
//!
//! A `tokenizer.model` says more than a GGUF file does ([`Training`]): how text is normalized, and whether it is cut by
//! merges at all or by likelihood. Tokens that the user has defined are then found behind normalization.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::bytes::byte_spelling;
use super::gguf_vocabulary::{GgufVocabulary, Kind};
use super::sentencepiece::likeliest::Likeliest;
use super::sentencepiece::normalizer::Normalizer;
use super::special::SpecialSpan;
use crate::{TextError, Token};

const SPACE: &str = "▁";

/// Merges pieces of text by the scores of a vocabulary.
#[derive(Debug)]
pub(crate) struct Merger {
    /// Tokens that text can become.
    words: HashMap<Box<str>, Token>,
    scores: Vec<f32>,
    /// The token of each byte.
    bytes: Vec<Token>,
    /// Tokens that are cut out of the text first, by their first byte, the longest first.
    marks: HashMap<u8, Vec<Mark>>,
    invents_space: bool,
    trained: Option<Trained>,
}

/// What a file of SentencePiece says beyond the vocabulary.
pub(super) struct Training {
    pub normalizer: Normalizer,
    pub is_unigram: bool,
    pub byte_fallback: bool,
    /// A space is invented at the very beginning alone, and not behind special tokens.
    pub invents_first_only: bool,
    /// Special tokens that take the white space behind them.
    pub strips: Vec<Token>,
}

#[derive(Debug)]
struct Trained {
    normalizer: Normalizer,
    likeliest: Option<Likeliest>,
    invents_first_only: bool,
    /// The token for what no token has; nothing if bytes stand for that.
    unknown: Option<Token>,
}

#[derive(Debug)]
struct Mark {
    spelling: Box<str>,
    token: Token,
    /// Found only where special tokens are looked for.
    special: bool,
    /// White space that follows is part of it.
    takes_space: bool,
}

impl Mark {
    /// Where the text goes on behind this mark, which begins at `at`.
    fn end(&self, text: &str, at: usize) -> usize {
        let end = at + self.spelling.len();
        if self.takes_space { text.len() - text[end..].trim_start().len() } else { end }
    }
}

impl Merger {
    pub(super) fn new(place: &str, vocabulary: &GgufVocabulary, kinds: &[Kind]) -> Result<Self, TextError> {
        let count = vocabulary.tokens.len();
        if vocabulary.scores.len() != count {
            let expected = format!("{count} scores, one for each token");
            return Err(TextError::field(place, "tokenizer.ggml.scores", expected, vocabulary.scores.len()));
        }
        let mut merger = Self {
            words: HashMap::with_capacity(count),
            // In the rule, -0 and 0 are equal; the sum makes them so.
            scores: vocabulary.scores.iter().map(|score| score + 0.0).collect(),
            bytes: Vec::new(),
            marks: HashMap::new(),
            invents_space: vocabulary.add_space_prefix.unwrap_or(true),
            trained: None,
        };
        let strips = strips_after_marks(vocabulary);
        let mut byte_tokens = HashMap::new();
        for (index, (spelling, &kind)) in vocabulary.tokens.iter().zip(kinds).enumerate() {
            let token = index as Token;
            match kind {
                Kind::Byte => drop(byte_tokens.insert(spelling.as_str(), token)),
                Kind::Normal | Kind::Unused | Kind::UserDefined => {
                    merger.words.insert(spelling.as_str().into(), token);
                }
                Kind::Control | Kind::Unknown => {}
            }
            let is_mark = kind.is_special() || kind == Kind::UserDefined;
            if let (true, Some(&first)) = (is_mark, spelling.as_bytes().first()) {
                let takes_space = strips && !["<unk>", "<s>", "<|endoftext|>"].contains(&spelling.as_str());
                let mark = Mark { spelling: spelling.as_str().into(), token, special: kind.is_special(), takes_space };
                merger.marks.entry(first).or_default().push(mark);
            }
        }
        merger.marks.values_mut().for_each(|marks| marks.sort_by_key(|mark| std::cmp::Reverse(mark.spelling.len())));
        let unknown = vocabulary.unknown.unwrap_or(0);
        merger.bytes =
            (0..=255).map(|byte| *byte_tokens.get(byte_spelling(byte).as_str()).unwrap_or(&unknown)).collect();
        Ok(merger)
    }

    /// The same vocabulary, used as the file that it was trained into says.
    pub(super) fn trained(mut self, training: Training, vocabulary: &GgufVocabulary, kinds: &[Kind]) -> Self {
        let Training { normalizer, is_unigram, byte_fallback, invents_first_only, strips } = training;
        for mark in self.marks.values_mut().flatten() {
            mark.takes_space = strips.contains(&mark.token);
        }
        let piece = |(index, (text, kind)): (usize, (&String, &Kind))| {
            let score = match kind {
                Kind::Normal => Some(self.scores[index]),
                Kind::UserDefined => None,
                _ => return None,
            };
            Some((text.as_str().into(), (index as Token, score)))
        };
        let pieces = || vocabulary.tokens.iter().zip(kinds).enumerate().filter_map(piece).collect();
        let likeliest = is_unigram.then(|| Likeliest::new(pieces()));
        let unknown = vocabulary.unknown.filter(|_| !byte_fallback);
        self.trained = Some(Trained { normalizer, likeliest, invents_first_only, unknown });
        self
    }

    /// Whether a space is put before every text.
    pub fn invents_space(&self) -> bool {
        self.invents_space
    }

    /// Tokens of a text; special tokens that it spells are read if `special`, else they are text.
    pub fn encode(&self, text: &str, special: bool) -> Vec<Token> {
        self.encode_reading(text, |_, mark| special || !mark.special)
    }

    /// Where `encode` reads special tokens, in the order of the text.
    pub fn specials(&self, text: &str) -> Vec<SpecialSpan> {
        let read = self.marks(text, |_, _| true).filter(|(_, mark)| mark.special);
        read.map(|(at, mark)| SpecialSpan { range: at..at + mark.spelling.len(), token: mark.token }).collect()
    }

    /// As `encode`, but with special tokens in these places and nowhere else.
    pub fn encode_with(&self, text: &str, specials: &[SpecialSpan]) -> Vec<Token> {
        self.encode_reading(text, |at, mark| {
            let found = specials.binary_search_by_key(&at, |span| span.range.start);
            !mark.special || found.is_ok_and(|index| specials[index].token == mark.token)
        })
    }

    fn encode_reading(&self, text: &str, wanted: impl Fn(usize, &Mark) -> bool) -> Vec<Token> {
        let mut tokens = Vec::new();
        let mut start = 0;
        for (at, mark) in self.marks(text, wanted) {
            self.encode_words(&text[start..at], start == 0, &mut tokens);
            tokens.push(mark.token);
            start = mark.end(text, at);
        }
        self.encode_words(&text[start..], start == 0, &mut tokens);
        tokens
    }

    /// The wanted marks of a text and where they begin: the leftmost, of those the longest, and on behind it.
    fn marks<'a>(
        &'a self,
        text: &'a str,
        wanted: impl Fn(usize, &Mark) -> bool + 'a,
    ) -> impl Iterator<Item = (usize, &'a Mark)> + 'a {
        let mut at = 0;
        std::iter::from_fn(move || {
            loop {
                let start = at;
                let rest = &text.as_bytes()[start..];
                let marks = self.marks.get(rest.first()?).map_or(&[][..], Vec::as_slice);
                // With a normalizer, what the user has defined is looked for behind it.
                let is_here = |mark: &Mark| mark.special || self.trained.is_none();
                let fits =
                    |mark: &&Mark| is_here(mark) && rest.starts_with(mark.spelling.as_bytes()) && wanted(start, mark);
                if let Some(mark) = marks.iter().find(fits) {
                    at = mark.end(text, start);
                    return Some((start, mark));
                }
                at += 1;
            }
        })
    }

    /// Tokens of the text between two marks: either at the very beginning or after a mark, so with its space.
    fn encode_words(&self, text: &str, is_first: bool, tokens: &mut Vec<Token>) {
        if let Some(trained) = &self.trained {
            return self.encode_trained(trained, text, is_first, tokens);
        }
        if text.is_empty() {
            return;
        }
        let mut marked = String::with_capacity(text.len() + text.len() / 4 + SPACE.len());
        if self.invents_space {
            marked.push_str(SPACE);
        }
        marked.push_str(&text.replace(' ', SPACE));
        self.merge(&marked, |piece, token| match token {
            Some(token) => tokens.push(token),
            None => self.push_bytes(piece, tokens),
        });
    }

    fn merge(&self, text: &str, mut each: impl FnMut(&str, Option<Token>)) {
        let mut merging = Merging::new(self, text);
        merging.run();
        merging.pieces().for_each(|piece| each(piece, self.words.get(piece).copied()));
    }

    fn push_bytes(&self, piece: &str, tokens: &mut Vec<Token>) {
        tokens.extend(piece.bytes().map(|byte| self.bytes[usize::from(byte)]));
    }

    /// As SentencePiece does it: one unknown token for neighbours that no token has, unless there are bytes.
    fn encode_trained(&self, trained: &Trained, text: &str, is_first: bool, tokens: &mut Vec<Token>) {
        let prefix = self.invents_space && (is_first || !trained.invents_first_only);
        let marked = trained.normalizer.normalize(text, prefix, |rest| Some(self.user_defined(rest)?.spelling.len()));
        let mut after_unknown = false;
        let mut push = |piece: &str, token: Option<Token>| {
            match (token, trained.unknown) {
                (Some(token), _) => tokens.push(token),
                (None, None) => self.push_bytes(piece, tokens),
                (None, Some(unknown)) if !after_unknown => tokens.push(unknown),
                _ => {}
            }
            after_unknown = token.is_none();
        };
        if let Some(likeliest) = &trained.likeliest {
            return likeliest.cut(&marked).into_iter().for_each(|(piece, token)| push(piece, token));
        }
        let (mut start, mut at) = (0, 0);
        while at < marked.len() {
            let Some(mark) = self.user_defined(&marked[at..]) else {
                at += marked[at..].chars().next().map_or(1, char::len_utf8);
                continue;
            };
            self.merge(&marked[start..at], &mut push);
            push(&mark.spelling, Some(mark.token));
            at += mark.spelling.len();
            start = at;
        }
        self.merge(&marked[start..], &mut push);
    }

    /// The longest token that the user has defined and that a text begins with.
    fn user_defined(&self, text: &str) -> Option<&Mark> {
        let marks = self.marks.get(text.as_bytes().first()?)?;
        marks.iter().find(|mark| !mark.special && text.starts_with(&*mark.spelling))
    }
}

/// The converters drop this property of a token; the models that have it are known by name.
fn strips_after_marks(vocabulary: &GgufVocabulary) -> bool {
    let name = vocabulary.name.as_deref().unwrap_or("").to_lowercase();
    name.contains("phi-3") || name.contains("phi3")
}

/// A piece of the text, linked to its neighbours. Merged pieces are empty.
#[derive(Clone, Copy)]
struct Piece {
    start: usize,
    end: usize,
    left: Option<usize>,
    right: Option<usize>,
}

/// Two neighbours whose union is a token.
#[derive(PartialEq)]
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    /// Length of the union: if it has changed, one of the two has been merged with another.
    len: usize,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

struct Merging<'a> {
    merger: &'a Merger,
    text: &'a str,
    pieces: Vec<Piece>,
    queue: BinaryHeap<Candidate>,
}

impl<'a> Merging<'a> {
    fn new(merger: &'a Merger, text: &'a str) -> Self {
        let mut pieces: Vec<Piece> = Vec::with_capacity(text.len());
        for (start, character) in text.char_indices() {
            let index = pieces.len();
            if let Some(last) = pieces.last_mut() {
                last.right = Some(index);
            }
            pieces.push(Piece { start, end: start + character.len_utf8(), left: index.checked_sub(1), right: None });
        }
        let mut merging = Self { merger, text, pieces, queue: BinaryHeap::new() };
        (1..merging.pieces.len()).for_each(|right| merging.consider(Some(right - 1), Some(right)));
        merging
    }

    fn run(&mut self) {
        while let Some(Candidate { left, right, len, .. }) = self.queue.pop() {
            let (first, second) = (self.pieces[left], self.pieces[right]);
            let stale = first.start == first.end || second.start == second.end || second.end - first.start != len;
            if stale {
                continue;
            }
            self.pieces[left] = Piece { end: second.end, right: second.right, ..first };
            self.pieces[right].end = second.start;
            if let Some(next) = second.right {
                self.pieces[next].left = Some(left);
            }
            self.consider(first.left, Some(left));
            self.consider(Some(left), second.right);
        }
    }

    fn consider(&mut self, left: Option<usize>, right: Option<usize>) {
        let (Some(left), Some(right)) = (left, right) else { return };
        let union = &self.text[self.pieces[left].start..self.pieces[right].end];
        if let Some(&token) = self.merger.words.get(union) {
            let score = self.merger.scores[token as usize];
            self.queue.push(Candidate { score, left, right, len: union.len() });
        }
    }

    fn pieces(&self) -> impl Iterator<Item = &'a str> {
        let text = self.text;
        self.pieces.iter().filter(|piece| piece.start < piece.end).map(move |piece| &text[piece.start..piece.end])
    }
}

#[cfg(test)]
mod tests {
    use super::super::Tokenizer;
    use super::*;

    fn vocabulary(words: &[(&str, f32, i32)]) -> GgufVocabulary {
        GgufVocabulary {
            model: "llama".into(),
            tokens: words.iter().map(|word| word.0.into()).collect(),
            scores: words.iter().map(|word| word.1).collect(),
            token_types: words.iter().map(|word| word.2).collect(),
            bos: Some(1),
            eos: Some(2),
            unknown: Some(0),
            ..GgufVocabulary::default()
        }
    }

    const SMALL: [(&str, f32, i32); 11] = [
        ("<unk>", 0.0, 2),
        ("<s>", 0.0, 3),
        ("</s>", 0.0, 3),
        ("<0x62>", 0.0, 6),
        ("▁", -1.0, 1),
        ("a", -2.0, 1),
        ("aa", -3.0, 1),
        ("aaa", -4.0, 1),
        ("▁a", -5.0, 1),
        ("</", -1.0, 1),
        ("[x]", 0.0, 4),
    ];

    #[test]
    fn equal_scores_merge_from_the_left() {
        let tokenizer = Tokenizer::from_gguf_vocabulary("small", &vocabulary(&SMALL)).unwrap();
        // aa|aa|a: of the unions aaa, "aa"+"a" is the only pair; the first aa stays alone.
        assert_eq!(tokenizer.encode_plain("aaaaa").unwrap(), [4, 6, 7]);
        assert_eq!(tokenizer.encode_plain("a").unwrap(), [8]);
    }

    #[test]
    fn marks_are_cut_out_and_never_merged() {
        let tokenizer = Tokenizer::from_gguf_vocabulary("small", &vocabulary(&SMALL)).unwrap();
        assert_eq!(tokenizer.encode("a</s>a", true).unwrap(), [1, 8, 2, 8]);
        assert_eq!(tokenizer.encode("", true).unwrap(), [1]);
        assert!(tokenizer.encode("", false).unwrap().is_empty());
        // Typed by a user, the mark is text: "</" and two characters without a token of their own.
        assert_eq!(tokenizer.encode_plain("</s>").unwrap(), [4, 9, 0, 0]);
        // User-defined tokens are text and found everywhere.
        assert_eq!(tokenizer.encode_plain("a[x]b").unwrap(), [8, 10, 4, 3]);
        assert_eq!(tokenizer.decode(&[1, 8, 10, 4, 3], true), "a[x] b");
        assert_eq!((tokenizer.bos(), tokenizer.adds_bos(), tokenizer.end_tokens()), (Some(1), true, &[2][..]));
    }

    #[test]
    fn a_prefix_space_can_be_refused() {
        let vocabulary = GgufVocabulary { add_space_prefix: Some(false), add_bos: Some(false), ..vocabulary(&SMALL) };
        let tokenizer = Tokenizer::from_gguf_vocabulary("small", &vocabulary).unwrap();
        assert_eq!(tokenizer.encode("aa", true).unwrap(), [6]);
        assert_eq!(tokenizer.decode(&[8], true), " a");
    }

    #[test]
    fn scores_must_match_tokens() {
        let vocabulary = GgufVocabulary { scores: vec![0.0; 3], ..vocabulary(&SMALL) };
        let error = Tokenizer::from_gguf_vocabulary("small", &vocabulary).unwrap_err();
        assert_eq!(error.to_string(), "small: tokenizer.ggml.scores: expected 11 scores, one for each token, found 3");
    }

    /// The rule as it is said, without a queue.
    fn naive(merger: &Merger, text: &str) -> Vec<String> {
        let mut pieces: Vec<String> = text.chars().map(String::from).collect();
        loop {
            let unions = pieces.windows(2).enumerate().filter_map(|(at, pair)| {
                let token = merger.words.get(pair.concat().as_str())?;
                Some((merger.scores[*token as usize], at))
            });
            let best = unions.reduce(|best, next| if next.0 > best.0 { next } else { best });
            let Some((_, at)) = best else { return pieces };
            let right = pieces.remove(at + 1);
            pieces[at].push_str(&right);
        }
    }

    proptest::proptest! {
        #[test]
        fn the_queue_agrees_with_the_rule(
            words in proptest::collection::vec(("[abé]{1,4}", -4_i8..0), 0..24),
            text in "[abcé]{0,24}",
        ) {
            // Few scores, so that many are equal.
            let rows = words.iter().map(|(word, score)| (word.as_str(), f32::from(*score), 1));
            let rows: Vec<(&str, f32, i32)> = rows.collect();
            let vocabulary = vocabulary(&[&SMALL[..3], &rows].concat());
            let merger = Merger::new("random", &vocabulary, &vocabulary.token_types.iter().map(|&number| {
                if number == 1 { Kind::Normal } else { Kind::Control }
            }).collect::<Vec<_>>()).unwrap();
            let mut merging = Merging::new(&merger, &text);
            merging.run();
            proptest::prop_assert_eq!(merging.pieces().collect::<Vec<_>>(), naive(&merger, &text));
        }
    }
}
