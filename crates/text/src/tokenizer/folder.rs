//! Tokenizers as Hugging Face stores them: `tokenizer.json` and `tokenizer_config.json`.
//!
//! The `tokenizers` library encodes. This file derives what the library does not provide: how the vocabulary spells
//! bytes, which tokens are added around a text, which tokens end one, and whether encoding inserts a dummy prefix
//! space. Truncation and padding that a file may ask for are switched off, since the engine needs exactly the text.
//!
//! `added_tokens_decoder` of the configuration overrides the file, as in transformers.

use std::collections::HashSet;
use std::path::Path;

use foretoken_weights::whole::{self, VOCABULARY_BYTES_MAX};
use serde_json::Value;
use tokenizers::{AddedToken, ModelWrapper};

use super::MOST_TOKENS;
use super::build_limits;
use super::bytes::{Alphabet, Spellings};
use super::growth;
use super::guard::{check, guarded};
use super::library::Library;
use super::parts::{Method, Parts};
use crate::{TextError, Token};

pub(super) fn from_dir(dir: &Path) -> Result<Parts, TextError> {
    let path = dir.join("tokenizer.json");
    let place = path.display().to_string();
    let tokenizer_json = whole::read(&path, VOCABULARY_BYTES_MAX).map_err(|source| TextError::read(&path, source))?;
    let config = configuration(dir)?;
    parts(&place, &tokenizer_json, Some(&config))
}

pub(super) fn from_json(name: &str, tokenizer: &[u8], config: Option<&[u8]>) -> Result<Parts, TextError> {
    let config = config.map(|bytes| json(&format!("{name}/tokenizer_config.json"), bytes)).transpose()?;
    parts(&format!("{name}/tokenizer.json"), tokenizer, config.as_ref())
}

/// `tokenizer_config.json`, with the special tokens of `special_tokens_map.json` that it does not name.
pub(crate) fn configuration(dir: &Path) -> Result<Value, TextError> {
    let mut config = json_file(&dir.join("tokenizer_config.json"))?.unwrap_or_default();
    let map = json_file(&dir.join("special_tokens_map.json"))?.unwrap_or_default();
    if config.is_null() {
        config = Value::Object(serde_json::Map::new());
    }
    if let (Some(config), Some(map)) = (config.as_object_mut(), map.as_object()) {
        for (key, value) in map {
            config.entry(key).or_insert_with(|| value.clone());
        }
    }
    Ok(config)
}

/// Reads an optional JSON file.
pub(crate) fn json_file(path: &Path) -> Result<Option<Value>, TextError> {
    match whole::read(path, VOCABULARY_BYTES_MAX) {
        Ok(bytes) => json(&path.display().to_string(), &bytes).map(Some),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(TextError::read(path, error)),
    }
}

fn json(place: &str, bytes: &[u8]) -> Result<Value, TextError> {
    serde_json::from_slice(bytes).map_err(|error| TextError::format(place, "json", error))
}

/// The spelling of a special token in `tokenizer_config.json`: a string, or an object with its `content`.
pub(crate) fn special_spelling<'a>(config: &'a Value, key: &str) -> Option<&'a str> {
    let value = config.get(key)?;
    value.as_str().or_else(|| value.get("content")?.as_str())
}

fn parts(place: &str, tokenizer_json: &[u8], config: Option<&Value>) -> Result<Parts, TextError> {
    check(place, tokenizer_json)?;
    build_limits::check(place, tokenizer_json)?;
    let tokenizer = guarded(|| {
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(tokenizer_json)?;
        tokenizer.with_truncation(None)?;
        tokenizer.with_padding(None);
        Ok(tokenizer)
    });
    let tokenizer = tokenizer.map_err(|error| refused(place, error))?;
    growth::check(place, &tokenizer)?;
    parts_of(place, tokenizer, config, &Value::Null)
}

fn refused(place: &str, found: impl std::fmt::Display) -> TextError {
    TextError::format(place, "a tokenizer", found)
}

/// Combines the library's tokenizer, the configuration and `added_tokens.json` (`further`).
pub(super) fn parts_of(
    place: &str,
    mut tokenizer: tokenizers::Tokenizer,
    config: Option<&Value>,
    further: &Value,
) -> Result<Parts, TextError> {
    let known = tokenizer.get_added_tokens_decoder();
    let next = known.keys().max().map_or(0, |&id| id + 1).max(tokenizer.get_vocab_size(false) as Token);
    let mut added: Vec<AddedToken> = Vec::new();
    let mut new = 0;
    for NumberedToken { id, token } in added_tokens_of(place, config.unwrap_or(&Value::Null), further)? {
        // As in transformers, the configuration decides how a token is matched. A token whose id would differ from the
        // one it names does not belong to this vocabulary.
        let is_new = tokenizer.token_to_id(&token.content).is_none();
        if tokenizer.token_to_id(&token.content).unwrap_or(next + new) == id && known.get(&id) != Some(&token) {
            new += Token::from(is_new);
            added.push(token);
        }
    }
    build_limits::check_added(place, tokenizer.get_normalizer(), &added)?;
    guarded(|| tokenizer.add_tokens(added)).map_err(|error| refused(place, error))?;
    let unlisted = unlisted_special_tokens(&tokenizer, config);
    guarded(|| tokenizer.add_special_tokens(unlisted)).map_err(|error| refused(place, error))?;

    let rules = SpellingRules::of(&tokenizer);
    let spellings = spellings(place, &tokenizer, rules.alphabet)?;
    let named =
        |key| config.and_then(|config| special_spelling(config, key)).and_then(|text| tokenizer.token_to_id(text));
    let (mut prefix, mut suffix) = prefix_and_suffix(place, &tokenizer)?;
    let bos = named("bos_token").or_else(|| prefix.first().copied());
    let eos = named("eos_token");
    apply_flag(config, "add_bos_token", bos, &mut prefix, 0);
    let end = suffix.len();
    apply_flag(config, "add_eos_token", eos, &mut suffix, end);

    let mut end_tokens: Vec<Token> = eos.into_iter().collect();
    if end_tokens.is_empty() {
        // The configuration names none: well-known end tokens are the best guess.
        let well_known = ["</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>"];
        end_tokens.extend(well_known.iter().filter_map(|text| tokenizer.token_to_id(text)));
    }
    let drops_first_space = rules.drops_first_space;
    let method = Method::Library(Box::new(Library::new(tokenizer)));
    Ok(Parts { method, spellings, prefix, suffix, bos, end_tokens, drops_first_space })
}

/// A token that is added to the vocabulary.
pub(super) struct NumberedToken {
    pub id: Token,
    pub token: AddedToken,
}

/// The tokens that `added_tokens_decoder` of a configuration and `added_tokens.json` (`further`) name, in their order.
pub(super) fn added_tokens_of(place: &str, config: &Value, further: &Value) -> Result<Vec<NumberedToken>, TextError> {
    let object = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let mut added: Vec<NumberedToken> = Vec::new();
    for (key, value) in object(&config["added_tokens_decoder"]) {
        let field = format!("added_tokens_decoder.{key}");
        let refused = |found: &dyn std::fmt::Display| {
            TextError::field(place, &field, "the number of a token, and its content", found)
        };
        let id: Token = key.parse().map_err(|_| refused(&key))?;
        let content = value["content"].as_str().ok_or_else(|| refused(&value))?;
        let flag = |name: &str, otherwise: bool| value[name].as_bool().unwrap_or(otherwise);
        let special = flag("special", false);
        let token = AddedToken::from(content, special)
            .single_word(flag("single_word", false))
            .lstrip(flag("lstrip", false))
            .rstrip(flag("rstrip", false))
            .normalized(flag("normalized", !special));
        added.push(NumberedToken { id, token });
    }
    let named = ["bos_token", "eos_token", "unk_token", "pad_token"].map(|key| special_spelling(config, key));
    let listed = config["additional_special_tokens"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let special: HashSet<&str> = named.into_iter().flatten().chain(listed).collect();
    let mut numbers: HashSet<Token> = added.iter().map(|added_token| added_token.id).collect();
    for (content, id) in object(further) {
        let field = format!("added_tokens.json: {content}");
        let id = id.as_u64().and_then(|id| Token::try_from(id).ok());
        let id = id.ok_or_else(|| TextError::field(place, field, "the number of a token", &further[&content]))?;
        if numbers.insert(id) {
            added.push(NumberedToken {
                id,
                token: AddedToken::from(content.as_str(), special.contains(content.as_str())),
            });
        }
    }
    added.sort_by_key(|added_token| added_token.id);
    Ok(added)
}

/// Tokens that are special only by the configuration; old files do not list them among the added tokens.
fn unlisted_special_tokens(tokenizer: &tokenizers::Tokenizer, config: Option<&Value>) -> Vec<AddedToken> {
    let keys = ["bos_token", "eos_token", "unk_token", "pad_token"];
    let added = keys.iter().filter_map(|key| special_spelling(config?, key));
    let unlisted =
        |text: &&str| tokenizer.token_to_id(text).is_some() && !tokenizer.get_added_vocabulary().is_special_token(text);
    added.filter(unlisted).map(|text| AddedToken::from(text, true)).collect()
}

/// Applies `add_bos_token` or `add_eos_token`, with which some tokenizer classes of transformers override the file's
/// post-processor.
fn apply_flag(config: Option<&Value>, flag: &str, token: Option<Token>, around: &mut Vec<Token>, at: usize) {
    let (Some(wanted), Some(token)) = (config.and_then(|config| config.get(flag)?.as_bool()), token) else { return };
    match (wanted, around.contains(&token)) {
        (true, false) => around.insert(at, token),
        (false, true) => around.retain(|&other| other != token),
        _ => {}
    }
}

/// The tokens that the post-processor puts before and after a text, found by encoding one.
fn prefix_and_suffix(place: &str, tokenizer: &tokenizers::Tokenizer) -> Result<(Vec<Token>, Vec<Token>), TextError> {
    let encode = |special| {
        let encoding = guarded(|| tokenizer.encode_fast("a", special)).map_err(|error| refused(place, error))?;
        Ok::<_, TextError>(encoding.get_ids().to_vec())
    };
    let (bare, full) = (encode(false)?, encode(true)?);
    let at = (0..=full.len().saturating_sub(bare.len())).find(|&at| full[at..].starts_with(&bare));
    Ok(at.map_or((Vec::new(), Vec::new()), |at| (full[..at].to_vec(), full[at + bare.len()..].to_vec())))
}

/// How a tokenizer's components spell text.
struct SpellingRules {
    alphabet: Alphabet,
    drops_first_space: bool,
}

impl SpellingRules {
    fn of(tokenizer: &tokenizers::Tokenizer) -> Self {
        let decoder = serde_json::to_value(tokenizer.get_decoder()).unwrap_or(Value::Null);
        let before = [
            serde_json::to_value(tokenizer.get_pre_tokenizer()).unwrap_or(Value::Null),
            serde_json::to_value(tokenizer.get_normalizer()).unwrap_or(Value::Null),
        ];
        let find = |kind| component(&decoder, kind).or_else(|| before.iter().find_map(|part| component(part, kind)));
        let model_has_bytes = match tokenizer.get_model() {
            ModelWrapper::BPE(model) => model.byte_fallback,
            ModelWrapper::Unigram(model) => model.byte_fallback(),
            _ => false,
        };
        let bytes = model_has_bytes || component(&decoder, "ByteFallback").is_some();
        let metaspace = find("Metaspace");
        let replaces =
            component(&decoder, "Replace").is_some_and(|part| part.get("content").and_then(Value::as_str) == Some(" "));
        let alphabet = if find("ByteLevel").is_some() {
            Alphabet::ByteLevel
        } else if metaspace.is_some() || replaces || bytes {
            let replacement = metaspace.and_then(|part| part.get("replacement")?.as_str()?.chars().next());
            Alphabet::SentencePiece { space: replacement.unwrap_or('▁'), bytes }
        } else {
            Alphabet::Plain
        };
        let strips = component(&decoder, "Strip").is_some_and(|part| {
            part.get("content").and_then(Value::as_str) == Some(" ")
                && part.get("start").and_then(Value::as_u64) > Some(0)
        });
        let prepends = component(&decoder, "Metaspace")
            .is_some_and(|part| part.get("prepend_scheme").and_then(Value::as_str) != Some("never"));
        Self { alphabet, drops_first_space: strips || prepends }
    }
}

/// The first component of a type, at any depth of a `Sequence`.
pub(crate) fn component<'a>(part: &'a Value, kind: &str) -> Option<&'a Value> {
    if part.get("type").and_then(Value::as_str) == Some(kind) {
        return Some(part);
    }
    let members = ["decoders", "pretokenizers", "normalizers"].iter().find_map(|key| part.get(key)?.as_array());
    members?.iter().find_map(|member| component(member, kind))
}

fn spellings(place: &str, tokenizer: &tokenizers::Tokenizer, alphabet: Alphabet) -> Result<Spellings, TextError> {
    let added = tokenizer.get_added_tokens_decoder();
    let vocabulary = tokenizer.get_vocab(true);
    let len = vocabulary.values().chain(added.keys()).max().map_or(0, |&id| id as usize + 1);
    if len > MOST_TOKENS {
        return Err(TextError::field(place, "the highest id", format!("less than {MOST_TOKENS}"), len - 1));
    }
    let mut rows: Vec<Option<&str>> = vec![None; len];
    for (spelling, &id) in &vocabulary {
        rows[id as usize] = Some(spelling);
    }
    let mut spellings = Spellings::new();
    for (id, row) in rows.iter().enumerate() {
        match (added.get(&(id as Token)), row) {
            // Byte-level vocabularies match added tokens in the text itself, so they are written as they are.
            (Some(token), _) if token.special || alphabet == Alphabet::ByteLevel => {
                spellings.push(token.content.as_bytes(), token.special);
            }
            (Some(token), _) => spellings.push(&alphabet.bytes(&token.content), false),
            (None, Some(spelling)) => spellings.push(&alphabet.bytes(spelling), false),
            (None, None) => spellings.push(&[], false),
        }
    }
    Ok(spellings)
}

#[cfg(test)]
mod tests {
    use super::super::Tokenizer;

    /// A vocabulary like Llama 2's: merges over text with spaces as ▁, and byte fallback.
    const MARKED: &str = r#"{"version": "1.0", "truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0,
        "direction": "Right"}, "padding": null, "added_tokens": [
          {"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true},
          {"id": 6, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true},
          {"id": 7, "content": "[▁]", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": true, "special": false}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
          {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
          {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}},
          {"Sequence": {"id": "B", "type_id": 1}}],
          "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
          {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
          "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
          "vocab": {"<s>": 0, "<0xC3>": 1, "<0xA4>": 2, "▁": 3, "a": 4, "▁a": 5}, "merges": ["▁ a"]}}"#;

    fn marked(config: Option<&str>) -> Tokenizer {
        Tokenizer::from_json("marked", MARKED.as_bytes(), config.map(str::as_bytes)).unwrap()
    }

    #[test]
    fn escaped_spaces_bytes_and_added_tokens() {
        let tokenizer = marked(None);
        assert_eq!(tokenizer.encode("a aä", true).unwrap(), [0, 5, 5, 1, 2]);
        assert_eq!(tokenizer.decode(&[0, 5, 5, 1, 2], true), "a aä");
        assert_eq!(tokenizer.decode(&[1], true), "\u{fffd}");
        assert_eq!((tokenizer.token_bytes(1), tokenizer.token_bytes(5)), (&b"\xc3"[..], &b" a"[..]));
        assert_eq!((tokenizer.token_bytes(7), tokenizer.token_bytes(8)), (&b"[ ]"[..], &b""[..]));
        assert_eq!((tokenizer.bos(), tokenizer.adds_bos(), tokenizer.end_tokens()), (Some(0), true, &[6][..]));
        assert_eq!(tokenizer.vocabulary_len(), 8);
    }

    #[test]
    fn the_configuration_overrides_the_file() {
        let tokenizer = marked(Some(
            r#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": false, "add_eos_token": true}"#,
        ));
        assert_eq!(tokenizer.encode("a", true).unwrap(), [5, 6]);
        assert_eq!((tokenizer.adds_bos(), tokenizer.end_tokens()), (false, &[6][..]));
        let tokenizer = marked(Some(r#"{"unk_token": "a", "pad_token": "none"}"#));
        assert!(tokenizer.is_special(4) && !tokenizer.is_special(5));
        assert_eq!(tokenizer.vocabulary_len(), 8);
        let tokenizer = marked(Some(r#"{"bos_token": null, "eos_token": "<s>"}"#));
        assert_eq!((tokenizer.encode("", true).unwrap(), tokenizer.end_tokens()), (vec![0], &[0][..]));
    }
}
