//! Converts a folder's tokenizer to GGUF metadata: tokens, types, merges or scores, special tokens, chat template.
//!
//! `tokenizer.json` is a pipeline of components; GGUF has three algorithms with a few switches. So the components are
//! matched against the ones that GGUF names (`gpt2`: byte-level BPE with a pre-tokenizer of
//! `tokenizer/pre_tokenizer.rs`; `llama`: BPE with spaces as ▁ and byte fallback, or SentencePiece's own file; `t5`:
//! Unigram), and any other component is refused by name. The result is read back and must give the same tokens as the
//! folder for a few difficult texts, because a wrong vocabulary would only make the model slightly worse and nobody
//! would notice. Not supported: WordPiece, and normalizers, except SentencePiece's of Unigram models; NFC is dropped
//! with a note.

mod files;
mod probes;
mod unigram;

use std::collections::HashMap;
use std::path::Path;

use foretoken_weights::gguf::{Metadata, Value};
use serde_json::Value as Json;

use crate::tokenizer::{
    DIGIT, DIGITS, FALCON_PUNCTUATION, GPT_2, SENTENCEPIECE_FILE, TURN_ENDS, byte_token, component, json_file, name_of,
    special_spelling, tiktoken_file,
};
use crate::{ChatTemplate, TextError, Token, Tokenizer};

/// A vocabulary as a GGUF file would hold it.
#[derive(Debug)]
pub struct ExportedVocabulary {
    /// The keys `tokenizer.*`.
    pub entries: Vec<(String, Value)>,
    /// Notes for the user on texts that are tokenized differently, one line each.
    pub notes: Vec<String>,
}

/// The bos and end tokens that the model's other files name.
#[derive(Clone, Copy, Debug)]
pub struct BoundaryTokens<'a> {
    /// The token that begins a text.
    pub bos: Option<Token>,
    /// The tokens that end one.
    pub ends: &'a [Token],
}

/// GGUF's token types.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// Converts the tokenizer and the chat template of `dir` to GGUF metadata. `rows` is the network's vocabulary size; ids
/// without a token become unused tokens.
///
/// # Errors
/// If a file is missing or cannot be understood, the tokenizer is of a kind or has a component that GGUF cannot
/// express, it has more tokens than the network, or the result tokenizes texts differently.
pub fn gguf_vocabulary(dir: &Path, rows: usize, boundary: BoundaryTokens<'_>) -> Result<ExportedVocabulary, TextError> {
    let [json, pieces] = ["tokenizer.json", SENTENCEPIECE_FILE].map(|name| dir.join(name));
    let tiktoken = tiktoken_file(dir).filter(|_| !json.exists());
    let (is_tiktoken, is_pieces) = (tiktoken.is_some(), !json.exists() && pieces.exists());
    let path = tiktoken.unwrap_or(if is_pieces { pieces } else { json });
    let place = path.display().to_string();
    std::fs::metadata(&path).map_err(|source| TextError::read(&path, source))?;
    let tokenizer = Tokenizer::from_dir(dir)?;
    let json = if is_tiktoken || is_pieces { Json::Null } else { json_file(&path)?.unwrap_or_default() };
    let config = json_file(&dir.join("tokenizer_config.json"))?.unwrap_or_default();
    if tokenizer.vocabulary_len() > rows {
        let expected = format!("at most {rows} (the network's)");
        return Err(TextError::field(&place, "tokens", expected, tokenizer.vocabulary_len()));
    }
    let source = Source { place: &place, json: &json, tokenizer: &tokenizer, rows };
    let mut builder = match (is_tiktoken, is_pieces) {
        (true, _) => source.tiktoken(dir)?,
        (false, true) => source.pieces(dir)?,
        (false, false) => source.model()?,
    };
    builder.entries.extend(source.boundary_entries(&config, boundary)?);
    if let Some(template) = ChatTemplate::from_dir(dir)? {
        builder.entries.push(("tokenizer.chat_template".to_string(), template.source().into()));
    }
    let read = Tokenizer::from_gguf(&place, &Metadata::new(&place, builder.entries.iter().cloned()))?;
    probes::compare(&place, &tokenizer, &read, builder.special_tokens_match)?;
    Ok(ExportedVocabulary { entries: builder.entries, notes: builder.notes })
}

/// The metadata collected so far.
struct VocabularyBuilder {
    entries: Vec<(String, Value)>,
    notes: Vec<String>,
    /// Whether texts with special tokens inside are tokenized alike, too.
    special_tokens_match: bool,
}

impl VocabularyBuilder {
    fn new(model: &str) -> Self {
        Self { entries: vec![entry("model", model.into())], notes: Vec::new(), special_tokens_match: true }
    }

    fn add(&mut self, field: &str, value: impl Into<Value>) {
        self.entries.push(entry(field, value.into()));
    }

    /// How a Unigram model normalizes text: by a compiled table of characters, which may be empty, and whether extra
    /// spaces are removed.
    fn add_normalization(&mut self, characters: Vec<u8>, removes_spaces: bool) {
        if !characters.is_empty() {
            self.add("precompiled_charsmap", characters);
        }
        self.add("remove_extra_whitespaces", removes_spaces);
    }

    fn note_normalization(&mut self, place: &str) {
        self.notes.push(format!(
            "{place}: GGUF cannot express the normalizer NFC; texts in decomposed characters become other tokens"
        ));
    }
}

fn entry(field: &str, value: Value) -> (String, Value) {
    (format!("tokenizer.ggml.{field}"), value)
}

/// The tokenizer to convert; `place`: its file, for messages; `rows`: the network's vocabulary size.
struct Source<'a> {
    place: &'a str,
    json: &'a Json,
    tokenizer: &'a Tokenizer,
    rows: usize,
}

impl Source<'_> {
    fn refuse(&self, field: &str, expected: &str, found: &Json) -> TextError {
        let found: String = found.to_string().chars().take(600).collect();
        TextError::field(self.place, field, expected, found)
    }

    fn model(&self) -> Result<VocabularyBuilder, TextError> {
        let model = &self.json["model"];
        let byte_level = component(&self.json["pre_tokenizer"], "ByteLevel").is_some();
        // Old files have no type; only BPE has merges.
        let kind = model["type"].as_str().or_else(|| model["merges"].is_array().then_some("BPE"));
        match kind {
            Some("BPE") if byte_level => self.byte_level(model),
            Some("BPE") if model["byte_fallback"] == true => self.sentencepiece_bpe(model),
            Some("BPE") => Err(self.refuse(
                "pre_tokenizer",
                "ByteLevel, or a model with byte_fallback",
                &self.json["pre_tokenizer"],
            )),
            Some("Unigram") => self.unigram(model),
            _ => Err(self.refuse("model.type", "BPE or Unigram", &model["type"])),
        }
    }

    /// Adds tokens and their types: the model's own, then the added tokens. `bytes`: tokens such as `<0x0A>` are bytes.
    fn tokens(
        &self,
        builder: &mut VocabularyBuilder,
        vocabulary: &[(String, Token)],
        bytes: bool,
        unknown: Option<Token>,
    ) {
        let mut tokens: Vec<String> = (0..self.rows).map(unused).collect();
        let mut types = vec![UNUSED; self.rows];
        for (spelling, id) in vocabulary {
            let kind = match byte_token(spelling) {
                Some(_) if bytes => BYTE,
                _ => NORMAL,
            };
            (tokens[*id as usize], types[*id as usize]) = (spelling.clone(), kind);
        }
        for added in self.json["added_tokens"].as_array().into_iter().flatten() {
            let Some(id) = added["id"].as_u64().map(|id| id as usize).filter(|id| *id < self.rows) else { continue };
            let Some(content) = added["content"].as_str() else { continue };
            let special = added["special"] == true || self.tokenizer.is_special(id as Token);
            (tokens[id], types[id]) = (content.to_string(), if special { CONTROL } else { USER_DEFINED });
        }
        for (id, kind) in types.iter_mut().enumerate().filter(|(_, kind)| **kind == NORMAL) {
            // Only the configuration calls these special.
            if self.tokenizer.is_special(id as Token) {
                *kind = CONTROL;
            }
        }
        replace_duplicates(&mut tokens, &mut types);
        if let Some(unknown) = unknown {
            types[unknown as usize] = UNKNOWN;
            builder.add("unknown_token_id", unknown);
        }
        builder.add("tokens", tokens);
        builder.add("token_type", types);
    }

    fn byte_level(&self, model: &Json) -> Result<VocabularyBuilder, TextError> {
        let mut builder = VocabularyBuilder::new("gpt2");
        for field in ["continuing_subword_prefix", "end_of_word_suffix"] {
            if model[field].as_str().is_some_and(|affix| !affix.is_empty()) {
                return Err(self.refuse(&format!("model.{field}"), "nothing", &model[field]));
            }
        }
        for normalizer in components(&self.json["normalizer"], "normalizers") {
            match normalizer["type"].as_str() {
                Some("NFC") => builder.note_normalization(self.place),
                _ => return Err(self.refuse("normalizer", "none or NFC", normalizer)),
            }
        }
        let patterns = self.patterns()?;
        let ignore_merges = model["ignore_merges"] == true;
        let name = name_of(&patterns, ignore_merges).ok_or_else(|| {
            let expected = format!("expressions that GGUF has a name for (with ignore_merges {ignore_merges})");
            self.refuse("pre_tokenizer", &expected, &Json::from(patterns.clone()))
        })?;
        builder.add("pre", name);
        let vocabulary = self.vocabulary(model)?;
        self.tokens(&mut builder, &vocabulary, false, None);
        builder.add(
            "merges",
            self.merges(model)?.into_iter().map(|(left, right)| format!("{left} {right}")).collect::<Vec<_>>(),
        );
        Ok(builder)
    }

    /// The pre-tokenizer's expressions, in order.
    fn patterns(&self) -> Result<Vec<String>, TextError> {
        let mut patterns = Vec::new();
        for step in components(&self.json["pre_tokenizer"], "pretokenizers") {
            let refused = || self.refuse("pre_tokenizer", "Split, Digits and ByteLevel as GGUF knows them", step);
            match step["type"].as_str() {
                Some("ByteLevel") if step["add_prefix_space"] != true => {
                    if step["use_regex"] != false {
                        patterns.push(GPT_2.to_string());
                    }
                }
                // ASCII symbols are punctuation too.
                Some("Punctuation") if step["behavior"] == "Contiguous" => {
                    patterns.push(FALCON_PUNCTUATION.to_string());
                }
                Some("Digits") => {
                    patterns.push(if step["individual_digits"] == true { DIGIT } else { DIGITS }.to_string());
                }
                // Matches become words; both notations are the same for expressions that match everything.
                Some("Split")
                    if (step["behavior"] == "Isolated" && step["invert"] != true)
                        || (step["behavior"] == "Removed" && step["invert"] == true) =>
                {
                    patterns.push(step["pattern"]["Regex"].as_str().ok_or_else(refused)?.to_string());
                }
                _ => return Err(refused()),
            }
        }
        Ok(patterns)
    }

    /// SentencePiece BPE: a token's score is minus the rank of the first merge that makes it.
    fn sentencepiece_bpe(&self, model: &Json) -> Result<VocabularyBuilder, TextError> {
        let mut builder = VocabularyBuilder::new("llama");
        let normalizers = components(&self.json["normalizer"], "normalizers");
        let mut prefix = false;
        for step in normalizers {
            match step["type"].as_str() {
                Some("Prepend") if step["prepend"] == "▁" => prefix = true,
                Some("Replace") if step["pattern"]["String"] == " " && step["content"] == "▁" => {}
                _ => return Err(self.refuse("normalizer", "spaces as ▁, with or without one before the text", step)),
            }
        }
        match components(&self.json["pre_tokenizer"], "pretokenizers").as_slice() {
            [] => {}
            // Gemma's: the normalizer has replaced all spaces, so this split does nothing.
            [step] if step["type"] == "Split" && step["pattern"]["String"] == " " && !prefix => {}
            [step] => prefix = self.metaspace(step, &mut builder)?,
            _ => return Err(self.refuse("pre_tokenizer", "none or Metaspace", &self.json["pre_tokenizer"])),
        }
        builder.add("pre", "default");
        builder.add("add_space_prefix", prefix);
        let vocabulary = self.vocabulary(model)?;
        let unknown = self.unknown(model)?;
        self.tokens(&mut builder, &vocabulary, true, unknown);
        let ids: HashMap<&str, Token> = vocabulary.iter().map(|(spelling, id)| (spelling.as_str(), *id)).collect();
        // A token that no merge makes is a character, whose score is never used, or cannot be made at all.
        let mut scores = vec![-1e9; self.rows];
        for (rank, (left, right)) in self.merges(model)?.iter().enumerate().rev() {
            let id = ids.get([left.as_str(), right].concat().as_str());
            let id = id.ok_or_else(|| {
                self.refuse("model.merges", "pairs whose union is a token", &Json::from(left.as_str()))
            })?;
            scores[*id as usize] = -(rank as f32);
        }
        builder.add("scores", scores);
        Ok(builder)
    }

    /// Whether `Metaspace` inserts a space before a text.
    fn metaspace(&self, step: &Json, builder: &mut VocabularyBuilder) -> Result<bool, TextError> {
        if step["type"] != "Metaspace" || step["replacement"].as_str().is_some_and(|mark| mark != "▁") {
            return Err(self.refuse("pre_tokenizer", "Metaspace with ▁", step));
        }
        match step["prepend_scheme"].as_str() {
            Some("never") => Ok(false),
            Some("first") => {
                builder.special_tokens_match = false;
                builder.notes.push(format!(
                    "{}: GGUF cannot express prepend_scheme first; a space is inserted after special tokens, too",
                    self.place
                ));
                Ok(true)
            }
            _ => Ok(step["add_prefix_space"] != false),
        }
    }

    fn vocabulary(&self, model: &Json) -> Result<Vec<(String, Token)>, TextError> {
        let refused = || self.refuse("model.vocab", "tokens and their numbers", &Json::Null);
        let entries = model["vocab"].as_object().ok_or_else(refused)?;
        let entry = |(spelling, id): (&String, &Json)| {
            let id = id.as_u64().filter(|id| (*id as usize) < self.rows).ok_or_else(refused)?;
            Ok((spelling.clone(), id as Token))
        };
        entries.iter().map(entry).collect()
    }

    fn merges(&self, model: &Json) -> Result<Vec<(String, String)>, TextError> {
        let merge = |merge: &Json| {
            let pair = match merge {
                Json::String(both) => both.split_once(' '),
                pair => pair[0].as_str().zip(pair[1].as_str()),
            };
            let pair = pair.map(|(left, right)| (left.to_string(), right.to_string()));
            pair.ok_or_else(|| self.refuse("model.merges", "pairs of tokens", merge))
        };
        model["merges"].as_array().into_iter().flatten().map(merge).collect()
    }

    fn unknown(&self, model: &Json) -> Result<Option<Token>, TextError> {
        let Some(spelling) = model["unk_token"].as_str() else { return Ok(None) };
        let id = model["vocab"][spelling].as_u64().filter(|id| (*id as usize) < self.rows);
        let id = id.ok_or_else(|| self.refuse("model.unk_token", "a token", &model["unk_token"]))?;
        Ok(Some(id as Token))
    }

    /// The keys of bos, eos and other special tokens, and which of them are added to a text.
    fn boundary_entries(&self, config: &Json, boundary: BoundaryTokens<'_>) -> Result<Vec<(String, Value)>, TextError> {
        let parts = self.tokenizer.parts();
        let id = |token: &Token| (*token as usize) < self.rows;
        let bos = parts.bos.or(boundary.bos).filter(id);
        let named = special_spelling(config, "eos_token").and_then(|spelling| self.special_token(spelling));
        let ends: Vec<Token> = boundary.ends.iter().copied().filter(id).collect();
        let eos = named.filter(|token| ends.is_empty() || ends.contains(token)).or_else(|| ends.first().copied());
        let is_only =
            |list: &[Token], token: Option<Token>| list.is_empty() || token.is_some_and(|token| list == [token]);
        if !is_only(&parts.prefix, bos) || !is_only(&parts.suffix, eos) {
            let found = format!("{:?} and {:?}", parts.prefix, parts.suffix);
            let expected = "at most one token before a text, bos, and one after it, eos";
            let field = if self.json.is_null() { "tokenizer_class" } else { "post_processor" };
            return Err(TextError::field(self.place, field, expected, found));
        }
        let mut entries = vec![
            entry("add_bos_token", (!parts.prefix.is_empty()).into()),
            entry("add_eos_token", (!parts.suffix.is_empty()).into()),
        ];
        let mut add = |field: &str, token: Option<Token>| {
            entries.extend(token.map(|token| entry(&format!("{field}_token_id"), token.into())));
        };
        add("bos", bos);
        add("eos", eos);
        add("padding", special_spelling(config, "pad_token").and_then(|spelling| self.special_token(spelling)));
        // Readers find well-known end tokens by their text; GGUF has two more keys for others.
        let well_known = |token: &Token| {
            let bytes = self.tokenizer.token_bytes(*token);
            TURN_ENDS.iter().any(|end| end.as_bytes() == bytes)
        };
        let mut others = ends.iter().copied().filter(|token| Some(*token) != eos && !well_known(token));
        add("eot", others.next());
        add("eom", others.next());
        Ok(entries)
    }

    fn special_token(&self, spelling: &str) -> Option<Token> {
        let tokens = 0..self.tokenizer.vocabulary_len() as Token;
        tokens.into_iter().find(|token| {
            self.tokenizer.is_special(*token) && self.tokenizer.token_bytes(*token) == spelling.as_bytes()
        })
    }
}

/// The text of an id without a token.
fn unused(id: usize) -> String {
    format!("[PAD{id}]")
}

/// Makes token texts unique, as llama.cpp requires. Of two tokens with the same text, the one that encoding gives
/// stays: an added token, else the last.
fn replace_duplicates(tokens: &mut [String], types: &mut [i32]) {
    let mut last: HashMap<String, usize> = HashMap::new();
    for id in 0..tokens.len() {
        let Some(before) = last.insert(tokens[id].clone(), id) else { continue };
        let added = |id: usize| types[id] == CONTROL || types[id] == USER_DEFINED;
        let (gone, stays) = if added(before) && !added(id) { (id, before) } else { (before, id) };
        last.insert(tokens[stays].clone(), stays);
        (tokens[gone], types[gone]) = (unused(gone), UNUSED);
    }
}

/// The members of a `Sequence`, or the component alone, or nothing.
fn components<'a>(part: &'a Json, members: &str) -> Vec<&'a Json> {
    match part["type"].as_str() {
        Some("Sequence") => {
            part[members].as_array().into_iter().flatten().flat_map(|part| components(part, members)).collect()
        }
        _ if part.is_null() => Vec::new(),
        _ => vec![part],
    }
}
