//! Checks of configurations for all families, with errors that name the field.

use foretoken_weights::Weights;
use foretoken_weights::gguf::{Metadata, Value};

use super::experts::check_all;
use crate::batch::Token;
use crate::error::ModelError;
use crate::spec::Spec;

/// A bound, far beyond any network, that keeps a hostile configuration from overflowing products of its fields.
const FIELD_MAX: usize = 1 << 24;

/// Checks a field that is a count.
pub(super) fn count(file: &str, field: &str, found: usize) -> Result<usize, ModelError> {
    if (1..=FIELD_MAX).contains(&found) {
        Ok(found)
    } else {
        Err(ModelError::config(file, field, format!("a number from 1 to {FIELD_MAX}"), found))
    }
}

/// Maximum width of a head; the widest known have 512.
const HEAD_DIM_MAX: usize = 1 << 12;

/// Checks the width of a head: rotary frequencies are computed before any tensor can contradict it.
pub(super) fn check_head_dim(file: &str, field: &str, found: usize) -> Result<usize, ModelError> {
    if (1..=HEAD_DIM_MAX).contains(&found) {
        Ok(found)
    } else {
        Err(ModelError::config(file, field, format!("a width of heads from 1 to {HEAD_DIM_MAX}"), found))
    }
}

/// Checks a token of the network.
pub(super) fn check_token(file: &str, field: &str, found: usize, vocabulary: usize) -> Result<Token, ModelError> {
    let refuse = || ModelError::config(file, field, format!("a token below {vocabulary} (the vocabulary)"), found);
    Token::try_from(found).ok().filter(|_| found < vocabulary).ok_or_else(refuse)
}

/// Checks the epsilon of a norm: NaN or a negative number would make every row NaN.
pub(super) fn check_epsilon(file: &str, field: &str, found: f32) -> Result<f32, ModelError> {
    if found >= 0.0 && found.is_finite() {
        Ok(found)
    } else {
        Err(ModelError::config(file, field, "a finite number of at least 0", found))
    }
}

/// Checks that the key-value heads divide the heads.
pub(super) fn check_heads(file: &str, fields: [&str; 2], heads: usize, kv_heads: usize) -> Result<(), ModelError> {
    if heads.is_multiple_of(kv_heads) {
        return Ok(());
    }
    let expected = format!("a divisor of {} = {heads}", fields[0]);
    Err(ModelError::config(file, fields[1], expected, kv_heads))
}

/// Checks a spec after all fields were read.
pub(super) fn check_spec(file: &str, spec: &Spec) -> Result<(), ModelError> {
    check_all(file, spec)?;
    check_finite(file, spec)
}

/// Checks numbers that were computed from several fields: each field may be acceptable, but a quotient or power of them
/// may be infinite or NaN, and then every row would be NaN.
fn check_finite(file: &str, spec: &Spec) -> Result<(), ModelError> {
    let refuse = |field: &str, found: f32| {
        let expected = "fields that make finite numbers of it";
        Err(ModelError::config(file, field, expected, found))
    };
    let wrong = |numbers: &[f32]| numbers.iter().copied().find(|number| !number.is_finite());
    for rotation in spec.positions.rotations() {
        if let Some(found) = wrong(&rotation.frequencies) {
            return refuse("frequencies of the rotary embedding", found);
        }
        if let Some(found) = wrong(&[rotation.magnitude]) {
            return refuse("magnitude of the rotary embedding", found);
        }
    }
    if let Some(found) = wrong(spec.positions.slopes()) {
        return refuse("slopes of the heads", found);
    }
    let multipliers = [
        ("scale of attention scores", spec.attention_scale),
        ("multiplier of embeddings", spec.embedding_multiplier),
        ("multiplier of residuals", spec.residual_multiplier),
        ("multiplier of logits", spec.logit_multiplier),
    ];
    multipliers.into_iter().find(|(_, found)| !found.is_finite()).map_or(Ok(()), |(field, found)| refuse(field, found))
}

/// The size of a GGUF file's vocabulary: the rows of its embedding, whatever its keys say. For a draft head without an
/// embedding, its keys decide.
pub(super) fn gguf_vocabulary(metadata: &Metadata, weights: &Weights, family: &str) -> Result<usize, ModelError> {
    if family == "eagle3" && weights.get("token_embd.weight").is_none() {
        let key = format!("{family}.vocab_size");
        let listed = match metadata.get("tokenizer.ggml.tokens") {
            Some(Value::Array(tokens)) => Some(tokens.len()),
            _ => None,
        };
        let found = metadata.optional_usize(&key)?.or(listed).map_or_else(|| metadata.usize(&key), Ok)?;
        return count(metadata.source(), &key, found);
    }
    let embedding = weights.require("token_embd.weight")?;
    match embedding.shape.as_slice() {
        [rows, _] => count(metadata.source(), "rows of tensor token_embd.weight", *rows),
        other => Err(ModelError::config(
            metadata.source(),
            "shape of tensor token_embd.weight",
            "two dimensions",
            other.len(),
        )),
    }
}
