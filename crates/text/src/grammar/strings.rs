//! Fast masks inside strings, where most tokens of a vocabulary are allowed.
//!
//! The library computes a mask by a traversal of the token trie, with a lexer step for each byte. Inside a JSON string
//! only quotes, backslashes, control characters and the remaining length make a difference. So each token is split,
//! once for each vocabulary, into its leading plain characters and a suffix. If the lexer goes from a state to the same
//! next state with every plain character, and so on for n of them, then tokens of at most n plain characters are
//! allowed as whole bit sets, and of the others only the suffixes are traversed. The mask is the same; at 128 thousand
//! tokens a string of bounded length takes some 10 us instead of up to a millisecond.
//!
//! No grammar is assumed to have such states: every byte of every plain character is tried, once for each state, and
//! the results are kept with the parser ([`Transitions`]). All other masks are computed by the library.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use llguidance::derivre::StateID;
use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};

use crate::Token;

/// Maximum number of leading plain characters of a token that are counted; the rest is its suffix.
const LEADING_MAX: usize = 32;
/// A plain character, as the representative of all.
const PLAIN: u8 = b'a';

/// The tokens of a vocabulary by their number of leading plain characters.
pub(super) struct StringMasks {
    /// Element k: the tokens of at most k plain characters and nothing else.
    plain_only: Vec<SimpleVob>,
    /// Element k: the suffixes of the tokens with k leading plain characters.
    suffixes: Vec<SuffixTrie>,
}

/// A trie of byte strings, its nodes in depth-first order.
#[derive(Default)]
struct SuffixTrie {
    nodes: Vec<Node>,
    /// The tokens of all nodes, one after another.
    tokens: Vec<Token>,
}

struct Node {
    byte: u8,
    /// Number of bytes from the root, its own included.
    depth: u16,
    /// The first node that is not below it.
    end: u32,
    /// End of its tokens, which begin where those of the node before it end.
    tokens_end: u32,
}

/// The known transitions of one parser's lexer for plain characters.
pub(super) type Transitions = HashMap<StateID, Transition>;

/// The transition of a lexer state for plain characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transition {
    /// All lead to this state, within the same lexeme.
    To(StateID),
    /// None is allowed.
    None,
    /// The characters lead to different states, or only some of them are allowed.
    Mixed,
}

impl StringMasks {
    /// From the byte strings of a vocabulary; empty ones are never allowed.
    pub fn new(words: &[Vec<u8>]) -> StringMasks {
        let mut plain_only = vec![SimpleVob::alloc(words.len()); LEADING_MAX + 1];
        let mut suffixes: Vec<Vec<(&[u8], Token)>> = vec![Vec::new(); LEADING_MAX + 1];
        for (token, token_bytes) in words.iter().enumerate().filter(|(_, token_bytes)| !token_bytes.is_empty()) {
            let (leading, rest) = leading(token_bytes);
            if rest.is_empty() {
                plain_only[leading..].iter_mut().for_each(|set| set.allow_token(token as Token));
            } else {
                suffixes[leading].push((rest, token as Token));
            }
        }
        StringMasks { plain_only, suffixes: suffixes.into_iter().map(SuffixTrie::new).collect() }
    }

    /// The mask, if the lexer's state allows the fast path.
    fn mask(&self, parser: &mut ParserRecognizer<'_>, transitions: &mut Transitions) -> Option<SimpleVob> {
        let plain_chars_max = plain_chars_max(parser, transitions)?;
        let mut allowed = self.plain_only[plain_chars_max].clone();
        parser.trie_started("strings");
        let mut pushed = 0;
        for trie in &self.suffixes[..=plain_chars_max] {
            trie.walk(parser, &mut allowed);
            if pushed < plain_chars_max {
                assert!(parser.try_push_byte(PLAIN), "a plain character that may come");
                pushed += 1;
            }
        }
        parser.pop_bytes(pushed);
        parser.trie_finished();
        Some(allowed)
    }
}

impl SuffixTrie {
    fn new(mut words: Vec<(&[u8], Token)>) -> SuffixTrie {
        words.sort_unstable();
        let mut trie = SuffixTrie::default();
        // Indices of the nodes on the path to the last one.
        let mut path: Vec<usize> = Vec::new();
        let mut before: &[u8] = &[];
        for (token_bytes, token) in words {
            let same = before.iter().zip(token_bytes).take_while(|(a, b)| a == b).count();
            trie.close(&mut path, same);
            for byte in &token_bytes[same..] {
                path.push(trie.nodes.len());
                let tokens_end = trie.tokens.len() as u32;
                trie.nodes.push(Node { byte: *byte, depth: path.len() as u16, end: 0, tokens_end });
            }
            trie.tokens.push(token);
            // The last node of the path is the last of all, since the strings are sorted.
            trie.nodes.last_mut().expect("no word is empty").tokens_end = trie.tokens.len() as u32;
            before = token_bytes;
        }
        trie.close(&mut path, 0);
        trie
    }

    /// Ends the nodes of a path beyond depth `left`.
    fn close(&mut self, path: &mut Vec<usize>, left: usize) {
        let end = self.nodes.len() as u32;
        path.drain(left..).for_each(|node| self.nodes[node].end = end);
    }

    /// Adds the tokens whose bytes are allowed.
    fn walk(&self, parser: &mut ParserRecognizer<'_>, allowed: &mut SimpleVob) {
        let (mut at, mut depth) = (0, 0);
        while let Some(node) = self.nodes.get(at) {
            let parent = usize::from(node.depth) - 1;
            parser.pop_bytes(depth - parent);
            depth = parent;
            if parser.try_push_byte(node.byte) {
                depth += 1;
                let first = at.checked_sub(1).map_or(0, |before| self.nodes[before].tokens_end);
                let ending = &self.tokens[first as usize..node.tokens_end as usize];
                ending.iter().for_each(|token| allowed.allow_token(*token));
                at += 1;
            } else {
                at = node.end as usize;
            }
        }
        parser.pop_bytes(depth);
    }
}

/// How many plain characters are allowed next, up to [`LEADING_MAX`]; `None` if none is, or if they differ.
pub(super) fn plain_chars_max(parser: &mut ParserRecognizer<'_>, transitions: &mut Transitions) -> Option<usize> {
    let mut state = parser.lexer_state();
    for plain_chars_max in 0..LEADING_MAX {
        match transition(parser, state, transitions) {
            Transition::To(next) => state = next,
            Transition::None => return (plain_chars_max > 0).then_some(plain_chars_max),
            Transition::Mixed => return None,
        }
    }
    Some(LEADING_MAX)
}

/// The number of leading plain characters of a token, up to [`LEADING_MAX`], and its suffix.
fn leading(token_bytes: &[u8]) -> (usize, &[u8]) {
    let text = match std::str::from_utf8(token_bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&token_bytes[..error.valid_up_to()]).expect("it is valid so far"),
    };
    let plain = text.chars().take(LEADING_MAX).take_while(|character| is_plain(*character));
    let (count, bytes) = plain.fold((0, 0), |(count, bytes), character| (count + 1, bytes + character.len_utf8()));
    (count, &token_bytes[bytes..])
}

/// Whether a character is plain: JSON strings have it unescaped, and most grammars do not distinguish it from others.
fn is_plain(character: char) -> bool {
    !character.is_ascii_control() && character != '"' && character != '\\'
}

/// The transition for plain characters from a state, computed once.
fn transition(parser: &mut ParserRecognizer<'_>, state: StateID, transitions: &mut Transitions) -> Transition {
    if let Some(transition) = transitions.get(&state) {
        return *transition;
    }
    let transition = compute_transition(parser, state);
    transitions.insert(state, transition);
    transition
}

/// The transition for one byte within a lexeme.
fn byte_transition(parser: &mut ParserRecognizer<'_>, state: StateID, byte: u8) -> Transition {
    let lexer = parser.lexer_mut();
    let next = lexer.transition_start_state(state, Some(byte), &None);
    if !next.is_dead() && !next.has_lowest_match() {
        Transition::To(next)
    } else if lexer.advance(state, byte, false, &None).is_error() {
        Transition::None
    } else {
        // A lexeme ends.
        Transition::Mixed
    }
}

/// Tries every byte of every plain character.
fn compute_transition(parser: &mut ParserRecognizer<'_>, state: StateID) -> Transition {
    let first = byte_transition(parser, state, PLAIN);
    let is_ascii_alike = |byte: u8| !is_plain(char::from(byte)) || byte_transition(parser, state, byte) == first;
    if first == Transition::Mixed || !(0..0x80).all(is_ascii_alike) {
        return Transition::Mixed;
    }
    // Continuation bytes lead from the same state to the same one, so results are cached.
    let mut known: HashMap<(StateID, usize), Transition> = HashMap::new();
    for (leads, rest) in &CHARACTERS {
        for lead in leads.clone() {
            let of_lead = match byte_transition(parser, state, lead) {
                Transition::To(next) => continuation_transition(parser, next, rest, &mut known),
                other => other,
            };
            if of_lead != first {
                return Transition::Mixed;
            }
        }
    }
    first
}

type Bytes = std::ops::RangeInclusive<u8>;
const CONTINUATION: Bytes = 0x80..=0xBF;

/// Characters of several bytes: the first byte, and the others.
const CHARACTERS: [(Bytes, &[Bytes]); 8] = [
    (0xC2..=0xDF, &[CONTINUATION]),
    (0xE0..=0xE0, &[0xA0..=0xBF, CONTINUATION]),
    (0xE1..=0xEC, &[CONTINUATION, CONTINUATION]),
    (0xED..=0xED, &[0x80..=0x9F, CONTINUATION]),
    (0xEE..=0xEF, &[CONTINUATION, CONTINUATION]),
    (0xF0..=0xF0, &[0x90..=0xBF, CONTINUATION, CONTINUATION]),
    (0xF1..=0xF3, &[CONTINUATION, CONTINUATION, CONTINUATION]),
    (0xF4..=0xF4, &[0x80..=0x8F, CONTINUATION, CONTINUATION]),
];

/// The transition for all characters whose remaining bytes are in these ranges: one state, or [`Transition::Mixed`].
fn continuation_transition(
    parser: &mut ParserRecognizer<'_>,
    state: StateID,
    rest: &[Bytes],
    known: &mut HashMap<(StateID, usize), Transition>,
) -> Transition {
    let Some((bytes, rest)) = rest.split_first() else { return Transition::To(state) };
    // Only the first continuation byte is ever restricted, depending on the lead byte.
    let is_common = *bytes == CONTINUATION;
    if let Some(transition) = known.get(&(state, rest.len())).filter(|_| is_common) {
        return *transition;
    }
    let mut all = None;
    for byte in bytes.clone() {
        let transition = match byte_transition(parser, state, byte) {
            Transition::To(next) => continuation_transition(parser, next, rest, known),
            // If only some beginnings of a character are allowed, plain characters differ.
            Transition::None | Transition::Mixed => Transition::Mixed,
        };
        if *all.get_or_insert(transition) != transition || transition == Transition::Mixed {
            return Transition::Mixed;
        }
    }
    let transition = all.unwrap_or(Transition::Mixed);
    if is_common {
        known.insert((state, rest.len()), transition);
    }
    transition
}

/// Computes masks by the fast path if possible, else by the library.
pub(super) struct MaskComputer<'a> {
    pub strings: &'a StringMasks,
    pub library: &'a SlicedBiasComputer,
    pub transitions: Mutex<&'a mut Transitions>,
}

impl BiasComputer for MaskComputer<'_> {
    fn compute_bias(&self, parser: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        let mut transitions = self.transitions.lock().unwrap_or_else(PoisonError::into_inner);
        let fast = if start.is_empty() { self.strings.mask(parser, &mut transitions) } else { None };
        fast.unwrap_or_else(|| self.library.compute_bias(parser, start))
    }

    fn trie(&self) -> &TokTrie {
        self.library.trie()
    }
}

#[cfg(test)]
mod tests;
