//! Options of beam search, with transformers' names.
//!
//! How many of its hypotheses are answers is said by the option of several answers.

use clap::Args;
use foretoken::EarlyStopping;
use foretoken::settings::SamplingSettings;

use crate::values;

/// How the most probable continuations are searched for.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub struct BeamOptions {
    /// Beam search with so many beams, instead of drawing tokens; 1 is off
    ///
    /// The temperature is 0, nothing is printed before the search ends, and --n-best K prints the K best hypotheses of
    /// it, the best first. A draft model makes it faster and does not change what it finds.
    #[arg(hide_short_help = true, long, value_name = "N", default_value = "1", value_parser = values::texts,
        allow_negative_numbers = true)]
    pub num_beams: usize,
    /// A hypothesis scores its log-probability divided by its length to the power of this: above 0 long ones gain
    /// [default: 1]
    #[arg(hide_short_help = true, long, value_name = "X", value_parser = values::finite, allow_negative_numbers = true)]
    pub length_penalty: Option<f32>,
    /// When a search stops that has N finished hypotheses: true, at once; false, when the best running beam scores no
    /// better as long as it is now; never, when it cannot score better at any length [default: false]
    #[arg(hide_short_help = true, long, value_name = "WHEN", value_parser = values::one_of::<EarlyStopping>(),
        hide_possible_values = true)]
    pub early_stopping: Option<EarlyStopping>,
}

impl BeamOptions {
    /// The settings with these.
    pub fn with(&self, settings: SamplingSettings) -> SamplingSettings {
        let Self { num_beams, length_penalty, early_stopping } = *self;
        SamplingSettings { num_beams, length_penalty, early_stopping, ..settings }
    }
}
