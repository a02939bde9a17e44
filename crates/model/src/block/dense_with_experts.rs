//! A dense feed-forward network in parallel with experts: the outputs of both are normalized and added.
//!
//! The dense network reads the normalized input of the layer's feed-forward network; the router and the experts read
//! the residual stream, each through a norm of its own. The norm of the sum is the layer's (`block.rs`).

use super::{Block, FfnBuffers, grow_to, normalize, normalized};
use crate::linear::Linear;
use crate::network::DenseWithExperts;
use crate::spec;

/// The buffers of such layers, each `[rows, width]`, kept between passes.
#[derive(Default)]
pub(crate) struct DenseWithExpertsBuffers {
    /// The input of the router.
    router_input: Vec<f32>,
    /// The input of the experts.
    expert_input: Vec<f32>,
    /// The output of the dense network.
    dense: Vec<f32>,
    /// The output of the experts, normalized.
    experts: Vec<f32>,
    /// The sum.
    out: Vec<f32>,
}

impl Block<'_> {
    /// Runs a layer's dense network on rows `input` and its experts on the residual stream, both `[rows, width]`;
    /// yields the sum of the outputs.
    pub(super) fn run_dense_with_experts<'b>(
        &self,
        (number, layer, both): (usize, &spec::Experts, &DenseWithExperts<Linear>),
        [stream, input]: [&[f32]; 2],
        buffers: &'b mut FfnBuffers,
    ) -> &'b [f32] {
        let FfnBuffers { inner, experts, dense_with_experts: own } = buffers;
        let (isa, spec, dense) = (self.isa(), self.spec, &both.dense);
        let dense_output = grow_to(&mut own.dense, stream.len());
        let raised = self.ffn_inner(dense, input, inner);
        self.products.one(raised, self.rows(), dense.down.inputs(), dense.down.product(dense_output, false));
        let out = grow_to(&mut own.out, stream.len());
        normalize(isa, spec, &both.dense_post_norm, dense_output, out);
        let router_input = normalized(isa, spec, Some(&both.router_norm), stream, &mut own.router_input);
        let expert_input = normalized(isa, spec, Some(&both.experts_norm), stream, &mut own.expert_input);
        let expert_output = self.run_experts((number, layer, &both.experts), [router_input, expert_input], experts);
        let expert_output = normalized(isa, spec, Some(&both.experts_post_norm), expert_output, &mut own.experts);
        out.iter_mut().zip(expert_output).for_each(|(out, expert_output)| *out += expert_output);
        out
    }
}
