//! Linear layers: as a family describes them, and as products want them.
//!
//! The idea: a family says where each matrix lies ([`Unpacked`]) and touches no weight. Packing comes after, matrix by
//! matrix, on all threads, and gives the matrix's pages of the file back as soon as it is done, so that no second copy
//! of the model is ever there. Another backend packs the same descriptions in its own way: it asks each for its
//! [`Elements`], in the type of the file or as floats, all of them or those of some outputs. A table of which single
//! rows are read (an embedding) stays in the file in any form.
//!
//! With a type asked for at load ([`WeightType`]), matrices of floats are brought to it on the way; a rank packs its
//! part of the outputs. Left out: which matrices a network has.

mod later;

use std::ops::Range;
use std::sync::Arc;

use foretoken_kernels::block::Format;
use foretoken_kernels::matmul::Product;
use foretoken_kernels::panel::Form;
use foretoken_kernels::{Panels, Pool};
use foretoken_weights::Tensor;

use crate::backend::PackedMatrix;
use crate::error::{ModelError, Setting};
use crate::mxfp4::Mxfp4;
use crate::products::Share;
use crate::quantized::Quantized;
use crate::storage::{Storage, View};
use crate::weight_type::{Converted, WeightType};
pub(crate) use later::{Later, MatrixShape};

/// A table `[rows, width]` of which single rows are read: an embedding. Clones are the same rows in memory.
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

    /// Whether another is the same rows in memory.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
    }

    /// The table of the rows from this one on.
    pub(crate) fn rows_from(self, first: usize) -> Self {
        let elements = self.storage.elements();
        Self { storage: Arc::new(self.storage.part(first * self.width..elements)), width: self.width }
    }

    /// Rows there are.
    pub fn rows(&self) -> usize {
        self.storage.elements() / self.width
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Row `tokens[i]`, widened, to row i of `out` `[tokens.len(), width]`.
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

/// Where the weights of a layer come from.
#[derive(Clone)]
enum Source {
    Tensor(Tensor),
    Quantized(Box<Quantized>),
    Mxfp4(Box<Mxfp4>),
    /// Another network's, packed already.
    Lent(Linear),
}

impl Source {
    fn storage(&self, pool: &Pool) -> Result<Storage, ModelError> {
        match self {
            Self::Tensor(tensor) => Ok(Storage::new(tensor)),
            Self::Quantized(matrix) => matrix.storage(pool),
            Self::Mxfp4(matrix) => Ok(matrix.storage(pool)),
            Self::Lent(_) => Err(ModelError::config(
                "output matrix",
                "its weights",
                "those of a file",
                "another network's, which this backend cannot lend",
            )),
        }
    }

    /// The form of these weights; where it is `likely` what they mostly have suffices.
    fn form(&self, likely: bool) -> Result<Form, ModelError> {
        match self {
            Self::Tensor(tensor) => Ok(Storage::form_of(tensor)),
            Self::Quantized(matrix) if likely => Ok(matrix.likely_form()),
            Self::Quantized(matrix) => matrix.form(),
            Self::Mxfp4(_) => Ok(Form::Blocks(Format::Mxfp4)),
            Self::Lent(matrix) => Ok(matrix.weights.form()),
        }
    }
}

/// How a matrix `[outputs, inputs]` lies in its tensor.
#[derive(Clone)]
enum Lies {
    /// As the rows from `first` on.
    Rows { first: usize },
    /// As these stretches of rows, one after another.
    Stretches(Vec<Range<usize>>),
    /// As every `step`th of the columns from `first` on, of so many.
    Columns { first: usize, step: usize, columns: usize },
}

/// The elements of a matrix `[outputs, inputs]`, row by row.
pub struct Elements {
    storage: Storage,
}

impl Elements {
    /// Name of their type, as `F32`, `BF16` or `Q4_K`.
    pub fn dtype(&self) -> &'static str {
        self.storage.dtype()
    }

    /// Their bytes in this type, little-endian; blocks as GGUF has them.
    pub fn bytes(&self) -> &[u8] {
        self.storage.bytes()
    }

    /// All of them as floats, whatever their type is.
    pub fn floats(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.storage.elements()];
        self.storage.widen(0..out.len(), &mut out);
        out
    }
}

/// A linear layer as it lies in the file: a plain description, of which nothing is read yet but the bias.
#[derive(Clone)]
pub struct Unpacked {
    /// What messages call it.
    name: String,
    source: Source,
    lies: Lies,
    bias: Option<Vec<f32>>,
    inputs: usize,
    outputs: usize,
    /// Whether rows are brought to length 1.
    unit_rows: bool,
}

impl Unpacked {
    /// From a tensor `[outputs, inputs]`.
    pub(crate) fn new(tensor: &Tensor, bias: Option<Vec<f32>>, inputs: usize, outputs: usize) -> Self {
        assert_eq!(tensor.shape, [outputs, inputs], "linear: shape");
        let (name, lies) = (format!("tensor {}", tensor.name), Lies::Rows { first: 0 });
        Self { name, source: Source::Tensor(tensor.clone()), lies, bias, inputs, outputs, unit_rows: false }
    }

    /// From a tensor `[inputs, outputs]`.
    pub(crate) fn transposed(tensor: &Tensor, bias: Option<Vec<f32>>, inputs: usize, outputs: usize) -> Self {
        assert_eq!(tensor.shape, [inputs, outputs], "linear: shape");
        Self::columns(tensor, [0, 1], bias, outputs)
    }

    /// From a tensor `[inputs, columns]`: the columns from `first` on, every `step`th of them.
    pub(crate) fn columns(tensor: &Tensor, [first, step]: [usize; 2], bias: Option<Vec<f32>>, outputs: usize) -> Self {
        let [inputs, columns] = tensor.shape[..] else { unreachable!("linear: shape {:?}", tensor.shape) };
        assert!(first < step && outputs * step <= columns, "linear: {outputs} of {columns} columns");
        let (name, lies) = (format!("tensor {}", tensor.name), Lies::Columns { first, step, columns });
        Self { name, source: Source::Tensor(tensor.clone()), lies, bias, inputs, outputs, unit_rows: false }
    }

    /// From a matrix `[outputs, inputs]` of a quantized checkpoint.
    pub(crate) fn quantized(
        name: &str,
        matrix: Quantized,
        bias: Option<Vec<f32>>,
        inputs: usize,
        outputs: usize,
    ) -> Self {
        let (name, source) = (format!("matrix {name}"), Source::Quantized(Box::new(matrix)));
        Self { name, source, lies: Lies::Rows { first: 0 }, bias, inputs, outputs, unit_rows: false }
    }

    /// From a matrix `[outputs, inputs]` in MXFP4.
    pub(crate) fn mxfp4(name: String, matrix: Mxfp4, bias: Option<Vec<f32>>, [inputs, outputs]: [usize; 2]) -> Self {
        let source = Source::Mxfp4(Box::new(matrix));
        Self { name, source, lies: Lies::Rows { first: 0 }, bias, inputs, outputs, unit_rows: false }
    }

    /// Another network's matrix, which is packed already.
    pub(crate) fn lent(matrix: Linear) -> Self {
        let (name, [inputs, outputs]) = ("another network's matrix".to_string(), [matrix.inputs(), matrix.outputs()]);
        let lies = Lies::Rows { first: 0 };
        Self { name, source: Source::Lent(matrix), lies, bias: None, inputs, outputs, unit_rows: false }
    }

    /// The same by another name in messages.
    pub(crate) fn called(self, name: &str) -> Self {
        Self { name: name.to_string(), ..self }
    }

    /// What messages call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its outputs and its inputs.
    pub fn shape(&self) -> [usize; 2] {
        [self.outputs, self.inputs]
    }

    /// Bytes of its weights in its file; of a matrix that is a part of a tensor, its part of these.
    pub(crate) fn file_bytes(&self) -> usize {
        let (bytes, elements) = match &self.source {
            Source::Tensor(tensor) => (tensor.bytes.len(), tensor.shape.iter().product()),
            Source::Quantized(matrix) => matrix.size(),
            Source::Mxfp4(matrix) => matrix.size(),
            Source::Lent(_) => (0, 1),
        };
        (bytes as u128 * (self.inputs * self.outputs) as u128 / elements.max(1) as u128) as usize
    }

    /// What is added to its outputs.
    pub fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }

    /// The layer that computes outputs `range` of this one: what a rank owns.
    ///
    /// # Panics
    /// If it has not so many.
    pub fn outputs(&self, range: Range<usize>) -> Self {
        assert!(range.end <= self.outputs, "{}: outputs {range:?} of {}", self.name, self.outputs);
        let bias = self.bias.as_ref().map(|bias| bias[range.clone()].to_vec());
        let lies = match &self.lies {
            Lies::Rows { first } => Lies::Rows { first: first + range.start },
            Lies::Stretches(stretches) => Lies::Stretches(part_of(stretches, range.clone())),
            Lies::Columns { first, step, columns } => {
                Lies::Columns { first: first + range.start * step, step: *step, columns: *columns }
            }
        };
        Self { bias, lies, outputs: range.len(), ..self.clone() }
    }

    /// Reads its weights, in the type of its file where it has one that can be cut as the matrix is; those of packed
    /// integers as floats or blocks.
    ///
    /// # Errors
    /// They are quantized, and a tensor holds what cannot be.
    pub fn read(&self, pool: &Pool) -> Result<Elements, ModelError> {
        Ok(Elements { storage: self.matrix(self.source.storage(pool)?) })
    }

    /// Of the whole tensor this matrix.
    fn matrix(&self, whole: Storage) -> Storage {
        let Self { lies, inputs, outputs, unit_rows, .. } = self;
        let matrix = match lies {
            Lies::Rows { .. } if whole.elements() == inputs * outputs => whole,
            Lies::Rows { first } => whole.part(first * inputs..(first + outputs) * inputs),
            Lies::Stretches(stretches) => {
                whole.gather(stretches.iter().map(|rows| rows.start * inputs..rows.end * inputs))
            }
            Lies::Columns { first, step, columns } => {
                let wanted = (*first..first + outputs * step).step_by(*step);
                let matrix = whole.columns(wanted, *columns);
                whole.release();
                matrix
            }
        };
        if *unit_rows { matrix.unit_rows(*inputs) } else { matrix }
    }

    /// The layer that computes these stretches of the outputs of this one: heads of queries that lie between those of
    /// keys and values, say.
    pub(crate) fn stretches(&self, stretches: &[Range<usize>]) -> Self {
        let neighbours = stretches.windows(2).all(|two| two[0].end == two[1].start);
        let (Some(first), Some(last)) = (stretches.first(), stretches.last()) else {
            unreachable!("no outputs of {}", self.name)
        };
        if neighbours {
            return self.outputs(first.start..last.end);
        }
        let Lies::Rows { first: offset } = self.lies else { unreachable!("stretches of columns: {}", self.name) };
        let of_bias = |bias: &Vec<f32>| stretches.iter().flat_map(|range| bias[range.clone()].to_vec()).collect();
        let lies = stretches.iter().map(|range| offset + range.start..offset + range.end).collect();
        let outputs = stretches.iter().map(Range::len).sum();
        Self { bias: self.bias.as_ref().map(of_bias), lies: Lies::Stretches(lies), outputs, ..self.clone() }
    }

    /// The same with rows of weights that are brought to length 1, as floats (Baichuan 2's head).
    pub(crate) fn with_unit_rows(self) -> Self {
        Self { unit_rows: true, ..self }
    }

    /// Brings the weights to the form in which they are multiplied: the type that is asked for, or the file's own. Of a
    /// rank those of its part of the outputs.
    ///
    /// # Errors
    /// A type is asked for, and the weights are not floats; or they are quantized, and a tensor holds what cannot be;
    /// or there is no memory for them.
    pub(crate) fn pack(self, packing: &Packing<'_>) -> Result<Linear, ModelError> {
        if let Source::Lent(matrix) = self.source {
            return Ok(matrix);
        }
        let all = self.outputs;
        let own = self.own(packing);
        let [outputs, inputs] = own.shape();
        let weights =
            own.weights(packing, &mut Converted::default(), |weights| weights.pack(packing.pool, outputs, inputs))?;
        let weights = weights.ok_or_else(|| own.no_memory(packing))?;
        Ok(Linear { weights: Arc::new(weights), bias: own.bias.map(Arc::from), outputs: all })
    }

    /// As much of it as is packed here.
    fn own(self, packing: &Packing<'_>) -> Self {
        if packing.share.is_whole() { self } else { self.outputs(packing.share.of(self.outputs)) }
    }

    /// Gives the weights, in the type in which they are packed, to `take`, and then the pages of the file back.
    /// `scratch` is for those that are brought to another type.
    fn weights<T>(
        &self,
        packing: &Packing<'_>,
        scratch: &mut Converted,
        take: impl FnOnce(View<'_>) -> T,
    ) -> Result<T, ModelError> {
        let whole = self.source.storage(packing.pool)?;
        let whole = if packing.as_floats { whole.into_floats() } else { whole };
        self.check_wanted(packing, whole.form())?;
        let matrix = self.matrix(whole);
        let taken = match packing.used {
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

    /// Only floats are brought to another type.
    fn check_wanted(&self, packing: &Packing<'_>, found: Form) -> Result<(), ModelError> {
        let (Some(wanted), Form::Blocks(format)) = (packing.wanted, found) else { return Ok(()) };
        Err(ModelError::Setting {
            place: format!("{}: {}", packing.file, self.name),
            setting: Setting::WeightType,
            value: wanted.to_string(),
            expected: "weights in F32, F16 or BF16".to_string(),
            found: format.name().to_string(),
        })
    }

    fn no_memory(&self, packing: &Packing<'_>) -> ModelError {
        let [outputs, inputs] = self.shape();
        ModelError::WeightsMemory { place: format!("{}: {}", packing.file, self.name), outputs, inputs }
    }
}

/// Of rows that lie in these stretches those of a range, counted through all.
fn part_of(stretches: &[Range<usize>], range: Range<usize>) -> Vec<Range<usize>> {
    let (mut part, mut before) = (Vec::new(), 0);
    for Range { start, end } in stretches.iter().cloned() {
        let at = |row: usize| start + row.saturating_sub(before).min(end - start);
        let own = at(range.start)..at(range.end);
        part.extend((!own.is_empty()).then_some(own));
        before += end - start;
    }
    part
}

/// How matrices are packed.
#[derive(Clone, Copy)]
pub(crate) struct Packing<'a> {
    /// The threads that do it.
    pub(crate) pool: &'a Pool,
    /// The model, for messages.
    pub(crate) file: &'a str,
    /// The type that is asked for; none: the file's own.
    wanted: Option<WeightType>,
    /// The type that it means for this matrix.
    used: Option<WeightType>,
    /// Whether blocks are multiplied as floats.
    as_floats: bool,
    /// The part of the outputs that is packed.
    share: Share,
}

impl<'a> Packing<'a> {
    pub(crate) fn new(pool: &'a Pool, file: &'a str, wanted: Option<WeightType>, share: Share) -> Self {
        Self { pool, file, wanted, used: wanted, as_floats: false, share }
    }

    /// For what has been cut to this rank's part already.
    pub(crate) fn later(pool: &'a Pool, file: &'a str, wanted: Option<WeightType>) -> Self {
        Self::new(pool, file, wanted, Share::new(None))
    }

    /// The same for what decides which experts rows go through: the weights of the file, as floats. Products with
    /// blocks would round what the router reads, and so choose others.
    pub(crate) fn of_router(self) -> Self {
        Self { wanted: None, used: None, as_floats: true, ..self }
    }

    /// The same for the head.
    pub(crate) fn of_head(self) -> Self {
        Self { used: self.wanted.map(WeightType::of_head), ..self }
    }
}

/// A linear layer `[outputs, inputs]`, or a rank's part of it. Clones are the same weights in memory.
#[derive(Clone)]
pub(crate) struct Linear {
    /// Of the outputs that are computed here.
    weights: Arc<Panels>,
    bias: Option<Arc<[f32]>>,
    /// All outputs, those of other ranks included.
    outputs: usize,
}

impl Linear {
    /// This layer as a product into `out` `[rows, outputs]`, all of them, for [`Products`](crate::products::Products).
    pub(crate) fn product<'a>(&'a self, out: &'a mut [f32], accumulate: bool) -> Product<'a> {
        Product { weights: &self.weights, bias: self.bias.as_deref(), out, accumulate }
    }

    /// Whether another is the same weights in memory.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.weights, &other.weights)
    }

    /// Elements of a row that it reads.
    pub(crate) fn inputs(&self) -> usize {
        self.weights.inputs()
    }

    /// Elements of a row that it yields, on all ranks together.
    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// What of it is here.
    pub(crate) fn packed(&self) -> PackedMatrix {
        let panels = &self.weights;
        let (form, elements) = (panels.form().name(), panels.outputs() * panels.inputs());
        PackedMatrix { form, elements, bytes: panels.bytes(), is_chosen: false }
    }
}
