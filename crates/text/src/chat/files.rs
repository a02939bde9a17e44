//! Loads templates from files of a folder, fields of `tokenizer_config.json`, or keys of a GGUF file.
//!
//! A model may have several named templates. Two are used, as in transformers: `tool_use` if tools are given, and
//! `default`.

use std::path::Path;

use foretoken_weights::gguf::Metadata;
use foretoken_weights::whole::{self, TEMPLATE_BYTES_MAX};
use serde_json::Value as Json;

use crate::TextError;
use crate::tokenizer::{GgufVocabulary, configuration, special_spelling};

/// The sources of a model's templates, and their variables with special tokens.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sources {
    /// The file of the default one, for messages.
    pub place: String,
    pub default: String,
    pub tool_use: Option<String>,
    /// Variables with special tokens, such as `bos_token`.
    pub special_tokens: Vec<(String, String)>,
}

/// Special tokens besides bos and eos that are variables if the model has them.
const OPTIONAL_SPECIAL_TOKENS: [&str; 5] = ["unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The templates of a folder: `chat_template.jinja` with `additional_chat_templates`, or else what
/// `tokenizer_config.json` holds. `None` if there is neither.
pub(super) fn of_dir(dir: &Path) -> Result<Option<Sources>, TextError> {
    let config_path = dir.join("tokenizer_config.json");
    let config = configuration(dir)?;
    let optional = OPTIONAL_SPECIAL_TOKENS.iter().filter_map(|key| Some((*key, special_spelling(&config, key)?)));
    let always = ["bos_token", "eos_token"].map(|key| (key, special_spelling(&config, key).unwrap_or("")));
    let mut special_tokens: Vec<(String, String)> =
        always.into_iter().chain(optional).map(|(key, text)| (key.to_owned(), text.to_owned())).collect();
    let named = config.get("extra_special_tokens").and_then(Json::as_object).into_iter().flatten();
    let spelling = |value: &Json| value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned);
    special_tokens.extend(named.filter_map(|(key, value)| Some((key.clone(), spelling(value)?))));

    let path = dir.join("chat_template.jinja");
    let named = ["additional_chat_templates", "chat_templates"].map(|folder| dir.join(folder));
    let in_folders = |name: &str| {
        let found = named.iter().map(|folder| text_file(&folder.join(format!("{name}.jinja"))));
        found.filter_map(Result::transpose).next().transpose()
    };
    let (file, default) = (text_file(&path)?, in_folders("default")?);
    if let Some(default) = file.or(default) {
        let tool_use = in_folders("tool_use")?;
        return Ok(Some(Sources { place: path.display().to_string(), default, tool_use, special_tokens }));
    }
    let place = config_path.display().to_string();
    let Some((default, tool_use)) = of_config(&place, config.get("chat_template"))? else { return Ok(None) };
    Ok(Some(Sources { place, default, tool_use, special_tokens }))
}

/// The templates of a GGUF file. `None` if it has none.
pub(super) fn of_gguf(name: &str, metadata: &Metadata) -> Result<Option<Sources>, TextError> {
    let Some(default) = metadata.optional_str("tokenizer.chat_template")? else { return Ok(None) };
    let tool_use = metadata.optional_str("tokenizer.chat_template.tool_use")?.map(str::to_owned);
    let vocabulary = GgufVocabulary::from_metadata(name, metadata)?;
    let special_token = |key: &str, token| (key.to_owned(), vocabulary.spelling(token).to_owned());
    let special_tokens = vec![special_token("bos_token", vocabulary.bos), special_token("eos_token", vocabulary.eos)];
    Ok(Some(Sources { place: name.to_owned(), default: default.to_owned(), tool_use, special_tokens }))
}

fn text_file(path: &Path) -> Result<Option<String>, TextError> {
    match whole::read_text(path, TEMPLATE_BYTES_MAX) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(TextError::read(path, error)),
    }
}

/// `chat_template` of a configuration, a string or a list of named templates: the default one and the one for tools.
pub(super) fn of_config(place: &str, value: Option<&Json>) -> Result<Option<(String, Option<String>)>, TextError> {
    match value {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(source)) => Ok(Some((source.clone(), None))),
        Some(Json::Array(list)) => {
            let text = |entry: &Json, key: &str| entry.get(key).and_then(Json::as_str).map(str::to_owned);
            let named = |name: &str| {
                let found = list.iter().find(|entry| text(entry, "name").as_deref() == Some(name));
                found.and_then(|entry| text(entry, "template"))
            };
            let names = || list.iter().filter_map(|entry| text(entry, "name")).collect::<Vec<_>>().join(", ");
            let missing =
                || TextError::field(place, "chat_template", "a template named default", format!("[{}]", names()));
            Ok(Some((named("default").ok_or_else(missing)?, named("tool_use"))))
        }
        Some(other) => Err(TextError::field(place, "chat_template", "a string or a list of templates", other)),
    }
}
