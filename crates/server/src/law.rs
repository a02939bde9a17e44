//! The numbers of a law in answers: their names in other APIs, and their decimals.
//!
//! Which numbers there are is said by the library ([`foretoken::Sampling::PARAMETERS`] and
//! [`foretoken::settings::SamplingSettings::NUMBERS`]), and their order by each answer.

use serde_json::Value;

/// The one number that llama.cpp and Ollama call otherwise: their name, and ours.
pub(crate) const REPEAT_PENALTY: (&str, &str) = ("repeat_penalty", "repetition_penalty");

/// The name of a number in llama.cpp and Ollama.
pub(crate) fn llama_cpp_name(name: &'static str) -> &'static str {
    if name == REPEAT_PENALTY.1 { REPEAT_PENALTY.0 } else { name }
}

/// The shortest decimal that denotes this number, not the digits of the nearest double.
pub(crate) fn decimal(number: f32) -> Value {
    number.to_string().parse::<f64>().unwrap_or_default().into()
}
