//! Draft models with a vocabulary of their own: an executor and two tokenizers become a drafter.
//!
//! `text` knows what tokens mean as bytes, `speculation` drafts without knowing; here the one is handed to the other. Of
//! the two ways to draft, [`TranslationWay`] says which; the default goes by what the request promises (`docs/log.md`
//! has the measurements). Left out: loading the assistant, and models of the target's own vocabulary.

use std::collections::BTreeMap;
use std::sync::Arc;

use foretoken_model::Executor;
use foretoken_speculation::translate::{Meaning, Piece, Translator};
use foretoken_speculation::{DraftSettings, Drafter, ModelDrafter, SequenceId, SharedScorer, Token, TranslatedDrafter};
use foretoken_text::{Counterpart, TextError, Tokenizer, Translation, Vocabularies};

use crate::scorer::ExecutorScorer;

/// How an assistant with another vocabulary drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TranslationWay {
    /// Its text is translated (Universal Assisted Generation): any text can be drafted, as points.
    #[default]
    Text,
    /// Its law over the tokens that both vocabularies have (token-level intersection): drawn with q.
    Shared,
}

/// Settings of a drafter with another vocabulary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TranslationSettings {
    /// How it drafts.
    pub way: TranslationWay,
    /// Target tokens behind which drafts are encoded.
    pub target_lookbehind: usize,
    /// Assistant tokens behind which the target's text is encoded.
    pub assistant_lookbehind: usize,
    /// Most tokens drafted per pass, the assistant's own counted where text is translated.
    pub n_max: usize,
    /// What requests leave open; `None` for the way's own defaults.
    pub draft: Option<DraftSettings>,
}

impl Default for TranslationSettings {
    /// transformers' lookbehinds, and 10 tokens.
    fn default() -> Self {
        let (target_lookbehind, assistant_lookbehind) = (Vocabularies::LOOKBEHIND, Vocabularies::LOOKBEHIND);
        Self { way: TranslationWay::default(), target_lookbehind, assistant_lookbehind, n_max: 10, draft: None }
    }
}

/// With fewer shared tokens than this part of the assistant's, token-level intersection is refused.
const SHARED_MIN: f64 = 0.02;

/// A drafter from an assistant whose vocabulary is not the target's.
///
/// # Errors
/// If the vocabularies have nothing in common, or too little for [`TranslationWay::Shared`].
pub fn translated_drafter(
    executor: Box<dyn Executor>,
    target: &Arc<Tokenizer>,
    assistant: &Arc<Tokenizer>,
    settings: &TranslationSettings,
) -> Result<Box<dyn Drafter>, TextError> {
    let TranslationSettings { way, target_lookbehind, assistant_lookbehind, n_max, draft } = *settings;
    let [target, assistant] = [target, assistant].map(Arc::clone);
    let vocabularies = Vocabularies::new(target, assistant, target_lookbehind, assistant_lookbehind)?;
    let scorer = ExecutorScorer::new(executor);
    Ok(match way {
        TranslationWay::Text => {
            let mut drafter = TranslatedDrafter::new(scorer, TextTranslator::new(vocabularies));
            (drafter.n_max, drafter.settings) = (n_max, draft.unwrap_or(drafter.settings));
            Box::new(drafter)
        }
        TranslationWay::Shared => {
            vocabularies.check_overlap(SHARED_MIN)?;
            let mut drafter = ModelDrafter::new(SharedScorer::new(scorer, TextTranslator::new(vocabularies)));
            (drafter.n_max, drafter.settings) = (n_max, draft.unwrap_or(drafter.settings));
            Box::new(drafter)
        }
    })
}

/// Two vocabularies of `text` as a [`Translator`].
#[derive(Debug)]
pub struct TextTranslator {
    vocabularies: Vocabularies,
    sequences: BTreeMap<SequenceId, Translation>,
}

impl TextTranslator {
    /// A translator without sequences.
    pub fn new(vocabularies: Vocabularies) -> Self {
        Self { vocabularies, sequences: BTreeMap::new() }
    }

    fn of(&self, sequence: SequenceId) -> &Translation {
        self.sequences.get(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"))
    }

    fn of_mut(&mut self, sequence: SequenceId) -> &mut Translation {
        self.sequences.get_mut(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"))
    }
}

impl Translator for TextTranslator {
    fn open(&mut self, sequence: SequenceId) {
        self.sequences.insert(sequence, self.vocabularies.begin());
    }

    fn read_len(&self, sequence: SequenceId) -> usize {
        self.of(sequence).target().len()
    }

    fn read(&mut self, sequence: SequenceId, tokens: &[Token]) -> usize {
        let translation = self.sequences.get_mut(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        self.vocabularies.read(translation, tokens)
    }

    fn keep(&mut self, sequence: SequenceId, len: usize) -> usize {
        self.of_mut(sequence).keep(len)
    }

    fn assistant_tokens(&self, sequence: SequenceId) -> &[Token] {
        self.of(sequence).assistant()
    }

    fn propose(&self, sequence: SequenceId, drafted: &[Token], pieces: &mut Vec<Piece>) {
        let mut found = Vec::new();
        self.vocabularies.propose(self.of(sequence), drafted, &mut found);
        pieces.clear();
        pieces.extend(found.iter().map(|&foretoken_text::Piece { token, drafted_end, is_open }| Piece {
            token,
            drafted_end,
            is_open,
        }));
    }

    fn meaning(&self, token: Token) -> Meaning {
        match self.vocabularies.counterpart(token) {
            Counterpart::Text => Meaning::Text,
            Counterpart::Mark(token) => Meaning::Special(token),
            Counterpart::Nothing => Meaning::Nothing,
        }
    }

    fn shared(&self, sequence: SequenceId) -> &[(Token, Token)] {
        self.vocabularies.shared(self.of(sequence))
    }

    fn target_vocabulary(&self) -> usize {
        self.vocabularies.target().vocabulary_len()
    }

    fn close(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
    }
}
