//! Tensors that are exported to a GGUF file: their new names and shapes, and their rows in the new order.
//!
//! Matrices stay in their files until they are written. Vectors are small, so they are read at once and kept as floats.

use std::collections::BTreeSet;
use std::ops::Range;

use foretoken_weights::{Bytes, Dtype, Tensor, Weights};

use crate::error::ModelError;
use crate::storage::{Storage, normalize_row};

/// How the rows of a matrix are made of its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Same,
    /// Row i is this row of the source.
    Rows(Vec<usize>),
    /// Row i is column i of the source.
    Transposed,
}

/// A tensor of the new file.
pub struct Exported {
    /// Its name in the new file.
    pub name: String,
    /// Its shape in the new file, outermost dimension first.
    pub shape: Vec<usize>,
    /// The tensors that hold its elements: in most cases one, or several of one shape that are concatenated.
    sources: Vec<Tensor>,
    order: Order,
    /// Whether rows are normalized to length 1.
    unit_rows: bool,
}

impl Exported {
    /// A tensor that is exported unchanged.
    ///
    /// # Errors
    /// It is not in `weights`, or of a type that cannot be computed with.
    pub fn same(weights: &Weights, name: &str) -> Result<Self, ModelError> {
        let source = weights.require(name)?.clone();
        let (name, shape) = (name.to_string(), source.shape.clone());
        Ok(Self { name, shape, sources: vec![source], order: Order::Same, unit_rows: false })
    }

    /// A tensor of floats that are not in a file.
    pub(crate) fn floats(source: Tensor) -> Self {
        let (name, shape) = (source.name.clone(), source.shape.clone());
        Self { name, shape, sources: vec![source], order: Order::Same, unit_rows: false }
    }

    /// Number of elements of a row.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Number of rows, the product of all outer dimensions.
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// The type of its elements in the source; for several sources, that of the first.
    pub fn dtype(&self) -> Dtype {
        self.sources[0].dtype
    }

    /// The bytes of the sources, if their concatenation is the new tensor in this type.
    pub fn verbatim(&self, dtype: Dtype) -> Option<impl Iterator<Item = &Bytes>> {
        let same = self.order == Order::Same && !self.unit_rows;
        let all = self.sources.iter().all(|source| source.dtype == dtype);
        (same && all).then(|| self.sources.iter().map(|source| &source.bytes))
    }

    /// Gives the file's pages of the sources back to the system.
    pub fn release(&self) {
        self.sources.iter().for_each(|source| source.bytes.release());
    }

    /// The tensor's rows, ready to be read by many threads.
    pub fn reader(&self) -> Rows<'_> {
        Rows { exported: self, storages: self.sources.iter().map(Storage::new).collect() }
    }
}

/// Rows of an [`Exported`] tensor as floats.
pub struct Rows<'a> {
    exported: &'a Exported,
    /// The elements of the sources, which all have the same number of rows.
    storages: Vec<Storage>,
}

impl Rows<'_> {
    /// Reads the rows from `first` on into `out`, as many as fit.
    ///
    /// # Panics
    /// If `out` is not a whole number of rows, or the tensor has fewer rows.
    pub fn read(&self, first: usize, out: &mut [f32]) {
        let columns = self.exported.columns();
        let rows = self.exported.rows();
        assert!(out.len().is_multiple_of(columns.max(1)), "read: {} elements of rows of {columns}", out.len());
        let rows_each = self.storages[0].elements() / columns.max(1);
        for (row, out) in (first..).zip(out.chunks_exact_mut(columns)) {
            let row_of = |row: usize, out: &mut [f32]| {
                let (storage, row) = (&self.storages[row / rows_each], row % rows_each);
                storage.widen(row * columns..(row + 1) * columns, out);
            };
            match &self.exported.order {
                Order::Same => row_of(row, out),
                Order::Rows(from) => row_of(from[row], out),
                Order::Transposed => {
                    for (column, out) in out.iter_mut().enumerate() {
                        let at = column * rows + row;
                        self.storages[0].widen(at..at + 1, std::slice::from_mut(out));
                    }
                }
            }
            if self.exported.unit_rows {
                normalize_row(out);
            }
        }
    }
}

/// The tensors of an export, collected in order.
pub(crate) struct Collected<'a> {
    weights: &'a Weights,
    pub(crate) tensors: Vec<Exported>,
    /// Names of the checkpoint's tensors that are exported.
    pub(crate) used: BTreeSet<String>,
}

impl<'a> Collected<'a> {
    pub(crate) fn new(weights: &'a Weights) -> Self {
        Self { weights, tensors: Vec::new(), used: BTreeSet::new() }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.weights.get(name).is_some()
    }

    /// The checkpoint's tensor of this name, which must be there and have this shape.
    fn require(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        let source = self.weights.require(name)?.clone();
        if source.shape != shape {
            return Err(ModelError::Shape {
                file: self.weights.source().to_string(),
                tensor: name.to_string(),
                expected: shape.to_vec(),
                found: source.shape,
            });
        }
        self.used.insert(name.to_string());
        Ok(source)
    }

    /// Adds the checkpoint's matrix `from`, which has this shape, as `to`.
    pub(crate) fn matrix(
        &mut self,
        from: &str,
        to: String,
        shape: [usize; 2],
        order: Order,
        unit_rows: bool,
    ) -> Result<(), ModelError> {
        let source = self.require(from, &shape)?;
        let [rows, columns] = shape;
        let shape = match &order {
            Order::Same => vec![rows, columns],
            Order::Rows(from) => vec![from.len(), columns],
            Order::Transposed => vec![columns, rows],
        };
        self.tensors.push(Exported { name: to, shape, sources: vec![source], order, unit_rows });
        Ok(())
    }

    /// Adds matrices of the checkpoint, all of this shape, as one tensor `[matrices, rows, columns]`.
    pub(crate) fn stack(&mut self, from: &[String], to: String, [rows, columns]: [usize; 2]) -> Result<(), ModelError> {
        let sources = from.iter().map(|name| self.require(name, &[rows, columns])).collect::<Result<Vec<_>, _>>()?;
        let shape = vec![sources.len(), rows, columns];
        self.tensors.push(Exported { name: to, shape, sources, order: Order::Same, unit_rows: false });
        Ok(())
    }

    /// Adds these rows of each matrix of the checkpoint's tensor `[matrices, rows, columns]`.
    pub(crate) fn rows_of_each(
        &mut self,
        from: &str,
        to: String,
        [matrices, rows, columns]: [usize; 3],
        range: Range<usize>,
    ) -> Result<(), ModelError> {
        let source = self.require(from, &[matrices, rows, columns])?;
        let shape = vec![matrices, range.len(), columns];
        let order = match range.len() == rows {
            true => Order::Same,
            false => Order::Rows(
                (0..matrices).flat_map(|matrix| range.clone().map(move |row| matrix * rows + row)).collect(),
            ),
        };
        self.tensors.push(Exported { name: to, shape, sources: vec![source], order, unit_rows: false });
        Ok(())
    }

    /// Reads a tensor of the checkpoint, which has this shape, as floats that the caller [`add`](Self::add)s.
    pub(crate) fn floats(&mut self, from: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let storage = Storage::new(&self.require(from, shape)?);
        let mut out = vec![0.0; storage.elements()];
        storage.widen(0..out.len(), &mut out);
        Ok(out)
    }

    /// Adds a tensor of these floats and this shape.
    pub(crate) fn add(&mut self, to: String, shape: Vec<usize>, values: &[f32]) {
        self.tensors.push(Exported::floats(tensor(&to, shape, values)));
    }
}

/// A tensor of floats that are not in a file.
pub(crate) fn tensor(name: &str, shape: Vec<usize>, values: &[f32]) -> Tensor {
    let bytes = Bytes::from_vec(values.iter().flat_map(|value| value.to_le_bytes()).collect());
    Tensor { name: name.to_string(), dtype: Dtype::F32, shape, bytes }
}
