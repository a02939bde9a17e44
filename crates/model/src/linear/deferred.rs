//! Matrices that are packed when they are first used, into memory of another matrix of the same shape.
//!
//! The form in which a matrix will be multiplied is known without reading its weights: from the type of its tensor,
//! from the requested type, or, for integers, from their scales. So its memory can be reserved in advance.
//! `expert_memory.rs` decides which matrix takes which memory.

use std::sync::Arc;

use foretoken_kernels::panel::PanelFormat;
use foretoken_kernels::{LANES, Panels};

use super::packed::rounding;
use super::{Linear, MatrixLayout, PackedMatrix, Packing, Unpacked};
use crate::error::ModelError;
use crate::weight_type::Converted;

/// A matrix that is packed when it is first used, or the part of it that is packed in this process.
pub(crate) struct Deferred {
    own: Unpacked,
    pub(crate) shape: MatrixShape,
}

/// The properties that two matrices must share to use the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatrixShape {
    form: PanelFormat,
    own_outputs: usize,
    outputs: usize,
    unit: usize,
    inputs: usize,
    has_bias: bool,
}

impl MatrixShape {
    /// Number of bytes of its packed weights.
    pub(crate) fn bytes(&self) -> usize {
        Panels::bytes_of(self.form, self.own_outputs, self.inputs).unwrap_or(usize::MAX)
    }

    /// A description of the packed matrix.
    pub(crate) fn packed(&self) -> PackedMatrix {
        let (form, elements) = (self.form.name(), self.own_outputs * self.inputs);
        PackedMatrix { form, elements, bytes: self.bytes(), is_chosen: true }
    }
}

impl Deferred {
    /// Reserves memory for a matrix of its shape.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub(crate) fn reserve(&self, packing: &Packing<'_>) -> Result<Linear, ModelError> {
        let MatrixShape { form, own_outputs, outputs, unit, inputs, has_bias } = self.shape;
        let weights = Panels::reserve(form, own_outputs, inputs).ok_or_else(|| self.own.no_memory(packing))?;
        let bias = has_bias.then(|| Arc::from(vec![0.0; own_outputs]));
        Ok(Linear { weights: Arc::new(weights), bias, outputs, unit })
    }

    /// Packs the matrix into memory of its shape.
    ///
    /// # Errors
    /// As [`Unpacked::pack`].
    ///
    /// # Panics
    /// If the memory is of another shape, or shared.
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
    /// The form in which the matrix will be multiplied. If `likely` is true, it may be estimated if scales would have
    /// to be read to know it.
    ///
    /// # Errors
    /// As [`defer`](Self::defer).
    pub(crate) fn packed_form(&self, packing: &Packing<'_>, likely: bool) -> Result<PanelFormat, ModelError> {
        let found = self.source.form(likely)?;
        self.check_requested(packing, found)?;
        Ok(match (packing.weight_type, found) {
            (Some(kind), _) => kind.form(self.inputs),
            (None, _) if self.unit_rows => PanelFormat::F32,
            // Columns of blocks are read as floats.
            (None, PanelFormat::Blocks(_)) if matches!(self.layout, MatrixLayout::Columns { .. }) => PanelFormat::F32,
            (None, found) => found,
        })
    }

    /// The unit in which the outputs of the matrices before this one are split, so that its inputs can be rounded where
    /// they are computed: the blocks of its products, else panels.
    ///
    /// # Errors
    /// As [`defer`](Self::defer).
    pub(crate) fn input_unit(&self, packing: &Packing<'_>) -> Result<usize, ModelError> {
        Ok(rounding(self.packed_form(packing, true)?).unwrap_or(LANES).max(LANES))
    }

    /// Describes the matrix as one that is packed later. If `likely` is true, its form may be estimated if scales would
    /// have to be read to know it.
    ///
    /// # Errors
    /// A type is requested and the weights are not floats; or they are quantized and a tensor holds an impossible
    /// value.
    pub(crate) fn defer(self, packing: &Packing<'_>, likely: bool) -> Result<Deferred, ModelError> {
        let form = self.packed_form(packing, likely)?;
        let (outputs, unit) = (self.outputs, packing.unit);
        let own = self.own(packing);
        let [own_outputs, inputs] = own.shape();
        let shape = MatrixShape { form, own_outputs, outputs, unit, inputs, has_bias: own.bias.is_some() };
        Ok(Deferred { own, shape })
    }
}
