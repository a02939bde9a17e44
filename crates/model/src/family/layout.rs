//! Where the parts of a network lie in its files, and how they are read from there.
//!
//! The idea: a family says in one plain struct what its tensors are called and in which of the known ways they are
//! written ([`Layout`]); reading is the same for all. Most families are one of the two layouts here, Llama's in
//! transformers ([`HUGGING`]) and that of GGUF files ([`GGUF`]), with a few fields changed. Matrices are described and
//! not read; fused ones are cut by stretches of their rows. Left out: what the network computes (`Spec`).

mod write;

use std::ops::Range;

use super::tensors::{Bias, Tensors};
use crate::error::ModelError;
use crate::linear::Unpacked;
use crate::network::{Inner, Layer, Network, NormWeights, PieceNorms};
use crate::spec::{Activation, FeedForward, Norm, Spec};

/// Names of tensors, without `.weight`, and how they are written.
#[derive(Clone)]
pub(super) struct Layout {
    /// What all names but the head's begin with: the first of these with which there is an embedding, or nothing.
    /// Checkpoints of the bare network leave it away.
    pub(super) prefixes: &'static [&'static str],
    pub(super) embedding: &'static str,
    /// The table of learned positions, and how many of its rows lie before that of position 0.
    pub(super) positions: Option<(&'static str, usize)>,
    pub(super) embedding_norm: Option<&'static str>,
    /// Between embedding and stream, and between stream and head, where their widths differ.
    pub(super) projections: [&'static str; 2],
    /// What the names of a layer begin with, before its number.
    pub(super) layers: &'static str,
    pub(super) attention_norm: Option<&'static str>,
    pub(super) qkv: Qkv,
    pub(super) piece_norms: Pieces,
    pub(super) attention_output: &'static str,
    pub(super) attention_post_norm: Option<&'static str>,
    pub(super) ffn_norm: Option<&'static str>,
    pub(super) up: Up,
    pub(super) down: &'static str,
    pub(super) ffn_post_norm: Option<&'static str>,
    pub(super) output_norm: Option<&'static str>,
    /// The first of these that is there.
    pub(super) heads: &'static [&'static str],
    pub(super) qkv_bias: Bias,
    pub(super) output_bias: Bias,
    pub(super) ffn_bias: Bias,
    pub(super) head_bias: Bias,
    /// Whether norms have biases.
    pub(super) norm_bias: bool,
    /// Whether norms multiply by 1 + their weight, as Gemma's do.
    pub(super) one_plus: bool,
    /// Whether the matrices of layers are stored `[inputs, outputs]`.
    pub(super) transposed: bool,
    /// Whether the rows of the head are brought to length 1.
    pub(super) unit_head: bool,
}

/// How queries, keys and values are written.
#[derive(Clone, Copy)]
pub(super) enum Qkv {
    /// A matrix each.
    Three([&'static str; 3]),
    /// One matrix.
    Fused(&'static str, Fusion),
}

/// How the rows of a fused matrix follow one another.
#[derive(Clone, Copy)]
pub(super) enum Fusion {
    /// Queries, keys, values.
    Stacked,
    /// For each key-value head: the queries of its group, its key, its value.
    ByGroup,
    /// In four parts, each with its share of queries, values and keys, in this order (CodeGen).
    InFourParts,
}

/// Norms of queries and keys.
#[derive(Clone, Copy)]
pub(super) enum Pieces {
    None,
    /// One `[head_dim]` for every head.
    EveryHead([&'static str; 2]),
    /// A row of `[heads, head_dim]` for each head, without biases.
    EachHead([&'static str; 2]),
    /// A tensor for each head, by its number, `{name}.{head}`, without biases.
    Listed([&'static str; 2]),
    /// One of the whole row.
    Whole([&'static str; 2]),
}

/// How the matrices of the feed-forward half that read its input are written.
#[derive(Clone, Copy)]
pub(super) enum Up {
    Plain(&'static str),
    Gated([&'static str; 2]),
    /// The gate's rows, then those of `up`.
    Fused(&'static str),
}

/// Llama as transformers writes it.
pub(super) const HUGGING: Layout = Layout {
    prefixes: &["model."],
    embedding: "embed_tokens",
    positions: None,
    embedding_norm: None,
    projections: ["project_in", "project_out"],
    layers: "layers",
    attention_norm: Some("input_layernorm"),
    qkv: Qkv::Three(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    piece_norms: Pieces::None,
    attention_output: "self_attn.o_proj",
    attention_post_norm: None,
    ffn_norm: Some("post_attention_layernorm"),
    up: Up::Gated(["mlp.gate_proj", "mlp.up_proj"]),
    down: "mlp.down_proj",
    ffn_post_norm: None,
    output_norm: Some("norm"),
    heads: &["lm_head"],
    qkv_bias: Bias::None,
    output_bias: Bias::None,
    ffn_bias: Bias::None,
    head_bias: Bias::None,
    norm_bias: false,
    one_plus: false,
    transposed: false,
    unit_head: false,
};

/// Llama in a GGUF file. Whether there are biases is said by the file's tensors.
pub(super) const GGUF: Layout = Layout {
    prefixes: &[],
    embedding: "token_embd",
    layers: "blk",
    attention_norm: Some("attn_norm"),
    qkv: Qkv::Three(["attn_q", "attn_k", "attn_v"]),
    attention_output: "attn_output",
    ffn_norm: Some("ffn_norm"),
    up: Up::Gated(["ffn_gate", "ffn_up"]),
    down: "ffn_down",
    output_norm: Some("output_norm"),
    heads: &["output"],
    qkv_bias: Bias::IfThere,
    output_bias: Bias::IfThere,
    ffn_bias: Bias::IfThere,
    head_bias: Bias::IfThere,
    ..HUGGING
};

/// Fused queries, keys and values of a GGUF file: converters bring them into this order.
pub(super) const GGUF_QKV: Qkv = Qkv::Fused("attn_qkv", Fusion::Stacked);

impl Fusion {
    /// The rows of queries, keys and values.
    fn stretches(self, spec: &Spec) -> Result<[Vec<Range<usize>>; 3], String> {
        let (dim, group) = (spec.head_dim, spec.heads / spec.kv_heads);
        let one = |first: usize, len: usize| first..first + len;
        Ok(match self {
            Self::Stacked => {
                let (queries, keys) = (spec.heads * dim, spec.kv_heads * dim);
                [vec![one(0, queries)], vec![one(queries, keys)], vec![one(queries + keys, keys)]]
            }
            Self::ByGroup => {
                let of = |first: usize, heads: usize| {
                    let starts = (0..spec.kv_heads).map(|head| (head * (group + 2) + first) * dim);
                    starts.map(|start| one(start, heads * dim)).collect()
                };
                [of(0, group), of(group, 1), of(group + 1, 1)]
            }
            Self::InFourParts => {
                if group != 1 || !spec.heads.is_multiple_of(4) {
                    return Err("a multiple of 4".to_string());
                }
                let part = spec.heads / 4 * dim;
                [0, 2, 1].map(|which| (0..4).map(|i| one((3 * i + which) * part, part)).collect())
            }
        })
    }
}

impl Layout {
    /// Describes the network; of its tensors only vectors are read.
    ///
    /// # Errors
    /// A tensor is missing or contradicts the configuration.
    pub(super) fn read(&self, spec: Spec, tensors: Tensors<'_>) -> Result<Network<Unpacked>, ModelError> {
        let fits = |prefix: &&&str| tensors.has(&format!("{prefix}{}.weight", self.embedding));
        let prefix = self.prefixes.iter().find(fits).copied().unwrap_or_default();
        let head = self.heads.iter().find(|head| tensors.has_matrix(head)).unwrap_or(&self.heads[0]);
        let reader = Reader { layout: self, spec: &spec, tensors };
        let Spec { vocabulary, width, embedding_width, context_max, .. } = spec;
        let mut layers = Vec::new();
        for i in 0..spec.layers {
            layers.push(reader.layer(&format!("{prefix}{}.{i}.", self.layers))?);
        }
        let embedding_name = format!("{prefix}{}", self.embedding);
        let embedding = tensors.table(&embedding_name, embedding_width, vocabulary)?;
        let positions = match self.positions {
            None => None,
            Some((name, before)) => {
                let table = tensors.table(&format!("{prefix}{name}"), width, context_max + before)?;
                Some(table.rows_from(before))
            }
        };
        let norm =
            |name: Option<&'static str>| name.map(|name| reader.norm(&format!("{prefix}{name}"), width)).transpose();
        let projection = |name: &str, shape: [usize; 2]| match embedding_width == width {
            true => Ok(None),
            false => tensors.linear(&format!("{prefix}{name}"), shape[0], shape[1], Bias::None).map(Some),
        };
        let head = tensors.head(head, &embedding_name, &spec, self.head_bias)?;
        Ok(Network {
            positions,
            embedding_projection: projection(self.projections[0], [embedding_width, width])?,
            embedding_norm: norm(self.embedding_norm)?,
            layers,
            output_norm: norm(self.output_norm)?,
            output_projection: projection(self.projections[1], [width, embedding_width])?,
            head: if self.unit_head { head.with_unit_rows() } else { head },
            embedding,
            spec,
        })
    }
}

/// What is needed to read a layer.
struct Reader<'a> {
    layout: &'a Layout,
    spec: &'a Spec,
    tensors: Tensors<'a>,
}

impl Reader<'_> {
    /// The layer whose names begin with `at`.
    fn layer(&self, at: &str) -> Result<Layer<Unpacked>, ModelError> {
        let Self { layout, spec, .. } = *self;
        let Spec { width, heads, head_dim, ffn_width, .. } = *spec;
        let norm = |name: Option<&'static str>| name.map(|name| self.norm(&format!("{at}{name}"), width)).transpose();
        let attention_norm = norm(layout.attention_norm)?;
        let [query, key, value] = self.qkv(at)?;
        let [query_norm, key_norm] = self.piece_norms(at)?;
        Ok(Layer {
            attention_norm,
            query,
            key,
            value,
            query_norm,
            key_norm,
            attention_output: self.linear(
                at,
                layout.attention_output,
                [heads * head_dim, width],
                layout.output_bias,
            )?,
            attention_post_norm: norm(layout.attention_post_norm)?,
            ffn_norm: norm(layout.ffn_norm)?,
            inner: self.inner(at)?,
            down: self.linear(at, layout.down, [ffn_width, width], layout.ffn_bias)?,
            ffn_post_norm: norm(layout.ffn_post_norm)?,
        })
    }

    /// A matrix of a layer, of so many inputs and outputs.
    fn linear(&self, at: &str, name: &str, shape: [usize; 2], bias: Bias) -> Result<Unpacked, ModelError> {
        let (name, [inputs, outputs]) = (format!("{at}{name}"), shape);
        if self.layout.transposed {
            self.tensors.transposed(&name, inputs, outputs, bias)
        } else {
            self.tensors.linear(&name, inputs, outputs, bias)
        }
    }

    fn qkv(&self, at: &str) -> Result<[Unpacked; 3], ModelError> {
        let Spec { width, heads, kv_heads, head_dim, .. } = *self.spec;
        let (queries, keys, bias) = (heads * head_dim, kv_heads * head_dim, self.layout.qkv_bias);
        match self.layout.qkv {
            Qkv::Three([query, key, value]) => Ok([
                self.linear(at, query, [width, queries], bias)?,
                self.linear(at, key, [width, keys], bias)?,
                self.linear(at, value, [width, keys], bias)?,
            ]),
            Qkv::Fused(name, fusion) => {
                let fused = self.linear(at, name, [width, queries + 2 * keys], bias)?;
                let stretches = fusion.stretches(self.spec).map_err(|expected| {
                    ModelError::config(self.tensors.weights.source(), "number of heads", expected, heads)
                })?;
                Ok(stretches.map(|stretches| fused.stretches(&stretches)))
            }
        }
    }

    fn piece_norms(&self, at: &str) -> Result<[PieceNorms; 2], ModelError> {
        let Spec { heads, kv_heads, head_dim, .. } = *self.spec;
        let both = |names: [&str; 2], read: &dyn Fn(&str, usize) -> Result<PieceNorms, ModelError>| {
            let [query, key] = names.map(|name| format!("{at}{name}"));
            Ok([read(&query, heads)?, read(&key, kv_heads)?])
        };
        match self.layout.piece_norms {
            Pieces::None => Ok([Vec::new(), Vec::new()]),
            Pieces::EveryHead(names) => both(names, &|name, _| Ok(vec![self.norm(name, head_dim)?])),
            Pieces::Whole(names) => both(names, &|name, heads| Ok(vec![self.norm(name, heads * head_dim)?])),
            Pieces::EachHead(names) => both(names, &|name, heads| {
                let rows = self.tensors.matrix(&format!("{name}.weight"), [heads, head_dim])?;
                Ok(rows.chunks_exact(head_dim).map(|row| self.with_bias(row.to_vec())).collect())
            }),
            Pieces::Listed(names) => both(names, &|name, heads| {
                let weight = |head| self.tensors.vector(&format!("{name}.{head}.weight"), head_dim);
                (0..heads).map(|head| Ok(self.with_bias(weight(head)?))).collect()
            }),
        }
    }

    fn inner(&self, at: &str) -> Result<Inner<Unpacked>, ModelError> {
        let Spec { width, ffn_width, feed_forward, .. } = *self.spec;
        let bias = self.layout.ffn_bias;
        let matrix = |name: &str, outputs: usize| self.linear(at, name, [width, outputs], bias);
        let gated = |gate: Unpacked, up: Unpacked, activation: Activation| Inner::Gated { activation, gate, up };
        match (self.layout.up, feed_forward) {
            (Up::Plain(name), FeedForward::Plain(activation)) => {
                Ok(Inner::Plain { activation, up: matrix(name, ffn_width)? })
            }
            (Up::Gated([gate, up]), FeedForward::Gated(activation)) => {
                Ok(gated(matrix(gate, ffn_width)?, matrix(up, ffn_width)?, activation))
            }
            (Up::Fused(name), FeedForward::Gated(activation)) => {
                let both = matrix(name, 2 * ffn_width)?;
                Ok(gated(both.outputs(0..ffn_width), both.outputs(ffn_width..2 * ffn_width), activation))
            }
            _ => unreachable!("{}: the layout and the feed-forward half contradict each other", self.spec.family),
        }
    }

    /// Weight and bias of a normalization.
    fn norm(&self, name: &str, width: usize) -> Result<NormWeights, ModelError> {
        let weight = self.tensors.vector(&format!("{name}.weight"), width)?;
        if !self.layout.norm_bias {
            return Ok(self.with_bias(weight));
        }
        Ok(NormWeights { bias: self.tensors.vector(&format!("{name}.bias"), width)?, ..self.with_bias(weight) })
    }

    /// A normalization whose file has no bias.
    fn with_bias(&self, mut weight: Vec<f32>) -> NormWeights {
        if self.layout.one_plus {
            weight.iter_mut().for_each(|weight| *weight += 1.0);
        }
        let bias = match self.spec.norm {
            Norm::Rms { .. } => Vec::new(),
            Norm::Layer { .. } => vec![0.0; weight.len()],
        };
        NormWeights { weight, bias }
    }
}
