//! Settings of drafting that a request can choose. Each of them is optional, since drafters have defaults.
//!
//! The draft's law need not go through the target's settings (Leviathan et al. 2023, section 6, leave other
//! transformations open): a draft at a lower temperature is often accepted more. Every promise holds with any q.

use crate::sampling::FRACTION;
use crate::{Sampling, SamplingProblem};

/// Settings of drafting that a request can choose for itself. `None` leaves it to the drafter.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct DraftSettings {
    /// Minimum number of tokens that are drafted before low confidence may end a branch.
    pub n_min: Option<usize>,
    /// A branch ends after a token whose raw probability is below this, 0 to 1.
    pub p_min: Option<f32>,
    /// lookup, suffix, trie: tokens whose gain is below this by the drafter's own estimate are not proposed, 0 to 1.
    pub gain_min: Option<f32>,
    /// The draft branches if the runner-up's raw probability exceeds this, 0 to 1; 1 never branches.
    pub p_split: Option<f32>,
    /// The draft's own temperature, from 0; without it the target's.
    pub temperature: Option<f32>,
    /// The draft's own top-k; 0 is off.
    pub top_k: Option<usize>,
    /// The draft's own top-p; 1 is off.
    pub top_p: Option<f32>,
    /// The draft's own min-p; 0 is off.
    pub min_p: Option<f32>,
}

impl DraftSettings {
    /// These settings, and the others' where these are `None`.
    pub fn or(self, other: DraftSettings) -> DraftSettings {
        DraftSettings {
            n_min: self.n_min.or(other.n_min),
            p_min: self.p_min.or(other.p_min),
            gain_min: self.gain_min.or(other.gain_min),
            p_split: self.p_split.or(other.p_split),
            temperature: self.temperature.or(other.temperature),
            top_k: self.top_k.or(other.top_k),
            top_p: self.top_p.or(other.top_p),
            min_p: self.min_p.or(other.min_p),
        }
    }

    /// The first setting that is out of range, if any, as [`Sampling::problem`].
    pub fn problem(&self, target: &Sampling) -> Option<SamplingProblem> {
        let fractions = [("p_min", self.p_min), ("gain_min", self.gain_min), ("p_split", self.p_split)];
        let problem = fractions.into_iter().find_map(|(field, value)| FRACTION.problem(field, value?));
        problem.or_else(|| self.sampling(target).problem())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_named() {
        let target = Sampling::default();
        let field = |settings: DraftSettings| settings.problem(&target).map(|problem| problem.field);
        let fine = DraftSettings { p_min: Some(1.0), temperature: Some(0.0), ..DraftSettings::default() };
        assert_eq!(field(fine), None);
        assert_eq!(field(DraftSettings { p_min: Some(-0.1), ..fine }), Some("p_min"));
        assert_eq!(field(DraftSettings { p_split: Some(f32::NAN), ..fine }), Some("p_split"));
        assert_eq!(field(DraftSettings { temperature: Some(-1.0), ..fine }), Some("temperature"));
        assert_eq!(field(DraftSettings { top_p: Some(1.5), ..fine }), Some("top_p"));
    }
}
