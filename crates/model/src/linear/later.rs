//! Matrices that are packed when they are first used, into memory that was another's of the same shape.
//!
//! The form in which a matrix will be multiplied is known without reading it: by the type of its tensor, by the type
//! that is asked for, or, where integers are kept with scales, by these. So its memory can be reserved before. Left
//! out: which matrix takes whose memory (`expert_memory.rs`).

use std::sync::Arc;

use foretoken_kernels::Panels;
use foretoken_kernels::panel::Form;

use super::{Lies, Linear, Packing, Unpacked};
use crate::backend::PackedMatrix;
use crate::error::ModelError;
use crate::weight_type::Converted;

/// A matrix that is packed when it is first used, or as much of it as is packed here.
pub(crate) struct Later {
    own: Unpacked,
    pub(crate) shape: MatrixShape,
}

/// What matrices have in common that can take each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatrixShape {
    form: Form,
    own_outputs: usize,
    outputs: usize,
    inputs: usize,
    has_bias: bool,
}

impl MatrixShape {
    /// Bytes of its weights, as they are packed.
    pub(crate) fn bytes(&self) -> usize {
        Panels::bytes_of(self.form, self.own_outputs, self.inputs).unwrap_or(usize::MAX)
    }

    /// What of it is here when it is packed.
    pub(crate) fn packed(&self) -> PackedMatrix {
        let (form, elements) = (self.form.name(), self.own_outputs * self.inputs);
        PackedMatrix { form, elements, bytes: self.bytes(), is_chosen: true }
    }
}

impl Later {
    /// Memory for it, or for another of its shape.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn reserve(&self, packing: &Packing<'_>) -> Result<Linear, ModelError> {
        let MatrixShape { form, own_outputs, outputs, inputs, has_bias } = self.shape;
        let weights = Panels::reserve(form, own_outputs, inputs).ok_or_else(|| self.own.no_memory(packing))?;
        let bias = has_bias.then(|| Arc::from(vec![0.0; own_outputs]));
        Ok(Linear { weights: Arc::new(weights), bias, outputs })
    }

    /// Packs it into memory of its shape.
    ///
    /// # Errors
    /// As [`Unpacked::pack`].
    ///
    /// # Panics
    /// If the memory is of another shape, or somebody else uses it.
    pub(crate) fn pack_into(
        &self,
        packing: &Packing<'_>,
        scratch: &mut Converted,
        into: &mut Linear,
    ) -> Result<(), ModelError> {
        let panels = Arc::get_mut(&mut into.weights).expect("memory of experts has one owner");
        self.own.weights(packing, scratch, |weights| weights.refill(packing.pool, panels))?;
        if let (Some(bias), Some(into)) = (&self.own.bias, &mut into.bias) {
            Arc::get_mut(into).expect("memory of experts has one owner").copy_from_slice(bias);
        }
        Ok(())
    }
}

impl Unpacked {
    /// What [`pack`](Self::pack) would yield, without its weights, for a matrix that is packed later. `likely`: its
    /// form need not be the very one, where that would have to be read.
    ///
    /// # Errors
    /// A type is asked for, and the weights are not floats; or they are quantized, and a tensor holds what cannot be.
    pub(crate) fn later(self, packing: &Packing<'_>, likely: bool) -> Result<Later, ModelError> {
        let found = self.source.form(likely)?;
        self.check_wanted(packing, found)?;
        let form = match (packing.used, found) {
            (Some(kind), _) => kind.form(self.inputs),
            (None, _) if self.unit_rows => Form::F32,
            // Of blocks columns are read as floats.
            (None, Form::Blocks(_)) if matches!(self.lies, Lies::Columns { .. }) => Form::F32,
            (None, found) => found,
        };
        let outputs = self.outputs;
        let own = self.own(packing);
        let [own_outputs, inputs] = own.shape();
        let shape = MatrixShape { form, own_outputs, outputs, inputs, has_bias: own.bias.is_some() };
        Ok(Later { own, shape })
    }
}
