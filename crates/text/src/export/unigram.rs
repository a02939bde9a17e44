//! `tokenizer.json` with a Unigram model: pieces with their scores, and SentencePiece's normalization.
//!
//! Two notations of one normalization are understood, in which transformers writes it: text is split at white space
//! before spaces become ▁ (T5's tokenizers), or spaces at the end of a text and repeated ones are replaced first.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value as Json;

use super::{Source, VocabularyBuilder, components};
use crate::tokenizer::EXACT_SCORES;
use crate::{TextError, Token};

impl Source<'_> {
    pub(super) fn unigram(&self, model: &Json) -> Result<VocabularyBuilder, TextError> {
        let mut builder = VocabularyBuilder::new("t5");
        let (characters, collapses) = self.normalization()?;
        let steps = components(&self.json["pre_tokenizer"], "pretokenizers");
        let (splits, step) = match steps.as_slice() {
            [step] => (false, step),
            [split, step] if split["type"] == "WhitespaceSplit" => (true, step),
            _ => {
                let expected = "Metaspace, alone or behind WhitespaceSplit";
                return Err(self.refuse("pre_tokenizer", expected, &self.json["pre_tokenizer"]));
            }
        };
        let (prefix, removes_spaces) = (self.metaspace(step, &mut builder)?, splits || collapses);
        let refused = || self.refuse("model.vocab", "a list of pieces with their scores", &Json::Null);
        let (mut vocabulary, mut scores) = (Vec::new(), vec![0.0; self.rows]);
        for (id, piece) in model["vocab"].as_array().ok_or_else(refused)?.iter().enumerate().take(self.rows) {
            let spelling = piece[0].as_str().ok_or_else(refused)?;
            scores[id] = piece[1].as_f64().ok_or_else(refused)?;
            vocabulary.push((spelling.to_string(), id as Token));
        }
        let bytes = model["byte_fallback"] == true;
        let unknown = model["unk_id"].as_u64().map(|id| id as Token).filter(|id| (*id as usize) < self.rows);
        self.tokens(&mut builder, &vocabulary, bytes, unknown);
        builder.add("pre", "default");
        builder.add("add_space_prefix", prefix);
        builder.add_normalization(characters, removes_spaces);
        builder.add("scores", scores.iter().map(|score| *score as f32).collect::<Vec<f32>>());
        builder.entries.push((EXACT_SCORES.to_string(), scores.into()));
        let spaces = if removes_spaces { "" } else { "begins with a space, " };
        let letters = if bytes { "has letters that no token has, " } else { "" };
        builder.notes.push(format!(
            "{}: llama.cpp tokenizes a text differently with this Unigram model where it {spaces}{letters}has special \
             tokens in it or has runs of one character",
            self.place
        ));
        Ok(builder)
    }

    /// The compiled table of characters, which may be empty, and whether extra spaces are removed.
    fn normalization(&self) -> Result<(Vec<u8>, bool), TextError> {
        let (mut characters, mut strips, mut replaces) = (Vec::new(), false, false);
        for step in components(&self.json["normalizer"], "normalizers") {
            let is_space = step["content"] == "▁" || step["content"] == " ";
            match step["type"].as_str() {
                Some("Precompiled") if characters.is_empty() && !strips && !replaces => {
                    let table = step["precompiled_charsmap"].as_str().and_then(|table| BASE64.decode(table).ok());
                    characters = table
                        .ok_or_else(|| self.refuse("normalizer", "a compiled table of characters in base64", step))?;
                }
                Some("Strip") if step["strip_right"] == true => strips = true,
                Some("Replace") if step["pattern"]["Regex"] == " {2,}" && is_space => replaces = true,
                _ => return Err(self.refuse("normalizer", "none, or SentencePiece's", step)),
            }
        }
        match strips == replaces {
            true => Ok((characters, strips)),
            false => Err(self.refuse("normalizer", "none, or SentencePiece's", &self.json["normalizer"])),
        }
    }
}
