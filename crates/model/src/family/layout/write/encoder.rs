//! Export of what only encoder-decoders have: the encoder, cross attention, and biases by relative position.

use super::Writer;
use crate::collected::Order;
use crate::error::ModelError;
use crate::family::tensors::Bias;
use crate::spec::Positions;

impl Writer<'_, '_> {
    /// The encoder, if there is one: layers like the decoder's, with names of their own.
    pub(super) fn encoder(&mut self, prefix: &str) -> Result<(), ModelError> {
        let Some(encoder) = self.spec.encoder else { return Ok(()) };
        let Some((from, to)) = self.from.encoder.zip(self.to.encoder) else {
            return Err(self.mismatch("model_type", "encoders"));
        };
        let (from, to) = (self.from.of_encoder(from), self.to.of_encoder(to));
        let spec = self.spec.of_encoder(encoder);
        let (config, interleaved) = (self.config, self.interleaved);
        let mut writer = Writer { from: &from, to: &to, config, spec: &spec, interleaved, all: &mut *self.all };
        writer.norm("norms behind the encoder", [prefix, ""], [from.output_norm, to.output_norm])?;
        writer.layers(prefix)
    }

    /// The cross attention of a layer, if it has one.
    pub(super) fn cross(&mut self, at: [&str; 2]) -> Result<(), ModelError> {
        let (from, to) = match (self.from.cross, self.to.cross) {
            (None, None) => return Ok(()),
            (Some(from), Some(to)) => (from, to),
            _ => return Err(self.mismatch("model_type", "cross attention")),
        };
        let (width, inner) = (self.spec.width, self.spec.heads * self.spec.head_dim);
        self.norm("norms before cross attention", at, [Some(from.norm), Some(to.norm)])?;
        for (from, to) in from.qkv.into_iter().zip(to.qkv) {
            self.matrix(at, [from, to], [width, inner], Order::Same, Bias::None)?;
        }
        self.matrix(at, [from.output, to.output], [inner, width], Order::Same, Bias::None)
    }

    /// The table of biases by relative position of a layer, if it has one of its own.
    pub(super) fn relative_bias(&mut self, number: usize, at: [&str; 2]) -> Result<(), ModelError> {
        match self.spec.positions {
            Positions::Relative(buckets) if number == 0 || buckets.in_each_layer => {
                let from = format!("{}{}", at[0], self.from.relative_bias);
                let to = format!("{}{}", at[1], self.to.relative_bias);
                self.table((from, &to), [buckets.count, self.spec.heads])
            }
            _ => Ok(()),
        }
    }
}
