//! Drafters whose vocabulary is not the target's, made from an executor and two tokenizers.
//!
//! The drafters of `drafters` do not know tokenizers; here they get those of `text`. [`TranslationWay`] chooses between
//! the two ways to draft; the default depends on the request's promise (`two_ways`).

mod two_ways;

use std::collections::BTreeMap;
use std::sync::Arc;

use foretoken_drafters::translate::{Meaning, Piece, Translator};
use foretoken_drafters::{ModelDrafter, SharedScorer, TranslatedDrafter};
use foretoken_model::Executor;
use foretoken_speculation::{DraftSettings, Drafter, SequenceId, Token};
use foretoken_text::{Counterpart, TextError, Tokenizer, Translation, Vocabularies};

use crate::scorer::ExecutorScorer;
use two_ways::{SharedNetwork, TwoWays};

/// How an assistant with another vocabulary drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TranslationWay {
    /// [`TranslationWay::Text`] under *exact* and for greedy requests, [`TranslationWay::Shared`] for all others if the
    /// vocabularies share enough tokens: the way with the higher measured acceptance rate.
    #[default]
    ByPromise,
    /// The assistant's text is translated (Universal Assisted Generation): any text can be drafted, but without q.
    Text,
    /// Tokens are drawn from the assistant's law over the tokens that both vocabularies have (token-level
    /// intersection), with q.
    Shared,
}

/// Settings of a drafter with another vocabulary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TranslationSettings {
    /// How it drafts.
    pub way: TranslationWay,
    /// How many target tokens before a draft are encoded together with it.
    pub target_lookbehind: usize,
    /// How many assistant tokens before the target's new text are encoded together with it.
    pub assistant_lookbehind: usize,
    /// Maximum number of tokens drafted per pass; if text is translated, these are the assistant's own tokens.
    pub depth_max: usize,
    /// Settings for requests that set none. Without a temperature, text is drafted greedily, and shared tokens are
    /// drafted at the target's temperature.
    pub draft: DraftSettings,
}

impl Default for TranslationSettings {
    /// The lookbehinds of transformers, and 10 tokens.
    fn default() -> Self {
        let lookbehind = Vocabularies::LOOKBEHIND;
        Self {
            way: TranslationWay::default(),
            target_lookbehind: lookbehind,
            assistant_lookbehind: lookbehind,
            depth_max: 10,
            draft: DraftSettings::default(),
        }
    }
}

/// The minimum share of the assistant's vocabulary that the target must have for drafting over shared tokens.
const SHARED_MIN: f64 = 0.02;

/// Makes a drafter from an assistant whose vocabulary is not the target's.
///
/// # Errors
/// If the vocabularies have nothing in common, or too little for [`TranslationWay::Shared`].
pub fn translated_drafter(
    executor: Box<dyn Executor>,
    target: &Arc<Tokenizer>,
    assistant: &Arc<Tokenizer>,
    settings: &TranslationSettings,
) -> Result<Box<dyn Drafter>, TextError> {
    let (target_lookbehind, assistant_lookbehind) = (settings.target_lookbehind, settings.assistant_lookbehind);
    let [target, assistant] = [target, assistant].map(Arc::clone);
    let vocabularies = Arc::new(Vocabularies::new(target, assistant, target_lookbehind, assistant_lookbehind)?);
    let shares_enough = vocabularies.check_overlap(SHARED_MIN);
    let scorer = SharedNetwork::new(ExecutorScorer::new(executor));
    let text = || {
        let translator = TextTranslator::new(Arc::clone(&vocabularies));
        let mut drafter = TranslatedDrafter::new(scorer.clone(), translator);
        (drafter.assistant.depth_max, drafter.assistant.settings) = (settings.depth_max, settings.draft);
        drafter
    };
    let shared = || {
        let translator = TextTranslator::new(Arc::clone(&vocabularies));
        let mut drafter = ModelDrafter::new(SharedScorer::new(scorer.clone(), translator));
        (drafter.depth_max, drafter.settings) = (settings.depth_max, settings.draft);
        drafter
    };
    Ok(match (settings.way, shares_enough) {
        (TranslationWay::ByPromise, Ok(())) => Box::new(TwoWays::new(text(), shared())),
        (TranslationWay::ByPromise, Err(_)) | (TranslationWay::Text, _) => Box::new(text()),
        (TranslationWay::Shared, Ok(())) => Box::new(shared()),
        (TranslationWay::Shared, Err(error)) => return Err(error),
    })
}

/// Two vocabularies of `text` as a [`Translator`].
#[derive(Debug)]
pub struct TextTranslator {
    vocabularies: Arc<Vocabularies>,
    sequences: BTreeMap<SequenceId, Translation>,
}

impl TextTranslator {
    /// A translator without sequences.
    pub fn new(vocabularies: impl Into<Arc<Vocabularies>>) -> Self {
        Self { vocabularies: vocabularies.into(), sequences: BTreeMap::new() }
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

    fn read(&mut self, sequence: SequenceId, tokens: &[Token]) {
        let translation = self.sequences.get_mut(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        self.vocabularies.read(translation, tokens);
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) {
        self.of_mut(sequence).truncate(len);
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
            Counterpart::Special(token) => Meaning::Special(token),
            Counterpart::Nothing => Meaning::Nothing,
        }
    }

    fn specials(&self, target: Token, out: &mut Vec<Token>) {
        out.extend(self.vocabularies.special_tokens_of(target));
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
