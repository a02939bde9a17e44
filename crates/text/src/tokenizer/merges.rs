//! A folder with `vocab.json` and `merges.txt`, as GPT-2 was stored: byte-level BPE without a `tokenizer.json`.
//!
//! The pre-tokenizer follows from the class that `tokenizer_config.json` names; without a class it is GPT-2's. Not
//! supported, and refused by name: classes that add more than bos around a text (BART, RoBERTa), and vocabularies that
//! are not byte-level (CLIP).

use std::path::Path;

use foretoken_weights::whole::{self, VOCABULARY_BYTES_MAX};
use serde_json::Value;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::MOST_TOKENS;
use super::folder::{configuration, json_file, parts_of};
use super::gguf_bpe::split_pre_tokenizer;
use super::parts::Parts;
use super::pre_tokenizer::{GPT_2, QWEN_2};
use crate::TextError;

/// Classes with GPT-2's pre-tokenizer.
const LIKE_GPT_2: [&str; 8] = [
    "GPT2Tokenizer",
    "GPT2TokenizerFast",
    "GPTNeoXTokenizer",
    "GPTNeoXTokenizerFast",
    "CodeGenTokenizer",
    "CodeGenTokenizerFast",
    "PreTrainedTokenizerFast",
    "TokenizersBackend",
];

pub(super) fn from_dir(dir: &Path) -> Result<Parts, TextError> {
    let mut config = configuration(dir)?;
    let further = json_file(&dir.join("added_tokens.json"))?.unwrap_or_default();
    let vocabulary_path = dir.join("vocab.json");
    let place = vocabulary_path.display().to_string();
    let vocabulary = json_file(&vocabulary_path)?.unwrap_or_default();
    let merges_path = dir.join("merges.txt");
    let merges_place = merges_path.display().to_string();
    let merges =
        whole::read_text(&merges_path, VOCABULARY_BYTES_MAX).map_err(|source| TextError::read(&merges_path, source))?;
    let ids_by_text = ids_by_text(&place, &vocabulary)?;
    // The default end token of GPT-2's class.
    const END: &str = "<|endoftext|>";
    if let (Some(config), true) = (config.as_object_mut(), ids_by_text.contains_key(END)) {
        config.entry("eos_token").or_insert_with(|| END.into());
    }
    let merges = pairs(&merges_place, &merges, &ids_by_text)?;
    let model = BPE::builder().vocab_and_merges(ids_by_text, merges).build();
    let mut tokenizer =
        tokenizers::Tokenizer::new(model.map_err(|error| TextError::format(&merges_place, "merges of tokens", error))?);
    let class = config.get("tokenizer_class").and_then(Value::as_str);
    let pattern = match class {
        None => GPT_2,
        Some(class) if LIKE_GPT_2.contains(&class) => GPT_2,
        Some("Qwen2Tokenizer" | "Qwen2TokenizerFast") => {
            let refused = |error| TextError::format(&place, "a tokenizer", error);
            tokenizer.with_normalizer(Some(NFC)).map_err(refused)?;
            QWEN_2
        }
        Some(other) => {
            let expected = format!("{} or Qwen2Tokenizer (or a tokenizer.json)", LIKE_GPT_2.join(", "));
            return Err(TextError::field(&place, "tokenizer_class", expected, other));
        }
    };
    if config.get("add_prefix_space").and_then(Value::as_bool) == Some(true) {
        tokenizer.with_pre_tokenizer(Some(ByteLevel::new(true, false, true)));
    } else {
        tokenizer.with_pre_tokenizer(Some(split_pre_tokenizer(&place, &[pattern], true)?));
    }
    tokenizer.with_decoder(Some(ByteLevel::default()));
    parts_of(&place, tokenizer, Some(&config), &further)
}

fn ids_by_text(place: &str, vocabulary: &Value) -> Result<Vocab, TextError> {
    let entries = vocabulary.as_object().ok_or_else(|| TextError::format(place, "tokens and their numbers", "none"))?;
    let entry = |(text, id): (&String, &Value)| {
        let number = id.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < MOST_TOKENS);
        let expected = || format!("the number of a token, below {MOST_TOKENS}");
        let number = number.ok_or_else(|| TextError::field(place, text, expected(), id))?;
        Ok((text.clone(), number))
    };
    entries.iter().map(entry).collect()
}

/// The merges, best first; the first line may name a version.
fn pairs(place: &str, text: &str, ids_by_text: &Vocab) -> Result<Vec<(String, String)>, TextError> {
    let lines = text.lines().enumerate().filter(|(number, line)| {
        let is_version = *number == 0 && line.starts_with("#version");
        !is_version && !line.is_empty()
    });
    let pair = |(number, line): (usize, &str)| match line.split_once(' ') {
        Some((left, right))
            if [left, right, &[left, right].concat()].iter().all(|word| ids_by_text.contains_key(*word)) =>
        {
            Ok((left.to_owned(), right.to_owned()))
        }
        _ => {
            let expected = "two tokens and a space between, whose union is a token";
            Err(TextError::field(place, format!("line {}", number + 1), expected, format!("{line:?}")))
        }
    };
    lines.map(pair).collect()
}
