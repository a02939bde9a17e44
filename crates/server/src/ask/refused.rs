//! Known fields that would change the text and are not possible here.
//!
//! Ignoring them would answer another question than was asked. Values that ask for nothing (`"mirostat": 0`) are let
//! through.

use serde_json::Value;

use crate::error::{ApiError, shown};
use crate::fields::Fields;

/// A field, the values that ask for nothing, and what to do instead.
type Refused = (&'static str, fn(&Value) -> bool, &'static str);

fn never(_: &Value) -> bool {
    false
}

fn empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(wanted) => !wanted,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Null => true,
    }
}

fn truth(value: &Value) -> bool {
    value == &Value::Bool(true)
}

fn no_time(value: &Value) -> bool {
    value.as_f64().is_some_and(|time| time <= 0.0)
}

fn one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

fn text_alone(value: &Value) -> bool {
    value.as_array().is_some_and(|all| all.iter().all(|one| one == "text"))
}

const SAMPLER: &str = "this sampler is not there";

const REFUSED: [Refused; 35] = [
    ("suffix", empty, "a gap is filled in a text (/v1/completions), and not in a chat"),
    ("functions", empty, "use tools"),
    ("function_call", empty, "use tools and tool_choice"),
    ("modalities", text_alone, "answers are text"),
    ("audio", never, "answers are text"),
    ("web_search_options", never, "nothing is searched"),
    ("structural_tag", empty, "use a grammar"),
    ("whitespace_pattern", never, "there is no whitespace between the parts of JSON"),
    ("mirostat", empty, SAMPLER),
    ("dry_multiplier", empty, SAMPLER),
    ("xtc_probability", empty, SAMPLER),
    ("dynatemp_range", empty, SAMPLER),
    ("tfs_z", one, SAMPLER),
    ("top_a", empty, SAMPLER),
    ("top_n_sigma", |value| value.as_f64().is_some_and(|sigma| sigma <= 0.0), SAMPLER),
    ("epsilon_cutoff", empty, SAMPLER),
    ("eta_cutoff", empty, SAMPLER),
    ("no_repeat_ngram_size", empty, SAMPLER),
    ("samplers", never, "samplers are applied in transformers' order"),
    ("use_beam_search", empty, "answers are sampled"),
    ("length_penalty", one, "answers are sampled"),
    ("bad_words", empty, "use logit_bias"),
    ("allowed_token_ids", empty, "use logit_bias"),
    ("include_stop_str_in_output", empty, "stop strings are never part of the text"),
    ("truncate_prompt_tokens", never, "prompts are not cut"),
    ("prompt_embeds", never, "prompts are texts or tokens"),
    ("lora", empty, "there are no adapters"),
    ("n_keep", empty, "the context does not shift"),
    ("n_indent", empty, "texts are not indented"),
    ("verbosity", never, "say it in the prompt"),
    ("add_special_tokens", truth, "prompts get what the model expects around a text; give tokens instead"),
    ("do_sample", truth, "use temperature 0"),
    ("t_max_predict_ms", no_time, "the server's --timeout holds for all"),
    ("penalize_nl", empty, "penalties hold for all tokens"),
    ("smoothing_factor", empty, SAMPLER),
];

/// Takes these fields, and refuses the first that asks for something.
pub(super) fn check(fields: &mut Fields) -> Result<(), ApiError> {
    for (name, harmless, why) in REFUSED {
        if let Some(value) = fields.value(name)?
            && !harmless(&value)
        {
            let found = shown(&value.to_string());
            return Err(ApiError::unsupported(name, format!("expected none, found {found}: {why}")));
        }
    }
    Ok(())
}
