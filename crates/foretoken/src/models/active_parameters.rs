//! The weights that one token is computed with in a mixture-of-experts network, which are fewer than all.

use foretoken_model::{ExpertNeed, family};

use super::Opened;

/// The weights that one token is computed with in a mixture-of-experts network.
#[derive(Clone, Debug)]
pub struct ActiveParameters {
    /// Bytes of the matrices that it is multiplied with.
    pub bytes: usize,
    /// Parameters that it is computed with: all of the network but those of experts that it does not choose.
    pub parameters: usize,
    /// Bytes of all experts, which need not all be in memory, and the least memory for them.
    pub experts: ExpertNeed,
}

impl ActiveParameters {
    /// None for dense networks, and where tensors contradict the configuration, which loading reports.
    pub fn new(model: &Opened) -> Option<Self> {
        model.spec.experts.as_ref()?;
        let network = family::read(&model.checkpoint, None).ok()?;
        let left_out: usize = network.left_out.iter().map(|name| model.checkpoint.parameters_of(name)).sum();
        let parameters = model.checkpoint.parameters().saturating_sub(left_out + network.inactive_parameters());
        Some(Self { bytes: network.token_bytes(), parameters, experts: network.expert_need(None).ok()? })
    }
}
