//! Masks inside strings, where most tokens of a vocabulary may come next.
//!
//! The library finds a mask by a walk through the tree of all tokens, a step of its lexer a byte. Inside a string of
//! JSON that is a waste: no character but quotes, backslashes and control characters makes a difference, but for how
//! many may still come. So tokens are taken apart once a vocabulary into their leading plain characters and what
//! stands behind. Where the lexer goes from a state to one and the same next state with every plain character, and so
//! on for so many of them, tokens of plain characters alone are allowed by their number, as whole sets of bits, and of
//! the others only what is behind is walked. The mask is the same; at 128 thousand tokens a string of bounded length
//! takes some 10 us instead of up to a millisecond.
//!
//! That a state is of this kind is not assumed of any grammar: every byte of every plain character is tried, once a
//! state, and what the library says is kept with the parser that it is true of ([`Steps`]). All other masks are the
//! library's own.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use llguidance::derivre::StateID;
use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};

use crate::Token;

/// Plain characters of a token that are counted; what stands behind so many is walked byte by byte.
const LEADING_MAX: usize = 32;
/// A plain character, to go on with where all are alike.
const PLAIN: u8 = b'a';

/// Tokens, by how many plain characters they begin with.
pub(super) struct Strings {
    /// Element k: tokens of plain characters alone, at most k of them.
    whole: Vec<SimpleVob>,
    /// Element k: what stands behind the first k characters, where these are all plain ones that a token begins with.
    behind: Vec<Tree>,
}

/// Strings of bytes as a tree, its nodes in the order of a walk.
#[derive(Default)]
struct Tree {
    nodes: Vec<Node>,
    /// Of all nodes, one after another.
    tokens: Vec<Token>,
}

struct Node {
    byte: u8,
    /// Bytes on the way to it, its own included.
    depth: u16,
    /// The first node that is not below it.
    end: u32,
    /// Tokens that end here: those up to this place, from where the node before it ends.
    tokens_end: u32,
}

/// What the lexer of one parser does with plain characters, as far as it was asked.
pub(super) type Steps = HashMap<StateID, Step>;

/// Where plain characters lead from a state of the lexer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// All to this state, within the same word of the grammar.
    To(StateID),
    /// None may come.
    None,
    /// They are not all alike.
    Mixed,
}

impl Strings {
    /// Of a vocabulary of these strings; empty ones are never allowed.
    pub fn new(words: &[Vec<u8>]) -> Strings {
        let mut whole = vec![SimpleVob::alloc(words.len()); LEADING_MAX + 1];
        let mut behind: Vec<Vec<(&[u8], Token)>> = vec![Vec::new(); LEADING_MAX + 1];
        for (token, word) in words.iter().enumerate().filter(|(_, word)| !word.is_empty()) {
            let (leading, rest) = leading(word);
            if rest.is_empty() {
                whole[leading..].iter_mut().for_each(|set| set.allow_token(token as Token));
            } else {
                behind[leading].push((rest, token as Token));
            }
        }
        Strings { whole, behind: behind.into_iter().map(Tree::new).collect() }
    }

    /// The tokens that may come next, if that is known of the state in which the lexer is.
    fn mask(&self, parser: &mut ParserRecognizer<'_>, steps: &mut Steps) -> Option<SimpleVob> {
        let room = room(parser, steps)?;
        let mut allowed = self.whole[room].clone();
        parser.trie_started("strings");
        let mut pushed = 0;
        for tree in &self.behind[..=room] {
            tree.walk(parser, &mut allowed);
            if pushed < room {
                assert!(parser.try_push_byte(PLAIN), "a plain character that may come");
                pushed += 1;
            }
        }
        parser.pop_bytes(pushed);
        parser.trie_finished();
        Some(allowed)
    }
}

impl Tree {
    fn new(mut words: Vec<(&[u8], Token)>) -> Tree {
        words.sort_unstable();
        let mut tree = Tree::default();
        // Places of the nodes on the way to the last one.
        let mut way: Vec<usize> = Vec::new();
        let mut before: &[u8] = &[];
        for (word, token) in words {
            let same = before.iter().zip(word).take_while(|(a, b)| a == b).count();
            tree.close(&mut way, same);
            for byte in &word[same..] {
                way.push(tree.nodes.len());
                let tokens_end = tree.tokens.len() as u32;
                tree.nodes.push(Node { byte: *byte, depth: way.len() as u16, end: 0, tokens_end });
            }
            tree.tokens.push(token);
            // The last node of the way is the last of all: words are in order.
            tree.nodes.last_mut().expect("no word is empty").tokens_end = tree.tokens.len() as u32;
            before = word;
        }
        tree.close(&mut way, 0);
        tree
    }

    /// Nothing more comes below the nodes of a way beyond so many.
    fn close(&mut self, way: &mut Vec<usize>, left: usize) {
        let end = self.nodes.len() as u32;
        way.drain(left..).for_each(|node| self.nodes[node].end = end);
    }

    /// Adds the tokens whose bytes may come next.
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

/// How many plain characters may come next, as far as they are counted; `None` where none may, or it matters which.
pub(super) fn room(parser: &mut ParserRecognizer<'_>, steps: &mut Steps) -> Option<usize> {
    let mut state = parser.lexer_state();
    for room in 0..LEADING_MAX {
        match step(parser, state, steps) {
            Step::To(next) => state = next,
            Step::None => return (room > 0).then_some(room),
            Step::Mixed => return None,
        }
    }
    Some(LEADING_MAX)
}

/// How many plain characters a token begins with, as far as they are counted, and what stands behind.
fn leading(word: &[u8]) -> (usize, &[u8]) {
    let text = match std::str::from_utf8(word) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&word[..error.valid_up_to()]).expect("it is valid so far"),
    };
    let plain = text.chars().take(LEADING_MAX).take_while(|character| is_plain(*character));
    let (count, bytes) = plain.fold((0, 0), |(count, bytes), character| (count + 1, bytes + character.len_utf8()));
    (count, &word[bytes..])
}

/// Whether a character stands in a string of JSON as it is, and most grammars do not tell it from others.
fn is_plain(character: char) -> bool {
    !character.is_ascii_control() && character != '"' && character != '\\'
}

/// Where plain characters lead from a state; asked once.
fn step(parser: &mut ParserRecognizer<'_>, state: StateID, steps: &mut Steps) -> Step {
    if let Some(step) = steps.get(&state) {
        return *step;
    }
    let step = tried(parser, state);
    steps.insert(state, step);
    step
}

/// Where one byte leads within a word of the grammar.
fn byte_step(parser: &mut ParserRecognizer<'_>, state: StateID, byte: u8) -> Step {
    let lexer = parser.lexer_mut();
    let next = lexer.transition_start_state(state, Some(byte), &None);
    if !next.is_dead() && !next.has_lowest_match() {
        Step::To(next)
    } else if lexer.advance(state, byte, false, &None).is_error() {
        Step::None
    } else {
        // A word of the grammar ends.
        Step::Mixed
    }
}

/// Tries every byte of every plain character.
fn tried(parser: &mut ParserRecognizer<'_>, state: StateID) -> Step {
    let first = byte_step(parser, state, PLAIN);
    let is_ascii_alike = |byte: u8| !is_plain(char::from(byte)) || byte_step(parser, state, byte) == first;
    if first == Step::Mixed || !(0..0x80).all(is_ascii_alike) {
        return Step::Mixed;
    }
    // What is left of a character of several bytes leads from the same state to the same one.
    let mut known: HashMap<(StateID, usize), Step> = HashMap::new();
    for (leads, rest) in &CHARACTERS {
        for lead in leads.clone() {
            let whole = match byte_step(parser, state, lead) {
                Step::To(next) => continued(parser, next, rest, &mut known),
                other => other,
            };
            if whole != first {
                return Step::Mixed;
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

/// Where all characters lead whose next bytes are of these: one state, or [`Step::Mixed`].
fn continued(
    parser: &mut ParserRecognizer<'_>,
    state: StateID,
    rest: &[Bytes],
    known: &mut HashMap<(StateID, usize), Step>,
) -> Step {
    let Some((bytes, rest)) = rest.split_first() else { return Step::To(state) };
    // Only the first of the other bytes is ever restricted, and the number of bytes says with which lead.
    let is_common = *bytes == CONTINUATION;
    if let Some(step) = known.get(&(state, rest.len())).filter(|_| is_common) {
        return *step;
    }
    let mut all = None;
    for byte in bytes.clone() {
        let step = match byte_step(parser, state, byte) {
            Step::To(next) => continued(parser, next, rest, known),
            // A beginning of a character that no whole one can have is not one that may not come.
            Step::None | Step::Mixed => Step::Mixed,
        };
        if *all.get_or_insert(step) != step || step == Step::Mixed {
            return Step::Mixed;
        }
    }
    let step = all.unwrap_or(Step::Mixed);
    if is_common {
        known.insert((state, rest.len()), step);
    }
    step
}

/// Computes masks: the quick way where it is one, and the library's otherwise.
pub(super) struct Masks<'a> {
    pub strings: &'a Strings,
    pub library: &'a SlicedBiasComputer,
    pub steps: Mutex<&'a mut Steps>,
}

impl BiasComputer for Masks<'_> {
    fn compute_bias(&self, parser: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let quick = if start.is_empty() { self.strings.mask(parser, &mut steps) } else { None };
        quick.unwrap_or_else(|| self.library.compute_bias(parser, start))
    }

    fn trie(&self) -> &TokTrie {
        self.library.trie()
    }
}

#[cfg(test)]
mod tests;
