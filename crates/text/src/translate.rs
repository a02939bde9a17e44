//! Translation between two vocabularies, for an assistant (draft model) whose tokenizer differs from the target's
//! (Universal Assisted Generation): the target's tokens become assistant tokens, and drafted ones become target tokens.
//!
//! Translation goes by bytes, not by characters. Ordinary tokens become their bytes, which the other tokenizer encodes
//! after a window of its own last tokens (`target_lookbehind`, `assistant_lookbehind`, names and defaults of
//! transformers), since text may merge with what comes before it. The old and the new encoding of the window are
//! aligned at token boundaries, and the tokens before the first difference are kept.
//!
//! The assistant's input is a function of the target's tokens alone: a [`Translation`] reads them one at a time, so it
//! does not depend on how they were split into passes. Each step costs one window, whatever the length, and can be
//! undone. *Special tokens* are not translated by their bytes: they become the other vocabulary's special token of the
//! same text or role; one without a counterpart is left out of the assistant's input, and ends a draft. *Dummy prefix
//! spaces*, which some tokenizers insert at the beginning of a text or after a special token, are not translated. The
//! first bytes of an incomplete character are held back until it is complete, so an assistant drafts such characters
//! from their first byte.
//!
//! Text that a tokenizer does not reproduce to the byte (normalizers, broken UTF-8) is encoded greedily with the
//! longest tokens that fit. Bytes that no token has are left out of the assistant's input, and end a draft.
//!
//! Not supported: offsets into characters, and vocabularies without spaces (WordPiece).

mod reencoder;
mod special_tokens;
mod spelling;

use std::sync::Arc;

use crate::{TextError, Token, Tokenizer};
use reencoder::ReEncoder;
use special_tokens::Counterparts;
pub use spelling::Spelling;

/// What an assistant's token becomes in the target's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counterpart {
    /// Ordinary text.
    Text,
    /// A special token that has this counterpart in the target's vocabulary.
    Special(Token),
    /// A special token without a counterpart.
    Nothing,
}

/// A target token made from drafted assistant tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The target's token.
    pub token: Token,
    /// The number of drafted tokens that begin before this one ends.
    pub drafted_end: usize,
    /// Whether more drafted text could still merge into it.
    pub is_open: bool,
}

/// A target's vocabulary and an assistant's. Immutable, for any number of [`Translation`]s.
#[derive(Debug)]
pub struct Vocabularies {
    target: ReEncoder,
    assistant: ReEncoder,
    to_assistant: Counterparts,
    to_target: Counterparts,
    /// (assistant, target) pairs of equal bytes or counterparts.
    shared: Vec<(Token, Token)>,
    /// The pairs at the beginning of a text, where dummy prefix spaces are ignored.
    shared_first: Vec<(Token, Token)>,
}

/// The target's tokens read so far and their translation for the assistant, which can be rolled back to any length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Translation {
    target: Vec<Token>,
    assistant: Vec<Token>,
    now: SegmentState,
    /// One per target token.
    steps: Vec<Step>,
    /// Assistant tokens that the steps removed, the latest last.
    removed: Vec<Token>,
}

/// Position of a translation within a segment of text between two special tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct SegmentState {
    /// Where the segment begins among the target's tokens.
    target_start: usize,
    /// Where it begins among the assistant's.
    assistant_start: usize,
    /// Whether the segment has bytes already.
    has_text: bool,
    /// The first bytes of an incomplete character.
    held: [u8; 4],
    held_len: usize,
}

impl SegmentState {
    fn held(&self) -> &[u8] {
        &self.held[..self.held_len]
    }
}

/// The context in front of a drafted segment.
struct SegmentContext<'a> {
    /// The target's tokens of the same segment.
    window: &'a [Token],
    /// The first bytes of an incomplete character.
    held: &'a [u8],
    /// Whether the assistant has no token of the segment yet.
    is_beginning: bool,
}

/// What is needed to roll back one target token.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Step {
    before: SegmentState,
    /// Number of assistant tokens that stayed.
    kept: usize,
    /// Number of assistant tokens that were removed.
    removed: usize,
}

impl Vocabularies {
    /// The default of `target_lookbehind` and `assistant_lookbehind`, in tokens.
    pub const LOOKBEHIND: usize = 10;

    /// Compares the two vocabularies. Each lookbehind is in tokens of its vocabulary, at least 1.
    ///
    /// # Errors
    /// If the vocabularies have no ordinary token in common, so that translation is useless.
    pub fn new(
        target: Arc<Tokenizer>,
        assistant: Arc<Tokenizer>,
        target_lookbehind: usize,
        assistant_lookbehind: usize,
    ) -> Result<Self, TextError> {
        let to_assistant = Counterparts::new(&target, &assistant);
        let to_target = Counterparts::new(&assistant, &target);
        let target = ReEncoder::new(target, target_lookbehind);
        let assistant = ReEncoder::new(assistant, assistant_lookbehind);
        let shared = reencoder::shared(&assistant, &target, &to_target, false);
        let shared_first = reencoder::shared(&assistant, &target, &to_target, true);
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

    /// Requires that more than this share (0 to 1) of the assistant's ordinary tokens is in the target's vocabulary.
    ///
    /// # Errors
    /// If fewer are; the message says how many are.
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

    /// What an assistant's token becomes in the target's vocabulary.
    pub fn counterpart(&self, token: Token) -> Counterpart {
        match self.assistant.tokenizer.is_special(token) {
            true => self.to_target.of(token).map_or(Counterpart::Nothing, Counterpart::Special),
            false => Counterpart::Text,
        }
    }

    /// The assistant's special tokens whose counterpart is this special token of the target.
    pub fn special_tokens_of(&self, target: Token) -> impl Iterator<Item = Token> {
        self.to_target.counterparts_of(target)
    }

    /// The tokens of both vocabularies that can come next, as (assistant, target), ascending by target token; several
    /// assistant tokens may have one target token. Empty in the middle of a character.
    pub fn shared(&self, translation: &Translation) -> &[(Token, Token)] {
        match translation.now.held_len {
            0 if translation.is_beginning() => &self.shared_first,
            0 => &self.shared,
            _ => &[],
        }
    }

    /// An empty translation: the assistant's bos, if its tokenizer adds one.
    pub fn begin(&self) -> Translation {
        let tokenizer = &self.assistant.tokenizer;
        let assistant: Vec<Token> = tokenizer.bos().filter(|_| tokenizer.adds_bos()).into_iter().collect();
        let now = SegmentState { assistant_start: assistant.len(), ..SegmentState::default() };
        Translation { assistant, now, ..Translation::default() }
    }

    /// Reads more target tokens. Returns how many of the assistant's tokens are unchanged.
    pub fn read(&self, translation: &mut Translation, tokens: &[Token]) -> usize {
        let mut unchanged = translation.assistant.len();
        for &token in tokens {
            let (before, len, removed) = (translation.now, translation.assistant.len(), translation.removed.len());
            let kept = match self.target.tokenizer.is_special(token) {
                true => self.read_special(translation, token),
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

    fn read_special(&self, translation: &mut Translation, token: Token) -> usize {
        // A character that a special token interrupts will never be complete.
        let (now, kept) = (translation.now, translation.assistant.len());
        self.assistant.encode_greedily(now.held(), &mut translation.assistant);
        if let Some(mark) = self.to_assistant.of(token) {
            // `begin` has written the assistant's bos already if its tokenizer adds one.
            let is_first = translation.target.is_empty() && translation.assistant == [mark];
            if !is_first {
                translation.assistant.push(mark);
            }
        }
        let (target_start, assistant_start) = (translation.target.len() + 1, translation.assistant.len());
        translation.now = SegmentState { target_start, assistant_start, ..SegmentState::default() };
        kept
    }

    fn read_text(&self, translation: &mut Translation, token: Token) -> usize {
        let Translation { assistant, now, removed, .. } = translation;
        let mut bytes = self.target.tokenizer.token_bytes(token);
        if !now.has_text && self.target.tokenizer.drops_first_space() {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            // A dummy prefix space alone counts as text: what follows has no other.
            now.has_text |= !self.target.tokenizer.token_bytes(token).is_empty();
        }
        now.has_text |= !bytes.is_empty();
        let bytes = [now.held(), bytes].concat();
        let (whole, rest) = bytes.split_at(bytes.len() - reencoder::incomplete_len(&bytes));
        now.held[..rest.len()].copy_from_slice(rest);
        now.held_len = rest.len();
        let mut more = Vec::new();
        let kept = now.assistant_start + self.assistant.append(&assistant[now.assistant_start..], whole, &mut more);
        removed.extend_from_slice(&assistant[kept..]);
        assistant.truncate(kept);
        assistant.append(&mut more);
        kept
    }

    /// Appends to `pieces` the target's tokens for what an assistant drafts after a translation. They begin where the
    /// target's tokens end. An incomplete character at the end is left out, and so is everything from a special token
    /// without a counterpart on.
    pub fn propose(&self, translation: &Translation, drafted: &[Token], pieces: &mut Vec<Piece>) {
        let tokenizer = &self.assistant.tokenizer;
        let mut window = &translation.target[translation.now.target_start..];
        let mut held = translation.now.held();
        let (mut is_beginning, mut from) = (translation.is_beginning(), 0);
        loop {
            let special_at = drafted[from..].iter().position(|&token| tokenizer.is_special(token));
            let to = special_at.map_or(drafted.len(), |len| from + len);
            let before = SegmentContext { window, held, is_beginning };
            if !self.propose_text(&before, (from, &drafted[from..to]), special_at.is_none(), pieces) {
                return;
            }
            let Some(mark) = drafted.get(to).and_then(|&token| self.to_target.of(token)) else { return };
            pieces.push(Piece { token: mark, drafted_end: to + 1, is_open: false });
            (window, held, is_beginning, from) = (&[], &[], true, to + 1);
        }
    }

    /// Appends the target's tokens for one segment; returns whether all of it could be encoded. `drafted` is the index
    /// of the first token and the tokens.
    fn propose_text(
        &self,
        before: &SegmentContext<'_>,
        (first, drafted): (usize, &[Token]),
        is_last: bool,
        pieces: &mut Vec<Piece>,
    ) -> bool {
        let tokenizer = &self.assistant.tokenizer;
        // The byte offset of each drafted token, and the bytes of all of them.
        let (mut starts, mut bytes) = (Vec::with_capacity(drafted.len()), Vec::new());
        for &token in drafted {
            starts.push(bytes.len());
            bytes.extend_from_slice(tokenizer.token_bytes(token));
        }
        let has_dummy_prefix = before.is_beginning && tokenizer.drops_first_space();
        let dummy_len = usize::from(has_dummy_prefix && bytes.first() == Some(&b' '));
        let Some(new) = bytes[dummy_len..].strip_prefix(before.held) else { return false };
        let skipped = bytes.len() - new.len();
        let incomplete_len = if is_last { reencoder::incomplete_len(new) } else { 0 };
        let mut tokens = Vec::new();
        let is_complete = self.target.continue_with(before.window, &new[..new.len() - incomplete_len], &mut tokens);
        let mut at = skipped;
        // A dummy prefix space that the target inserts is not a byte of the draft.
        let len: usize = tokens.iter().map(|&token| self.target.tokenizer.token_bytes(token).len()).sum();
        let mut own = len.saturating_sub(new.len() - incomplete_len);
        let count = tokens.len();
        for (i, token) in tokens.into_iter().enumerate() {
            let len = self.target.tokenizer.token_bytes(token).len();
            let from_draft = len - own.min(len);
            own -= len - from_draft;
            at += from_draft;
            let drafted_end = first + starts.iter().take_while(|&&start| start < at).count();
            pieces.push(Piece { token, drafted_end, is_open: is_last && i + 1 == count });
        }
        is_complete && (incomplete_len == 0)
    }
}

impl Translation {
    /// The target's tokens read so far.
    pub fn target(&self) -> &[Token] {
        &self.target
    }

    /// Their translation, the assistant's input. It lacks the bytes of an incomplete character at the end.
    pub fn assistant(&self) -> &[Token] {
        &self.assistant
    }

    /// Bytes at the end of the target's text that are held back until their character is complete.
    pub fn held(&self) -> &[u8] {
        self.now.held()
    }

    /// Whether the assistant has no token of the current segment yet.
    fn is_beginning(&self) -> bool {
        self.assistant.len() == self.now.assistant_start
    }

    /// Rolls back to the first `len` target tokens, as if no other had been read. Returns how many of the assistant's
    /// tokens are unchanged.
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
