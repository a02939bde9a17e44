//! T5, T5 1.1, Flan-T5, mT5 and UMT5: encoder-decoders with biases by relative position, which the layers of each half
//! share (in UMT5 each layer has its own), and unscaled attention scores.
//!
//! The first T5 has ReLU and a tied head, whose logits are scaled by the root of the width; the later ones have gates
//! and a head of their own. Relative positions end nowhere: `n_positions` is the length that a network was trained
//! with, and networks are run on longer texts, so it is no limit here ([`CONTEXT_MAX`]); a GGUF file has it as its
//! context, for other programs. GGUF files do not say from which distance all keys share a bucket (128, as in all
//! published networks) nor that logits are scaled (those of a tied head are).

use super::checks::{check_token, count};
use super::gguf::{Gguf, NormKind};
use super::json;
use super::layout::{CrossNames, EncoderNames, GGUF, HUGGING_FACE, Layout, Qkv, Up};
use super::write::GgufDescription;
use super::{Family, Plan};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, Buckets, Encoder, FeedForward, Norm, Positions, Spec};

pub(super) const FAMILIES: &[Family] = &[
    Family::new(Some(("t5", t5)), Some(("t5", from_gguf))).exported_as("t5", keys),
    // GGUF files have one architecture for all.
    Family::new(Some(("mt5", mt5)), None).exported_as("t5", keys),
    Family::new(Some(("umt5", umt5)), None).exported_as("t5", keys),
];

/// Positions of a source and of an output. The networks have no limit; this one keeps a cache of so many positions in
/// the memory of a machine.
const CONTEXT_MAX: usize = 1 << 15;

/// The field with the length that a network was trained with, and the length if a configuration does not say it.
const TRAINED: (&str, usize) = ("n_positions", 512);

/// Names in GGUF files: keys, and the tensor by which networks with gates are recognized.
const BUCKETS_KEY: &str = "attention.relative_buckets_count";
const START_KEY: &str = "decoder_start_token_id";
const DECODER_LAYERS_KEY: &str = "decoder_block_count";
const GATE: &str = "dec.blk.0.ffn_gate.weight";

/// Tensors by which networks are recognized whose layers have biases of their own.
const OWN_BIASES: [&str; 2] = ["enc.blk.1.attn_rel_b.weight", "dec.blk.1.attn_rel_b.weight"];

/// The feed-forward network of the later families, if a configuration does not say it.
const GATED_GELU: &str = "gated-gelu";

/// Buckets and the distance of the last one, if the configuration has none.
const BUCKETS: usize = 32;
const DISTANCE_MAX: usize = 128;

/// Bound of the distance of the last bucket: a table of biases has as many columns.
const DISTANCE_BOUND: usize = 1 << 14;

fn t5(config: &JsonConfig) -> Result<Plan, ModelError> {
    with_head(config, from_json(config, "relu", false)?)
}

fn umt5(config: &JsonConfig) -> Result<Plan, ModelError> {
    with_head(config, from_json(config, GATED_GELU, true)?)
}

/// Decides whether the head is tied, and its logits therefore scaled.
fn with_head(config: &JsonConfig, mut plan: Plan) -> Result<Plan, ModelError> {
    let tied = config.optional_bool("tie_word_embeddings")?.unwrap_or(true);
    // transformers 5 writes that every head is tied, and says here whether it is.
    plan.spec.tied_head = config.optional_bool("scale_decoder_outputs")?.unwrap_or(tied);
    if plan.spec.tied_head {
        plan.spec.logit_multiplier = scale_of(&plan.spec);
    }
    Ok(plan)
}

fn mt5(config: &JsonConfig) -> Result<Plan, ModelError> {
    let mut plan = from_json(config, GATED_GELU, false)?;
    plan.spec.tied_head = false;
    Ok(plan)
}

/// The factor of the logits of a tied head.
fn scale_of(spec: &Spec) -> f32 {
    1.0 / (spec.width as f32).sqrt()
}

/// `feed_forward`: the feed-forward network, if the configuration does not say it.
fn from_json(config: &JsonConfig, feed_forward: &str, in_each_layer: bool) -> Result<Plan, ModelError> {
    const BOTH: &str = "is_encoder_decoder";
    if !config.optional_bool(BOTH)?.unwrap_or(true) {
        return Err(config.refuse(BOTH, "true", false));
    }
    let fields = json::Fields {
        width: "d_model",
        layers: if config.has("num_decoder_layers") { "num_decoder_layers" } else { "num_layers" },
        heads: "num_heads",
        head_dim: "d_kv",
        head_dim_default: Some(64),
        ffn_width: "d_ff",
        context: TRAINED.0,
        context_default: TRAINED.1,
        epsilon: "layer_norm_epsilon",
        // The field is not a single activation, and is read below.
        activation: "",
        activation_default: "relu",
        ..json::HUGGING_FACE
    };
    let mut spec = json::spec(config, "t5", &fields)?;
    const KIND: &str = "feed_forward_proj";
    let kind = config.optional_str(KIND)?.unwrap_or(feed_forward);
    spec.feed_forward = match kind.strip_prefix("gated-") {
        Some("gelu") => FeedForward::Gated(Activation::GeluTanh),
        Some(name) => FeedForward::Gated(json::activation_of(config, KIND, name)?),
        None => FeedForward::Plain(json::activation_of(config, KIND, kind)?),
    };
    let file = config.file();
    let counts = |field: &str, default| count(file, field, config.optional_usize(field)?.unwrap_or(default));
    let (of_buckets, of_distance) = ("relative_attention_num_buckets", "relative_attention_max_distance");
    let start = match config.optional_usize("decoder_start_token_id")? {
        None => config.optional_usize("pad_token_id")?.unwrap_or(0),
        Some(start) => start,
    };
    let start = check_token(file, "decoder_start_token_id", start, spec.vocabulary)?;
    let encoder = Encoder { layers: count(file, "num_layers", config.usize("num_layers")?)?, start };
    let (count, distance_max) = (counts(of_buckets, BUCKETS)?, counts(of_distance, DISTANCE_MAX)?);
    // One layer has none to share with.
    let is_deep = encoder.layers.max(spec.layers) > 1;
    let buckets = Buckets { count, distance_max, in_each_layer: in_each_layer && is_deep };
    let spec = complete(spec, encoder, (file, [of_buckets, of_distance], buckets))?;
    let layout = layout(matches!(spec.feed_forward, FeedForward::Gated(_)));
    Ok(Plan { spec, layout })
}

/// How transformers' checkpoints are stored, with gates or without.
fn layout(gated: bool) -> Layout {
    let up = |gated_names, plain| if gated { Up::Gated(gated_names) } else { Up::Plain(plain) };
    Layout {
        prefixes: &[],
        embedding: "shared",
        embedding_copies: &["encoder.embed_tokens", "decoder.embed_tokens"],
        layers: "decoder.block",
        attention_norm: Some("layer.0.layer_norm"),
        qkv: Qkv::Three(["layer.0.SelfAttention.q", "layer.0.SelfAttention.k", "layer.0.SelfAttention.v"]),
        attention_output: "layer.0.SelfAttention.o",
        relative_bias: "layer.0.SelfAttention.relative_attention_bias",
        cross: Some(CrossNames {
            norm: "layer.1.layer_norm",
            qkv: ["layer.1.EncDecAttention.q", "layer.1.EncDecAttention.k", "layer.1.EncDecAttention.v"],
            output: "layer.1.EncDecAttention.o",
        }),
        ffn_norm: Some("layer.2.layer_norm"),
        up: up(["layer.2.DenseReluDense.wi_0", "layer.2.DenseReluDense.wi_1"], "layer.2.DenseReluDense.wi"),
        down: "layer.2.DenseReluDense.wo",
        output_norm: Some("decoder.final_layer_norm"),
        encoder: Some(EncoderNames {
            layers: "encoder.block",
            ffn_norm: "layer.1.layer_norm",
            up: up(["layer.1.DenseReluDense.wi_0", "layer.1.DenseReluDense.wi_1"], "layer.1.DenseReluDense.wi"),
            down: "layer.1.DenseReluDense.wo",
            output_norm: "encoder.final_layer_norm",
        }),
        ..HUGGING_FACE
    }
}

/// Adds to a spec what all networks of the family have.
fn complete(spec: Spec, encoder: Encoder, buckets: (&str, [&str; 2], Buckets)) -> Result<Spec, ModelError> {
    let (file, [of_buckets, of_distance], buckets) = buckets;
    let Buckets { count, distance_max, .. } = buckets;
    if count < 4 {
        return Err(ModelError::config(file, of_buckets, "at least 4", count));
    }
    if !(count / 2 + 1..=DISTANCE_BOUND).contains(&distance_max) {
        let expected = format!("more than half of {of_buckets}, {count}, and at most {DISTANCE_BOUND}");
        return Err(ModelError::config(file, of_distance, expected, distance_max));
    }
    Ok(Spec {
        kv_heads: spec.heads,
        context_max: CONTEXT_MAX,
        positions: Positions::Relative(buckets),
        attention_scale: 1.0,
        encoder: Some(encoder),
        ..spec
    })
}

fn from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let gated = gguf.has(GATE);
    let feed_forward =
        if gated { FeedForward::Gated(Activation::GeluTanh) } else { FeedForward::Plain(Activation::Relu) };
    let mut spec = gguf.spec("t5", NormKind::Rms, feed_forward)?;
    let of_encoder = spec.layers;
    spec.layers = gguf.optional_count(&spec, DECODER_LAYERS_KEY)?.unwrap_or(of_encoder);
    let file = gguf.metadata.source();
    let [of_buckets, of_start] = [BUCKETS_KEY, START_KEY].map(|key| gguf.key(&spec, key));
    let count = count(file, &of_buckets, gguf.metadata.usize(&of_buckets)?)?;
    let start = gguf.metadata.optional_usize(&of_start)?.unwrap_or(0);
    let start = check_token(file, &of_start, start, spec.vocabulary)?;
    let in_each_layer = OWN_BIASES.iter().any(|tensor| gguf.has(tensor));
    let buckets = Buckets { count, distance_max: DISTANCE_MAX, in_each_layer };
    let mut spec = complete(spec, Encoder { layers: of_encoder, start }, (file, [&of_buckets; 2], buckets))?;
    if spec.tied_head {
        spec.logit_multiplier = scale_of(&spec);
    }
    let up = if gated { Up::Gated(["ffn_gate", "ffn_up"]) } else { Up::Plain("ffn_up") };
    let layout = Layout {
        layers: "dec.blk",
        attention_output: "attn_o",
        relative_bias: "attn_rel_b",
        cross: Some(CrossNames {
            norm: "cross_attn_norm",
            qkv: ["cross_attn_q", "cross_attn_k", "cross_attn_v"],
            output: "cross_attn_o",
        }),
        up,
        output_norm: Some("dec.output_norm"),
        encoder: Some(EncoderNames {
            layers: "enc.blk",
            ffn_norm: "ffn_norm",
            up,
            down: "ffn_down",
            output_norm: "enc.output_norm",
        }),
        ..GGUF
    };
    Ok(Plan { spec, layout })
}

fn keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    if let (Positions::Relative(buckets), Some(encoder)) = (&file.spec.positions, file.spec.encoder) {
        let (layers, buckets) = (file.spec.layers, *buckets);
        // The layers of a file are those of its encoder.
        file.add_counts("block_count", &[encoder.layers]);
        file.add_count(DECODER_LAYERS_KEY, layers);
        file.add_count(BUCKETS_KEY, buckets.count);
        file.add_count(START_KEY, encoder.start as usize);
        let has_own = buckets.in_each_layer;
        let of_halves =
            [encoder.layers, layers].into_iter().zip(OWN_BIASES).filter(|(layers, _)| *layers > 1 && has_own);
        of_halves.for_each(|(_, tensor)| file.add_marker_tensor(tensor));
    }
    // llama.cpp's converter writes the epsilon under both names.
    if let Norm::Rms { epsilon } = file.spec.norm {
        file.add_key("attention.layer_norm_epsilon", epsilon);
    }
    if let FeedForward::Gated(_) = file.spec.feed_forward {
        file.add_marker_tensor(GATE);
    }
    file.limit_context(file.config.optional_usize(TRAINED.0)?.unwrap_or(TRAINED.1));
    Ok(())
}
