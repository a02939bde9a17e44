//! Fill-in-middle, with models that have special tokens for it: llama.cpp's `/infill`, and the field `suffix` of
//! completions and of Ollama's `/api/generate`.
//!
//! The prompt has the form of the training data: other files first, then the prefix, the suffix, and a token after
//! which the model generates the middle. The special tokens are found in the vocabulary by their text; a model without
//! them is refused.

use foretoken::{Prompter, Token, Tokenizer};
use serde::Deserialize;
use serde_json::json;

use super::{GenerationRequest, llama_cpp};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::parse::RequestContext;

/// The special tokens before a prefix, a suffix and the middle; then before a repository's name and before a file, if a
/// family has these.
const FILL_IN_MIDDLE_TOKENS: [[&str; 5]; 6] = [
    // Qwen, IBM's Granite, and later models.
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

/// The special tokens of a vocabulary.
struct FillInMiddleTokens {
    prefix: Token,
    suffix: Token,
    middle: Token,
    repository: Option<Token>,
    file: Option<Token>,
}

impl FillInMiddleTokens {
    fn of(tokenizer: &Tokenizer) -> Option<Self> {
        // One search of the vocabulary finds all of them.
        let found_tokens = tokenizer.special_tokens(&FILL_IN_MIDDLE_TOKENS.concat());
        let token =
            |text: &str| found_tokens.iter().copied().find(|token| tokenizer.token_bytes(*token) == text.as_bytes());
        FILL_IN_MIDDLE_TOKENS.iter().find_map(|[prefix, suffix, middle, repository, file]| {
            let [prefix, suffix, middle] = [token(prefix)?, token(suffix)?, token(middle)?];
            Some(Self { prefix, suffix, middle, repository: token(repository), file: token(file) })
        })
    }
}

/// Another file, as context.
#[derive(Deserialize)]
struct Extra {
    #[serde(default)]
    filename: String,
    text: String,
}

/// Whether a model supports fill-in-middle.
pub(crate) fn can_fill_in_middle(app: &App) -> bool {
    app.prompter.tokenizer.as_deref().is_some_and(|tokenizer| FillInMiddleTokens::of(tokenizer).is_some())
}

/// The tokenizer and its special tokens. `field`: the field, or `path`, that errors name.
fn required_tokens<'a>(prompter: &'a Prompter, field: &str) -> Result<(&'a Tokenizer, FillInMiddleTokens), ApiError> {
    let tokenizer = prompter.tokenizer.as_deref();
    tokenizer.and_then(|tokenizer| Some((tokenizer, FillInMiddleTokens::of(tokenizer)?))).ok_or_else(|| {
        let found = "one whose vocabulary has no special tokens for it (<|fim_prefix|>, ...)";
        ApiError::unsupported(field, format!("expected a model that supports fill-in-middle, found {found}"))
    })
}

/// The tokens of the prefix, the suffix and the beginning of the middle, each after its special token.
fn fill_in_middle(
    tokenizer: &Tokenizer,
    special: &FillInMiddleTokens,
    texts: [&str; 3],
) -> Result<Vec<Token>, ApiError> {
    let mut tokens = Vec::new();
    for (before_token, text) in [special.prefix, special.suffix, special.middle].into_iter().zip(texts) {
        tokens.push(before_token);
        tokens.extend(tokenizer.encode_plain(text).map_err(|error| ApiError::of(&error.into()))?);
    }
    Ok(tokens)
}

/// Tokens that begin every prompt.
fn beginning_tokens(tokenizer: &Tokenizer) -> Vec<Token> {
    tokenizer.bos().filter(|_| tokenizer.adds_bos()).into_iter().collect()
}

/// Makes a fill-in-middle prompt of `prompt` and `suffix`, if the request has a suffix that is not empty.
pub(crate) fn with_suffix(context: &RequestContext<'_>, fields: &mut Fields) -> Result<(), ApiError> {
    if !fields.has("suffix") {
        return Ok(());
    }
    let suffix = fields.required_string("suffix")?;
    if suffix.is_empty() {
        return Ok(());
    }
    let (tokenizer, special) = required_tokens(context.prompter, "suffix")?;
    if fields.boolean("echo")?.unwrap_or(false) {
        return Err(ApiError::unsupported("echo", "expected false beside suffix, found true"));
    }
    let prefix = fields.string("prompt")?.unwrap_or_default();
    for (name, text) in [("prompt", &prefix), ("suffix", &suffix)] {
        context.limit.check(name, text.len())?;
    }
    let mut tokens = beginning_tokens(tokenizer);
    tokens.extend(fill_in_middle(tokenizer, &special, [&prefix, &suffix, ""])?);
    fields.insert("prompt", "prompt", &json!(tokens))
}

/// `/infill`.
pub(crate) fn infill(app: &App, key: u64, fields: &mut Fields) -> Result<GenerationRequest, ApiError> {
    let (tokenizer, special) = required_tokens(&app.prompter, "path")?;
    let required = |fields: &mut Fields, name: &str| {
        let text = fields.string(name)?;
        text.ok_or_else(|| ApiError::field(name, "expected a string, found none"))
    };
    let [prefix, suffix] = [required(fields, "input_prefix")?, required(fields, "input_suffix")?];
    let middle = fields.string("prompt")?.unwrap_or_default();
    let extras: Vec<Extra> =
        fields.take("input_extra", "a list of objects with a filename and a text")?.unwrap_or_default();
    for (name, text) in [("input_prefix", &prefix), ("input_suffix", &suffix), ("prompt", &middle)] {
        app.limit.check(name, text.len())?;
    }
    app.limit.check("input_extra", extras.iter().map(|extra| extra.text.len() + extra.filename.len()).sum())?;
    let plain = |text: &str| tokenizer.encode_plain(text).map_err(|error| ApiError::of(&error.into()));
    let mut tokens = beginning_tokens(tokenizer);
    if let (Some(repository), Some(file)) = (special.repository, special.file) {
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
    tokens.extend(fill_in_middle(tokenizer, &special, [&prefix, &suffix, &middle])?);
    fields.insert("prompt", "input_prefix", &json!(tokens))?;
    llama_cpp::completion(app, key, fields)
}
