//! The active parameters of a mixture-of-experts network: the weights that one token is computed with.

use foretoken_model::{ExpertNeed, family};

use super::Opened;

/// The active parameters of a mixture-of-experts network.
#[derive(Clone, Debug)]
pub struct ActiveParameters {
    /// Bytes of the matrices that one token is multiplied with.
    pub bytes: usize,
    /// The number of active parameters: all of the network except those of experts that the token does not choose.
    pub parameters: usize,
    /// Bytes of all experts, which need not all be in memory, and the least memory for them.
    pub experts: ExpertNeed,
}

impl ActiveParameters {
    /// `None` for dense networks, and if tensors contradict the configuration, which loading reports.
    pub fn new(model: &Opened) -> Option<Self> {
        model.spec.experts.as_ref()?;
        let network = family::read(&model.checkpoint, None).ok()?;
        let unused: usize = network.left_out.iter().map(|name| model.checkpoint.parameters_of(name)).sum();
        let parameters = model.checkpoint.parameters().saturating_sub(unused + network.inactive_parameters());
        Some(Self { bytes: network.token_bytes(), parameters, experts: network.expert_need(None).ok()? })
    }
}
