//! Known fields of other servers that would change the answer and are not supported.
//!
//! They are refused, since ignoring them would change the answer silently. Values that turn them off (`"mirostat": 0`)
//! are accepted.

use foretoken::Sampling;
use serde_json::Value;

use crate::error::{ApiError, shown};
use crate::fields::Fields;

/// A field, a predicate for values that turn it off, and what to do instead.
type Unsupported = (&'static str, fn(&Value) -> bool, &'static str);

fn is_never_off(_: &Value) -> bool {
    false
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(wanted) => !wanted,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Null => true,
    }
}

fn is_true(value: &Value) -> bool {
    value == &Value::Bool(true)
}

fn is_zero_or_less(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number <= 0.0)
}

fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

fn is_text_only(value: &Value) -> bool {
    value.as_array().is_some_and(|all| all.iter().all(|kind| kind == "text"))
}

const SAMPLER: &str = "this sampler is not supported";

const UNSUPPORTED: [Unsupported; 33] = [
    ("suffix", is_empty, "fill-in-middle is for completions (/v1/completions), not for chats"),
    ("functions", is_empty, "use tools"),
    ("function_call", is_empty, "use tools and tool_choice"),
    ("modalities", is_text_only, "answers are text"),
    ("audio", is_never_off, "answers are text"),
    ("web_search_options", is_never_off, "there is no web search"),
    ("structural_tag", is_empty, "use a grammar"),
    ("whitespace_pattern", is_never_off, "JSON is generated without whitespace"),
    ("mirostat", is_empty, SAMPLER),
    ("dry_multiplier", is_empty, SAMPLER),
    ("xtc_probability", is_empty, SAMPLER),
    ("dynatemp_range", is_empty, SAMPLER),
    ("tfs_z", is_one, SAMPLER),
    ("top_a", is_empty, SAMPLER),
    ("top_n_sigma", |value| value.as_f64().is_some_and(|sigma| sigma <= 0.0), SAMPLER),
    ("epsilon_cutoff", is_empty, SAMPLER),
    ("eta_cutoff", is_empty, SAMPLER),
    ("no_repeat_ngram_size", is_empty, SAMPLER),
    ("samplers", is_never_off, "samplers are applied in transformers' order"),
    ("bad_words", is_empty, "use logit_bias"),
    ("allowed_token_ids", is_empty, "use logit_bias"),
    ("include_stop_str_in_output", is_empty, "stop strings are never part of the text"),
    ("truncate_prompt_tokens", is_never_off, "prompts are not truncated"),
    ("prompt_embeds", is_never_off, "prompts are texts or tokens"),
    ("lora", is_empty, "there are no adapters"),
    ("n_keep", is_empty, "the context does not shift"),
    ("n_indent", is_empty, "texts are not indented"),
    ("verbosity", is_never_off, "set it in the prompt"),
    ("add_special_tokens", is_true, "the model's special tokens are always added to prompts; send tokens instead"),
    ("do_sample", is_true, "use temperature 0"),
    ("t_max_predict_ms", is_zero_or_less, "the server's --timeout applies to all requests"),
    ("penalize_nl", is_empty, "penalties apply to all tokens"),
    ("smoothing_factor", is_empty, SAMPLER),
];

/// Takes these fields, and refuses the first that has an effect. One that is a parameter of the library's law is left
/// to be read.
pub(super) fn check(fields: &mut Fields) -> Result<(), ApiError> {
    let is_parameter = |name: &str| Sampling::PARAMETERS.iter().any(|parameter| parameter.name == name);
    for (name, is_off, why) in UNSUPPORTED.iter().filter(|(name, ..)| !is_parameter(name)) {
        if let Some(value) = fields.value(name)?
            && !is_off(&value)
        {
            let found = shown(&value.to_string());
            return Err(ApiError::unsupported(name, format!("expected none, found {found}: {why}")));
        }
    }
    Ok(())
}
