//! Translation between two vocabularies: what the target wrote as an assistant would have read it, and what an
//! assistant of another vocabulary drafts as the target would write it (Universal Assisted Generation).
//!
//! Bytes are the common ground, not characters. Ordinary tokens become their bytes and are encoded again by the other
//! side's tokenizer, behind a window of its own last tokens (`target_lookbehind`, `assistant_lookbehind`, names and
//! defaults of transformers) since text may merge with what comes before it. Both encodings of the window are aligned
//! by the places where tokens end, and what lies before the first difference stays.
//!
//! What an assistant reads is a function of the target's tokens alone: a [`Translation`] is a fold over them, one at a
//! time, however they were cut into passes; each step costs a window, whatever the length, and can be undone. Two
//! things are never spelt out. *Marks* (special tokens) become the other side's mark of the same spelling or role; one
//! without a counterpart is left out of the assistant's text, and ends a draft. *Invented spaces*, which some
//! tokenizers put where a text or the text after a mark begins, belong to their own side. The first bytes of a
//! character that has not ended are held back until it has, so an assistant drafts such characters from their
//! beginning.
//!
//! Text that a tokenizer does not give back to the byte (normalizers, broken UTF-8) is spelt with the longest tokens
//! that fit; bytes that a vocabulary cannot spell at all are left out of the assistant's text, and end a draft.
//!
//! Left out: offsets into characters, and vocabularies that spell text without its spaces (WordPiece).

mod marks;
mod side;
mod spelling;

use std::sync::Arc;

use crate::{TextError, Token, Tokenizer};
use marks::Counterparts;
use side::Side;
pub use spelling::Spelling;

/// What an assistant's token is for the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counterpart {
    /// Ordinary text.
    Text,
    /// A mark that the target has too: its token there.
    Mark(Token),
    /// A mark that the target has not.
    Nothing,
}

/// A target token made from drafted assistant tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The target's token.
    pub token: Token,
    /// How many drafted tokens begin before this one ends.
    pub drafted_end: usize,
    /// More text could still become part of it.
    pub is_open: bool,
}

/// A target's vocabulary and an assistant's. Immutable, for any number of [`Translation`]s.
#[derive(Debug)]
pub struct Vocabularies {
    target: Side,
    assistant: Side,
    to_assistant: Counterparts,
    to_target: Counterparts,
    /// (assistant, target): equal bytes or counterparts.
    shared: Vec<(Token, Token)>,
    /// The same where a text begins, invented spaces disregarded.
    shared_first: Vec<(Token, Token)>,
}

/// What of the target's text an assistant has read: its tokens, with the way back to every earlier length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Translation {
    target: Vec<Token>,
    assistant: Vec<Token>,
    now: Place,
    /// One per target token.
    steps: Vec<Step>,
    /// What the steps took away from the assistant's tokens, the latest last.
    removed: Vec<Token>,
}

/// Where a translation stands: in a stretch of text between two marks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Place {
    /// Where the stretch begins among the target's tokens.
    target_start: usize,
    /// Where it begins among the assistant's.
    assistant_start: usize,
    /// The stretch has bytes already.
    has_text: bool,
    /// The first bytes of a character.
    held: [u8; 4],
    held_len: usize,
}

impl Place {
    fn held(&self) -> &[u8] {
        &self.held[..self.held_len]
    }
}

/// What a drafted stretch of text stands behind.
struct Before<'a> {
    /// The target's tokens of the same stretch.
    window: &'a [Token],
    /// The first bytes of a character.
    held: &'a [u8],
    /// The assistant has no token of the stretch yet.
    is_beginning: bool,
}

/// How to undo the reading of one target token.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Step {
    before: Place,
    /// Assistant tokens that stayed.
    kept: usize,
    /// Assistant tokens that were taken away.
    removed: usize,
}

impl Vocabularies {
    /// The default of `target_lookbehind` and `assistant_lookbehind`, in tokens.
    pub const LOOKBEHIND: usize = 10;

    /// Compares the two vocabularies. The lookbehinds are in tokens of their side, at least 1.
    ///
    /// # Errors
    /// If not a single ordinary token is the same in both, so that no translation can be of use.
    pub fn new(
        target: Arc<Tokenizer>,
        assistant: Arc<Tokenizer>,
        target_lookbehind: usize,
        assistant_lookbehind: usize,
    ) -> Result<Self, TextError> {
        let to_assistant = Counterparts::new(&target, &assistant);
        let to_target = Counterparts::new(&assistant, &target);
        let target = Side::new(target, target_lookbehind);
        let assistant = Side::new(assistant, assistant_lookbehind);
        let shared = side::shared(&assistant, &target, &to_target, false);
        let shared_first = side::shared(&assistant, &target, &to_target, true);
        let vocabularies = Self { target, assistant, to_assistant, to_target, shared, shared_first };
        vocabularies.check_overlap(0.0)?;
        Ok(vocabularies)
    }

    /// Ordinary tokens of the assistant that the target has too, and how many ordinary tokens the assistant has.
    pub fn overlap(&self) -> (usize, usize) {
        let assistant = &self.assistant.tokenizer;
        let is_text = |token: Token| !assistant.is_special(token) && !assistant.token_bytes(token).is_empty();
        let shared = self.shared.iter().filter(|(token, _)| is_text(*token)).count();
        (shared, (0..assistant.vocabulary_len() as Token).filter(|token| is_text(*token)).count())
    }

    /// Whether more than this share of the assistant's ordinary tokens is in the target's vocabulary too, 0 to 1.
    ///
    /// # Errors
    /// If it is not; the message says how many are.
    pub fn check_overlap(&self, share_min: f64) -> Result<(), TextError> {
        let (shared, count) = self.overlap();
        if shared > 0 && shared as f64 > share_min * count as f64 {
            return Ok(());
        }
        let [assistant, target] = [&self.assistant, &self.target].map(|side| side.tokenizer.name().to_owned());
        Err(TextError::Overlap { assistant, target, shared, count })
    }

    /// The target's tokenizer.
    pub fn target(&self) -> &Arc<Tokenizer> {
        &self.target.tokenizer
    }

    /// The assistant's tokenizer.
    pub fn assistant(&self) -> &Arc<Tokenizer> {
        &self.assistant.tokenizer
    }

    /// What an assistant's token is for the target.
    pub fn counterpart(&self, token: Token) -> Counterpart {
        match self.assistant.tokenizer.is_special(token) {
            true => self.to_target.of(token).map_or(Counterpart::Nothing, Counterpart::Mark),
            false => Counterpart::Text,
        }
    }

    /// The assistant's marks that stand for this mark of the target.
    pub fn marks_of(&self, target: Token) -> impl Iterator<Item = Token> {
        self.to_target.counterparts_of(target)
    }

    /// The tokens of both vocabularies that can come next, as (assistant, target), ascending by target token; several
    /// assistant tokens may go with one target token. Nothing in the middle of a character.
    pub fn shared(&self, translation: &Translation) -> &[(Token, Token)] {
        match translation.now.held_len {
            0 if translation.is_beginning() => &self.shared_first,
            0 => &self.shared,
            _ => &[],
        }
    }

    /// A translation of no tokens: what an assistant reads before everything else, its bos or nothing.
    pub fn begin(&self) -> Translation {
        let tokenizer = &self.assistant.tokenizer;
        let assistant: Vec<Token> = tokenizer.bos().filter(|_| tokenizer.adds_bos()).into_iter().collect();
        let now = Place { assistant_start: assistant.len(), ..Place::default() };
        Translation { assistant, now, ..Translation::default() }
    }

    /// Reads more target tokens. Returns how many of the assistant's tokens are as they were before.
    pub fn read(&self, translation: &mut Translation, tokens: &[Token]) -> usize {
        let mut unchanged = translation.assistant.len();
        for &token in tokens {
            let (before, len, removed) = (translation.now, translation.assistant.len(), translation.removed.len());
            let kept = match self.target.tokenizer.is_special(token) {
                true => self.read_mark(translation, token),
                false => self.read_text(translation, token),
            };
            unchanged = unchanged.min(kept);
            let removed = translation.removed.len() - removed;
            debug_assert_eq!(kept + removed, len);
            translation.steps.push(Step { before, kept, removed });
            translation.target.push(token);
        }
        unchanged
    }

    fn read_mark(&self, translation: &mut Translation, token: Token) -> usize {
        // A character that a mark cuts off will never end.
        let (now, kept) = (translation.now, translation.assistant.len());
        self.assistant.spell(now.held(), &mut translation.assistant);
        if let Some(mark) = self.to_assistant.of(token) {
            // The assistant's bos is there already where it adds one to every text.
            let is_first = translation.target.is_empty() && translation.assistant == [mark];
            if !is_first {
                translation.assistant.push(mark);
            }
        }
        let (target_start, assistant_start) = (translation.target.len() + 1, translation.assistant.len());
        translation.now = Place { target_start, assistant_start, ..Place::default() };
        kept
    }

    fn read_text(&self, translation: &mut Translation, token: Token) -> usize {
        let Translation { assistant, now, removed, .. } = translation;
        let mut bytes = self.target.tokenizer.token_bytes(token);
        if !now.has_text && self.target.tokenizer.drops_first_space() {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            // An invented space alone is text all the same: what follows has no other.
            now.has_text |= !self.target.tokenizer.token_bytes(token).is_empty();
        }
        now.has_text |= !bytes.is_empty();
        let bytes = [now.held(), bytes].concat();
        let (whole, rest) = bytes.split_at(bytes.len() - side::unfinished(&bytes));
        now.held[..rest.len()].copy_from_slice(rest);
        now.held_len = rest.len();
        let mut more = Vec::new();
        let kept = now.assistant_start + self.assistant.append(&assistant[now.assistant_start..], whole, &mut more);
        removed.extend_from_slice(&assistant[kept..]);
        assistant.truncate(kept);
        assistant.append(&mut more);
        kept
    }

    /// The target's tokens for what an assistant drafts behind a translation, appended to `pieces`. They begin where
    /// the target's tokens end; half a character at the end is left out, and so is everything from a mark without a
    /// counterpart on.
    pub fn propose(&self, translation: &Translation, drafted: &[Token], pieces: &mut Vec<Piece>) {
        let tokenizer = &self.assistant.tokenizer;
        let mut window = &translation.target[translation.now.target_start..];
        let mut held = translation.now.held();
        let (mut is_beginning, mut from) = (translation.is_beginning(), 0);
        loop {
            let marked = drafted[from..].iter().position(|&token| tokenizer.is_special(token));
            let to = marked.map_or(drafted.len(), |len| from + len);
            let before = Before { window, held, is_beginning };
            if !self.propose_text(&before, (from, &drafted[from..to]), marked.is_none(), pieces) {
                return;
            }
            let Some(mark) = drafted.get(to).and_then(|&token| self.to_target.of(token)) else { return };
            pieces.push(Piece { token: mark, drafted_end: to + 1, is_open: false });
            (window, held, is_beginning, from) = (&[], &[], true, to + 1);
        }
    }

    /// The pieces of a stretch of text; whether all of it could be said. `drafted`: number of the first token, tokens.
    fn propose_text(
        &self,
        before: &Before<'_>,
        (first, drafted): (usize, &[Token]),
        is_last: bool,
        pieces: &mut Vec<Piece>,
    ) -> bool {
        let tokenizer = &self.assistant.tokenizer;
        // Where each drafted token begins, and the bytes of all of them.
        let (mut starts, mut bytes) = (Vec::with_capacity(drafted.len()), Vec::new());
        for &token in drafted {
            starts.push(bytes.len());
            bytes.extend_from_slice(tokenizer.token_bytes(token));
        }
        let invents = before.is_beginning && tokenizer.drops_first_space();
        let invented = usize::from(invents && bytes.first() == Some(&b' '));
        let Some(new) = bytes[invented..].strip_prefix(before.held) else { return false };
        let skipped = bytes.len() - new.len();
        let unfinished = if is_last { side::unfinished(new) } else { 0 };
        let mut tokens = Vec::new();
        let all = self.target.continue_with(before.window, &new[..new.len() - unfinished], &mut tokens);
        let mut at = skipped;
        // A space that the target invents is no byte of the draft.
        let len: usize = tokens.iter().map(|&token| self.target.tokenizer.token_bytes(token).len()).sum();
        let mut own = len.saturating_sub(new.len() - unfinished);
        let count = tokens.len();
        for (i, token) in tokens.into_iter().enumerate() {
            let len = self.target.tokenizer.token_bytes(token).len();
            let from_draft = len - own.min(len);
            own -= len - from_draft;
            at += from_draft;
            let drafted_end = first + starts.iter().take_while(|&&start| start < at).count();
            pieces.push(Piece { token, drafted_end, is_open: is_last && i + 1 == count });
        }
        all && (unfinished == 0)
    }
}

impl Translation {
    /// The target's tokens that were read.
    pub fn target(&self) -> &[Token] {
        &self.target
    }

    /// What an assistant reads in their place. The first bytes of a character may be missing at the end.
    pub fn assistant(&self) -> &[Token] {
        &self.assistant
    }

    /// Bytes at the end of the target's text that are held back until their character is whole.
    pub fn held(&self) -> &[u8] {
        self.now.held()
    }

    /// Whether the assistant has no token yet of the stretch of text that it stands in.
    fn is_beginning(&self) -> bool {
        self.assistant.len() == self.now.assistant_start
    }

    /// Goes back to the first `len` target tokens, as if no other had been read. Returns how many of the assistant's
    /// tokens are as they were before.
    ///
    /// # Panics
    /// If fewer than `len` tokens have been read.
    pub fn truncate(&mut self, len: usize) -> usize {
        assert!(len <= self.target.len(), "cannot keep {len} tokens of {}", self.target.len());
        let mut unchanged = self.assistant.len();
        for step in self.steps.drain(len..).rev() {
            unchanged = unchanged.min(step.kept);
            self.assistant.truncate(step.kept);
            self.assistant.extend(self.removed.drain(self.removed.len() - step.removed..));
            self.now = step.before;
        }
        self.target.truncate(len);
        unchanged
    }
}

#[cfg(test)]
mod tests;
