//! BLOOM: ALiBi instead of position embeddings, a norm after the embedding, queries, keys and values fused head by
//! head.

use super::alibi::slopes;
use super::gguf::{Gguf, NormKind};
use super::layout::{Fusion, GGUF, GGUF_QKV, HUGGING_FACE, Layout, Qkv, Up};
use super::tensors::Bias;
use super::write::no_further_keys;
use super::{Family, Plan, json};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, Positions};

pub(super) const FAMILIES: &[Family] =
    &[Family::new(Some(("bloom", from_json)), Some(("bloom", from_gguf))).exported_as("bloom", no_further_keys)];

fn from_json(config: &JsonConfig) -> Result<Plan, ModelError> {
    json::refuse_true(config, &["apply_residual_connection_post_layernorm"])?;
    let fields = json::Fields {
        width: if config.has("n_embed") { "n_embed" } else { "hidden_size" },
        layers: if config.has("n_layer") { "n_layer" } else { "num_hidden_layers" },
        heads: if config.has("n_head") { "n_head" } else { "num_attention_heads" },
        // The width is always four times that of the network.
        ffn_width: "n_inner",
        ffn_factor: Some(4),
        context: "seq_length",
        epsilon: "layer_norm_epsilon",
        epsilon_default: 1e-5,
        norm: json::layer,
        // In transformers there is no such field and no other activation.
        activation_default: "gelu_new",
        gated: false,
        tied: true,
        ..json::HUGGING_FACE
    };
    let mut spec = json::spec(config, "bloom", &fields)?;
    spec.positions = Positions::Alibi(slopes(spec.heads));
    let layout = Layout {
        prefixes: &["transformer."],
        embedding: "word_embeddings",
        embedding_norm: Some("word_embeddings_layernorm"),
        layers: "h",
        qkv: Qkv::Fused("self_attention.query_key_value", Fusion::ByGroup),
        attention_output: "self_attention.dense",
        up: Up::Plain("mlp.dense_h_to_4h"),
        down: "mlp.dense_4h_to_h",
        output_norm: Some("ln_f"),
        ..HUGGING_FACE.with_bias(Bias::Required)
    };
    Ok(Plan { spec, layout })
}

fn from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("bloom", NormKind::Layer, FeedForward::Plain(Activation::GeluTanh))?;
    spec.positions = Positions::Alibi(slopes(spec.heads));
    let embedding_norm = Some("token_embd_norm");
    Ok(Plan {
        spec,
        layout: Layout { embedding_norm, qkv: GGUF_QKV, up: Up::Plain("ffn_up"), norm_bias: true, ..GGUF },
    })
}
