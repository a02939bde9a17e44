//! SentencePiece's byte-pair encoding, as GGUF files hold it: a score per token and no merges.
//!
//! The algorithm: start with single characters; of all neighbours whose union is a token, merge the pair with the
//! highest score, of ties the leftmost; repeat. Characters without a token become bytes, `<0xNN>`.
//!
//! The `tokenizers` library needs a list of merges, each pair with a rank of its own. Such a list can be made from the
//! scores, but two pairs with the same union ("a"+"bc" and "ab"+"c") then get different ranks where SentencePiece
//! merges the leftmost first, which gives other tokens for runs of one character. So the algorithm is implemented here.
//!
//! As in llama.cpp, added tokens are split off first, and a space is inserted before the text and after every added
//! token. Unlike llama.cpp (and like SentencePiece), special tokens and bytes are never the result of a merge, so
//! typing `</s>` cannot end a text. Unused tokens are treated as ordinary ones.
//!
//! A `tokenizer.model` has more settings than a GGUF file ([`ModelFileSettings`]): how text is normalized, and whether
//! it is encoded by merges or by likelihood (Unigram). User-defined tokens are then matched after normalization.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::bytes::byte_spelling;
use super::gguf_vocabulary::{GgufVocabulary, Kind};
use super::sentencepiece::normalizer::Normalizer;
use super::sentencepiece::unigram::UnigramEncoder;
use super::special::SpecialSpan;
use crate::{TextError, Token};

const SPACE: &str = "▁";

/// Encodes text by the scores of a SentencePiece vocabulary.
#[derive(Debug)]
pub(crate) struct SentencePieceEncoder {
    /// Tokens that text can become, by their text.
    tokens_by_text: HashMap<Box<str>, Token>,
    scores: Vec<f32>,
    /// The token of each byte.
    bytes: Vec<Token>,
    /// Tokens that are split off the text first, by their first byte, the longest first.
    added_tokens: HashMap<u8, Vec<AddedToken>>,
    adds_prefix_space: bool,
    model_file: Option<ModelFileEncoding>,
}

/// Settings of a SentencePiece model file beyond the vocabulary.
pub(super) struct ModelFileSettings {
    pub normalizer: Normalizer,
    pub is_unigram: bool,
    pub byte_fallback: bool,
    /// Whether a space is inserted only at the beginning of a text, and not after special tokens.
    pub prefix_first_only: bool,
    /// Special tokens that strip the white space after them.
    pub rstripped: Vec<Token>,
}

#[derive(Debug)]
struct ModelFileEncoding {
    normalizer: Normalizer,
    unigram: Option<UnigramEncoder>,
    prefix_first_only: bool,
    /// The token for text that no token has; `None` with byte fallback.
    unknown: Option<Token>,
}

#[derive(Debug)]
struct AddedToken {
    spelling: Box<str>,
    token: Token,
    /// Whether it is matched only where special tokens are.
    special: bool,
    /// Whether it strips the white space that follows.
    rstrip: bool,
}

impl AddedToken {
    /// Where the text continues after this token, which begins at `at`.
    fn end(&self, text: &str, at: usize) -> usize {
        let end = at + self.spelling.len();
        if self.rstrip { text.len() - text[end..].trim_start().len() } else { end }
    }
}

impl SentencePieceEncoder {
    pub(super) fn new(place: &str, vocabulary: &GgufVocabulary, kinds: &[Kind]) -> Result<Self, TextError> {
        let count = vocabulary.tokens.len();
        if vocabulary.scores.len() != count {
            let expected = format!("{count} scores, one for each token");
            return Err(TextError::field(place, "tokenizer.ggml.scores", expected, vocabulary.scores.len()));
        }
        let mut encoder = Self {
            tokens_by_text: HashMap::with_capacity(count),
            // -0 and 0 must compare equal; the sum makes them so.
            scores: vocabulary.scores.iter().map(|score| score + 0.0).collect(),
            bytes: Vec::new(),
            added_tokens: HashMap::new(),
            adds_prefix_space: vocabulary.add_space_prefix.unwrap_or(true),
            model_file: None,
        };
        let rstripped = strips_space_after_special_tokens(vocabulary);
        let mut byte_tokens = HashMap::new();
        for (index, (spelling, &kind)) in vocabulary.tokens.iter().zip(kinds).enumerate() {
            let token = index as Token;
            match kind {
                Kind::Byte => drop(byte_tokens.insert(spelling.as_str(), token)),
                Kind::Normal | Kind::Unused | Kind::UserDefined => {
                    encoder.tokens_by_text.insert(spelling.as_str().into(), token);
                }
                Kind::Control | Kind::Unknown => {}
            }
            let is_added = kind.is_special() || kind == Kind::UserDefined;
            if let (true, Some(&first)) = (is_added, spelling.as_bytes().first()) {
                let rstrip = rstripped && !["<unk>", "<s>", "<|endoftext|>"].contains(&spelling.as_str());
                let added =
                    AddedToken { spelling: spelling.as_str().into(), token, special: kind.is_special(), rstrip };
                encoder.added_tokens.entry(first).or_default().push(added);
            }
        }
        encoder
            .added_tokens
            .values_mut()
            .for_each(|added_tokens| added_tokens.sort_by_key(|added| std::cmp::Reverse(added.spelling.len())));
        let unknown = vocabulary.unknown.unwrap_or(0);
        encoder.bytes =
            (0..=255).map(|byte| *byte_tokens.get(byte_spelling(byte).as_str()).unwrap_or(&unknown)).collect();
        Ok(encoder)
    }

    /// Applies the settings of a SentencePiece model file.
    pub(super) fn with_model_file(
        mut self,
        settings: ModelFileSettings,
        vocabulary: &GgufVocabulary,
        kinds: &[Kind],
    ) -> Self {
        let ModelFileSettings { normalizer, is_unigram, byte_fallback, prefix_first_only, rstripped } = settings;
        for added in self.added_tokens.values_mut().flatten() {
            added.rstrip = rstripped.contains(&added.token);
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
        let unigram = is_unigram.then(|| UnigramEncoder::new(pieces()));
        let unknown = vocabulary.unknown.filter(|_| !byte_fallback);
        self.model_file = Some(ModelFileEncoding { normalizer, unigram, prefix_first_only, unknown });
        self
    }

    /// Whether a space is inserted before every text.
    pub fn adds_prefix_space(&self) -> bool {
        self.adds_prefix_space
    }

    /// Encodes a text; special tokens written in it become those tokens if `special`, else they are text.
    pub fn encode(&self, text: &str, special: bool) -> Vec<Token> {
        self.encode_matching(text, |_, added| special || !added.special)
    }

    /// The special tokens that `encode` matches in a text, in order.
    pub fn special_spans(&self, text: &str) -> Vec<SpecialSpan> {
        let read = self.added_tokens(text, |_, _| true).filter(|(_, added)| added.special);
        read.map(|(at, added)| SpecialSpan { range: at..at + added.spelling.len(), token: added.token }).collect()
    }

    /// Like `encode`, but with special tokens in these places and nowhere else.
    pub fn encode_with(&self, text: &str, special_spans: &[SpecialSpan]) -> Vec<Token> {
        self.encode_matching(text, |at, added| {
            let found = special_spans.binary_search_by_key(&at, |span| span.range.start);
            !added.special || found.is_ok_and(|index| special_spans[index].token == added.token)
        })
    }

    fn encode_matching(&self, text: &str, wanted: impl Fn(usize, &AddedToken) -> bool) -> Vec<Token> {
        let mut tokens = Vec::new();
        let mut start = 0;
        for (at, added) in self.added_tokens(text, wanted) {
            self.encode_segment(&text[start..at], start == 0, &mut tokens);
            tokens.push(added.token);
            start = added.end(text, at);
        }
        self.encode_segment(&text[start..], start == 0, &mut tokens);
        tokens
    }

    /// The wanted added tokens of a text and where they begin: the leftmost first, and the longest at each position.
    fn added_tokens<'a>(
        &'a self,
        text: &'a str,
        wanted: impl Fn(usize, &AddedToken) -> bool + 'a,
    ) -> impl Iterator<Item = (usize, &'a AddedToken)> + 'a {
        let mut at = 0;
        std::iter::from_fn(move || {
            loop {
                let start = at;
                let rest = &text.as_bytes()[start..];
                let added_tokens = self.added_tokens.get(rest.first()?).map_or(&[][..], Vec::as_slice);
                // With a normalizer, user-defined tokens are matched after it.
                let is_matched = |added: &AddedToken| added.special || self.model_file.is_none();
                let fits = |added: &&AddedToken| {
                    is_matched(added) && rest.starts_with(added.spelling.as_bytes()) && wanted(start, added)
                };
                if let Some(added) = added_tokens.iter().find(fits) {
                    at = added.end(text, start);
                    return Some((start, added));
                }
                at += 1;
            }
        })
    }

    /// Encodes the text between two added tokens, with a space before it.
    fn encode_segment(&self, text: &str, is_first: bool, tokens: &mut Vec<Token>) {
        if let Some(model_file) = &self.model_file {
            return self.encode_by_model_file(model_file, text, is_first, tokens);
        }
        if text.is_empty() {
            return;
        }
        let mut escaped = String::with_capacity(text.len() + text.len() / 4 + SPACE.len());
        if self.adds_prefix_space {
            escaped.push_str(SPACE);
        }
        escaped.push_str(&text.replace(' ', SPACE));
        self.merge(&escaped, |piece, token| match token {
            Some(token) => tokens.push(token),
            None => self.push_bytes(piece, tokens),
        });
    }

    fn merge(&self, text: &str, mut each: impl FnMut(&str, Option<Token>)) {
        let mut merging = Merging::new(self, text);
        merging.run();
        merging.pieces().for_each(|piece| each(piece, self.tokens_by_text.get(piece).copied()));
    }

    fn push_bytes(&self, piece: &str, tokens: &mut Vec<Token>) {
        tokens.extend(piece.bytes().map(|byte| self.bytes[usize::from(byte)]));
    }

    /// Encodes as SentencePiece does: adjacent characters without a token become one unknown token, unless there is
    /// byte fallback.
    fn encode_by_model_file(
        &self,
        model_file: &ModelFileEncoding,
        text: &str,
        is_first: bool,
        tokens: &mut Vec<Token>,
    ) {
        let prefix = self.adds_prefix_space && (is_first || !model_file.prefix_first_only);
        let escaped =
            model_file.normalizer.normalize(text, prefix, |rest| Some(self.user_defined(rest)?.spelling.len()));
        let mut after_unknown = false;
        let mut push = |piece: &str, token: Option<Token>| {
            match (token, model_file.unknown) {
                (Some(token), _) => tokens.push(token),
                (None, None) => self.push_bytes(piece, tokens),
                (None, Some(unknown)) if !after_unknown => tokens.push(unknown),
                _ => {}
            }
            after_unknown = token.is_none();
        };
        if let Some(unigram) = &model_file.unigram {
            return unigram.segment(&escaped).into_iter().for_each(|(piece, token)| push(piece, token));
        }
        let (mut start, mut at) = (0, 0);
        while at < escaped.len() {
            let Some(added) = self.user_defined(&escaped[at..]) else {
                at += escaped[at..].chars().next().map_or(1, char::len_utf8);
                continue;
            };
            self.merge(&escaped[start..at], &mut push);
            push(&added.spelling, Some(added.token));
            at += added.spelling.len();
            start = at;
        }
        self.merge(&escaped[start..], &mut push);
    }

    /// The longest user-defined token that a text begins with.
    fn user_defined(&self, text: &str) -> Option<&AddedToken> {
        let added_tokens = self.added_tokens.get(text.as_bytes().first()?)?;
        added_tokens.iter().find(|added| !added.special && text.starts_with(&*added.spelling))
    }
}

/// Whether special tokens strip the white space after them. Converters drop this property, so models that have it are
/// recognized by name.
fn strips_space_after_special_tokens(vocabulary: &GgufVocabulary) -> bool {
    let name = vocabulary.name.as_deref().unwrap_or("").to_lowercase();
    name.contains("phi-3") || name.contains("phi3")
}

/// A piece of the text, linked to its neighbours. A piece that was merged into another is empty.
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
    /// Length of the union; if it has changed, one of the two was merged with another.
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
    encoder: &'a SentencePieceEncoder,
    text: &'a str,
    pieces: Vec<Piece>,
    queue: BinaryHeap<Candidate>,
}

impl<'a> Merging<'a> {
    fn new(encoder: &'a SentencePieceEncoder, text: &'a str) -> Self {
        let mut pieces: Vec<Piece> = Vec::with_capacity(text.len());
        for (start, character) in text.char_indices() {
            let index = pieces.len();
            if let Some(last) = pieces.last_mut() {
                last.right = Some(index);
            }
            pieces.push(Piece { start, end: start + character.len_utf8(), left: index.checked_sub(1), right: None });
        }
        let mut merging = Self { encoder, text, pieces, queue: BinaryHeap::new() };
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
        if let Some(&token) = self.encoder.tokens_by_text.get(union) {
            let score = self.encoder.scores[token as usize];
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
        // aa|aa|a: the only pair whose union is a token is "aa"+"a"; the first aa remains.
        assert_eq!(tokenizer.encode_plain("aaaaa").unwrap(), [4, 6, 7]);
        assert_eq!(tokenizer.encode_plain("a").unwrap(), [8]);
    }

    #[test]
    fn added_tokens_are_split_off_and_never_merged() {
        let tokenizer = Tokenizer::from_gguf_vocabulary("small", &vocabulary(&SMALL)).unwrap();
        assert_eq!(tokenizer.encode("a</s>a", true).unwrap(), [1, 8, 2, 8]);
        assert_eq!(tokenizer.encode("", true).unwrap(), [1]);
        assert!(tokenizer.encode("", false).unwrap().is_empty());
        // Typed by a user, "</s>" is text: "</" and two characters without a token.
        assert_eq!(tokenizer.encode_plain("</s>").unwrap(), [4, 9, 0, 0]);
        // User-defined tokens are text and always matched.
        assert_eq!(tokenizer.encode_plain("a[x]b").unwrap(), [8, 10, 4, 3]);
        assert_eq!(tokenizer.decode(&[1, 8, 10, 4, 3], true), "a[x] b");
        assert_eq!((tokenizer.bos(), tokenizer.adds_bos(), tokenizer.end_tokens()), (Some(1), true, &[2][..]));
    }

    #[test]
    fn the_prefix_space_can_be_turned_off() {
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

    /// The algorithm without a queue.
    fn naive(encoder: &SentencePieceEncoder, text: &str) -> Vec<String> {
        let mut pieces: Vec<String> = text.chars().map(String::from).collect();
        loop {
            let unions = pieces.windows(2).enumerate().filter_map(|(at, pair)| {
                let token = encoder.tokens_by_text.get(pair.concat().as_str())?;
                Some((encoder.scores[*token as usize], at))
            });
            let best = unions.reduce(|best, next| if next.0 > best.0 { next } else { best });
            let Some((_, at)) = best else { return pieces };
            let right = pieces.remove(at + 1);
            pieces[at].push_str(&right);
        }
    }

    proptest::proptest! {
        #[test]
        fn the_queue_agrees_with_the_naive_algorithm(
            words in proptest::collection::vec(("[abé]{1,4}", -4_i8..0), 0..24),
            text in "[abcé]{0,24}",
        ) {
            // Few scores, so that many are equal.
            let rows = words.iter().map(|(word, score)| (word.as_str(), f32::from(*score), 1));
            let rows: Vec<(&str, f32, i32)> = rows.collect();
            let vocabulary = vocabulary(&[&SMALL[..3], &rows].concat());
            let kind = |&number: &i32| if number == 1 { Kind::Normal } else { Kind::Control };
            let kinds: Vec<Kind> = vocabulary.token_types.iter().map(kind).collect();
            let encoder = SentencePieceEncoder::new("random", &vocabulary, &kinds).unwrap();
            let mut merging = Merging::new(&encoder, &text);
            merging.run();
            proptest::prop_assert_eq!(merging.pieces().collect::<Vec<_>>(), naive(&encoder, &text));
        }
    }
}
