//! EAGLE-3 (Li et al. 2025): draft heads, which read the hidden states of a target besides its tokens.
//!
//! A head has one layer like Llama's or Qwen3's, whose attention reads embedding and hidden state, a matrix that
//! projects the hidden states of three layers of the target to one, and an output matrix for the target's most frequent
//! tokens. Its files name the layers of the target whose *input*, before any norm, the head reads; hidden states here
//! are *outputs* of layers, so each number is one less. Three formats are read: the authors' (a Llama configuration
//! with `draft_vocab_size`), that of the `speculators` package, which vLLM reads too, and GGUF's architecture `eagle3`.
//! Not supported are heads that normalize their own hidden states before they read them again, and heads that draft
//! several tokens in one step.

use foretoken_kernels::rope::Pairing;

use super::checks::count;
use super::gguf::{Gguf, NormKind};
use super::layout::{GGUF, Layout};
use super::{Family, Plan, json, json_reader};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, DraftHead, FeedForward, HeadKind, Spec};

pub(super) const FAMILIES: &[Family] = &[Family::new(None, Some((NAME, from_gguf)))];

const NAME: &str = "eagle3";

/// The field by which the `speculators` package names a kind of head.
const KIND: &str = "speculators_model_type";
const VOCABULARY: &str = "draft_vocab_size";
const TARGET_WIDTH: &str = "target_hidden_size";
const LAYERS: &str = "eagle_aux_hidden_state_layer_ids";

/// Maximum number of layers of a target that a head may read.
const LAYERS_MAX: usize = 64;

/// Whether a configuration describes such a head.
pub(super) fn is(config: &JsonConfig) -> bool {
    let of_head = |name: &String| name.to_ascii_lowercase().contains(NAME);
    let architectures = config.optional_strings("architectures").ok().flatten().unwrap_or_default();
    config.has(KIND) || config.has(VOCABULARY) || architectures.iter().any(of_head)
}

/// The plan of such a head.
pub(super) fn from_json(config: &JsonConfig) -> Result<Plan, ModelError> {
    json::refuse_text(config, KIND, NAME)?;
    json::refuse_true(config, &["norm_output", "fc_norm", "parallel_drafting"])?;
    let layer = config.optional_object("transformer_layer_config")?;
    let layer = layer.as_ref().unwrap_or(config);
    const FIELD: &str = "model_type";
    let kind = layer.optional_str(FIELD)?.unwrap_or("llama");
    let of_layer = ["llama", "qwen3"].contains(&kind).then(|| json_reader(kind)).flatten();
    let of_layer = of_layer.ok_or_else(|| layer.refuse(FIELD, "llama or qwen3", format!("{kind:?}")))?;
    let Plan { mut spec, layout } = of_layer(layer)?;
    let or = |field: &str, default: usize| match config.optional_usize(field)? {
        Some(found) => count(config.file(), field, found),
        None => Ok(default),
    };
    let truth = |field: &str| Ok::<bool, ModelError>(config.optional_bool(field)?.unwrap_or(false));
    let draft_vocabulary = or(VOCABULARY, spec.vocabulary)?;
    if draft_vocabulary > spec.vocabulary {
        return Err(config.refuse(
            VOCABULARY,
            format!("at most the vocabulary, {}", spec.vocabulary),
            draft_vocabulary,
        ));
    }
    let listed = match config.optional_usizes(LAYERS)? {
        Some(listed) => Some(listed),
        None => match config.optional_object("eagle_config")? {
            Some(within) => {
                if within.optional_bool("use_aux_hidden_state")? == Some(false) {
                    return Err(within.refuse("use_aux_hidden_state", "true", "false"));
                }
                within.optional_usizes(LAYERS)?
            }
            None => None,
        },
    };
    let refuse = |expected: &str, found: String| config.refuse(LAYERS, expected, found);
    spec.draft_head = Some(DraftHead {
        target_layers: output_layers(listed.unwrap_or_default(), refuse)?,
        target_width: or(TARGET_WIDTH, spec.width)?,
        draft_vocabulary,
        kind: HeadKind::Layers {
            norms_target: truth("norm_before_fc")?,
            residual_is_normed: truth("norm_before_residual")?,
        },
    });
    Ok(Plan { spec: named(spec), layout: Layout { prefixes: &["model."], ..layout } })
}

fn from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec(NAME, NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Interleaved)?;
    let truth = |field: &str| Ok::<bool, ModelError>(gguf.optional_bool(&spec, field)?.unwrap_or(false));
    // The key has a current name and an earlier one in llama.cpp.
    let mut listed = None;
    for field in ["target_layers", "extract_layers"].map(|field| gguf.key(&spec, field)) {
        if let Some(found) = gguf.metadata.optional_usizes(&field)? {
            listed = Some((field, found));
            break;
        }
    }
    let target_layers = match listed {
        Some((key, listed)) => output_layers(listed, |expected, found| gguf.refuse(&key, expected, found))?,
        None => Vec::new(),
    };
    let rows = gguf.weights.get(GGUF.draft_head.tokens).map(|tensor| tensor.shape.clone());
    let draft_vocabulary = match rows.as_deref() {
        None => spec.vocabulary,
        Some([rows]) if (1..=spec.vocabulary).contains(rows) => *rows,
        Some(other) => {
            let expected = format!("one row of at most {} tokens", spec.vocabulary);
            return Err(gguf.refuse("shape of tensor d2t", expected, format!("{other:?}")));
        }
    };
    let target_width = gguf.optional_count(&spec, TARGET_WIDTH)?.unwrap_or(spec.width);
    if truth("norm_before_fc")? {
        return Err(gguf.refuse(&gguf.key(&spec, "norm_before_fc"), "false", "true"));
    }
    let kind = HeadKind::Layers { norms_target: false, residual_is_normed: truth("norm_before_residual")? };
    spec.draft_head = Some(DraftHead { target_layers, target_width, draft_vocabulary, kind });
    Ok(Plan { spec: named(spec), layout: GGUF })
}

fn named(spec: Spec) -> Spec {
    Spec { family: NAME, tied_head: false, ..spec }
}

/// The layers whose output a head reads, given the layers whose input that is.
fn output_layers(entered: Vec<usize>, refuse: impl Fn(&str, String) -> ModelError) -> Result<Vec<usize>, ModelError> {
    if entered.len() > LAYERS_MAX {
        return Err(refuse("at most 64 layers", entered.len().to_string()));
    }
    for (i, layer) in entered.iter().enumerate() {
        if *layer == 0 {
            return Err(refuse("layers from 1 on (the embedding is behind none)", "0".to_string()));
        }
        if entered[..i].contains(layer) {
            return Err(refuse("each layer once", format!("{layer} twice")));
        }
    }
    Ok(entered.into_iter().map(|layer| layer - 1).collect())
}
