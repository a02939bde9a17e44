//! A folder whose tokenizer is SentencePiece's own file, `tokenizer.model`, without a `tokenizer.json`.
//!
//! What is done is what SentencePiece does, since the checkpoint was trained with it: special tokens are cut out, the
//! text between them is normalized ([`normalizer`]) and cut by merges ([`super::gguf_spm`]) or by likelihood
//! ([`likeliest`]). The converters of transformers come near to that and differ where a run of one character can be cut
//! in two ways. `tokenizer_config.json` adds tokens behind the model's pieces and has a say in what surrounds a text.
//! A space is invented before each stretch of text, also behind special tokens, unless `legacy` is false.
//!
//! Left out: models of words or characters, spaces as suffixes, and files of tiktoken with the same name.

pub(super) mod likeliest;
pub(super) mod normalizer;
mod proto;

use std::path::Path;

use foretoken_weights::whole::{self, VOCABULARY_BYTES_MAX};
use serde_json::Value;

use super::bytes::Alphabet;
use super::folder::{AddedMark, added_marks, configuration, json_file, special_spelling};
use super::gguf_spm::{Merger, Training};
use super::gguf_vocabulary::GgufVocabulary;
use super::parts::{Method, Parts};
use super::{MOST_TOKENS, gguf};
use crate::{TextError, Token};
use normalizer::Normalizer;
use proto::{Piece, Proto};

/// The file of a folder.
pub(crate) const FILE: &str = "tokenizer.model";

pub(super) fn from_dir(dir: &Path) -> Result<Parts, TextError> {
    let (place, bytes, config, further) = files(dir)?;
    parts(&place, &bytes, &config, &further)
}

/// A folder's model with its name, and the two files that add to it.
fn files(dir: &Path) -> Result<(String, Vec<u8>, Value, Value), TextError> {
    let path = dir.join(FILE);
    let bytes = whole::read(&path, VOCABULARY_BYTES_MAX).map_err(|source| TextError::read(&path, source))?;
    let further = json_file(&dir.join("added_tokens.json"))?.unwrap_or_default();
    Ok((path.display().to_string(), bytes, configuration(dir)?, further))
}

/// The vocabulary of a folder whose model merges pieces, with the tokens that other files add.
///
/// # Errors
/// A file cannot be understood, or the model cuts by likelihood.
pub(crate) fn merged_vocabulary(dir: &Path) -> Result<GgufVocabulary, TextError> {
    let (place, bytes, config, further) = files(dir)?;
    let mut proto = Proto::read(&place, &bytes)?;
    if proto.algorithm != 2 {
        return Err(TextError::field(&place, "trainer_spec.model_type", "2 (BPE)", proto.algorithm));
    }
    add(&place, &mut proto.pieces, added_marks(&place, &config, &further)?)?;
    vocabulary(&place, &proto, &config)
}

pub(super) fn parts(place: &str, bytes: &[u8], config: &Value, further: &Value) -> Result<Parts, TextError> {
    let mut proto = Proto::read(place, bytes)?;
    let is_unigram = match proto.algorithm {
        1 => true,
        2 => false,
        other => {
            let found = format!("{other} (3 is WORD, 4 is CHAR)");
            return Err(TextError::field(place, "trainer_spec.model_type", "1 (UNIGRAM) or 2 (BPE)", found));
        }
    };
    if proto.spaces_are_suffixes {
        let field = "trainer_spec.treat_whitespace_as_suffix";
        return Err(TextError::field(place, field, "false (spaces before words)", true));
    }
    if !proto.escape_whitespaces {
        return Err(TextError::field(place, "normalizer_spec.escape_whitespaces", "true (spaces as ▁)", false));
    }
    let strips = add(place, &mut proto.pieces, added_marks(place, config, further)?)?;
    let vocabulary = vocabulary(place, &proto, config)?;
    let kinds = vocabulary.kinds(place)?;
    let training = Training {
        normalizer: Normalizer::new(place, &proto.charsmap, proto.remove_extra_whitespaces)?,
        is_unigram,
        byte_fallback: proto.byte_fallback,
        invents_first_only: config.get("legacy").and_then(Value::as_bool) == Some(false),
        strips,
    };
    let merger = Merger::new(place, &vocabulary, &kinds)?.trained(training, &vocabulary, &kinds);
    let spellings = gguf::spellings(&vocabulary, &kinds, Alphabet::Marked { space: '▁', bytes: false });
    let around = |wanted: Option<bool>, habit: bool, token: Option<Token>| {
        token.filter(|_| wanted.unwrap_or(habit)).into_iter().collect()
    };
    let is_t5 = config.get("tokenizer_class").and_then(Value::as_str).is_some_and(|class| class.starts_with("T5"));
    Ok(Parts {
        prefix: around(vocabulary.add_bos, !is_unigram, vocabulary.bos),
        suffix: around(vocabulary.add_eos, is_t5, vocabulary.eos),
        bos: vocabulary.bos,
        end_tokens: vocabulary.eos.into_iter().collect(),
        drops_first_space: merger.invents_space(),
        method: Method::Pieces(Box::new(merger)),
        spellings,
    })
}

/// The model in the words of GGUF, which took them from here.
fn vocabulary(place: &str, proto: &Proto, config: &Value) -> Result<GgufVocabulary, TextError> {
    let unknown = proto.pieces.iter().position(|piece| piece.kind == 2);
    let unknown =
        unknown.ok_or_else(|| TextError::format(place, "a SentencePiece model", "no piece for the unknown"))?;
    let named = |key: &str, id: i64| {
        let is_control = |id: &usize| proto.pieces.get(*id).is_some_and(|piece| piece.kind == 3);
        match config.get(key) {
            Some(Value::Null) => None,
            _ => special_spelling(config, key)
                .and_then(|text| proto.pieces.iter().position(|piece| piece.text == text))
                .or_else(|| usize::try_from(id).ok().filter(is_control))
                .map(|id| id as Token),
        }
    };
    let flag = |key: &str| config.get(key).and_then(Value::as_bool);
    Ok(GgufVocabulary {
        model: "llama".to_owned(),
        tokens: proto.pieces.iter().map(|piece| piece.text.clone()).collect(),
        scores: proto.pieces.iter().map(|piece| piece.score).collect(),
        token_types: proto.pieces.iter().map(|piece| piece.kind).collect(),
        bos: named("bos_token", proto.bos),
        eos: named("eos_token", proto.eos),
        unknown: Some(unknown as Token),
        add_bos: flag("add_bos_token"),
        add_eos: flag("add_eos_token"),
        add_space_prefix: Some(flag("add_prefix_space").unwrap_or(true) && proto.add_dummy_prefix),
        ..GgufVocabulary::default()
    })
}

/// Adds the tokens of other files behind the pieces, and returns those that take the white space behind them.
fn add(place: &str, pieces: &mut Vec<Piece>, marks: Vec<AddedMark>) -> Result<Vec<Token>, TextError> {
    let mut strips = Vec::new();
    for mark in marks {
        let id = mark.id as usize;
        if id >= MOST_TOKENS {
            return Err(TextError::field(place, "the highest id", format!("less than {MOST_TOKENS}"), id));
        }
        while pieces.len() <= id {
            pieces.push(Piece { text: String::new(), score: 0.0, kind: 5 });
        }
        if pieces[id].text.is_empty() || (pieces[id].text == mark.token.content && pieces[id].kind != 2) {
            pieces[id] = Piece {
                text: mark.token.content.clone(),
                score: pieces[id].score,
                kind: if mark.token.special { 3 } else { 4 },
            };
        }
        strips.extend(mark.token.rstrip.then_some(mark.id));
    }
    Ok(strips)
}
