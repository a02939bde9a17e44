//! Where the parts of a network lie in its files, and how they are read from there.
//!
//! The idea: a family says in one plain struct what its tensors are called and in which of the known ways they are
//! written ([`Layout`]); reading is the same for all. Most families are one of the two layouts here, Llama's in
//! transformers ([`HUGGING`]) and that of GGUF files ([`GGUF`]), with a few fields changed. Matrices are described and
//! not read; fused ones are cut by stretches of their rows. Left out: what the network computes (`Spec`).

mod experts;
mod feed;
mod head;
mod write;

use std::ops::Range;

pub(super) use self::experts::{EACH, ExpertNames, GGUF_FUSED, IN_MEMORY, STACKED, Stored};
use self::feed::BothNames;
use self::head::HeadNames;
use super::tensors::{Bias, Tensors};
use crate::error::ModelError;
use crate::lent::Lent;
use crate::linear::Unpacked;
use crate::network::{InputReader, InputSource, KeyValue, Layer, Network, NormWeights, PieceNorms};
use crate::spec::{FeedForward, Heads, Norm, Spec};

/// Names of tensors, without `.weight`, and how they are written.
#[derive(Clone)]
pub struct Layout {
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
    /// Whether each head of the values is normalized, by a norm without weights.
    pub(super) value_norm: bool,
    /// The whole name of the sinks of a layer's heads.
    pub(super) sinks: Option<&'static str>,
    pub(super) attention_output: &'static str,
    pub(super) attention_post_norm: Option<&'static str>,
    pub(super) ffn_norm: Option<&'static str>,
    pub(super) up: Up,
    pub(super) down: &'static str,
    /// Of layers with experts, mostly in place of the two before: the first of these that a layer has.
    pub(super) experts: &'static [ExpertNames],
    /// Of experts beside a dense half.
    pub(super) both: BothNames,
    pub(super) ffn_post_norm: Option<&'static str>,
    /// What only draft heads have.
    pub(super) draft_head: HeadNames,
    /// Of the inputs that layers get of their own: the table, the projection and its norm.
    pub(super) inputs: [&'static str; 3],
    /// Of a layer that reads them: the gate, the projection and the norm behind it.
    pub(super) input: [&'static str; 3],
    /// The whole name of the one number that the stream is multiplied with behind a layer.
    pub(super) multiplier: Option<&'static str>,
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
    value_norm: false,
    sinks: None,
    attention_output: "self_attn.o_proj",
    attention_post_norm: None,
    ffn_norm: Some("post_attention_layernorm"),
    up: Up::Gated(["mlp.gate_proj", "mlp.up_proj"]),
    down: "mlp.down_proj",
    experts: experts::HUGGING,
    both: feed::HUGGING,
    draft_head: head::HUGGING,
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
    experts: experts::GGUF,
    both: feed::GGUF,
    draft_head: head::GGUF,
    inputs: ["per_layer_token_embd", "per_layer_model_proj", "per_layer_proj_norm"],
    input: ["inp_gate", "proj", "post_norm"],
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
    /// What all names but the head's begin with in a file that has these tensors.
    pub(super) fn prefix(&self, has: impl Fn(&str) -> bool) -> &'static str {
        let fits = |prefix: &&&str| has(&format!("{prefix}{}.weight", self.embedding));
        self.prefixes.iter().find(fits).copied().unwrap_or_default()
    }

    /// Describes the network; of its tensors only vectors are read.
    ///
    /// `lent`: rows of the target, for a draft head that has none of its own.
    ///
    /// # Errors
    /// A tensor is missing or contradicts the configuration.
    pub(super) fn read(
        &self,
        spec: Spec,
        tensors: &Tensors<'_>,
        lent: Option<&Lent>,
    ) -> Result<Network<Unpacked>, ModelError> {
        let prefix = self.prefix(|name| tensors.has(name));
        let head = self.heads.iter().find(|head| tensors.has_matrix(head)).unwrap_or(&self.heads[0]);
        let reader = Reader { layout: self, spec: &spec, tensors };
        let Spec { vocabulary, width, embedding_width, context_max, .. } = spec;
        let mut layers = Vec::new();
        for i in 0..spec.layers {
            layers.push(reader.layer(i, &reader.layer_prefix(prefix, i))?);
        }
        let embedding_name = format!("{prefix}{}", self.embedding);
        let embedding = match lent.filter(|_| !tensors.has_matrix(&embedding_name)) {
            Some(lent) => reader.lent_embedding(lent)?,
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
        let head = match lent.filter(|_| !tensors.has_matrix(head)) {
            Some(lent) => reader.lent_output(lent)?,
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

/// What is needed to read a layer.
struct Reader<'a> {
    layout: &'a Layout,
    spec: &'a Spec,
    tensors: &'a Tensors<'a>,
}

impl Reader<'_> {
    /// Where the inputs that layers get of their own come from, if they do.
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
            query_norm: self.piece_norms(0, at, Heads { count: spec.heads, ..heads })?,
            key_value,
            sinks: layout.sinks.map_or(Ok(vec![]), |name| self.tensors.vector(&format!("{at}{name}"), spec.heads))?,
            attention_output: self.linear(at, layout.attention_output, [attended, width], layout.output_bias)?,
            attention_post_norm: norm(layout.attention_post_norm)?,
            ffn_norm: norm(layout.ffn_norm)?,
            feed: self.feed(number, at)?,
            ffn_post_norm: norm(layout.ffn_post_norm)?,
            input: self.input(at)?,
            multiplier: match layout.multiplier {
                None => 1.0,
                Some(name) => self.tensors.vector(&format!("{at}{name}"), 1)?[0],
            },
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

    /// The matrix of a layer's queries, and what keys and values are made by, if it has its own.
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
                let stretches = fusion.stretches(spec).map_err(|expected| {
                    ModelError::config(self.tensors.weights.source(), "number of heads", expected, spec.heads)
                })?;
                let [query, key, value] = stretches.map(|stretches| fused.stretches(&stretches));
                (query, key, Some(value))
            }
        };
        let ones = || NormWeights { weight: vec![1.0; heads.head_dim], bias: Vec::new() };
        let key_norm = self.piece_norms(1, at, heads)?;
        let value_norm = if layout.value_norm { vec![ones()] } else { Vec::new() };
        Ok((query, Some(KeyValue { key, value, key_norm, value_norm })))
    }

    /// Norms of queries, side 0, or of keys, side 1.
    fn piece_norms(&self, side: usize, at: &str, heads: Heads) -> Result<PieceNorms, ModelError> {
        let Heads { count, head_dim } = heads;
        let name = |names: [&str; 2]| format!("{at}{}", names[side]);
        match self.layout.piece_norms {
            Pieces::None => Ok(Vec::new()),
            Pieces::EveryHead(names) => Ok(vec![self.norm(&name(names), head_dim)?]),
            Pieces::Whole(names) => Ok(vec![self.norm(&name(names), count * head_dim)?]),
            Pieces::EachHead(names) => {
                let rows = self.tensors.matrix(&format!("{}.weight", name(names)), [count, head_dim])?;
                Ok(rows.chunks_exact(head_dim).map(|row| self.with_bias(row.to_vec())).collect())
            }
            Pieces::Listed(names) => {
                let weight = |head| self.tensors.vector(&format!("{}.{head}.weight", name(names)), head_dim);
                (0..count).map(|head| Ok(self.with_bias(weight(head)?))).collect()
            }
        }
    }

    /// What a layer reads its own input by, if it gets one.
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
