//! How the experts of a layer are stored, and how they are read.
//!
//! Experts are stored in several ways: in a tensor for each matrix, in one tensor for all matrices of a kind, or with
//! gate and up of all experts in one. A layout lists the ways in which a family's experts may be stored, and each layer
//! is read in the first way that it has, so a published checkpoint and one that transformers 5 saved from memory are
//! the same network.

use super::{Reader, Up};
use crate::error::ModelError;
use crate::family::tensors::Bias;
use crate::linear::Unpacked;
use crate::network::{Dense, Experts, Inner};
use crate::spec::{self, Activation, FeedForward};

/// The names of the tensors of a layer with experts, without `.weight` except for whole names.
#[derive(Clone, Copy)]
pub(in crate::family) struct ExpertNames {
    pub(in crate::family) router: &'static str,
    /// The whole name of the corrections of scores.
    pub(in crate::family) corrections: &'static str,
    pub(in crate::family) storage: ExpertStorage,
    /// Whether the router and the experts that it chooses among have biases.
    pub(in crate::family) bias: Bias,
    /// The shared expert: its gate and up matrices, and its down matrix.
    pub(in crate::family) shared: (Up, &'static str),
    /// The gate of the shared expert's output.
    pub(in crate::family) shared_gate: &'static str,
}

/// How the matrices of experts are stored.
#[derive(Clone, Copy)]
pub(in crate::family) enum ExpertStorage {
    /// In a tensor for each matrix of each expert, `{prefix}.{number}.{name}`: gate, up and down.
    Each(&'static str, [&'static str; 3]),
    /// In three tensors `[experts, outputs, inputs]`: gate, up and down.
    Stacked([&'static str; 3]),
    /// In two tensors, given by their whole names: `[experts, 2 * ffn width, width]`, for each expert the rows of the
    /// gate and then those of up, and `[experts, width, ffn width]`.
    Fused([&'static str; 2]),
    /// In two transposed tensors: `[experts, width, 2 * ffn width]`, for each expert alternating columns of gate and
    /// up, and `[experts, ffn width, width]`. The names of biases are `{name}_bias`.
    Interleaved([&'static str; 2]),
}

/// The names in Qwen's checkpoints.
pub(in crate::family) const EACH: ExpertNames = ExpertNames {
    router: "mlp.gate",
    corrections: "mlp.gate.e_score_correction_bias",
    storage: ExpertStorage::Each("mlp.experts", ["gate_proj", "up_proj", "down_proj"]),
    bias: Bias::None,
    shared: (Up::Gated(["mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"]), "mlp.shared_expert.down_proj"),
    shared_gate: "mlp.shared_expert_gate",
};

/// The names of most families in transformers 5, in memory.
pub(in crate::family) const IN_MEMORY: ExpertNames =
    ExpertNames { storage: ExpertStorage::Fused(["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]), ..EACH };

pub(super) const HUGGING_FACE: &[ExpertNames] = &[EACH, IN_MEMORY];

pub(in crate::family) const STACKED: ExpertNames = ExpertNames {
    router: "ffn_gate_inp",
    corrections: "exp_probs_b.bias",
    storage: ExpertStorage::Stacked(["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"]),
    bias: Bias::None,
    shared: (Up::Gated(["ffn_gate_shexp", "ffn_up_shexp"]), "ffn_down_shexp"),
    shared_gate: "ffn_gate_inp_shexp",
};

const FUSED: ExpertNames =
    ExpertNames { storage: ExpertStorage::Fused(["ffn_gate_up_exps.weight", "ffn_down_exps.weight"]), ..STACKED };

/// The names in GGUF files.
pub(super) const GGUF: &[ExpertNames] = &[STACKED, FUSED];

/// The names in GGUF files of an architecture for which files are written with gate and up in one tensor.
pub(in crate::family) const GGUF_FUSED: &[ExpertNames] = &[FUSED, STACKED];

impl ExpertStorage {
    /// The name of the first tensor with gates, without a final `.weight`.
    pub(super) fn first(self) -> String {
        match self {
            Self::Each(prefix, [gate, ..]) => format!("{prefix}.0.{gate}"),
            Self::Stacked([gate, ..]) => gate.to_string(),
            Self::Fused([both, _]) | Self::Interleaved([both, _]) => both.to_string(),
        }
    }
}

impl Reader<'_> {
    /// The experts of a layer whose names begin with `at`.
    pub(super) fn experts(&self, at: &str, experts: &spec::Experts) -> Result<Experts<Unpacked>, ModelError> {
        let Self { layout, spec, tensors } = *self;
        let names = layout.experts.iter().find(|names| self.has(at, names.storage)).unwrap_or(&layout.experts[0]);
        let all = (0..experts.count).map(|number| self.expert((at, names), number, experts));
        let all = all.collect::<Result<_, _>>()?;
        let shared = match experts.shared {
            None => None,
            Some(spec::SharedExpert { ffn_width, gated }) => {
                let row = |name: &str| tensors.row(&format!("{at}{name}"), spec.width);
                let gate = gated.then(|| row(names.shared_gate)).transpose()?;
                Some((self.dense(at, names.shared, ffn_width, Bias::None)?, gate))
            }
        };
        Ok(Experts {
            router: self.linear(at, names.router, [spec.width, experts.count], names.bias)?,
            corrections: match experts.router.corrected {
                true => tensors.finite(&format!("{at}{}", names.corrections), experts.count)?,
                false => Vec::new(),
            },
            scales: Vec::new(),
            all,
            shared,
        })
    }

    /// Whether the experts of a layer are stored in this way.
    fn has(&self, at: &str, storage: ExpertStorage) -> bool {
        let first = format!("{at}{}", storage.first());
        match storage {
            ExpertStorage::Each(..) | ExpertStorage::Stacked(_) => self.tensors.has_matrix(&first),
            ExpertStorage::Fused(_) | ExpertStorage::Interleaved(_) => self.tensors.has(&first),
        }
    }

    /// One of the experts of a layer.
    fn expert(
        &self,
        (at, names): (&str, &ExpertNames),
        number: usize,
        experts: &spec::Experts,
    ) -> Result<Dense<Unpacked>, ModelError> {
        let (width, ffn_width) = (self.spec.width, experts.ffn_width);
        let (place, bias) = ((number, experts.count), names.bias);
        let stacked = |name: &str, bias_name: &str, shape: [usize; 2]| {
            self.tensors.stacked(&format!("{at}{name}"), &format!("{at}{bias_name}"), place, shape, bias)
        };
        let (up, down) = ([width, ffn_width], [ffn_width, width]);
        let [gate, up, down] = match names.storage {
            ExpertStorage::Each(prefix, names) => {
                let [gate_name, up_name, down_name] = names.map(|name| format!("{prefix}.{number}.{name}"));
                let matrix = |name: &str, shape: [usize; 2]| self.linear(at, name, shape, bias);
                [matrix(&gate_name, up)?, matrix(&up_name, up)?, matrix(&down_name, down)?]
            }
            ExpertStorage::Stacked(names) => {
                let both = |name: &str, shape| stacked(&format!("{name}.weight"), &format!("{name}.bias"), shape);
                [both(names[0], up)?, both(names[1], up)?, both(names[2], down)?]
            }
            ExpertStorage::Fused(names) => {
                let both = stacked(names[0], &format!("{}_bias", names[0]), [width, 2 * ffn_width])?;
                let [gate, up] = [0..ffn_width, ffn_width..2 * ffn_width].map(|rows| both.outputs(rows));
                [gate, up, stacked(names[1], &format!("{}_bias", names[1]), down)?]
            }
            ExpertStorage::Interleaved(names) => {
                let [both, down_name] = names.map(|name| format!("{at}{name}"));
                let matrix = |name, columns, shape| self.tensors.interleaved(name, place, columns, shape, bias);
                [matrix(&both, [0, 2], up)?, matrix(&both, [1, 2], up)?, matrix(&down_name, [0, 1], down)?]
            }
        };
        Ok(Dense { inner: Inner::Gated { activation: self.gate_activation(), gate, up }, down })
    }

    /// The activation of the gates of experts.
    fn gate_activation(&self) -> Activation {
        let FeedForward::Gated(activation) = self.spec.feed_forward else {
            unreachable!("{}: experts without gates", self.spec.family)
        };
        activation
    }
}
