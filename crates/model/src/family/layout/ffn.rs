//! How the feed-forward network of a layer is stored: dense, experts, or both, each with norms of its own.
//!
//! The matrices of experts are described in `experts.rs`.

use super::{Reader, Up};
use crate::error::ModelError;
use crate::family::tensors::Bias;
use crate::linear::Unpacked;
use crate::network::{Dense, DenseWithExperts, Ffn, Inner};
use crate::spec::{Activation, FeedForward, Spec};

/// The names of the norms of a dense network in parallel with experts.
#[derive(Clone, Copy)]
pub(in crate::family) struct DenseWithExpertsNames {
    /// The norm after the dense network.
    pub(in crate::family) dense_post_norm: &'static str,
    /// The norms before and after the experts.
    pub(in crate::family) experts_norms: [&'static str; 2],
    /// The whole name of the weight of the router's norm, which is stored times the root of the width.
    pub(in crate::family) router_norm: &'static str,
    /// The whole name of the factors of the experts' weights.
    pub(in crate::family) scales: &'static str,
}

/// The names in transformers.
pub(super) const HUGGING_FACE: DenseWithExpertsNames = DenseWithExpertsNames {
    dense_post_norm: "post_feedforward_layernorm_1",
    experts_norms: ["pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"],
    router_norm: "router.scale",
    scales: "router.per_expert_scale",
};

/// The names in GGUF files.
pub(super) const GGUF: DenseWithExpertsNames = DenseWithExpertsNames {
    dense_post_norm: "post_ffw_norm_1",
    experts_norms: ["pre_ffw_norm_2", "post_ffw_norm_2"],
    router_norm: "ffn_gate_inp.scale",
    scales: "ffn_down_exps.scale",
};

impl Reader<'_> {
    /// The feed-forward network of a layer.
    pub(super) fn ffn(&self, number: usize, at: &str) -> Result<Ffn<Unpacked>, ModelError> {
        let Self { layout, spec, tensors } = *self;
        let dense = || self.dense(at, (layout.up, layout.down), spec.ffn_width_of(number), layout.ffn_bias);
        let Some(experts) = spec.experts_of(number) else { return Ok(Ffn::Dense(dense()?)) };
        let mut all = self.experts(at, experts)?;
        if !experts.beside_dense {
            return Ok(Ffn::Experts(all));
        }
        let DenseWithExpertsNames { dense_post_norm, experts_norms: [before, behind], router_norm, scales } =
            layout.dense_with_experts;
        let norm = |name: &str| self.norm(&format!("{at}{name}"), spec.width);
        let root = 1.0 / (spec.width as f32).sqrt();
        let mut router_norm = self.with_bias(tensors.vector(&format!("{at}{router_norm}"), spec.width)?);
        router_norm.weight.iter_mut().for_each(|weight| *weight *= root);
        all.scales = tensors.vector(&format!("{at}{scales}"), experts.count)?;
        Ok(Ffn::DenseWithExperts(Box::new(DenseWithExperts {
            dense: dense()?,
            dense_post_norm: norm(dense_post_norm)?,
            experts: all,
            router_norm,
            experts_norm: norm(before)?,
            experts_post_norm: norm(behind)?,
        })))
    }

    /// A dense network with these names, or the shared expert.
    pub(super) fn dense(
        &self,
        at: &str,
        (up, down): (Up, &str),
        ffn_width: usize,
        bias: Bias,
    ) -> Result<Dense<Unpacked>, ModelError> {
        let Spec { width, feed_forward, .. } = *self.spec;
        let matrix = |name: &str, outputs: usize| self.linear(at, name, [width, outputs], bias);
        let gated = |gate: Unpacked, up: Unpacked, activation: Activation| Inner::Gated { activation, gate, up };
        let inner = match (up, feed_forward) {
            (Up::Plain(name), FeedForward::Plain(activation)) => {
                Inner::Plain { activation, up: matrix(name, ffn_width)? }
            }
            (Up::Gated([gate, up]), FeedForward::Gated(activation)) => {
                gated(matrix(gate, ffn_width)?, matrix(up, ffn_width)?, activation)
            }
            (Up::Fused(name), FeedForward::Gated(activation)) => {
                let both = matrix(name, 2 * ffn_width)?;
                gated(both.outputs(0..ffn_width), both.outputs(ffn_width..2 * ffn_width), activation)
            }
            _ => unreachable!("{}: the layout and the feed-forward half contradict each other", self.spec.family),
        };
        Ok(Dense { inner, down: self.linear(at, down, [ffn_width, width], bias)? })
    }
}
