//! Where templates lie: files of a folder, fields of `tokenizer_config.json`, keys of a GGUF file.
//!
//! A model may bring several, by name. Of these two count, as in transformers: `tool_use` where tools are given, and
//! `default`. Left out: asking for another by its name.

use std::path::Path;

use foretoken_weights::gguf::Metadata;
use foretoken_weights::whole::{self, TEMPLATE_BYTES_MAX};
use serde_json::Value as Json;

use crate::TextError;
use crate::tokenizer::{GgufVocabulary, configuration, special_spelling};

/// The sources of a model's templates, and what they see of its special tokens.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sources {
    /// The place of the first, for messages.
    pub place: String,
    pub default: String,
    pub tool_use: Option<String>,
    /// The variables `bos_token`, `eos_token` and their like.
    pub marks: Vec<(String, String)>,
}

/// The special tokens that templates see beside bos and eos, if the model has them.
const MARKS: [&str; 5] = ["unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The templates of a folder: `chat_template.jinja` with `additional_chat_templates`, or else what
/// `tokenizer_config.json` holds. `None` if there is neither.
pub(super) fn of_dir(dir: &Path) -> Result<Option<Sources>, TextError> {
    let config_path = dir.join("tokenizer_config.json");
    let config = configuration(dir)?;
    let further = MARKS.iter().filter_map(|key| Some((*key, special_spelling(&config, key)?)));
    let always = ["bos_token", "eos_token"].map(|key| (key, special_spelling(&config, key).unwrap_or("")));
    let mut marks: Vec<(String, String)> =
        always.into_iter().chain(further).map(|(key, text)| (key.to_owned(), text.to_owned())).collect();
    let named = config.get("extra_special_tokens").and_then(Json::as_object).into_iter().flatten();
    let spelling = |value: &Json| value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned);
    marks.extend(named.filter_map(|(key, value)| Some((key.clone(), spelling(value)?))));

    let path = dir.join("chat_template.jinja");
    let named = ["additional_chat_templates", "chat_templates"].map(|folder| dir.join(folder));
    let in_folders = |name: &str| {
        let found = named.iter().map(|folder| text_file(&folder.join(format!("{name}.jinja"))));
        found.filter_map(Result::transpose).next().transpose()
    };
    let (file, default) = (text_file(&path)?, in_folders("default")?);
    if let Some(default) = file.or(default) {
        let tool_use = in_folders("tool_use")?;
        return Ok(Some(Sources { place: path.display().to_string(), default, tool_use, marks }));
    }
    let place = config_path.display().to_string();
    let Some((default, tool_use)) = of_config(&place, config.get("chat_template"))? else { return Ok(None) };
    Ok(Some(Sources { place, default, tool_use, marks }))
}

/// The templates of a GGUF file. `None` if it has none.
pub(super) fn of_gguf(name: &str, metadata: &Metadata) -> Result<Option<Sources>, TextError> {
    let Some(default) = metadata.optional_str("tokenizer.chat_template")? else { return Ok(None) };
    let tool_use = metadata.optional_str("tokenizer.chat_template.tool_use")?.map(str::to_owned);
    let vocabulary = GgufVocabulary::from_metadata(name, metadata)?;
    let mark = |key: &str, token| (key.to_owned(), vocabulary.spelling(token).to_owned());
    let marks = vec![mark("bos_token", vocabulary.bos), mark("eos_token", vocabulary.eos)];
    Ok(Some(Sources { place: name.to_owned(), default: default.to_owned(), tool_use, marks }))
}

fn text_file(path: &Path) -> Result<Option<String>, TextError> {
    match whole::read_text(path, TEMPLATE_BYTES_MAX) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(TextError::read(path, error)),
    }
}

/// `chat_template` of a configuration: a string, or a list of templates with names. The default and that for tools.
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
