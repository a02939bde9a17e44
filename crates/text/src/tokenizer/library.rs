//! Tokenizers as Hugging Face stores them: `tokenizer.json` and its companions.
//!
//! The `tokenizers` library encodes. Around it, this file finds out what the library does not tell: how the vocabulary
//! spells bytes, what surrounds a text, which tokens end one, and whether encoding invents a first space.
//! Truncation and padding that a file may ask for are switched off: an engine wants all of the text and no more.

use std::fmt;
use std::path::Path;

use serde_json::Value;
use tokenizers::{AddedVocabulary, Model, ModelWrapper, OffsetType, PreTokenizer};

use super::bytes::Alphabet;
use super::{Method, Parts, Spellings, Tokenizer};
use crate::{TextError, Token};

/// A tokenizer of the `tokenizers` library, twice as far as special tokens go.
pub(crate) struct Library {
    tokenizer: tokenizers::Tokenizer,
    /// The same added tokens, but the special ones are not looked for.
    plain: AddedVocabulary,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The library's own output is the whole vocabulary.
        f.debug_struct("Library").field("tokens", &self.tokenizer.get_vocab_size(true)).finish()
    }
}

impl Library {
    pub fn new(tokenizer: tokenizers::Tokenizer) -> Self {
        let mut plain = tokenizer.get_added_vocabulary().clone();
        plain.set_encode_special_tokens(true);
        Self { tokenizer, plain }
    }

    pub fn encode(&self, text: &str) -> tokenizers::Result<Vec<Token>> {
        Ok(self.tokenizer.encode_fast(text, false)?.get_ids().to_vec())
    }

    /// The library's own steps, with the other list of added tokens.
    pub fn encode_plain(&self, text: &str) -> tokenizers::Result<Vec<Token>> {
        let mut pieces = self.plain.extract_and_normalize(self.tokenizer.get_normalizer(), text);
        if let Some(pre_tokenizer) = self.tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        pieces.tokenize(|piece| self.tokenizer.get_model().tokenize(piece.get()))?;
        Ok(pieces.into_encoding(None, 0, OffsetType::None)?.get_ids().to_vec())
    }
}

pub(super) fn from_dir(dir: &Path) -> Result<Tokenizer, TextError> {
    let path = dir.join("tokenizer.json");
    let place = path.display().to_string();
    let tokenizer_json = std::fs::read(&path).map_err(|source| TextError::read(&path, source))?;
    let config = json_file(&dir.join("tokenizer_config.json"))?;
    let mut parts = parts(&place, &tokenizer_json, config.as_ref())?;
    if let Some(generation) = json_file(&dir.join("generation_config.json"))? {
        parts.end_tokens.extend(generation_ends(&generation));
    }
    Ok(Tokenizer::from_parts(&dir.display().to_string(), parts))
}

pub(super) fn from_json(name: &str, tokenizer: &[u8], config: Option<&[u8]>) -> Result<Tokenizer, TextError> {
    let config = config.map(|bytes| json(&format!("{name}/tokenizer_config.json"), bytes)).transpose()?;
    Ok(Tokenizer::from_parts(name, parts(&format!("{name}/tokenizer.json"), tokenizer, config.as_ref())?))
}

/// A JSON file that need not be there.
pub(crate) fn json_file(path: &Path) -> Result<Option<Value>, TextError> {
    match std::fs::read(path) {
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

/// `eos_token_id` of `generation_config.json`: a number or a list of numbers.
fn generation_ends(generation: &Value) -> Vec<Token> {
    let number = |value: &Value| value.as_u64().and_then(|id| Token::try_from(id).ok());
    match generation.get("eos_token_id") {
        Some(Value::Array(ids)) => ids.iter().filter_map(number).collect(),
        Some(id) => number(id).into_iter().collect(),
        None => Vec::new(),
    }
}

fn parts(place: &str, tokenizer_json: &[u8], config: Option<&Value>) -> Result<Parts, TextError> {
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(tokenizer_json)
        .map_err(|error| TextError::format(place, "a tokenizer", error))?;
    tokenizer.with_truncation(None).map_err(|error| TextError::format(place, "a tokenizer", error))?;
    tokenizer.with_padding(None);

    let shape = Shape::of(&tokenizer);
    let spellings = spellings(place, &tokenizer, shape.alphabet)?;
    let named =
        |key| config.and_then(|config| special_spelling(config, key)).and_then(|text| tokenizer.token_to_id(text));
    let (mut prefix, mut suffix) = surroundings(place, &tokenizer)?;
    let bos = named("bos_token").or_else(|| prefix.first().copied());
    let eos = named("eos_token");
    follow_flag(config, "add_bos_token", bos, &mut prefix, 0);
    let end = suffix.len();
    follow_flag(config, "add_eos_token", eos, &mut suffix, end);

    let mut end_tokens: Vec<Token> = eos.into_iter().collect();
    if end_tokens.is_empty() {
        // Without a word from the configuration, the customary spellings are the best guess.
        let customary = ["</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>"];
        end_tokens.extend(customary.iter().filter_map(|text| tokenizer.token_to_id(text)));
    }
    let drops_first_space = shape.drops_first_space;
    let method = Method::Library(Box::new(Library::new(tokenizer)));
    Ok(Parts { method, spellings, prefix, suffix, bos, end_tokens, drops_first_space })
}

/// Some tokenizer classes of transformers override the file's post-processor by these two flags.
fn follow_flag(config: Option<&Value>, flag: &str, token: Option<Token>, around: &mut Vec<Token>, at: usize) {
    let (Some(wanted), Some(token)) = (config.and_then(|config| config.get(flag)?.as_bool()), token) else { return };
    match (wanted, around.contains(&token)) {
        (true, false) => around.insert(at, token),
        (false, true) => around.retain(|&other| other != token),
        _ => {}
    }
}

/// What the post-processor puts before and after a text, found by trying.
fn surroundings(place: &str, tokenizer: &tokenizers::Tokenizer) -> Result<(Vec<Token>, Vec<Token>), TextError> {
    let encode = |special| {
        let encoding = tokenizer.encode_fast("a", special).map_err(|error| TextError::encode(place, error))?;
        Ok::<_, TextError>(encoding.get_ids().to_vec())
    };
    let (bare, full) = (encode(false)?, encode(true)?);
    let at = (0..=full.len().saturating_sub(bare.len())).find(|&at| full[at..].starts_with(&bare));
    Ok(at.map_or((Vec::new(), Vec::new()), |at| (full[..at].to_vec(), full[at + bare.len()..].to_vec())))
}

/// What a tokenizer's components say about its spellings.
struct Shape {
    alphabet: Alphabet,
    drops_first_space: bool,
}

impl Shape {
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
            Alphabet::Marked { space: replacement.unwrap_or('▁'), bytes }
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

/// The first component of a kind, at any depth of a sequence.
fn component<'a>(part: &'a Value, kind: &str) -> Option<&'a Value> {
    if part.get("type").and_then(Value::as_str) == Some(kind) {
        return Some(part);
    }
    let members = ["decoders", "pretokenizers", "normalizers"].iter().find_map(|key| part.get(key)?.as_array());
    members?.iter().find_map(|member| component(member, kind))
}

fn spellings(place: &str, tokenizer: &tokenizers::Tokenizer, alphabet: Alphabet) -> Result<Spellings, TextError> {
    /// No model has so many tokens; a file that names a higher one would only make us fill the memory with nothing.
    const MOST_TOKENS: usize = 1 << 24;
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
            // Byte-level vocabularies find added tokens in the text itself, so they are spelt as they are.
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
