//! How the tensors of a network are stored in its files, and how they are read.
//!
//! A family lists in one plain struct ([`Layout`]) the names of its tensors and in which of the known ways they are
//! stored; reading is the same for all. Most families have one of the two layouts here, Llama's in transformers
//! ([`HUGGING_FACE`]) and that of GGUF files ([`GGUF`]), with a few fields changed. Matrices are described and not
//! read; fused ones are cut by ranges of their rows.

mod encoder;
mod experts;
mod ffn;
mod head;
mod write;

use std::ops::Range;

pub(super) use self::encoder::{CrossNames, EncoderNames};
pub(super) use self::experts::{EACH, ExpertNames, ExpertStorage, GGUF_FUSED, IN_MEMORY, STACKED};
use self::ffn::DenseWithExpertsNames;
use self::head::DraftHeadNames;
use super::tensors::{Bias, Tensors};
use crate::error::ModelError;
use crate::linear::Unpacked;
use crate::network::{InputReader, InputSource, KeyValue, Layer, Network, NormWeights, QkNorms};
use crate::shared_embeddings::SharedEmbeddings;
use crate::spec::{FeedForward, Heads, Norm, Spec};

/// Names of tensors, without `.weight`, and how they are stored.
#[derive(Clone)]
pub struct Layout {
    /// Possible prefixes of all names but the output head's: the first one under which there is an embedding is used,
    /// or none. Checkpoints of the bare network (transformers' base models) have no prefix.
    pub(super) prefixes: &'static [&'static str],
    pub(super) embedding: &'static str,
    /// The table of learned positions, and the number of its rows before that of position 0.
    pub(super) positions: Option<(&'static str, usize)>,
    pub(super) embedding_norm: Option<&'static str>,
    /// The matrices from embedding to stream and from stream to output head, if their widths differ.
    pub(super) projections: [&'static str; 2],
    /// The prefix of a layer's names, before its number.
    pub(super) layers: &'static str,
    pub(super) attention_norm: Option<&'static str>,
    pub(super) qkv: Qkv,
    pub(super) qk_norms: QkNormNames,
    /// Whether each head of the values is normalized, by a norm without weights.
    pub(super) value_norm: bool,
    /// The whole name of a layer's attention sinks.
    pub(super) sinks: Option<&'static str>,
    pub(super) attention_output: &'static str,
    pub(super) attention_post_norm: Option<&'static str>,
    pub(super) ffn_norm: Option<&'static str>,
    pub(super) up: Up,
    pub(super) down: &'static str,
    /// The names in layers with experts, usually instead of the two fields before; of several, the first that a layer
    /// has is used.
    pub(super) experts: &'static [ExpertNames],
    /// The norms of a dense network in parallel with experts.
    pub(super) dense_with_experts: DenseWithExpertsNames,
    pub(super) ffn_post_norm: Option<&'static str>,
    /// The tensors that only draft heads have.
    pub(super) draft_head: DraftHeadNames,
    /// The names of a layer's cross attention, in the decoder of an encoder-decoder.
    pub(super) cross: Option<CrossNames>,
    /// The name in a layer of its table of biases by relative position.
    pub(super) relative_bias: &'static str,
    /// The names of an encoder that differ from those of the decoder.
    pub(super) encoder: Option<EncoderNames>,
    /// Names of copies of the embedding that files may have besides.
    pub(super) embedding_copies: &'static [&'static str],
    /// Per-layer embeddings: the table, the projection and its norm.
    pub(super) inputs: [&'static str; 3],
    /// The names in a layer's reader of its per-layer embedding: the gate, the projection and the norm after it.
    pub(super) input: [&'static str; 3],
    /// The whole name of the number that multiplies the stream after a layer.
    pub(super) multiplier: Option<&'static str>,
    pub(super) output_norm: Option<&'static str>,
    /// Names of the output head (lm_head), of which the first that is present is used.
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
    /// Whether the rows of the output head are normalized to length 1.
    pub(super) unit_head: bool,
}

/// How the matrices of queries, keys and values are stored.
#[derive(Clone, Copy)]
pub(super) enum Qkv {
    /// In three matrices.
    Three([&'static str; 3]),
    /// In one matrix.
    Fused(&'static str, Fusion),
}

/// The order of the rows of a fused matrix.
#[derive(Clone, Copy)]
pub(super) enum Fusion {
    /// The rows of queries, then of keys, then of values.
    Stacked,
    /// For each key-value head the queries of its group, its key and its value.
    ByGroup,
    /// Four parts, each with a quarter of queries, values and keys, in this order (CodeGen).
    InFourParts,
}

/// Names of the norms of queries and keys, and how they are stored.
#[derive(Clone, Copy)]
pub(super) enum QkNormNames {
    None,
    /// One norm `[head_dim]` for all heads.
    SharedByHeads([&'static str; 2]),
    /// A row of `[heads, head_dim]` for each head, without biases.
    PerHead([&'static str; 2]),
    /// A tensor `{name}.{head}` for each head, without biases.
    PerHeadTensors([&'static str; 2]),
    /// One norm of the whole row.
    WholeRow([&'static str; 2]),
}

/// How the input matrices of a feed-forward network are stored.
#[derive(Clone, Copy)]
pub(super) enum Up {
    Plain(&'static str),
    Gated([&'static str; 2]),
    /// In one matrix: the rows of the gate, then those of `up`.
    Fused(&'static str),
}

/// Llama's layout in transformers.
pub(super) const HUGGING_FACE: Layout = Layout {
    prefixes: &["model."],
    embedding: "embed_tokens",
    positions: None,
    embedding_norm: None,
    projections: ["project_in", "project_out"],
    layers: "layers",
    attention_norm: Some("input_layernorm"),
    qkv: Qkv::Three(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    qk_norms: QkNormNames::None,
    value_norm: false,
    sinks: None,
    attention_output: "self_attn.o_proj",
    attention_post_norm: None,
    ffn_norm: Some("post_attention_layernorm"),
    up: Up::Gated(["mlp.gate_proj", "mlp.up_proj"]),
    down: "mlp.down_proj",
    experts: experts::HUGGING_FACE,
    dense_with_experts: ffn::HUGGING_FACE,
    draft_head: head::HUGGING_FACE,
    cross: None,
    relative_bias: "",
    encoder: None,
    embedding_copies: &[],
    ffn_post_norm: None,
    inputs: ["embed_tokens_per_layer", "per_layer_model_projection", "per_layer_projection_norm"],
    input: ["per_layer_input_gate", "per_layer_projection", "post_per_layer_input_norm"],
    multiplier: None,
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

impl Layout {
    /// This layout with biases of all matrices of a layer, and of norms.
    pub(super) const fn with_bias(self, bias: Bias) -> Layout {
        Layout { qkv_bias: bias, output_bias: bias, ffn_bias: bias, norm_bias: true, ..self }
    }
}

/// Llama's layout in a GGUF file. Whether there are biases depends on the file's tensors.
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
    experts: experts::GGUF,
    dense_with_experts: ffn::GGUF,
    draft_head: head::GGUF,
    inputs: ["per_layer_token_embd", "per_layer_model_proj", "per_layer_proj_norm"],
    input: ["inp_gate", "proj", "post_norm"],
    output_norm: Some("output_norm"),
    heads: &["output"],
    qkv_bias: Bias::IfThere,
    output_bias: Bias::IfThere,
    ffn_bias: Bias::IfThere,
    head_bias: Bias::IfThere,
    ..HUGGING_FACE
};

/// The fused queries, keys and values of a GGUF file, in the order in which converters store them.
pub(super) const GGUF_QKV: Qkv = Qkv::Fused("attn_qkv", Fusion::Stacked);

impl Fusion {
    /// The rows of queries, keys and values.
    fn row_ranges(self, spec: &Spec) -> Result<[Vec<Range<usize>>; 3], String> {
        let (dim, group) = (spec.head_dim, spec.heads / spec.kv_heads);
        let one = |first: usize, len: usize| first..first + len;
        Ok(match self {
            Self::Stacked => {
                let (queries, keys) = (spec.heads * dim, spec.kv_heads * dim);
                [vec![one(0, queries)], vec![one(queries, keys)], vec![one(queries + keys, keys)]]
            }
            Self::ByGroup => {
                let rows_of = |first: usize, heads: usize| {
                    let starts = (0..spec.kv_heads).map(|head| (head * (group + 2) + first) * dim);
                    starts.map(|start| one(start, heads * dim)).collect()
                };
                [rows_of(0, group), rows_of(group, 1), rows_of(group + 1, 1)]
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
    /// The prefix of all names but the output head's in a file that has these tensors.
    pub(super) fn prefix(&self, has: impl Fn(&str) -> bool) -> &'static str {
        let fits = |prefix: &&&str| has(&format!("{prefix}{}.weight", self.embedding));
        self.prefixes.iter().find(fits).copied().unwrap_or_default()
    }

    /// Describes the network; only vectors of its tensors are read.
    ///
    /// `shared` are embedding and output matrix of the target, for a draft head that has none of its own.
    ///
    /// # Errors
    /// A tensor is missing or contradicts the configuration.
    pub(super) fn read(
        &self,
        spec: Spec,
        tensors: &Tensors<'_>,
        shared: Option<&SharedEmbeddings>,
    ) -> Result<Network<Unpacked>, ModelError> {
        let prefix = self.prefix(|name| tensors.has(name));
        let head = self.heads.iter().find(|head| tensors.has_matrix(head)).unwrap_or(&self.heads[0]);
        let reader = Reader { layout: self, spec: &spec, tensors };
        let Spec { vocabulary, width, embedding_width, context_max, .. } = spec;
        let layers = reader.layers(prefix, false)?;
        let embedding_name = format!("{prefix}{}", self.embedding);
        let embedding = match shared.filter(|_| !tensors.has_matrix(&embedding_name)) {
            Some(shared) => reader.shared_embedding(shared)?,
            None => tensors.table(&embedding_name, embedding_width, vocabulary)?,
        };
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
        let head = match shared.filter(|_| !tensors.has_matrix(head)) {
            Some(shared) => reader.shared_output_rows(shared)?,
            None => tensors.head(head, &embedding_name, &spec, self.head_bias)?,
        };
        Ok(Network {
            name: String::new(),
            source: tensors.weights.source().to_string(),
            positions,
            embedding_projection: projection(self.projections[0], [embedding_width, width])?,
            embedding_norm: norm(self.embedding_norm)?,
            inputs: reader.inputs(prefix)?,
            fusion: reader.fusion(&reader.layer_prefix(prefix, 0))?,
            encoder: reader.encoder(prefix)?,
            head_tokens: reader.head_tokens()?,
            layers,
            output_norm: norm(self.output_norm)?,
            output_projection: projection(self.projections[1], [width, embedding_width])?,
            head: if self.unit_head { head.with_unit_rows() } else { head },
            left_out: Vec::new(),
            embedding,
            spec,
        })
    }
}

/// The data that is needed to read a layer.
struct Reader<'a> {
    layout: &'a Layout,
    spec: &'a Spec,
    tensors: &'a Tensors<'a>,
}

impl Reader<'_> {
    /// The per-layer embeddings, if there are any.
    fn inputs(&self, prefix: &str) -> Result<Option<InputSource<Unpacked>>, ModelError> {
        let Some(inputs) = self.spec.layer_inputs else { return Ok(None) };
        let all = self.spec.layers * inputs.width;
        let [table, projection, norm] = self.layout.inputs.map(|name| format!("{prefix}{name}"));
        Ok(Some(InputSource {
            table: self.tensors.table(&table, all, inputs.vocabulary)?,
            projection: self.tensors.linear(&projection, self.spec.width, all, Bias::None)?,
            norm: self.norm(&norm, inputs.width)?,
        }))
    }

    /// Layer `number`, whose names begin with `at`.
    fn layer(&self, number: usize, at: &str) -> Result<Layer<Unpacked>, ModelError> {
        let Self { layout, spec, .. } = *self;
        let (width, heads) = (spec.width, spec.kv_heads_of(number));
        let norm = |name: Option<&'static str>| name.map(|name| self.norm(&format!("{at}{name}"), width)).transpose();
        let attention_norm = norm(layout.attention_norm)?;
        let (query, key_value) = self.qkv(number, at)?;
        let attended = spec.heads * heads.head_dim;
        Ok(Layer {
            attention_norm,
            query,
            query_norm: self.qk_norms(0, at, Heads { count: spec.heads, ..heads })?,
            key_value,
            bias: None,
            sinks: layout.sinks.map_or(Ok(vec![]), |name| self.tensors.vector(&format!("{at}{name}"), spec.heads))?,
            attention_output: self.linear(at, layout.attention_output, [attended, width], layout.output_bias)?,
            attention_post_norm: norm(layout.attention_post_norm)?,
            cross: layout.cross.map(|names| self.cross(at, names)).transpose()?,
            ffn_norm: norm(layout.ffn_norm)?,
            ffn: self.ffn(number, at)?,
            ffn_post_norm: norm(layout.ffn_post_norm)?,
            input: self.input(at)?,
            multiplier: match layout.multiplier {
                None => 1.0,
                Some(name) => self.tensors.vector(&format!("{at}{name}"), 1)?[0],
            },
        })
    }

    /// A matrix of a layer; `shape` has the numbers of its inputs and outputs.
    fn linear(&self, at: &str, name: &str, shape: [usize; 2], bias: Bias) -> Result<Unpacked, ModelError> {
        let (name, [inputs, outputs]) = (format!("{at}{name}"), shape);
        if self.layout.transposed {
            self.tensors.transposed(&name, inputs, outputs, bias)
        } else {
            self.tensors.linear(&name, inputs, outputs, bias)
        }
    }

    /// The query matrix of a layer, and its keys and values if it has its own.
    fn qkv(&self, number: usize, at: &str) -> Result<(Unpacked, Option<KeyValue<Unpacked>>), ModelError> {
        let Self { spec, layout, .. } = *self;
        let heads = spec.kv_heads_of(number);
        let (queries, keys) = (spec.heads * heads.head_dim, heads.count * heads.head_dim);
        let inputs = spec.attention_inputs(number);
        let matrix = |name: &str, outputs: usize| self.linear(at, name, [inputs, outputs], layout.qkv_bias);
        let (query, key, value) = match layout.qkv {
            Qkv::Three([query, ..]) if number >= spec.kv_layers() => return Ok((matrix(query, queries)?, None)),
            Qkv::Three([query, key, value]) => {
                let has_values = !spec.attention_of(number).values_are_keys;
                let (query, key) = (matrix(query, queries)?, matrix(key, keys)?);
                (query, key, has_values.then(|| matrix(value, keys)).transpose()?)
            }
            Qkv::Fused(name, fusion) => {
                let fused = matrix(name, queries + 2 * keys)?;
                let ranges = fusion.row_ranges(spec).map_err(|expected| {
                    ModelError::config(self.tensors.weights.source(), "number of heads", expected, spec.heads)
                })?;
                let [query, key, value] = ranges.map(|ranges| fused.row_ranges(&ranges));
                (query, key, Some(value))
            }
        };
        let ones = || NormWeights { weight: vec![1.0; heads.head_dim], bias: Vec::new() };
        let key_norm = self.qk_norms(1, at, heads)?;
        let value_norm = if layout.value_norm { vec![ones()] } else { Vec::new() };
        Ok((query, Some(KeyValue { key, value, key_norm, value_norm })))
    }

    /// The norms of queries, `side` 0, or of keys, `side` 1.
    fn qk_norms(&self, side: usize, at: &str, heads: Heads) -> Result<QkNorms, ModelError> {
        let Heads { count, head_dim } = heads;
        let name = |names: [&str; 2]| format!("{at}{}", names[side]);
        match self.layout.qk_norms {
            QkNormNames::None => Ok(Vec::new()),
            QkNormNames::SharedByHeads(names) => Ok(vec![self.norm(&name(names), head_dim)?]),
            QkNormNames::WholeRow(names) => Ok(vec![self.norm(&name(names), count * head_dim)?]),
            QkNormNames::PerHead(names) => {
                let rows = self.tensors.matrix(&format!("{}.weight", name(names)), [count, head_dim])?;
                Ok(rows.chunks_exact(head_dim).map(|row| self.with_bias(row.to_vec())).collect())
            }
            QkNormNames::PerHeadTensors(names) => {
                let weight = |head| self.tensors.vector(&format!("{}.{head}.weight", name(names)), head_dim);
                (0..count).map(|head| Ok(self.with_bias(weight(head)?))).collect()
            }
        }
    }

    /// A layer's reader of its per-layer embedding, if it has one.
    fn input(&self, at: &str) -> Result<Option<InputReader<Unpacked>>, ModelError> {
        let (width, [gate, projection, norm]) = (self.spec.width, self.layout.input);
        let Some(inputs) = self.spec.layer_inputs else { return Ok(None) };
        let (FeedForward::Gated(activation) | FeedForward::Plain(activation)) = self.spec.feed_forward;
        Ok(Some(InputReader {
            activation,
            gate: self.linear(at, gate, [width, inputs.width], Bias::None)?,
            projection: self.linear(at, projection, [inputs.width, width], Bias::None)?,
            norm: self.norm(&format!("{at}{norm}"), width)?,
        }))
    }

    /// Weight and bias of a normalization.
    fn norm(&self, name: &str, width: usize) -> Result<NormWeights, ModelError> {
        let weight = self.tensors.vector(&format!("{name}.weight"), width)?;
        if !self.layout.norm_bias {
            return Ok(self.with_bias(weight));
        }
        Ok(NormWeights { bias: self.tensors.vector(&format!("{name}.bias"), width)?, ..self.with_bias(weight) })
    }

    /// A normalization without a bias in the file.
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
