//! Export of experts: from those of a checkpoint to the stacked tensors of a GGUF file.
//!
//! In the file, gate, up and down of all experts of a layer are three tensors, `[experts, outputs, inputs]`; or gate
//! and up are one tensor, if that is the first form in the file's layout.

use super::super::super::tensors::Bias;
use super::super::experts::{ExpertNames, ExpertStorage};
use super::super::{DenseWithExpertsNames, Up};
use super::{Order, Writer};
use crate::error::ModelError;
use crate::spec::{Experts, SharedExpert};

impl Writer<'_, '_> {
    /// The feed-forward network of a layer that has experts.
    pub(super) fn experts(&mut self, number: usize, experts: &Experts, at: [&str; 2]) -> Result<(), ModelError> {
        let (width, all) = (self.spec.width, self.from.experts);
        let has = |names: &&ExpertNames| {
            let first = format!("{}{}", at[0], names.storage.first());
            self.all.has(&first) || self.all.has(&format!("{first}.weight"))
        };
        let (from, to) = (*all.iter().find(has).unwrap_or(&all[0]), self.to.experts[0]);
        self.matrix(at, [from.router, to.router], [width, experts.count], Order::Same, Bias::None)?;
        self.storage((from.storage, to.storage), experts, at)?;
        if let Some(shared) = experts.shared {
            self.shared((&from, &to), shared, at)?;
        }
        if experts.beside_dense { self.dense_with_experts(number, experts, at) } else { Ok(()) }
    }

    /// The matrices of all experts of a layer.
    fn storage(
        &mut self,
        (from, to): (ExpertStorage, ExpertStorage),
        experts: &Experts,
        at: [&str; 2],
    ) -> Result<(), ModelError> {
        let (width, f, count) = (self.spec.width, experts.ffn_width, experts.count);
        let [from_name, to_name] = at.map(|at| move |name: &str| format!("{at}{name}"));
        match (from, to) {
            (ExpertStorage::Each(prefix, names), ExpertStorage::Stacked(to)) => {
                for ((name, to), shape) in names.iter().zip(to).zip([[f, width], [f, width], [width, f]]) {
                    let of_expert = |number: usize| from_name(&format!("{prefix}.{number}.{name}.weight"));
                    let all: Vec<String> = (0..count).map(of_expert).collect();
                    self.all.stack(&all, to_name(&format!("{to}.weight")), shape)?;
                }
                Ok(())
            }
            (ExpertStorage::Fused([both, down]), ExpertStorage::Stacked(to)) => {
                let [gate_to, up_to, down_to] = to.map(|name| to_name(&format!("{name}.weight")));
                let (both, shape) = (from_name(both), [count, 2 * f, width]);
                self.all.rows_of_each(&both, gate_to, shape, 0..f)?;
                self.all.rows_of_each(&both, up_to, shape, f..2 * f)?;
                self.all.rows_of_each(&from_name(down), down_to, [count, width, f], 0..width)
            }
            (ExpertStorage::Fused([both, down]), ExpertStorage::Fused([both_to, down_to])) => {
                self.all.rows_of_each(&from_name(both), to_name(both_to), [count, 2 * f, width], 0..2 * f)?;
                self.all.rows_of_each(&from_name(down), to_name(down_to), [count, width, f], 0..width)
            }
            _ => Err(self.mismatch("model_type", "matrices of experts")),
        }
    }

    /// The shared expert.
    fn shared(
        &mut self,
        (from, to): (&ExpertNames, &ExpertNames),
        SharedExpert { ffn_width, gated }: SharedExpert,
        at: [&str; 2],
    ) -> Result<(), ModelError> {
        let (width, (up, down), (up_to, down_to)) = (self.spec.width, from.shared, to.shared);
        let (Up::Gated(names), Up::Gated(names_to)) = (up, up_to) else {
            return Err(self.mismatch("model_type", "the expert of all rows"));
        };
        for (name, to) in names.into_iter().zip(names_to) {
            self.matrix(at, [name, to], [width, ffn_width], Order::Same, Bias::None)?;
        }
        self.matrix(at, [down, down_to], [ffn_width, width], Order::Same, Bias::None)?;
        if gated {
            self.matrix(at, [from.shared_gate, to.shared_gate], [width, 1], Order::Same, Bias::None)?;
        }
        Ok(())
    }

    /// The dense network in parallel with experts, and the norms of both.
    fn dense_with_experts(&mut self, number: usize, experts: &Experts, at: [&str; 2]) -> Result<(), ModelError> {
        let (width, [from, to]) = (self.spec.width, [self.from.dense_with_experts, self.to.dense_with_experts]);
        self.dense(number, at)?;
        let norms =
            |names: DenseWithExpertsNames| [names.dense_post_norm, names.experts_norms[0], names.experts_norms[1]];
        for (name, to) in norms(from).into_iter().zip(norms(to)) {
            self.norm_of(&format!("{}{name}", at[0]), &format!("{}{to}", at[1]), &[width])?;
        }
        for (name, to, len) in [(from.router_norm, to.router_norm, width), (from.scales, to.scales, experts.count)] {
            let vector = self.all.floats(&format!("{}{name}", at[0]), &[len])?;
            self.all.add(format!("{}{to}", at[1]), vec![len], &vector);
        }
        Ok(())
    }
}
