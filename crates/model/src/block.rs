//! One block of a decoder: attention and feed-forward, each added to the residual stream.
//!
//! Every choice inside a block is matched here, once. Products of one input are one fork-join (q, k, v; gate, up), and
//! the two output products add directly to the residual stream, unless there is a norm or a multiplier in between. A
//! feature that a network does not have costs one comparison per layer and nothing per row. Attention,
//! experts, cross attention and the input of a draft head have files of their own below this one, which continue
//! [`Block`].
//!
//! In a parallel block whose sublayers read the same rows, the products of both could be one fork-join; this is not
//! done.

mod attention;
mod cross;
mod dense_with_experts;
mod experts;
mod fusion;

use foretoken_kernels::activation::{clamped_gate, gate, gelu_erf, gelu_tanh, relu, relu_squared, silu, silu_gate};
use foretoken_kernels::attention::{RowSlots, Scratch};
use foretoken_kernels::norm::{layer_norm, rms_norm};
use foretoken_kernels::rope::rotate;
use foretoken_kernels::{Isa, LANES};

use crate::cache::Cache;
use crate::expert_memory::ExpertMemory;
use crate::linear::Linear;
use crate::network::{Dense, Ffn, Inner, InputReader, Layer, NormWeights};
use crate::products::Products;
use crate::spec::{Activation, Norm, Residual, Rotation, Spec};
pub(crate) use cross::SourceMetadata;
use dense_with_experts::DenseWithExpertsBuffers;
use experts::ExpertBuffers;
pub(crate) use fusion::{Fused, FusionBuffers};

/// The buffers of one pass, each `[rows, ...]`, kept between passes.
#[derive(Default)]
pub(crate) struct Buffers {
    /// The input of a sublayer; in a parallel block the input of attention.
    normed: Vec<f32>,
    /// The input of the feed-forward network of a parallel block, if it differs from that of attention.
    second: Vec<f32>,
    attention: AttentionBuffers,
    pub(crate) ffn: FfnBuffers,
    added: AddedBuffers,
}

#[derive(Default)]
struct AttentionBuffers {
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Queries, keys or values before they are normalized.
    raw: Vec<f32>,
    /// Whole rows of queries or keys, of which this rank has a part, and such rows normalized.
    whole: [Vec<f32>; 2],
    attended: Vec<f32>,
    /// The outputs of the heads of all ranks.
    gathered: Vec<f32>,
    scratch: Scratch,
}

/// Buffers of the feed-forward network.
#[derive(Default)]
pub(crate) struct FfnBuffers {
    pub(crate) inner: InnerBuffers,
    pub(crate) experts: ExpertBuffers,
    pub(crate) dense_with_experts: DenseWithExpertsBuffers,
}

#[derive(Default)]
pub(crate) struct InnerBuffers {
    gate: Vec<f32>,
    up: Vec<f32>,
    /// The inner outputs of all ranks.
    gathered: Vec<f32>,
}

/// Buffers of sublayers whose output is normalized or multiplied before it is added.
#[derive(Default)]
struct AddedBuffers {
    out: Vec<f32>,
    normed: Vec<f32>,
}

/// What the blocks know about the rows of a pass.
pub(crate) struct PassMetadata<'a> {
    /// The position of each row.
    pub(crate) positions: &'a [u32],
    /// For each cache group the slots of the rows and of the positions that they attend to.
    pub(crate) attention: &'a [AttentionMetadata<'a>],
    /// The rotary angles of the rows, for each of the network's rotations.
    pub(crate) rotations: &'a [RotaryAngles<'a>],
    /// The sources of the rows in the decoder of an encoder-decoder.
    pub(crate) sources: Option<SourceMetadata<'a>>,
    /// The per-layer embeddings, `[layers, rows, width]`; empty in most networks.
    pub(crate) inputs: &'a [f32],
    /// The input of the first layer of a draft head; `None` in other networks.
    pub(crate) fused: Option<Fused<'a>>,
}

/// The slots of the rows of a pass in one cache group, and of the positions that they attend to.
pub(crate) struct AttentionMetadata<'a> {
    /// The slot in which each row is stored.
    pub(crate) slots: &'a [u32],
    /// The slots that each row attends to, its own included.
    pub(crate) row_slots: Vec<RowSlots<'a>>,
}

/// A rotation and its angles for the rows of a pass.
pub(crate) struct RotaryAngles<'a> {
    pub(crate) rotation: &'a Rotation,
    /// Cosines and sines of each row's position, `[rows, 2, pairs]`.
    pub(crate) angles: &'a [f32],
}

impl RotaryAngles<'_> {
    /// Rotates `x`, all heads of this row.
    fn rotate(&self, isa: Isa, row: usize, head_dim: usize, x: &mut [f32]) {
        let len = 2 * self.rotation.frequencies.len();
        rotate(isa, x, head_dim, &self.angles[row * len..][..len], self.rotation.pairing);
    }
}

/// The first `len` elements of a buffer, which grows if it is shorter.
pub(crate) fn grow_to(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    &mut buffer[..len]
}

impl Norm {
    /// Normalizes rows as wide as the weights.
    pub(crate) fn apply(self, isa: Isa, weights: &NormWeights, x: &[f32], out: &mut [f32]) {
        match self {
            Self::Rms { epsilon } => rms_norm(isa, x, &weights.weight, epsilon, out),
            Self::Layer { epsilon } => layer_norm(isa, x, &weights.weight, &weights.bias, epsilon, out),
        }
    }
}

pub(crate) fn normalize(isa: Isa, spec: &Spec, weights: &NormWeights, x: &[f32], out: &mut [f32]) {
    spec.norm.apply(isa, weights, x, out);
}

/// `x`, normalized into a buffer if there is a norm.
pub(crate) fn normalized<'a>(
    isa: Isa,
    spec: &Spec,
    norm: Option<&NormWeights>,
    x: &'a [f32],
    buffer: &'a mut Vec<f32>,
) -> &'a [f32] {
    let Some(norm) = norm else { return x };
    let normed = grow_to(buffer, x.len());
    normalize(isa, spec, norm, x, normed);
    normed
}

/// The last matrix of a sublayer and the norm after it.
struct SublayerOutput<'a> {
    output: &'a Linear,
    norm: Option<&'a NormWeights>,
}

/// The output of a feed-forward network.
enum FfnOutput<'a> {
    /// The input of its last matrix, `[rows, ffn width]`, and this matrix.
    Inner(&'a [f32], &'a Linear),
    /// The whole output, `[rows, width]`.
    Whole(&'a [f32]),
}

/// The data that all blocks of a pass share.
pub(crate) struct Block<'a> {
    pub(crate) products: &'a Products,
    pub(crate) spec: &'a Spec,
    /// The memory of experts, if not all of them are packed.
    pub(crate) memory: Option<&'a ExpertMemory>,
    pub(crate) metadata: PassMetadata<'a>,
}

impl Block<'_> {
    fn isa(&self) -> Isa {
        self.products.compute.isa
    }

    fn rows(&self) -> usize {
        self.metadata.attention[0].slots.len()
    }

    /// Runs one block on `x` `[rows, width]`, and stores the rows' keys and values.
    pub(crate) fn run(
        &self,
        (number, layer): (usize, &Layer<Linear>),
        cache: &mut Cache,
        buffers: &mut Buffers,
        x: &mut [f32],
    ) {
        let Buffers { normed, second, attention, ffn, added } = buffers;
        let [attention_norm, ffn_norm] = [layer.attention_norm.as_ref(), layer.ffn_norm.as_ref()];
        let attended = SublayerOutput { output: &layer.attention_output, norm: layer.attention_post_norm.as_ref() };
        match self.spec.residual {
            Residual::Sequential => {
                let input = match self.metadata.fused.as_ref().filter(|_| number == 0) {
                    Some(fused) => fused.read(self, attention_norm, x, [normed, second]),
                    None => normalized(self.isa(), self.spec, attention_norm, x, normed),
                };
                self.add(&attended, self.attend((number, layer), input, cache, attention), added, x);
                if let Some(cross) = &layer.cross {
                    self.add_cross((number, cross), (normed, attention), added, x);
                }
                let input = normalized(self.isa(), self.spec, ffn_norm, x, normed);
                self.add_ffn(layer, self.run_ffn((number, layer), [x, input], ffn), added, x);
            }
            Residual::Parallel => {
                let first = normalized(self.isa(), self.spec, attention_norm, x, normed);
                let second =
                    if ffn_norm.is_some() { normalized(self.isa(), self.spec, ffn_norm, x, second) } else { first };
                let heads = self.attend((number, layer), first, cache, attention);
                let ffn_output = self.run_ffn((number, layer), [x, second], ffn);
                self.add(&attended, heads, added, x);
                self.add_ffn(layer, ffn_output, added, x);
            }
            Residual::NormedSum => {
                self.add(&attended, self.attend((number, layer), x, cache, attention), added, x);
                let sum = normalized(self.isa(), self.spec, attention_norm, x, normed).len();
                x.copy_from_slice(&normed[..sum]);
                self.add_ffn(layer, self.run_ffn((number, layer), [x, x], ffn), added, x);
                let sum = normalized(self.isa(), self.spec, ffn_norm, x, normed).len();
                x.copy_from_slice(&normed[..sum]);
            }
        }
        if let Some(reader) = &layer.input {
            self.read_input((number, reader), &mut ffn.inner, added, x);
        }
        if layer.multiplier != 1.0 {
            x.iter_mut().for_each(|x| *x *= layer.multiplier);
        }
    }

    /// Adds to `x` the output of a layer's reader of its per-layer embedding.
    fn read_input(
        &self,
        (number, reader): (usize, &InputReader<Linear>),
        inner: &mut InnerBuffers,
        added: &mut AddedBuffers,
        x: &mut [f32],
    ) {
        let InputReader { activation, gate, projection, norm } = reader;
        let elements = self.rows() * gate.outputs();
        let gated = grow_to(&mut inner.gate, elements);
        self.products.one(x, self.rows(), self.spec.width, gate.product(gated, false));
        self.gate(*activation, gated, &self.metadata.inputs[number * elements..][..elements]);
        self.add(&SublayerOutput { output: projection, norm: Some(norm) }, gated, added, x);
    }

    /// Runs the feed-forward network of a layer on rows `[rows, width]`: `stream` is the residual stream, `input` the
    /// normalized stream.
    fn run_ffn<'b>(
        &self,
        (number, layer): (usize, &'b Layer<Linear>),
        [stream, input]: [&[f32]; 2],
        buffers: &'b mut FfnBuffers,
    ) -> FfnOutput<'b> {
        match (&layer.ffn, self.spec.experts_of(number)) {
            (Ffn::Dense(dense), _) => FfnOutput::Inner(self.ffn_inner(dense, input, &mut buffers.inner), &dense.down),
            (Ffn::Experts(all), Some(spec)) => {
                FfnOutput::Whole(self.run_experts((number, spec, all), [input, input], &mut buffers.experts))
            }
            (Ffn::DenseWithExperts(both), Some(spec)) => {
                FfnOutput::Whole(self.run_dense_with_experts((number, spec, both), [stream, input], buffers))
            }
            (Ffn::Experts(_) | Ffn::DenseWithExperts(_), None) => unreachable!("experts in layer {number}"),
        }
    }

    /// Adds the output of a feed-forward network to `x`.
    fn add_ffn(&self, layer: &Layer<Linear>, output: FfnOutput<'_>, buffers: &mut AddedBuffers, x: &mut [f32]) {
        let norm = layer.ffn_post_norm.as_ref();
        match output {
            FfnOutput::Inner(from, output) => self.add(&SublayerOutput { output, norm }, from, buffers, x),
            FfnOutput::Whole(whole) => self.add_whole(norm, whole, &mut buffers.normed, x),
        }
    }

    /// Adds the output of a sublayer to `x`: its last matrix times `from`, normalized if it has a norm, times the
    /// residual multiplier.
    fn add(&self, sublayer: &SublayerOutput<'_>, from: &[f32], buffers: &mut AddedBuffers, x: &mut [f32]) {
        let (rows, multiplier) = (self.rows(), self.spec.residual_multiplier);
        let SublayerOutput { output: matrix, norm } = *sublayer;
        if norm.is_none() && multiplier == 1.0 {
            return self.products.one(from, rows, matrix.inputs(), matrix.product(x, true));
        }
        let out = grow_to(&mut buffers.out, x.len());
        self.products.one(from, rows, matrix.inputs(), matrix.product(out, false));
        self.add_whole(norm, out, &mut buffers.normed, x);
    }

    /// Adds `output` of a sublayer to `x`: normalized if it has a norm, times the residual multiplier.
    fn add_whole(&self, norm: Option<&NormWeights>, output: &[f32], normed: &mut Vec<f32>, x: &mut [f32]) {
        let multiplier = self.spec.residual_multiplier;
        let out = normalized(self.isa(), self.spec, norm, output, normed);
        x.iter_mut().zip(out).for_each(|(x, out)| *x += out * multiplier);
    }

    /// Computes the inner part of a dense feed-forward network for rows `input` `[rows, width]`; returns `[rows,
    /// ffn_width]`.
    fn ffn_inner<'b>(&self, dense: &Dense<Linear>, input: &[f32], buffers: &'b mut InnerBuffers) -> &'b [f32] {
        let Self { products, spec, .. } = *self;
        let InnerBuffers { gate: gated, up: raised, gathered } = buffers;
        let (Inner::Gated { up, .. } | Inner::Plain { up, .. }) = &dense.inner;
        let (rows, elements) = (self.rows(), self.rows() * up.own_outputs());
        let raised = grow_to(raised, elements);
        let own = match &dense.inner {
            Inner::Gated { activation, gate: matrix, up } => {
                let gated = grow_to(gated, elements);
                products.own(input, rows, spec.width, [matrix.product(gated, false), up.product(raised, false)]);
                self.gate(*activation, gated, raised);
                gated
            }
            Inner::Plain { activation, up } => {
                products.own(input, rows, spec.width, [up.product(raised, false)]);
                let function = function(*activation);
                let isa = self.isa();
                products.compute.pool.each_chunk(raised, ELEMENTS_A_TASK, &|_, chunk| function(isa, chunk));
                raised
            }
        };
        products.gather(own, [rows, dense.down.inputs(), up.unit()], dense.down.rounding(), gathered)
    }

    /// `gated[i] = activation(gated[i]) * by[i]`.
    fn gate(&self, activation: Activation, gated: &mut [f32], by: &[f32]) {
        self.products.compute.pool.each_chunk(gated, ELEMENTS_A_TASK, &|i, chunk| {
            let by = &by[i * ELEMENTS_A_TASK..][..chunk.len()];
            match activation {
                Activation::Silu => silu_gate(self.isa(), chunk, by),
                Activation::ClampedSwiglu { slope, limit } => clamped_gate(self.isa(), chunk, by, [slope, limit]),
                other => gate(self.isa(), function(other), chunk, by),
            }
        });
    }
}

/// The kernel of an activation.
fn function(activation: Activation) -> fn(Isa, &mut [f32]) {
    match activation {
        Activation::Silu => silu,
        Activation::GeluTanh => gelu_tanh,
        Activation::GeluErf => gelu_erf,
        Activation::Relu => relu,
        Activation::ReluSquared => relu_squared,
        Activation::ClampedSwiglu { .. } => unreachable!("{activation:?} without gates"),
    }
}

/// Number of elements of an activation that are one task of a thread, about 10 microseconds. It is a multiple of the
/// lanes.
pub(crate) const ELEMENTS_A_TASK: usize = 512 * LANES;
