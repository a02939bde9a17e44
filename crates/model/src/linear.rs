//! Linear layers, as families describe them; `linear/packed.rs` has them as products need them.
//!
//! A family describes how each matrix is stored ([`Unpacked`]) without reading weights. Matrices are packed later, one
//! by one, on all threads, and each gives its pages of the file back to the system as soon as it is packed, so that
//! there is never a second copy of the model in memory. Another backend packs the same descriptions in its own way: it
//! reads the [`Elements`] of each matrix, in the type of the file or as floats, for all outputs or for some. A table of
//! which single rows are read (an embedding) always stays in the file.
//!
//! If a type is requested at load ([`WeightType`](crate::WeightType)), matrices of floats are converted to it before
//! they are packed; a rank packs its part of the outputs.

mod deferred;
mod packed;

use std::ops::Range;
use std::sync::Arc;

use foretoken_kernels::block::Format;
use foretoken_kernels::panel::PanelFormat;
use foretoken_kernels::{Panels, Pool};
use foretoken_weights::Tensor;

use crate::error::{ModelError, Setting};
use crate::mxfp4::Mxfp4;
use crate::quantized::Quantized;
use crate::storage::{Storage, View};
use crate::weight_type::Converted;
pub(crate) use deferred::{Deferred, MatrixShape};
pub use packed::PackedMatrix;
pub(crate) use packed::{Linear, MatrixPlaces, Packing};

/// A table `[rows, width]` of which single rows are read: an embedding. Clones share their rows in memory.
#[derive(Clone)]
pub struct Table {
    storage: Arc<Storage>,
    width: usize,
}

impl Table {
    pub(crate) fn new(storage: Storage, width: usize, rows: usize) -> Self {
        assert_eq!(storage.elements(), width * rows, "table: elements of a [{rows}, {width}] matrix");
        Self { storage: Arc::new(storage), width }
    }

    /// Whether both tables share their rows in memory.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
    }

    /// A table of the rows from `first` on.
    pub(crate) fn rows_from(self, first: usize) -> Self {
        let elements = self.storage.elements();
        Self { storage: Arc::new(self.storage.part(first * self.width..elements)), width: self.width }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.storage.elements() / self.width
    }

    /// Number of elements of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Writes row `tokens[i]`, widened, to row i of `out` `[tokens.len(), width]`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn embed(&self, tokens: &[u32], out: &mut [f32]) {
        for (token, out) in tokens.iter().zip(out.chunks_exact_mut(self.width)) {
            let first = *token as usize * self.width;
            self.storage.widen(first..first + self.width, out);
        }
    }
}

/// The source of the weights of a layer.
#[derive(Clone)]
enum Source {
    Tensor(Tensor),
    Quantized(Box<Quantized>),
    Mxfp4(Box<Mxfp4>),
    /// A matrix of another network, which is packed already.
    Shared(Linear),
}

impl Source {
    fn storage(&self, pool: &Pool) -> Result<Storage, ModelError> {
        match self {
            Self::Tensor(tensor) => Ok(Storage::new(tensor)),
            Self::Quantized(matrix) => matrix.storage(pool),
            Self::Mxfp4(matrix) => Ok(matrix.storage(pool)),
            Self::Shared(_) => Err(ModelError::config(
                "output matrix",
                "its weights",
                "those of a file",
                "another network's, which this backend cannot lend",
            )),
        }
    }

    /// The form of these weights. If `likely` is true, the most common form of such weights may be returned instead.
    fn form(&self, likely: bool) -> Result<PanelFormat, ModelError> {
        match self {
            Self::Tensor(tensor) => Ok(Storage::form_of(tensor)),
            Self::Quantized(matrix) if likely => Ok(matrix.likely_form()),
            Self::Quantized(matrix) => matrix.form(),
            Self::Mxfp4(_) => Ok(PanelFormat::Blocks(Format::Mxfp4)),
            Self::Shared(matrix) => Ok(matrix.weights.form()),
        }
    }
}

/// The part of a tensor that is a matrix `[outputs, inputs]`.
#[derive(Clone)]
enum MatrixLayout {
    /// The rows from `first` on.
    Rows { first: usize },
    /// These ranges of rows, one after another.
    RowRanges(Vec<Range<usize>>),
    /// Every `step`th column from `first` on, of `columns` in all.
    Columns { first: usize, step: usize, columns: usize },
}

/// The elements of a matrix `[outputs, inputs]`, row by row.
pub struct Elements {
    storage: Storage,
}

impl Elements {
    /// The name of the elements' type, such as `F32`, `BF16` or `Q4_K`.
    pub fn dtype(&self) -> &'static str {
        self.storage.dtype()
    }

    /// The bytes of the elements in this type, little-endian; blocks as in GGUF.
    pub fn bytes(&self) -> &[u8] {
        self.storage.bytes()
    }

    /// All elements as floats, whatever their type is.
    pub fn floats(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.storage.elements()];
        self.storage.widen(0..out.len(), &mut out);
        out
    }
}

/// A linear layer as it is stored in the file: a plain description, of which only the bias has been read.
#[derive(Clone)]
pub struct Unpacked {
    /// Its name in messages.
    name: String,
    source: Source,
    layout: MatrixLayout,
    bias: Option<Vec<f32>>,
    inputs: usize,
    outputs: usize,
    /// Whether rows are normalized to length 1.
    unit_rows: bool,
}

impl Unpacked {
    /// Describes a layer whose matrix is a tensor `[outputs, inputs]`.
    pub(crate) fn new(tensor: &Tensor, bias: Option<Vec<f32>>, inputs: usize, outputs: usize) -> Self {
        assert_eq!(tensor.shape, [outputs, inputs], "linear: shape");
        let (name, layout) = (format!("tensor {}", tensor.name), MatrixLayout::Rows { first: 0 });
        Self { name, source: Source::Tensor(tensor.clone()), layout, bias, inputs, outputs, unit_rows: false }
    }

    /// Describes a layer whose matrix is stored transposed, as a tensor `[inputs, outputs]`.
    pub(crate) fn transposed(tensor: &Tensor, bias: Option<Vec<f32>>, inputs: usize, outputs: usize) -> Self {
        assert_eq!(tensor.shape, [inputs, outputs], "linear: shape");
        Self::columns(tensor, [0, 1], bias, outputs)
    }

    /// Describes a layer whose matrix is every `step`th column from `first` on of a tensor `[inputs, columns]`.
    pub(crate) fn columns(tensor: &Tensor, [first, step]: [usize; 2], bias: Option<Vec<f32>>, outputs: usize) -> Self {
        let [inputs, columns] = tensor.shape[..] else { unreachable!("linear: shape {:?}", tensor.shape) };
        assert!(first < step && outputs * step <= columns, "linear: {outputs} of {columns} columns");
        let (name, layout) = (format!("tensor {}", tensor.name), MatrixLayout::Columns { first, step, columns });
        Self { name, source: Source::Tensor(tensor.clone()), layout, bias, inputs, outputs, unit_rows: false }
    }

    /// Describes a layer with a matrix `[outputs, inputs]` of a quantized checkpoint.
    pub(crate) fn quantized(
        name: &str,
        matrix: Quantized,
        bias: Option<Vec<f32>>,
        inputs: usize,
        outputs: usize,
    ) -> Self {
        let (name, source) = (format!("matrix {name}"), Source::Quantized(Box::new(matrix)));
        Self { name, source, layout: MatrixLayout::Rows { first: 0 }, bias, inputs, outputs, unit_rows: false }
    }

    /// Describes a layer with a matrix `[outputs, inputs]` in MXFP4.
    pub(crate) fn mxfp4(name: String, matrix: Mxfp4, bias: Option<Vec<f32>>, [inputs, outputs]: [usize; 2]) -> Self {
        let source = Source::Mxfp4(Box::new(matrix));
        Self { name, source, layout: MatrixLayout::Rows { first: 0 }, bias, inputs, outputs, unit_rows: false }
    }

    /// A matrix of another network, which is packed already.
    pub(crate) fn shared(matrix: Linear) -> Self {
        let (name, [inputs, outputs]) = ("another network's matrix".to_string(), [matrix.inputs(), matrix.outputs()]);
        let layout = MatrixLayout::Rows { first: 0 };
        Self { name, source: Source::Shared(matrix), layout, bias: None, inputs, outputs, unit_rows: false }
    }

    /// Gives the layer another name in messages.
    pub(crate) fn with_name(self, name: &str) -> Self {
        Self { name: name.to_string(), ..self }
    }

    /// Its name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The numbers of its outputs and inputs.
    pub fn shape(&self) -> [usize; 2] {
        [self.outputs, self.inputs]
    }

    /// Number of bytes of its weights in the file; for a part of a tensor, its share of the tensor's bytes.
    pub(crate) fn file_bytes(&self) -> usize {
        let (bytes, elements) = match &self.source {
            Source::Tensor(tensor) => (tensor.bytes.len(), tensor.shape.iter().product()),
            Source::Quantized(matrix) => matrix.size(),
            Source::Mxfp4(matrix) => matrix.size(),
            Source::Shared(_) => (0, 1),
        };
        (bytes as u128 * (self.inputs * self.outputs) as u128 / elements.max(1) as u128) as usize
    }

    /// The bias of its outputs.
    pub fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }

    /// The layer that computes outputs `range` of this one, such as a rank's part.
    ///
    /// # Panics
    /// If it has fewer outputs.
    pub fn outputs(&self, range: Range<usize>) -> Self {
        assert!(range.end <= self.outputs, "{}: outputs {range:?} of {}", self.name, self.outputs);
        let bias = self.bias.as_ref().map(|bias| bias[range.clone()].to_vec());
        let layout = match &self.layout {
            MatrixLayout::Rows { first } => MatrixLayout::Rows { first: first + range.start },
            MatrixLayout::RowRanges(ranges) => MatrixLayout::RowRanges(ranges_within(ranges, range.clone())),
            MatrixLayout::Columns { first, step, columns } => {
                MatrixLayout::Columns { first: first + range.start * step, step: *step, columns: *columns }
            }
        };
        Self { bias, layout, outputs: range.len(), ..self.clone() }
    }

    /// Reads the weights, in the type of the file if it can be cut like the matrix; packed integers become floats or
    /// blocks.
    ///
    /// # Errors
    /// They are quantized and a tensor holds an impossible value.
    pub fn read(&self, pool: &Pool) -> Result<Elements, ModelError> {
        Ok(Elements { storage: self.matrix(self.source.storage(pool)?) })
    }

    /// Cuts this matrix out of its whole tensor.
    fn matrix(&self, whole: Storage) -> Storage {
        let Self { layout, inputs, outputs, unit_rows, .. } = self;
        let matrix = match layout {
            MatrixLayout::Rows { .. } if whole.elements() == inputs * outputs => whole,
            MatrixLayout::Rows { first } => whole.part(first * inputs..(first + outputs) * inputs),
            MatrixLayout::RowRanges(ranges) => {
                whole.gather(ranges.iter().map(|rows| rows.start * inputs..rows.end * inputs))
            }
            MatrixLayout::Columns { first, step, columns } => {
                let chosen = (*first..first + outputs * step).step_by(*step);
                let matrix = whole.columns(chosen, *columns);
                whole.release();
                matrix
            }
        };
        if *unit_rows { matrix.unit_rows(*inputs) } else { matrix }
    }

    /// The layer that computes these ranges of the outputs of this one, such as query heads that lie between key and
    /// value heads.
    pub(crate) fn row_ranges(&self, ranges: &[Range<usize>]) -> Self {
        let are_contiguous = ranges.windows(2).all(|two| two[0].end == two[1].start);
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else {
            unreachable!("no outputs of {}", self.name)
        };
        if are_contiguous {
            return self.outputs(first.start..last.end);
        }
        let MatrixLayout::Rows { first: offset } = self.layout else {
            unreachable!("row ranges of columns: {}", self.name)
        };
        let of_bias = |bias: &Vec<f32>| ranges.iter().flat_map(|range| bias[range.clone()].to_vec()).collect();
        let rows = ranges.iter().map(|range| offset + range.start..offset + range.end).collect();
        let outputs = ranges.iter().map(Range::len).sum();
        Self { bias: self.bias.as_ref().map(of_bias), layout: MatrixLayout::RowRanges(rows), outputs, ..self.clone() }
    }

    /// Lets the rows of weights be normalized to length 1, as floats (Baichuan 2's output head).
    pub(crate) fn with_unit_rows(self) -> Self {
        Self { unit_rows: true, ..self }
    }

    /// Packs the weights in the form in which they are multiplied: the requested type, or the file's own. A rank packs
    /// its part of the outputs.
    ///
    /// # Errors
    /// A type is requested and the weights are not floats; or they are quantized and a tensor holds an impossible
    /// value; or there is no memory for them.
    pub(crate) fn pack(self, packing: &Packing<'_>) -> Result<Linear, ModelError> {
        if let Source::Shared(matrix) = self.source {
            return Ok(matrix);
        }
        let all = self.outputs;
        let own = self.own(packing);
        let weights = packing.places.map_or_else(|| own.panels(packing), |places| places.place(&own, packing))?;
        Ok(Linear { weights: Arc::new(weights), bias: own.bias.map(Arc::from), outputs: all, unit: packing.unit })
    }

    /// Packs the weights into memory of their own.
    ///
    /// # Errors
    /// As [`pack`](Self::pack).
    pub(crate) fn panels(&self, packing: &Packing<'_>) -> Result<Panels, ModelError> {
        let [outputs, inputs] = self.shape();
        let panels =
            self.weights(packing, &mut Converted::default(), |weights| weights.pack(packing.pool, outputs, inputs));
        panels?.ok_or_else(|| self.no_memory(packing))
    }

    /// The part of the layer that is packed in this process.
    fn own(self, packing: &Packing<'_>) -> Self {
        if packing.share.is_whole() { self } else { self.outputs(packing.share.of(self.outputs, packing.unit)) }
    }

    /// Calls `take` with the weights in the type in which they are packed, and then gives the pages of the file back.
    /// Converted weights are written to `scratch`.
    fn weights<T>(
        &self,
        packing: &Packing<'_>,
        scratch: &mut Converted,
        take: impl FnOnce(View<'_>) -> T,
    ) -> Result<T, ModelError> {
        let whole = self.source.storage(packing.pool)?;
        let whole = if packing.as_floats { whole.into_floats() } else { whole };
        self.check_requested(packing, whole.form())?;
        let matrix = self.matrix(whole);
        let taken = match packing.weight_type {
            Some(kind) => {
                let shape = (self.outputs, self.inputs);
                let beyond = |(row, found): (usize, f32)| ModelError::Setting {
                    place: format!("{}: {}: row {row}", packing.file, self.name),
                    setting: Setting::WeightType,
                    value: kind.to_string(),
                    expected: "finite weights that its blocks can hold".to_string(),
                    found: found.to_string(),
                };
                kind.convert(packing.pool, &matrix, shape, scratch).map_err(beyond)?;
                take(scratch.view())
            }
            None => take(matrix.view()),
        };
        matrix.release();
        Ok(taken)
    }

    /// Checks that no type is requested for weights in blocks: only floats are converted.
    fn check_requested(&self, packing: &Packing<'_>, found: PanelFormat) -> Result<(), ModelError> {
        let (Some(requested), PanelFormat::Blocks(format)) = (packing.requested, found) else { return Ok(()) };
        Err(ModelError::Setting {
            place: format!("{}: {}", packing.file, self.name),
            setting: Setting::WeightType,
            value: requested.to_string(),
            expected: "weights in F32, F16 or BF16".to_string(),
            found: format.name().to_string(),
        })
    }

    pub(crate) fn no_memory(&self, packing: &Packing<'_>) -> ModelError {
        let [outputs, inputs] = self.shape();
        ModelError::WeightsMemory { place: format!("{}: {}", packing.file, self.name), outputs, inputs }
    }
}

/// The ranges of rows that are the rows `range` of all these ranges together.
fn ranges_within(ranges: &[Range<usize>], range: Range<usize>) -> Vec<Range<usize>> {
    let (mut part, mut before) = (Vec::new(), 0);
    for Range { start, end } in ranges.iter().cloned() {
        let at = |row: usize| start + row.saturating_sub(before).min(end - start);
        let own = at(range.start)..at(range.end);
        part.extend((!own.is_empty()).then_some(own));
        before += end - start;
    }
    part
}
