//! What one token has to do with a network of experts, of which it chooses some.

use foretoken_model::{ExpertNeed, family};

use super::Opened;

/// What one token has to do with a network of experts.
#[derive(Clone, Debug)]
pub struct OfToken {
    /// Bytes of the matrices that it is multiplied with.
    pub bytes: usize,
    /// Parameters that it is computed with: all that are the text's but those of the experts that it does not choose.
    pub parameters: usize,
    /// Bytes of all experts, of which not all need be in memory, and the least room for them.
    pub experts: ExpertNeed,
}

impl OfToken {
    /// None of dense networks, and where tensors are not as the configuration says: loading says what is wrong.
    pub fn new(model: &Opened) -> Option<Self> {
        model.spec.experts.as_ref()?;
        let network = family::read(&model.checkpoint, None).ok()?;
        let left_out: usize = network.left_out.iter().map(|name| model.checkpoint.parameters_of(name)).sum();
        let parameters = model.checkpoint.parameters().saturating_sub(left_out + network.parameters_not_chosen());
        Some(Self { bytes: network.token_bytes(), parameters, experts: network.expert_need(None).ok()? })
    }
}
