//! Linear layers as products need them: packed for the kernels, in the requested type.

use std::sync::Arc;

use foretoken_kernels::matmul::Product;
use foretoken_kernels::panel::PanelFormat;
use foretoken_kernels::{LANES, Panels, Pool};

use super::Unpacked;
use crate::error::ModelError;
use crate::products::{Output, Share};
use crate::weight_type::WeightType;

/// A matrix in the form in which it is multiplied, or the part of it that is in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedMatrix {
    /// The name of the weights' type.
    pub form: &'static str,
    /// Number of weights.
    pub elements: usize,
    /// Number of bytes that a product with the matrix reads.
    pub bytes: usize,
    /// Whether the matrix belongs to an expert that rows choose: a pass reads it only for rows that chose this expert.
    pub is_chosen: bool,
}

/// Decides where the matrices of layers are packed, instead of into memory of their own. It is called in the order in
/// which a layer packs its matrices, which is the order in the file; another order is another version of the file.
pub(crate) trait MatrixPlaces {
    /// The panels of a matrix.
    fn place(&self, matrix: &Unpacked, packing: &Packing<'_>) -> Result<Panels, ModelError>;
}

/// How matrices are packed.
#[derive(Clone, Copy)]
pub(crate) struct Packing<'a> {
    /// The threads that pack.
    pub(crate) pool: &'a Pool,
    /// The model, for messages.
    pub(crate) file: &'a str,
    /// The requested type; `None` for that of the file.
    pub(super) requested: Option<WeightType>,
    /// The type of this matrix, given that request.
    pub(super) weight_type: Option<WeightType>,
    /// Whether blocks are multiplied as floats.
    pub(super) as_floats: bool,
    /// The part of the outputs that is packed, in whole units of this many outputs.
    pub(super) share: Share,
    pub(super) unit: usize,
    /// Where matrices are packed; `None` for memory of their own.
    pub(super) places: Option<&'a dyn MatrixPlaces>,
}

impl<'a> Packing<'a> {
    pub(crate) fn new(pool: &'a Pool, file: &'a str, requested: Option<WeightType>, share: Share) -> Self {
        Self { pool, file, requested, weight_type: requested, as_floats: false, share, unit: LANES, places: None }
    }

    /// Packing of matrices that have already been cut to this rank's part.
    pub(crate) fn deferred(pool: &'a Pool, file: &'a str, requested: Option<WeightType>) -> Self {
        Self::new(pool, file, requested, Share::new(None))
    }

    /// Packing into places that others decide.
    pub(crate) fn into_places<'b>(self, places: &'b dyn MatrixPlaces) -> Packing<'b>
    where
        'a: 'b,
    {
        Packing { places: Some(places), ..self }
    }

    /// Packing in parts of whole units of `unit` outputs, and not of panels.
    pub(crate) fn in_units(self, unit: usize) -> Self {
        Self { unit, ..self }
    }

    /// Packing of routers: the weights of the file, as floats. Products with blocks would round the router's input and
    /// so choose other experts.
    pub(crate) fn of_router(self) -> Self {
        Self { requested: None, weight_type: None, as_floats: true, ..self }
    }

    /// Packing of the output head.
    pub(crate) fn of_head(self) -> Self {
        Self { weight_type: self.requested.map(WeightType::of_head), ..self }
    }
}

/// A linear layer `[outputs, inputs]`, or a rank's part of it. Clones share their weights in memory.
#[derive(Clone)]
pub(crate) struct Linear {
    /// The weights of the outputs that are computed in this process.
    pub(super) weights: Arc<Panels>,
    pub(super) bias: Option<Arc<[f32]>>,
    /// Number of outputs of all ranks.
    pub(super) outputs: usize,
    /// Number of outputs that are always in one rank's part together.
    pub(super) unit: usize,
}

impl Linear {
    /// The product with this layer for [`Products`](crate::products::Products): into `out` `[rows, outputs of all
    /// ranks]`, or `[rows, own outputs]` if only this process's part is computed.
    pub(crate) fn product<'a>(&'a self, out: &'a mut [f32], accumulate: bool) -> Output<'a> {
        let product = Product { weights: &self.weights, bias: self.bias.as_deref(), out, accumulate };
        Output { product, unit: self.unit }
    }

    /// Whether both layers share their weights in memory.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.weights, &other.weights)
    }

    /// Number of elements of an input row.
    pub(crate) fn inputs(&self) -> usize {
        self.weights.inputs()
    }

    /// Number of elements of an output row, on all ranks together.
    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Number of elements of the blocks in which products round the inputs; `None` if they do not.
    pub(crate) fn rounding(&self) -> Option<usize> {
        rounding(self.weights.form())
    }

    /// Number of elements of an output row of this process's part.
    pub(crate) fn own_outputs(&self) -> usize {
        self.weights.outputs()
    }

    /// Number of outputs that are always in one rank's part together.
    pub(crate) fn unit(&self) -> usize {
        self.unit
    }

    /// A description of the part that is in this process.
    pub(crate) fn packed(&self) -> PackedMatrix {
        let panels = &self.weights;
        let (form, elements) = (panels.form().name(), panels.outputs() * panels.inputs());
        PackedMatrix { form, elements, bytes: panels.bytes(), is_chosen: false }
    }
}

/// Number of elements of the blocks in which inputs of weights in this form are rounded; `None` if they are not.
pub(super) fn rounding(form: PanelFormat) -> Option<usize> {
    match form {
        PanelFormat::Blocks(format) => Some(format.elements()),
        PanelFormat::F32 | PanelFormat::F16 | PanelFormat::BF16 => None,
    }
}
