//! Vocabularies of folders without a `tokenizer.json`: SentencePiece's own file, whose fields GGUF's keys mirror, and
//! files of tiktoken, which are byte-level BPE.

use std::path::Path;

use super::{Source, UNUSED, VocabularyBuilder, entry, replace_duplicates, unused};
use crate::TextError;
use crate::tokenizer::{tiktoken_vocabulary, whole_vocabulary};

impl Source<'_> {
    /// SentencePiece's own file.
    pub(super) fn pieces(&self, dir: &Path) -> Result<VocabularyBuilder, TextError> {
        let pieces = whole_vocabulary(dir)?;
        let mut builder = VocabularyBuilder::new(&pieces.model);
        builder.add("pre", "default");
        if pieces.model == "t5" {
            builder.add_normalization(pieces.characters, pieces.removes_spaces);
        }
        builder.add("add_space_prefix", pieces.add_space_prefix.unwrap_or(true));
        builder.special_tokens_match = false;
        let mut scores = pieces.scores;
        scores.resize(self.rows, 0.0);
        builder.entries.extend(pieces.unknown.map(|unknown| entry("unknown_token_id", unknown.into())));
        self.list(&mut builder, pieces.tokens, pieces.token_types);
        builder.add("scores", scores);
        Ok(builder)
    }

    /// A file of tiktoken.
    pub(super) fn tiktoken(&self, dir: &Path) -> Result<VocabularyBuilder, TextError> {
        let (vocabulary, is_normalized) = tiktoken_vocabulary(dir)?;
        let mut builder = VocabularyBuilder::new("gpt2");
        builder.add("pre", vocabulary.pre.unwrap_or_default());
        self.list(&mut builder, vocabulary.tokens, vocabulary.token_types);
        builder.add("merges", vocabulary.merges);
        if is_normalized {
            builder.note_normalization(self.place);
        }
        Ok(builder)
    }

    /// Adds the tokens and their types, with an unused one for each further row of the network.
    fn list(&self, builder: &mut VocabularyBuilder, mut tokens: Vec<String>, mut types: Vec<i32>) {
        types.resize(self.rows, UNUSED);
        tokens.resize(self.rows, String::new());
        for (id, token) in tokens.iter_mut().enumerate().filter(|(_, token)| token.is_empty()) {
            *token = unused(id);
        }
        replace_duplicates(&mut tokens, &mut types);
        builder.add("tokens", tokens);
        builder.add("token_type", types);
    }
}
