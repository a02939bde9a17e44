//! Comparison of a configuration with what the reader finds in the description of its file.
//!
//! A difference that a configuration can ask for is refused by its field; one that only a mistake in a family's file
//! can make is an assertion.

use super::{GgufDescription, near};
use crate::error::ModelError;
use crate::family::json;
use crate::spec::{Experts, LayerAttention, Positions, QueryGrowth, Rotation, Router, Spec};

/// A pair with this frequency or a lower one is not rotated at any position.
const UNROTATED_FREQUENCY_MAX: f32 = 1e-24;

impl GgufDescription<'_> {
    /// Refuses every difference that the reader finds.
    pub(super) fn compare(&self, file: &Spec) -> Result<(), ModelError> {
        let own = &self.spec;
        self.compare_layers(file)?;
        for layer in 0..own.layers {
            let layer_of = |spec: &Spec| {
                let LayerAttention { values_are_keys, .. } = spec.attention_of(layer);
                (spec.kv_heads_of(layer), values_are_keys, spec.ffn_width_of(layer))
            };
            assert_eq!(layer_of(own), layer_of(file), "layer {layer} of {}", own.family);
        }
        assert_eq!((own.shared_kv, own.layer_inputs), (file.shared_kv, file.layer_inputs), "{}", own.family);
        assert_eq!(own.encoder, file.encoder, "encoder of {}", own.family);
        if own.feed_forward != file.feed_forward {
            let fields = ["activation_function", "hidden_activation", "hidden_act", "activation", "feed_forward_proj"];
            let found = self.config.optional_str(self.field(&fields))?.unwrap_or_default();
            return Err(self.refuse(&fields, json::name_of(file.feed_forward), format!("{found:?}")));
        }
        self.compare_experts(file)?;
        if own.residual != file.residual {
            let fields = ["use_parallel_residual", "parallel_attn"];
            return Err(self.refuse(&fields, format!("{:?}", file.residual), format!("{:?}", own.residual)));
        }
        let growth = |spec: &Spec| match spec.query_growth {
            None => (None, None),
            Some(QueryGrowth::Steps { rate, period }) => (Some(rate), Some(period)),
            Some(QueryGrowth::Logarithm { .. }) => unreachable!("{} has logn attention in GGUF", spec.family),
        };
        for (fields, file, own) in [
            (
                &["scale_attn_weights", "query_pre_attn_scalar", "attention_multiplier"][..],
                Some(file.attention_scale),
                Some(own.attention_scale),
            ),
            (&["attn_logit_softcapping"], file.attention_soft_cap, own.attention_soft_cap),
            (&["final_logit_softcapping"], file.logit_soft_cap, own.logit_soft_cap),
            (&["logits_scaling", "logit_scale"], Some(file.logit_multiplier), Some(own.logit_multiplier)),
            (&["embedding_multiplier"], Some(file.embedding_multiplier), Some(own.embedding_multiplier)),
            (&["residual_multiplier"], Some(file.residual_multiplier), Some(own.residual_multiplier)),
            (&["llama_4_scaling_beta"], growth(file).0, growth(own).0),
            (&["rope_parameters"], growth(file).1, growth(own).1),
        ] {
            let same = match (file, own) {
                (Some(file), Some(own)) => near(file, own),
                (file, own) => file == own,
            };
            if !same {
                let shown = |number: Option<f32>| number.map_or("nothing".to_string(), |number| number.to_string());
                let field = self.field(fields);
                let scale = fields[0] == "scale_attn_weights";
                let what = if scale { "scores multiplied with " } else { "" };
                return Err(self.refuse(&[field], format!("{what}{}", shown(file)), format!("{what}{}", shown(own))));
            }
        }
        Ok(())
    }

    /// Refuses a difference of routers.
    fn compare_experts(&self, file: &Spec) -> Result<(), ModelError> {
        let [own, other] = [&self.spec, file].map(|spec| spec.experts.clone());
        if let (Some(own), Some(other)) = (&own, &other)
            && own.router != other.router
        {
            let shown = |router: &Router| format!("weights brought to the sum 1: {}", router.divided.is_some());
            return Err(self.refuse(&["norm_topk_prob", "model_type"], shown(&other.router), shown(&own.router)));
        }
        let layers = |spec: &Spec| (0..spec.layers).map(|layer| spec.experts_of(layer).is_some()).collect::<Vec<_>>();
        assert_eq!(layers(&self.spec), layers(file), "layers of {} with experts", file.family);
        let shape = |experts: Option<Experts>| experts.map(|experts| Experts { layers: Vec::new(), ..experts });
        assert_eq!(shape(own), shape(other), "experts of {}", file.family);
        Ok(())
    }

    /// Refuses differences of positions, rotations and windows.
    fn compare_layers(&self, file: &Spec) -> Result<(), ModelError> {
        let own = &self.spec;
        let kind = |spec: &Spec| match spec.positions {
            Positions::Rope(_) => "positions by rotation",
            Positions::Learned => "a table of positions",
            Positions::Alibi(_) => "positions by ALiBi",
            Positions::Relative(_) => "biases by relative position",
        };
        if kind(own) != kind(file) {
            return Err(self.refuse(&["alibi", "model_max_length"], kind(file), kind(own)));
        }
        if let (Positions::Relative(own), Positions::Relative(file)) = (&own.positions, &file.positions) {
            assert_eq!((own.count, own.in_each_layer), (file.count, file.in_each_layer), "biases of T5");
            if own.distance_max != file.distance_max {
                let field = "relative_attention_max_distance";
                return Err(self.refuse(&[field], file.distance_max, own.distance_max));
            }
        }
        let slopes = own.positions.slopes().iter().zip(file.positions.slopes());
        assert!(slopes.clone().all(|(own, file)| near(*own, *file)), "slopes of {}: {slopes:?}", own.family);
        let rotation =
            |spec: &Spec, layer| Some(spec.positions.rotations()[spec.attention_of(layer).rotation?].clone());
        for layer in 0..own.layers {
            if own.window_of(layer) != file.window_of(layer) {
                let shown = |window: Option<usize>| match window {
                    None => format!("no window below the context of {}", own.context_max),
                    Some(window) => format!("a window of {window}"),
                };
                let (expected, found) = (shown(file.window_of(layer)), shown(own.window_of(layer)));
                let windowed = (0..file.layers).any(|layer| file.window_of(layer).is_some());
                let fields = ["layer_types", "sliding_window_pattern", "sliding_window"];
                let fields = if windowed { &fields[..] } else { &fields[2..] };
                return Err(self.refuse(fields, format!("{expected} in layer {layer}"), found));
            }
            let same = match (rotation(file, layer), rotation(own, layer)) {
                (None, None) => true,
                (Some(file), Some(own)) => is_same_rotation(&file, &own),
                (file, own) => {
                    let shown = |is_rotated: bool| if is_rotated { "a rotation" } else { "none" };
                    let fields = ["no_rope_layers", "no_rope_layer_interval", "layer_types"];
                    let expected = format!("{} in layer {layer}", shown(file.is_some()));
                    return Err(self.refuse(&fields, expected, shown(own.is_some())));
                }
            };
            if !same {
                let expected = "a rotation and a scaling of it that files can say";
                return Err(self.refuse(&["rope_parameters", "rope_scaling"], expected, "another"));
            }
        }
        Ok(())
    }
}

/// Whether two rotations have the same angles.
fn is_same_rotation(a: &Rotation, b: &Rotation) -> bool {
    let frequencies = a.frequencies.iter().zip(&b.frequencies);
    a.frequencies.len() == b.frequencies.len()
        && near(a.magnitude, b.magnitude)
        && frequencies.clone().all(|(a, b)| near(*a, *b) || a.max(*b) < UNROTATED_FREQUENCY_MAX)
}
