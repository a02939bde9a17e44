//! Where the experts of a layer lie, and how they are read from there.
//!
//! The same experts are written in several ways: a matrix each, all of a kind in one tensor, or gate and up of all of
//! them in one. A layout lists the ways in which a family's are found, and each layer is read in the first that it has,
//! so a checkpoint as it was published and one as transformers 5 holds it in memory are the same network. Left out: how
//! rows choose among them (`Spec`).

use super::{Reader, Up};
use crate::error::ModelError;
use crate::family::tensors::Bias;
use crate::linear::Unpacked;
use crate::network::{Dense, Experts, Inner};
use crate::spec::{self, Activation, FeedForward};

/// Names of the tensors of a layer with experts, without `.weight` unless they are called whole.
#[derive(Clone, Copy)]
pub(in crate::family) struct ExpertNames {
    pub(in crate::family) router: &'static str,
    /// The whole name of what is added to scores for the choice.
    pub(in crate::family) corrections: &'static str,
    pub(in crate::family) stored: Stored,
    /// Whether the router and the experts it chooses from have biases.
    pub(in crate::family) bias: Bias,
    /// Of the one that all rows go through: its gate and up, and its down.
    pub(in crate::family) shared: (Up, &'static str),
    /// What its output is multiplied by.
    pub(in crate::family) shared_gate: &'static str,
}

/// Where the matrices of one expert lie.
#[derive(Clone, Copy)]
pub(in crate::family) enum Stored {
    /// A tensor each, `{place}.{number}.{name}`: gate, up and down.
    Each(&'static str, [&'static str; 3]),
    /// All of a name in one tensor `[experts, outputs, inputs]`: gate, up and down.
    Stacked([&'static str; 3]),
    /// Two tensors by their whole names: `[experts, 2 * ffn width, width]`, of each expert the gate's rows and then
    /// those of up, and `[experts, width, ffn width]`.
    Fused([&'static str; 2]),
    /// The same turned and in turn: `[experts, width, 2 * ffn width]`, of each expert a column of the gate and one of
    /// up over and over, and `[experts, ffn width, width]`. Biases are called `{name}_bias`.
    Interleaved([&'static str; 2]),
}

/// As Qwen's checkpoints have them.
pub(in crate::family) const EACH: ExpertNames = ExpertNames {
    router: "mlp.gate",
    corrections: "mlp.gate.e_score_correction_bias",
    stored: Stored::Each("mlp.experts", ["gate_proj", "up_proj", "down_proj"]),
    bias: Bias::None,
    shared: (Up::Gated(["mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"]), "mlp.shared_expert.down_proj"),
    shared_gate: "mlp.shared_expert_gate",
};

/// As transformers 5 holds those of most families in memory.
pub(in crate::family) const IN_MEMORY: ExpertNames =
    ExpertNames { stored: Stored::Fused(["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]), ..EACH };

pub(super) const HUGGING: &[ExpertNames] = &[EACH, IN_MEMORY];

pub(in crate::family) const STACKED: ExpertNames = ExpertNames {
    router: "ffn_gate_inp",
    corrections: "exp_probs_b.bias",
    stored: Stored::Stacked(["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"]),
    bias: Bias::None,
    shared: (Up::Gated(["ffn_gate_shexp", "ffn_up_shexp"]), "ffn_down_shexp"),
    shared_gate: "ffn_gate_inp_shexp",
};

const FUSED: ExpertNames =
    ExpertNames { stored: Stored::Fused(["ffn_gate_up_exps.weight", "ffn_down_exps.weight"]), ..STACKED };

/// Those of GGUF files.
pub(super) const GGUF: &[ExpertNames] = &[STACKED, FUSED];

/// The same, of an architecture whose files are written with gate and up in one.
pub(in crate::family) const GGUF_FUSED: &[ExpertNames] = &[FUSED, STACKED];

impl Stored {
    /// The name of the first matrix that has gates, without `.weight` where there is one.
    pub(super) fn first(self) -> String {
        match self {
            Self::Each(place, [gate, ..]) => format!("{place}.0.{gate}"),
            Self::Stacked([gate, ..]) => gate.to_string(),
            Self::Fused([both, _]) | Self::Interleaved([both, _]) => both.to_string(),
        }
    }
}

impl Reader<'_> {
    /// The experts of a layer whose names begin with `at`.
    pub(super) fn experts(&self, at: &str, experts: &spec::Experts) -> Result<Experts<Unpacked>, ModelError> {
        let Self { layout, spec, tensors } = *self;
        let names = layout.experts.iter().find(|names| self.has(at, names.stored)).unwrap_or(&layout.experts[0]);
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

    /// Whether a layer has its experts in this way.
    fn has(&self, at: &str, stored: Stored) -> bool {
        let first = format!("{at}{}", stored.first());
        match stored {
            Stored::Each(..) | Stored::Stacked(_) => self.tensors.has_matrix(&first),
            Stored::Fused(_) | Stored::Interleaved(_) => self.tensors.has(&first),
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
        let [gate, up, down] = match names.stored {
            Stored::Each(place, names) => {
                let [gate_name, up_name, down_name] = names.map(|name| format!("{place}.{number}.{name}"));
                let matrix = |name: &str, shape: [usize; 2]| self.linear(at, name, shape, bias);
                [matrix(&gate_name, up)?, matrix(&up_name, up)?, matrix(&down_name, down)?]
            }
            Stored::Stacked(names) => {
                let both = |name: &str, shape| stacked(&format!("{name}.weight"), &format!("{name}.bias"), shape);
                [both(names[0], up)?, both(names[1], up)?, both(names[2], down)?]
            }
            Stored::Fused(names) => {
                let both = stacked(names[0], &format!("{}_bias", names[0]), [width, 2 * ffn_width])?;
                let [gate, up] = [0..ffn_width, ffn_width..2 * ffn_width].map(|rows| both.outputs(rows));
                [gate, up, stacked(names[1], &format!("{}_bias", names[1]), down)?]
            }
            Stored::Interleaved(names) => {
                let [both, down_name] = names.map(|name| format!("{at}{name}"));
                let matrix = |name, columns, shape| self.tensors.interleaved(name, place, columns, shape, bias);
                [matrix(&both, [0, 2], up)?, matrix(&both, [1, 2], up)?, matrix(&down_name, [0, 1], down)?]
            }
        };
        Ok(Dense { inner: Inner::Gated { activation: self.gated(), gate, up }, down })
    }

    /// What is applied to the gates of experts.
    fn gated(&self) -> Activation {
        let FeedForward::Gated(activation) = self.spec.feed_forward else {
            unreachable!("{}: experts without gates", self.spec.family)
        };
        activation
    }
}
