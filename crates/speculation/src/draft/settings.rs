//! What a request may say about drafting with a model. Each setting is optional: the drafter has values of its own.
//!
//! The draft's law need not go through the target's settings (Leviathan et al. 2023, section 6, leave other
//! transformations open): a sharper draft often agrees more. Under every promise any q is lawful.

use crate::Sampling;

/// Settings of drafting that a request can choose for itself. `None` leaves it to the drafter.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct DraftSettings {
    /// Fewest tokens drafted before low confidence may end a branch.
    pub n_min: Option<usize>,
    /// A branch ends behind a token whose raw probability is below this, 0 to 1.
    pub p_min: Option<f32>,
    /// The draft branches where the runner-up's raw probability exceeds this, 0 to 1; 1 never branches.
    pub p_split: Option<f32>,
    /// The draft's own temperature, from 0; otherwise the target's.
    pub temperature: Option<f32>,
    /// The draft's own top-k; 0 is off.
    pub top_k: Option<usize>,
    /// The draft's own top-p; 1 is off.
    pub top_p: Option<f32>,
    /// The draft's own min-p; 0 is off.
    pub min_p: Option<f32>,
}

impl DraftSettings {
    /// These settings, and where they say nothing, the others'.
    pub fn or(self, other: DraftSettings) -> DraftSettings {
        DraftSettings {
            n_min: self.n_min.or(other.n_min),
            p_min: self.p_min.or(other.p_min),
            p_split: self.p_split.or(other.p_split),
            temperature: self.temperature.or(other.temperature),
            top_k: self.top_k.or(other.top_k),
            top_p: self.top_p.or(other.top_p),
            min_p: self.min_p.or(other.min_p),
        }
    }

    /// Whether the draft's law goes through other settings than the target's.
    pub fn has_filters(&self) -> bool {
        self.temperature.is_some() || self.top_k.is_some() || self.top_p.is_some() || self.min_p.is_some()
    }

    /// The settings that the draft's logits go through.
    pub fn sampling(&self, target: &Sampling) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(target.temperature),
            top_k: self.top_k.unwrap_or(target.top_k),
            top_p: self.top_p.unwrap_or(target.top_p),
            min_p: self.min_p.unwrap_or(target.min_p),
            ..target.clone()
        }
    }
}
