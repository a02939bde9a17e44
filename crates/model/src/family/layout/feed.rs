//! Where the feed-forward half of a layer lies: a dense half, experts, or both, each with norms of its own.
//!
//! Left out: where the experts' own matrices lie (`experts.rs`).

use super::{Reader, Up};
use crate::error::ModelError;
use crate::family::tensors::Bias;
use crate::linear::Unpacked;
use crate::network::{Both, Dense, Feed, Inner};
use crate::spec::{Activation, FeedForward, Spec};

/// What a dense half and the experts beside it have of their own.
#[derive(Clone, Copy)]
pub(in crate::family) struct BothNames {
    /// Behind the dense half.
    pub(in crate::family) dense_post_norm: &'static str,
    /// Before the experts and behind them.
    pub(in crate::family) experts_norms: [&'static str; 2],
    /// The whole name of the weight of the router's norm, times the root of the width.
    pub(in crate::family) router_norm: &'static str,
    /// The whole name of what weights of experts are multiplied with.
    pub(in crate::family) scales: &'static str,
}

/// As transformers has them.
pub(super) const HUGGING: BothNames = BothNames {
    dense_post_norm: "post_feedforward_layernorm_1",
    experts_norms: ["pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"],
    router_norm: "router.scale",
    scales: "router.per_expert_scale",
};

/// Those of GGUF files.
pub(super) const GGUF: BothNames = BothNames {
    dense_post_norm: "post_ffw_norm_1",
    experts_norms: ["pre_ffw_norm_2", "post_ffw_norm_2"],
    router_norm: "ffn_gate_inp.scale",
    scales: "ffn_down_exps.scale",
};

impl Reader<'_> {
    /// The feed-forward half of a layer.
    pub(super) fn feed(&self, number: usize, at: &str) -> Result<Feed<Unpacked>, ModelError> {
        let Self { layout, spec, tensors } = *self;
        let dense = || self.dense(at, (layout.up, layout.down), spec.ffn_width_of(number), layout.ffn_bias);
        let Some(experts) = spec.experts_of(number) else { return Ok(Feed::Dense(dense()?)) };
        let mut all = self.experts(at, experts)?;
        if !experts.beside_dense {
            return Ok(Feed::Experts(all));
        }
        let BothNames { dense_post_norm, experts_norms: [before, behind], router_norm, scales } = layout.both;
        let norm = |name: &str| self.norm(&format!("{at}{name}"), spec.width);
        let root = 1.0 / (spec.width as f32).sqrt();
        let mut router_norm = self.with_bias(tensors.vector(&format!("{at}{router_norm}"), spec.width)?);
        router_norm.weight.iter_mut().for_each(|weight| *weight *= root);
        all.scales = tensors.vector(&format!("{at}{scales}"), experts.count)?;
        Ok(Feed::Both(Box::new(Both {
            dense: dense()?,
            dense_post_norm: norm(dense_post_norm)?,
            experts: all,
            router_norm,
            experts_norm: norm(before)?,
            experts_post_norm: norm(behind)?,
        })))
    }

    /// A dense half of these names, or the expert that all rows go through.
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
