//! One block of a decoder: attention, then feed-forward, each added to the residual stream.
//!
//! Every choice inside a block is matched here, once. Products of one input are one fork-join
//! (q, k, v; gate, up), and the two output products add straight into the residual stream.

use foretoken_kernels::activation::{gelu_erf, gelu_tanh, relu, silu_gate};
use foretoken_kernels::attention::{Arguments, Places, Scratch, attention};
use foretoken_kernels::matmul::{product, products};
use foretoken_kernels::norm::{layer_norm, rms_norm};
use foretoken_kernels::rope::rotate;
use foretoken_kernels::{Compute, LANES};

use crate::cache::Cache;
use crate::linear::Linear;
use crate::network::{Inner, Layer, NormWeights};
use crate::spec::{Activation, Norm, Rotation, Spec};

/// Buffers of one pass, `[rows, ...]` each, kept between passes.
#[derive(Default)]
pub(crate) struct Buffers {
    normed: Vec<f32>,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    attended: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    scratch: Scratch,
}

/// Where the rows of a pass stand.
pub(crate) struct Standing<'a> {
    /// Slot in which each row is stored.
    pub(crate) slots: &'a [u32],
    /// Slots that each row sees, itself included.
    pub(crate) places: &'a [Places<'a>],
    /// How queries and keys are rotated, if they are.
    pub(crate) rotation: Option<Rotated<'a>>,
}

/// The rotation of each row of a pass.
pub(crate) struct Rotated<'a> {
    pub(crate) rotation: &'a Rotation,
    /// Cosines and sines of each row's position, `[rows, pairs, 2]`.
    pub(crate) angles: &'a [f32],
}

impl Rotated<'_> {
    /// Rotates all heads of `x`, which are of this row.
    fn rotate(&self, row: usize, head_dim: usize, x: &mut [f32]) {
        let len = 2 * self.rotation.frequencies.len();
        rotate(x, head_dim, &self.angles[row * len..][..len], self.rotation.pairing);
    }
}

/// The first `len` elements of a buffer that grows when it must.
pub(crate) fn room(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    &mut buffer[..len]
}

pub(crate) fn normalize(spec: &Spec, weights: &NormWeights, x: &[f32], out: &mut [f32]) {
    match spec.norm {
        Norm::Rms { epsilon } => rms_norm(x, &weights.weight, epsilon, out),
        Norm::Layer { epsilon } => layer_norm(x, &weights.weight, &weights.bias, epsilon, out),
    }
}

/// Adds one block's attention to `x` `[rows, width]`, and stores the rows' keys and values.
pub(crate) fn attend(
    compute: &Compute,
    spec: &Spec,
    (number, layer): (usize, &Layer<Linear>),
    standing: &Standing<'_>,
    cache: &mut Cache,
    buffers: &mut Buffers,
    x: &mut [f32],
) {
    let rows = standing.slots.len();
    let (query_width, kv_width) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
    let normed = room(&mut buffers.normed, rows * spec.width);
    normalize(spec, &layer.attention_norm, x, normed);
    let queries = room(&mut buffers.queries, rows * query_width);
    let keys = room(&mut buffers.keys, rows * kv_width);
    let values = room(&mut buffers.values, rows * kv_width);
    let mut three =
        [layer.query.product(queries, false), layer.key.product(keys, false), layer.value.product(values, false)];
    products(compute, normed, rows, spec.width, &mut three);
    for row in 0..rows {
        let key = &mut keys[row * kv_width..][..kv_width];
        if let Some(rotated) = &standing.rotation {
            rotated.rotate(row, spec.head_dim, &mut queries[row * query_width..][..query_width]);
            rotated.rotate(row, spec.head_dim, key);
        }
        cache.store(number, standing.slots[row], key, &values[row * kv_width..][..kv_width]);
    }
    let arguments = Arguments {
        heads: spec.heads,
        scale: spec.attention_scale,
        keys: &cache.keys[number],
        values: &cache.values[number],
    };
    let attended = room(&mut buffers.attended, rows * query_width);
    attention(compute, &arguments, queries, standing.places, &mut buffers.scratch, attended);
    product(compute, attended, rows, query_width, layer.attention_output.product(x, true));
}

/// Adds one block's feed-forward to `x` `[rows, width]`.
pub(crate) fn feed_forward(
    compute: &Compute,
    spec: &Spec,
    layer: &Layer<Linear>,
    buffers: &mut Buffers,
    x: &mut [f32],
) {
    let rows = x.len() / spec.width;
    let normed = room(&mut buffers.normed, rows * spec.width);
    normalize(spec, &layer.ffn_norm, x, normed);
    let raised = room(&mut buffers.up, rows * spec.ffn_width);
    let inner: &mut [f32] = match &layer.inner {
        Inner::SiluGated { gate, up } => {
            let gated = room(&mut buffers.gate, rows * spec.ffn_width);
            let mut two = [gate.product(gated, false), up.product(raised, false)];
            products(compute, normed, rows, spec.width, &mut two);
            compute.pool.each_chunk(gated, ELEMENTS_A_TASK, &|i, chunk| {
                silu_gate(chunk, &raised[i * ELEMENTS_A_TASK..][..chunk.len()]);
            });
            gated
        }
        Inner::Plain { activation, up } => {
            product(compute, normed, rows, spec.width, up.product(raised, false));
            compute.pool.each_chunk(raised, ELEMENTS_A_TASK, &|_, chunk| match activation {
                Activation::GeluTanh => gelu_tanh(chunk),
                Activation::GeluErf => gelu_erf(chunk),
                Activation::Relu => relu(chunk),
            });
            raised
        }
    };
    product(compute, inner, rows, spec.ffn_width, layer.down.product(x, true));
}

/// Elements of an activation that one thread takes at a time: some 10 microseconds. A multiple of the lanes.
const ELEMENTS_A_TASK: usize = 512 * LANES;
