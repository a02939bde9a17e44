//! Text between a beginning and an end, by models that have marks for it: llama.cpp's `/infill`, and the field `suffix`
//! of completions and of Ollama's `/api/generate`.
//!
//! The prompt is written as such models were trained: other files first, then what stands before the gap, what stands
//! behind it, and a mark behind which the model writes. Marks are special tokens of the vocabulary, known by their
//! spellings; a model without them is refused. Left out: marks that are told apart from their spelling alone.

use foretoken::{Token, Tokenizer};
use serde::Deserialize;
use serde_json::json;

use super::{Asking, llama_cpp};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;

/// Spellings of the marks before a beginning, an end and the gap, and of the end of a model's own writing; then of a
/// repository and of a file in it, where a family has them.
const MARKS: [[&str; 5]; 6] = [
    // Qwen, IBM's Granite, and others after them.
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"],
    // StarCoder, SmolLM, Granite.
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<repo_name>", "<file_sep>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>", "<reponame>", "<filename>"],
    // Code Llama.
    ["\u{2581}<PRE>", "\u{2581}<SUF>", "\u{2581}<MID>", "", ""],
    // DeepSeek.
    [
        "<\u{ff5c}fim\u{2581}begin\u{ff5c}>",
        "<\u{ff5c}fim\u{2581}hole\u{ff5c}>",
        "<\u{ff5c}fim\u{2581}end\u{ff5c}>",
        "",
        "",
    ],
    // GLM.
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", "", ""],
];

/// The marks of a vocabulary, as tokens.
struct Marks {
    prefix: Token,
    suffix: Token,
    middle: Token,
    repository: Option<Token>,
    file: Option<Token>,
}

impl Marks {
    fn of(tokenizer: &Tokenizer) -> Option<Self> {
        // One walk through the vocabulary for all of them.
        let known = tokenizer.special_tokens(&MARKS.concat());
        let token =
            |spelling: &str| known.iter().copied().find(|token| tokenizer.token_bytes(*token) == spelling.as_bytes());
        MARKS.iter().find_map(|[prefix, suffix, middle, repository, file]| {
            let [prefix, suffix, middle] = [token(prefix)?, token(suffix)?, token(middle)?];
            Some(Self { prefix, suffix, middle, repository: token(repository), file: token(file) })
        })
    }
}

/// Another file that the model is to know.
#[derive(Deserialize)]
struct Extra {
    #[serde(default)]
    filename: String,
    text: String,
}

/// Whether a model fills gaps.
pub(crate) fn can_fill(app: &App) -> bool {
    app.prompter.tokenizer.as_deref().is_some_and(|tokenizer| Marks::of(tokenizer).is_some())
}

/// The tokenizer and its marks. `place`: the field, or the path, that asks for them.
fn marks_of<'a>(app: &'a App, place: &str) -> Result<(&'a Tokenizer, Marks), ApiError> {
    let tokenizer = app.prompter.tokenizer.as_deref();
    tokenizer.and_then(|tokenizer| Some((tokenizer, Marks::of(tokenizer)?))).ok_or_else(|| {
        let found = "one whose vocabulary has no marks for them (<|fim_prefix|>, ...)";
        ApiError::unsupported(place, format!("expected a model that fills gaps, found {found}"))
    })
}

/// What stands before a gap, behind it, and in it already, as tokens.
fn gap(tokenizer: &Tokenizer, marks: &Marks, texts: [&str; 3]) -> Result<Vec<Token>, ApiError> {
    let mut tokens = Vec::new();
    for (mark, text) in [marks.prefix, marks.suffix, marks.middle].into_iter().zip(texts) {
        tokens.push(mark);
        tokens.extend(tokenizer.encode_plain(text).map_err(|error| ApiError::of(&error.into()))?);
    }
    Ok(tokens)
}

/// Tokens that begin every text.
fn beginning(tokenizer: &Tokenizer) -> Vec<Token> {
    tokenizer.bos().filter(|_| tokenizer.adds_bos()).into_iter().collect()
}

/// Makes a prompt with a gap of `prompt` and `suffix`, if the request has a suffix that is not empty.
pub(crate) fn with_suffix(app: &App, fields: &mut Fields) -> Result<(), ApiError> {
    if !fields.has("suffix") {
        return Ok(());
    }
    let behind = fields.text_of("suffix")?;
    if behind.is_empty() {
        return Ok(());
    }
    let (tokenizer, marks) = marks_of(app, "suffix")?;
    if fields.truth("echo")?.unwrap_or(false) {
        return Err(ApiError::unsupported("echo", "expected false beside suffix, found true"));
    }
    let before = fields.text("prompt")?.unwrap_or_default();
    for (name, text) in [("prompt", &before), ("suffix", &behind)] {
        app.limit.check(name, text.len())?;
    }
    let mut tokens = beginning(tokenizer);
    tokens.extend(gap(tokenizer, &marks, [&before, &behind, ""])?);
    fields.put("prompt", "prompt", &json!(tokens))
}

/// `/infill`.
pub(crate) fn infill(app: &App, key: u64, fields: &mut Fields) -> Result<Asking, ApiError> {
    let (tokenizer, marks) = marks_of(app, "path")?;
    let required = |fields: &mut Fields, name: &str| {
        let text = fields.text(name)?;
        text.ok_or_else(|| ApiError::field(name, "expected a string, found none"))
    };
    let [before, behind] = [required(fields, "input_prefix")?, required(fields, "input_suffix")?];
    let written = fields.text("prompt")?.unwrap_or_default();
    let extras: Vec<Extra> =
        fields.take("input_extra", "a list of objects with a filename and a text")?.unwrap_or_default();
    for (name, text) in [("input_prefix", &before), ("input_suffix", &behind), ("prompt", &written)] {
        app.limit.check(name, text.len())?;
    }
    app.limit.check("input_extra", extras.iter().map(|extra| extra.text.len() + extra.filename.len()).sum())?;
    let plain = |text: &str| tokenizer.encode_plain(text).map_err(|error| ApiError::of(&error.into()));
    let mut tokens = beginning(tokenizer);
    if let (Some(repository), Some(file)) = (marks.repository, marks.file) {
        if !extras.is_empty() {
            tokens.push(repository);
            tokens.extend(plain("repository\n")?);
            for extra in &extras {
                tokens.push(file);
                tokens.extend(plain(&format!("{}\n{}", extra.filename, extra.text))?);
            }
            tokens.push(file);
            tokens.extend(plain("file\n")?);
        }
    } else {
        for extra in &extras {
            tokens.extend(plain(&extra.text)?);
        }
    }
    tokens.extend(gap(tokenizer, &marks, [&before, &behind, &written])?);
    fields.put("prompt", "input_prefix", &json!(tokens))?;
    llama_cpp::completion(app, key, fields)
}
