//! `/api/tags`, `/api/ps` and `/api/show`: models in Ollama's format.
//!
//! The digest identifies a model and is the same at every start; it is a hash of name, size and date of the files, not
//! of all their bytes. The context length is the server's. Licences, tensors and vocabularies are omitted.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use foretoken::settings::SamplingSettings;
use foretoken::{ThinkingTags, ToolFormat};
use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::{REQUESTED_MODEL, rfc3339, tagged};
use crate::apis::infill::can_fill_in_middle;
use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::law::llama_cpp_name;
use crate::models::{Entry, Models};

/// A model is unloaded only if others need its memory.
const FOREVER: &str = "9999-12-31T23:59:59Z";

/// `/api/tags`: all models. Of one that is not loaded only the name is known.
pub(crate) fn tags(models: &Models) -> Value {
    let one = |entry: &Entry| match entry.loaded() {
        Some(app) => {
            let mut model = object(&app);
            model["modified_at"] = json!(rfc3339(modified(&app)));
            model
        }
        None => json!({
            "name": tagged(&entry.name),
            "model": tagged(&entry.name),
            "modified_at": rfc3339(UNIX_EPOCH + Duration::from_secs(models.shared.created)),
            "size": 0,
            "digest": hash64(&entry.name),
            "details": { "format": "", "family": "", "families": [], "parameter_size": "", "quantization_level": "" },
        }),
    };
    json!({ "models": models.entries().iter().map(one).collect::<Vec<_>>() })
}

/// `/api/ps`: the loaded models.
pub(crate) fn running(models: &Models) -> Value {
    let one = |app: Arc<App>| {
        let mut model = object(&app);
        model["expires_at"] = json!(FOREVER);
        model["size_vram"] = json!(0);
        model["context_length"] = json!(app.prompter.context);
        model
    };
    json!({ "models": models.loaded().map(one).collect::<Vec<_>>() })
}

/// `/api/show`.
pub(crate) fn show(app: &App, _: u64, fields: &mut Fields) -> Result<Value, ApiError> {
    // These fields have no effect here.
    ["verbose", "system", "template", "options", REQUESTED_MODEL].iter().for_each(|name| drop(fields.raw(name)));
    let prompter = &app.prompter;
    let (spec, law) = (&prompter.target.spec, &prompter.decided.sampling);
    let numbers = SamplingSettings::NUMBERS.iter();
    let numbers = numbers.map(|number| (llama_cpp_name(number.name), (number.parameter().get)(law).to_string()));
    let counts = [("top_k", law.top_k.to_string()), ("num_ctx", prompter.context.to_string())];
    let parameters: Vec<String> = numbers.chain(counts).map(|(name, value)| format!("{name:<30} {value}")).collect();
    let family = spec.family;
    let info = [
        ("general.architecture".to_string(), json!(family)),
        ("general.parameter_count".to_string(), json!(prompter.target.checkpoint.parameters())),
        (format!("{family}.context_length"), json!(prompter.context)),
        (format!("{family}.embedding_length"), json!(spec.width)),
        (format!("{family}.block_count"), json!(spec.layers)),
        (format!("{family}.feed_forward_length"), json!(spec.ffn_width)),
        (format!("{family}.attention.head_count"), json!(spec.heads)),
        (format!("{family}.attention.head_count_kv"), json!(spec.kv_heads)),
        (format!("{family}.vocab_size"), json!(spec.vocabulary)),
    ];
    Ok(json!({
        "modelfile": format!("FROM {}\n", app.model),
        "parameters": parameters.join("\n"),
        "template": prompter.chat_template().map_or("", |template| template.source()),
        "details": details(app),
        "model_info": Map::from_iter(info),
        "capabilities": capabilities(app),
        "modified_at": rfc3339(modified(app)),
    }))
}

/// The capabilities of a model.
fn capabilities(app: &App) -> Vec<&'static str> {
    let template = app.prompter.chat_template().ok();
    let tools = template.and_then(ToolFormat::of_template).map(|_| "tools");
    let thinking = template.and_then(ThinkingTags::of_template).map(|_| "thinking");
    let insert = can_fill_in_middle(app).then_some("insert");
    ["completion"].into_iter().chain(tools).chain(thinking).chain(insert).collect()
}

/// The object of a model in lists.
fn object(app: &App) -> Value {
    json!({
        "name": tagged(&app.model),
        "model": tagged(&app.model),
        "size": app.prompter.target.weights_bytes(),
        "digest": digest(app),
        "details": details(app),
    })
}

fn details(app: &App) -> Value {
    let target = &app.prompter.target;
    // The type of most of the weights.
    let mut types: BTreeMap<&str, usize> = BTreeMap::new();
    for tensor in target.checkpoint.weights.iter() {
        *types.entry(tensor.dtype.name()).or_default() += tensor.bytes.len();
    }
    let most = types.into_iter().max_by_key(|(_, bytes)| *bytes).map_or("", |(name, _)| name);
    json!({
        "parent_model": "",
        "format": if target.format() == "GGUF" { "gguf" } else { "safetensors" },
        "family": target.spec.family,
        "families": [target.spec.family],
        "parameter_size": short_count(target.checkpoint.parameters()),
        "quantization_level": most.to_uppercase(),
    })
}

/// When the model's file was modified; for a model that is part of the program, when the server started.
fn modified(app: &App) -> SystemTime {
    file_time(app).unwrap_or(UNIX_EPOCH + Duration::from_secs(app.created))
}

fn file_time(app: &App) -> Option<SystemTime> {
    let place = app.prompter.target.place();
    // A model that is part of the program has a name instead of a path.
    let place = Path::new(&place);
    std::fs::metadata(place).ok().filter(|_| place.is_absolute())?.modified().ok()
}

/// A hash of the model's name, size, configuration and file time.
fn digest(app: &App) -> String {
    let target = &app.prompter.target;
    let identity = format!("{} {} {:?} {:?}", app.model, target.weights_bytes(), target.spec, file_time(app));
    hash64(&identity)
}

/// A hash of a text, as 64 hexadecimal digits.
fn hash64(text: &str) -> String {
    [0, 1].map(|seed| format!("{:032x}", xxh3_128_with_seed(text.as_bytes(), seed))).concat()
}

/// A count of parameters as in names of models.
fn short_count(parameters: usize) -> String {
    let units = [(1e9, "B"), (1e6, "M"), (1e3, "K")];
    let found = units.into_iter().find(|(unit, _)| parameters as f64 >= *unit);
    found.map_or(parameters.to_string(), |(unit, letter)| format!("{:.1}{letter}", parameters as f64 / unit))
}

#[cfg(test)]
mod tests {
    use super::short_count;

    #[test]
    fn parameter_counts_are_as_in_names_of_models() {
        let found = [7, 1_500, 134_515_008, 8_030_261_248].map(short_count);
        assert_eq!(found, ["7", "1.5K", "134.5M", "8.0B"]);
    }
}
