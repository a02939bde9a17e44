//! One block of a decoder: attention and feed-forward, each added to the residual stream.
//!
//! Every choice inside a block is matched here, once. Products of one input are one fork-join (q, k, v; gate, up), and
//! the two output products add straight into the residual stream unless something lies between: a norm behind the half
//! or a multiplier. What a network does not have costs it one comparison a layer, nothing a row.
//!
//! Left out: in a parallel block the products of both halves could be one fork-join, where they read the same rows.

use foretoken_kernels::activation::{clamped_gate, gate, gelu_erf, gelu_tanh, relu, relu_squared, silu, silu_gate};
use foretoken_kernels::attention::{Arguments, Places, Scratch, attention};
use foretoken_kernels::norm::{layer_norm, rms_norm};
use foretoken_kernels::rope::rotate;
use foretoken_kernels::{Isa, LANES};

use crate::both::BothBuffers;
use crate::cache::Cache;
use crate::expert_memory::ExpertMemory;
use crate::experts::ExpertBuffers;
use crate::fusion::Fused;
use crate::linear::Linear;
use crate::network::{Dense, Feed, Inner, InputReader, KeyValue, Layer, NormWeights};
use crate::products::Products;
use crate::spec::{Activation, Heads, Norm, Residual, Rotation, Spec};

/// Buffers of one pass, `[rows, ...]` each, kept between passes.
#[derive(Default)]
pub(crate) struct Buffers {
    /// What a half reads; in a parallel block what attention reads.
    normed: Vec<f32>,
    /// What the feed-forward half of a parallel block reads, if it is something else.
    second: Vec<f32>,
    attention: AttentionBuffers,
    pub(crate) feed: FeedBuffers,
    added: AddedBuffers,
}

#[derive(Default)]
struct AttentionBuffers {
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Queries, keys or values before they are normalized.
    raw: Vec<f32>,
    attended: Vec<f32>,
    scratch: Scratch,
}

/// Of the feed-forward half.
#[derive(Default)]
pub(crate) struct FeedBuffers {
    pub(crate) inner: InnerBuffers,
    pub(crate) experts: ExpertBuffers,
    pub(crate) both: BothBuffers,
}

#[derive(Default)]
pub(crate) struct InnerBuffers {
    gate: Vec<f32>,
    up: Vec<f32>,
}

/// Of halves whose output is not added as it is.
#[derive(Default)]
struct AddedBuffers {
    out: Vec<f32>,
    normed: Vec<f32>,
}

/// Where the rows of a pass stand.
pub(crate) struct Standing<'a> {
    /// Position of each row.
    pub(crate) positions: &'a [u32],
    /// In each cache group.
    pub(crate) sights: &'a [Sight<'a>],
    /// The network's rotations.
    pub(crate) rotations: &'a [Rotated<'a>],
    /// What layers get beside the residual stream, `[layers, rows, width]`; nothing in most networks.
    pub(crate) inputs: &'a [f32],
    /// How the first layer of a draft head reads its rows; nothing in other networks.
    pub(crate) fused: Option<Fused<'a>>,
}

/// What the rows of a pass are and see in one cache group.
pub(crate) struct Sight<'a> {
    /// Slot in which each row is stored.
    pub(crate) slots: &'a [u32],
    /// Slots that each row sees, itself included.
    pub(crate) places: Vec<Places<'a>>,
}

/// The rotation of each row of a pass.
pub(crate) struct Rotated<'a> {
    pub(crate) rotation: &'a Rotation,
    /// Cosines and sines of each row's position, `[rows, 2, pairs]`.
    pub(crate) angles: &'a [f32],
}

impl Rotated<'_> {
    /// Rotates all heads of `x`, which are of this row.
    fn rotate(&self, isa: Isa, row: usize, head_dim: usize, x: &mut [f32]) {
        let len = 2 * self.rotation.frequencies.len();
        rotate(isa, x, head_dim, &self.angles[row * len..][..len], self.rotation.pairing);
    }
}

/// The first `len` elements of a buffer that grows when it must.
pub(crate) fn room(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
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

/// `x`, normalized in a buffer if there is a norm.
pub(crate) fn normalized<'a>(
    isa: Isa,
    spec: &Spec,
    norm: Option<&NormWeights>,
    x: &'a [f32],
    buffer: &'a mut Vec<f32>,
) -> &'a [f32] {
    let Some(norm) = norm else { return x };
    let normed = room(buffer, x.len());
    normalize(isa, spec, norm, x, normed);
    normed
}

/// How a half of a block ends.
struct Half<'a> {
    output: &'a Linear,
    norm: Option<&'a NormWeights>,
}

/// What a feed-forward half has made of its rows.
enum Fed<'a> {
    /// All but the product with its last matrix, `[rows, ffn width]`, and this matrix.
    Inner(&'a [f32], &'a Linear),
    /// All of it, `[rows, width]`.
    Whole(&'a [f32]),
}

/// What all blocks of a pass share.
pub(crate) struct Block<'a> {
    pub(crate) products: &'a Products,
    pub(crate) spec: &'a Spec,
    /// Of experts that are not all packed.
    pub(crate) memory: Option<&'a ExpertMemory>,
    pub(crate) standing: Standing<'a>,
}

impl Block<'_> {
    pub(crate) fn isa(&self) -> Isa {
        self.products.compute.isa
    }

    pub(crate) fn rows(&self) -> usize {
        self.standing.sights[0].slots.len()
    }

    /// Runs one block on `x` `[rows, width]`, and stores the rows' keys and values.
    pub(crate) fn run(
        &self,
        (number, layer): (usize, &Layer<Linear>),
        cache: &mut Cache,
        buffers: &mut Buffers,
        x: &mut [f32],
    ) {
        let Buffers { normed, second, attention, feed, added } = buffers;
        let [attention_norm, ffn_norm] = [layer.attention_norm.as_ref(), layer.ffn_norm.as_ref()];
        let attended = Half { output: &layer.attention_output, norm: layer.attention_post_norm.as_ref() };
        match self.spec.residual {
            Residual::Sequential => {
                let read = match self.standing.fused.as_ref().filter(|_| number == 0) {
                    Some(fused) => fused.read(self, attention_norm, x, [normed, second]),
                    None => normalized(self.isa(), self.spec, attention_norm, x, normed),
                };
                self.add(&attended, self.attend((number, layer), read, cache, attention), added, x);
                let read = normalized(self.isa(), self.spec, ffn_norm, x, normed);
                self.add_fed(layer, self.fed((number, layer), [x, read], feed), added, x);
            }
            Residual::Parallel => {
                let first = normalized(self.isa(), self.spec, attention_norm, x, normed);
                let second =
                    if ffn_norm.is_some() { normalized(self.isa(), self.spec, ffn_norm, x, second) } else { first };
                let heads = self.attend((number, layer), first, cache, attention);
                let fed = self.fed((number, layer), [x, second], feed);
                self.add(&attended, heads, added, x);
                self.add_fed(layer, fed, added, x);
            }
            Residual::NormedSum => {
                self.add(&attended, self.attend((number, layer), x, cache, attention), added, x);
                let sum = normalized(self.isa(), self.spec, attention_norm, x, normed).len();
                x.copy_from_slice(&normed[..sum]);
                self.add_fed(layer, self.fed((number, layer), [x, x], feed), added, x);
                let sum = normalized(self.isa(), self.spec, ffn_norm, x, normed).len();
                x.copy_from_slice(&normed[..sum]);
            }
        }
        if let Some(reader) = &layer.input {
            self.read_input((number, reader), &mut feed.inner, added, x);
        }
        if layer.multiplier != 1.0 {
            x.iter_mut().for_each(|x| *x *= layer.multiplier);
        }
    }

    /// Adds to `x` what a layer makes of its own input.
    fn read_input(
        &self,
        (number, reader): (usize, &InputReader<Linear>),
        inner: &mut InnerBuffers,
        added: &mut AddedBuffers,
        x: &mut [f32],
    ) {
        let InputReader { activation, gate, projection, norm } = reader;
        let elements = self.rows() * gate.outputs();
        let gated = room(&mut inner.gate, elements);
        self.products.one(x, self.rows(), self.spec.width, gate.product(gated, false));
        self.gate(*activation, gated, &self.standing.inputs[number * elements..][..elements]);
        self.add(&Half { output: projection, norm: Some(norm) }, gated, added, x);
    }

    /// What the feed-forward half of a layer makes of rows `[rows, width]`: the stream, and what the norm before the
    /// half makes of it.
    fn fed<'b>(
        &self,
        (number, layer): (usize, &'b Layer<Linear>),
        [stream, read]: [&[f32]; 2],
        buffers: &'b mut FeedBuffers,
    ) -> Fed<'b> {
        match (&layer.feed, self.spec.experts_of(number)) {
            (Feed::Dense(dense), _) => Fed::Inner(self.feed(dense, read, &mut buffers.inner), &dense.down),
            (Feed::Experts(all), Some(spec)) => {
                Fed::Whole(self.ask_experts((number, spec, all), [read, read], &mut buffers.experts))
            }
            (Feed::Both(both), Some(spec)) => Fed::Whole(self.ask_both((number, spec, both), [stream, read], buffers)),
            (Feed::Experts(_) | Feed::Both(_), None) => unreachable!("experts in layer {number}"),
        }
    }

    /// Adds it to `x`.
    fn add_fed(&self, layer: &Layer<Linear>, fed: Fed<'_>, buffers: &mut AddedBuffers, x: &mut [f32]) {
        let norm = layer.ffn_post_norm.as_ref();
        match fed {
            Fed::Inner(from, output) => self.add(&Half { output, norm }, from, buffers, x),
            Fed::Whole(whole) => self.add_whole(norm, whole, &mut buffers.normed, x),
        }
    }

    /// Adds the output of a half to `x`: its last matrix times `from`, normalized if there is a norm behind it,
    /// multiplied.
    fn add(&self, half: &Half<'_>, from: &[f32], buffers: &mut AddedBuffers, x: &mut [f32]) {
        let (rows, multiplier) = (self.rows(), self.spec.residual_multiplier);
        let Half { output: matrix, norm } = *half;
        if norm.is_none() && multiplier == 1.0 {
            return self.products.one(from, rows, matrix.inputs(), matrix.product(x, true));
        }
        let out = room(&mut buffers.out, x.len());
        self.products.one(from, rows, matrix.inputs(), matrix.product(out, false));
        self.add_whole(norm, out, &mut buffers.normed, x);
    }

    /// Adds what a half says to `x`: normalized if there is a norm behind it, multiplied.
    fn add_whole(&self, norm: Option<&NormWeights>, said: &[f32], normed: &mut Vec<f32>, x: &mut [f32]) {
        let multiplier = self.spec.residual_multiplier;
        let out = normalized(self.isa(), self.spec, norm, said, normed);
        x.iter_mut().zip(out).for_each(|(x, out)| *x += out * multiplier);
    }

    /// What the heads say of rows `read` `[rows, inputs]`: `[rows, heads, head_dim]`.
    fn attend<'b>(
        &self,
        (number, layer): (usize, &Layer<Linear>),
        read: &[f32],
        cache: &mut Cache,
        buffers: &'b mut AttentionBuffers,
    ) -> &'b [f32] {
        let Self { products, spec, .. } = *self;
        let (rows, Heads { count, head_dim }) = (self.rows(), spec.kv_heads_of(number));
        let (query_width, kv_width) = (spec.heads * head_dim, count * head_dim);
        let AttentionBuffers { queries, keys, values, raw, attended, scratch } = buffers;
        let queries = room(queries, rows * query_width);
        let keys = room(keys, rows * kv_width);
        let values = room(values, rows * kv_width);
        self.project(layer, read, [queries, keys, values]);
        let choices = spec.attention_of(number);
        let mut rotated = choices.rotation.map(|rotation| &self.standing.rotations[rotation]);
        if let Some(rotated) = rotated.take_if(|_| spec.norms_after_rotation) {
            for row in 0..rows {
                rotated.rotate(self.isa(), row, head_dim, &mut queries[row * query_width..][..query_width]);
                rotated.rotate(self.isa(), row, head_dim, &mut keys[row * kv_width..][..kv_width]);
            }
        }
        self.normalize_pieces(&layer.query_norm, queries, raw);
        if let Some(KeyValue { key_norm, value_norm, .. }) = &layer.key_value {
            self.normalize_pieces(key_norm, keys, raw);
            self.normalize_pieces(value_norm, values, raw);
        }
        // Whose keys and values are seen.
        let source = spec.kv_layer_of(number);
        let sight = &self.standing.sights[cache.group_of[source]];
        if let Some(growth) = spec.query_growth {
            for (position, query) in self.standing.positions.iter().zip(queries.chunks_exact_mut(query_width)) {
                let factor = growth.at(*position as usize);
                query.iter_mut().for_each(|x| *x *= factor);
            }
        }
        for row in 0..rows {
            let key = &mut keys[row * kv_width..][..kv_width];
            if let Some(rotated) = rotated {
                rotated.rotate(self.isa(), row, head_dim, &mut queries[row * query_width..][..query_width]);
            }
            if layer.key_value.is_none() {
                continue;
            }
            if let Some(rotated) = rotated {
                rotated.rotate(self.isa(), row, head_dim, key);
            }
            cache.store(number, sight.slots[row], key, &values[row * kv_width..][..kv_width]);
        }
        let arguments = Arguments {
            soft_cap: spec.attention_soft_cap,
            slopes: spec.positions.slopes(),
            sinks: &layer.sinks,
            window: spec.window_of(number),
            ..Arguments::new(spec.heads, spec.attention_scale, &cache.keys[source], &cache.values[source])
        };
        let attended = room(attended, rows * query_width);
        attention(&products.compute, &arguments, queries, &sight.places, scratch, attended);
        attended
    }

    /// Queries, and keys and values if the layer has its own, as matrices make them of rows `read` `[rows, inputs]`.
    fn project(&self, layer: &Layer<Linear>, read: &[f32], [queries, keys, values]: [&mut [f32]; 3]) {
        let (products, rows, width) = (self.products, self.rows(), layer.query.inputs());
        let query = layer.query.product(queries, false);
        match &layer.key_value {
            None => products.one(read, rows, width, query),
            Some(KeyValue { key, value: None, .. }) => {
                products.all(read, rows, width, &mut [query, key.product(keys, false)]);
                values.copy_from_slice(keys);
            }
            Some(KeyValue { key, value: Some(value), .. }) => {
                let mut three = [query, key.product(keys, false), value.product(values, false)];
                products.all(read, rows, width, &mut three);
            }
        }
    }

    /// Normalizes queries, keys or values piece by piece, if the network does that.
    fn normalize_pieces(&self, norms: &[NormWeights], x: &mut [f32], raw: &mut Vec<f32>) {
        let Some(first) = norms.first() else { return };
        let raw = room(raw, x.len());
        raw.copy_from_slice(x);
        if norms.len() == 1 {
            return normalize(self.isa(), self.spec, first, raw, x);
        }
        let width = first.weight.len();
        let pieces = raw.chunks_exact(width).zip(x.chunks_exact_mut(width));
        for ((raw, x), norm) in pieces.zip(norms.iter().cycle()) {
            normalize(self.isa(), self.spec, norm, raw, x);
        }
    }

    /// The inner part of the feed-forward half for rows `read` `[rows, width]`: `[rows, ffn_width]`.
    pub(crate) fn feed<'b>(&self, dense: &Dense<Linear>, read: &[f32], buffers: &'b mut InnerBuffers) -> &'b [f32] {
        let Self { products, spec, .. } = *self;
        let (rows, elements) = (self.rows(), self.rows() * dense.down.inputs());
        let raised = room(&mut buffers.up, elements);
        match &dense.inner {
            Inner::Gated { activation, gate: matrix, up } => {
                let gated = room(&mut buffers.gate, elements);
                let mut two = [matrix.product(gated, false), up.product(raised, false)];
                products.all(read, rows, spec.width, &mut two);
                self.gate(*activation, gated, raised);
                gated
            }
            Inner::Plain { activation, up } => {
                products.one(read, rows, spec.width, up.product(raised, false));
                let function = function(*activation);
                let isa = self.isa();
                products.compute.pool.each_chunk(raised, ELEMENTS_A_TASK, &|_, chunk| function(isa, chunk));
                raised
            }
        }
    }

    /// `gated[i] = activation(gated[i]) * by[i]`.
    pub(crate) fn gate(&self, activation: Activation, gated: &mut [f32], by: &[f32]) {
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

/// Elements of an activation that one thread takes at a time: some 10 microseconds. A multiple of the lanes.
pub(crate) const ELEMENTS_A_TASK: usize = 512 * LANES;
