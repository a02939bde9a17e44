//! A folder without a `tokenizer.json`, whose tokenizer is SentencePiece's own file, `tokenizer.model` or
//! `spiece.model`.
//!
//! Encoding follows SentencePiece, with which the checkpoint was trained: special tokens are split off, the text
//! between them is normalized ([`normalizer`]) and encoded by merges ([`super::gguf_spm`]) or by likelihood
//! ([`unigram`]). The converters of transformers approximate that and differ where a run of one character has two
//! segmentations. `tokenizer_config.json` adds tokens after the model's pieces and can change the tokens around a text.
//! A space is inserted before each segment of text, also after special tokens, unless `legacy` is false.
//!
//! Special tokens of ChatGLM 2 and 3 are only written in their code, so they are here as well ([`CHAT_GLM`]).
//!
//! Not supported: models of words or characters, and spaces as suffixes. Files of tiktoken with the same name are read
//! by [`super::tiktoken`].

pub(super) mod normalizer;
mod proto;
pub(super) mod unigram;

use std::path::Path;

use foretoken_weights::whole::{self, VOCABULARY_BYTES_MAX};
use serde_json::Value;
use tokenizers::AddedToken;

use super::bytes::Alphabet;
use super::folder::{NumberedToken, added_tokens_of, configuration, json_file, special_spelling};
use super::gguf_spm::{ModelFileSettings, SentencePieceEncoder};
use super::gguf_vocabulary::GgufVocabulary;
use super::parts::{Method, Parts};
use super::{MOST_TOKENS, gguf};
use crate::{TextError, Token};
use normalizer::Normalizer;
use proto::{Piece, Proto};

/// The file's usual name.
pub(crate) const FILE: &str = "tokenizer.model";

/// All its names, of which the first that is there is read. T5 has the second one.
pub(super) const FILES: [&str; 2] = [FILE, "spiece.model"];
/// The special tokens of ChatGLM, which follow the model's pieces; the last four are not in ChatGLM 2.
const CHAT_GLM: [&str; 9] =
    ["[MASK]", "[gMASK]", "[sMASK]", "sop", "eop", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"];
/// Those before a text.
const CHAT_GLM_PREFIX: [&str; 2] = ["[gMASK]", "sop"];

pub(super) fn from_dir(dir: &Path) -> Result<Parts, TextError> {
    let (place, bytes, config, further) = files(dir)?;
    parts(&place, &bytes, &config, &further)
}

/// A folder's model with its path, `tokenizer_config.json` and `added_tokens.json`.
fn files(dir: &Path) -> Result<(String, Vec<u8>, Value, Value), TextError> {
    let paths = FILES.map(|file| dir.join(file));
    let path = paths.iter().find(|path| path.exists()).unwrap_or(&paths[0]);
    let bytes = whole::read(path, VOCABULARY_BYTES_MAX).map_err(|source| TextError::read(path, source))?;
    let further = json_file(&dir.join("added_tokens.json"))?.unwrap_or_default();
    Ok((path.display().to_string(), bytes, configuration(dir)?, further))
}

/// The vocabulary of a folder with the tokens that other files add. Its algorithm is `t5` for Unigram, else `llama`.
///
/// # Errors
/// A file cannot be understood.
pub(crate) fn whole_vocabulary(dir: &Path) -> Result<GgufVocabulary, TextError> {
    let (place, bytes, config, further) = files(dir)?;
    let mut proto = Proto::read(&place, &bytes)?;
    let special = chat_glm_tokens(&proto, &config);
    add(&place, &mut proto.pieces, added_tokens_of(&place, &config, &further)?)?;
    add(&place, &mut proto.pieces, special)?;
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
    let special = chat_glm_tokens(&proto, config);
    let rstripped = add(place, &mut proto.pieces, added_tokens_of(place, config, further)?)?;
    let glm_prefix: Vec<Token> =
        special.iter().filter(|token| CHAT_GLM_PREFIX.contains(&&*token.token.content)).map(|token| token.id).collect();
    add(place, &mut proto.pieces, special)?;
    let vocabulary = vocabulary(place, &proto, config)?;
    let kinds = vocabulary.kinds(place)?;
    let settings = ModelFileSettings {
        normalizer: Normalizer::new(place, &proto.charsmap, proto.remove_extra_whitespaces)?,
        is_unigram,
        byte_fallback: proto.byte_fallback,
        prefix_first_only: config.get("legacy").and_then(Value::as_bool) == Some(false),
        rstripped,
    };
    let encoder = SentencePieceEncoder::new(place, &vocabulary, &kinds)?.with_model_file(settings, &vocabulary, &kinds);
    let spellings = gguf::spellings(&vocabulary, &kinds, Alphabet::SentencePiece { space: '▁', bytes: false });
    let token_if = |wanted: Option<bool>, default: bool, token: Option<Token>| {
        token.filter(|_| wanted.unwrap_or(default)).into_iter().collect()
    };
    let is_t5 = config.get("tokenizer_class").and_then(Value::as_str).is_some_and(|class| class.starts_with("T5"));
    Ok(Parts {
        prefix: match glm_prefix.as_slice() {
            [] => token_if(vocabulary.add_bos, !is_unigram, vocabulary.bos),
            _ => glm_prefix,
        },
        suffix: token_if(vocabulary.add_eos, is_t5, vocabulary.eos),
        bos: vocabulary.bos,
        end_tokens: vocabulary.eos.into_iter().collect(),
        drops_first_space: encoder.adds_prefix_space(),
        method: Method::SentencePiece(Box::new(encoder)),
        spellings,
    })
}

/// The special tokens behind the pieces of a ChatGLM; none of other models.
fn chat_glm_tokens(proto: &Proto, config: &Value) -> Vec<NumberedToken> {
    let has = |key: &str, wanted: fn(&str) -> bool| config.get(key).and_then(Value::as_str).is_some_and(wanted);
    let is_second = has("name_or_path", |name| name.to_lowercase().contains("chatglm2"));
    let count = match has("tokenizer_class", |class| class == "ChatGLMTokenizer") {
        false => 0,
        true if is_second => CHAT_GLM.len() - 4,
        true => CHAT_GLM.len(),
    };
    let numbered = |(text, id): (&&str, Token)| NumberedToken { id, token: AddedToken::from(*text, true) };
    CHAT_GLM.iter().take(count).zip(proto.pieces.len() as Token..).map(numbered).collect()
}

/// The model as a GGUF vocabulary, whose fields mirror SentencePiece's.
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
        model: if proto.algorithm == 1 { "t5" } else { "llama" }.to_owned(),
        tokens: proto.pieces.iter().map(|piece| piece.text.clone()).collect(),
        scores: proto.pieces.iter().map(|piece| piece.score).collect(),
        characters: proto.charsmap.clone(),
        removes_spaces: proto.remove_extra_whitespaces,
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

/// Adds the tokens of other files after the pieces, and returns those that strip the white space after them.
fn add(place: &str, pieces: &mut Vec<Piece>, added: Vec<NumberedToken>) -> Result<Vec<Token>, TextError> {
    let mut rstripped = Vec::new();
    for added_token in added {
        let id = added_token.id as usize;
        if id >= MOST_TOKENS {
            return Err(TextError::field(place, "the highest id", format!("less than {MOST_TOKENS}"), id));
        }
        while pieces.len() <= id {
            pieces.push(Piece { text: String::new(), score: 0.0, kind: 5 });
        }
        if pieces[id].text.is_empty() || (pieces[id].text == added_token.token.content && pieces[id].kind != 2) {
            pieces[id] = Piece {
                text: added_token.token.content.clone(),
                score: pieces[id].score,
                kind: if added_token.token.special { 3 } else { 4 },
            };
        }
        rstripped.extend(added_token.token.rstrip.then_some(added_token.id));
    }
    Ok(rstripped)
}
