//! Tensors on their way into a GGUF file: their names and shapes there, and their rows in the new order.

use foretoken_weights::gguf::Value;
use foretoken_weights::{Bytes, Dtype, Tensor, Weights};

use crate::error::ModelError;
use crate::spec::{Norm, Spec};
use crate::storage::Storage;

/// Keys of a GGUF file with their values, in order.
pub(crate) type Keys = Vec<(String, Value)>;

/// How the rows of a tensor come from those of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Same,
    /// Within each head of so many rows, the second half goes between the rows of the first.
    Interleaved(usize),
    /// Row i is column i of the source.
    Transposed,
}

/// A tensor of the new file.
pub struct Exported {
    /// Its name there.
    pub name: String,
    /// Its shape there, outermost first.
    pub shape: Vec<usize>,
    /// Where its elements come from.
    pub source: Tensor,
    order: Order,
}

impl Exported {
    /// A tensor that goes over as it is.
    ///
    /// # Errors
    /// It is not in `weights`, or of a type that cannot be computed with.
    pub fn same(weights: &Weights, name: &str) -> Result<Self, ModelError> {
        let source = weights.require(name)?.clone();
        Ok(Self { name: name.to_string(), shape: source.shape.clone(), source, order: Order::Same })
    }

    /// Elements of a row.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Rows, all outer dimensions multiplied.
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// The bytes of the source if they are the elements of the new tensor one after another.
    pub fn verbatim(&self) -> Option<&Bytes> {
        (self.order == Order::Same).then_some(&self.source.bytes)
    }

    /// The tensor's rows, ready to be read by many threads.
    pub fn reader(&self) -> Rows<'_> {
        Rows { exported: self, storage: Storage::new(&self.source) }
    }
}

/// Rows of an [`Exported`] tensor as floats.
pub struct Rows<'a> {
    exported: &'a Exported,
    storage: Storage,
}

impl Rows<'_> {
    /// Spells out the rows from `first` on, as many as `out` has room for.
    ///
    /// # Panics
    /// If `out` is not whole rows, or there are not so many.
    pub fn read(&self, first: usize, out: &mut [f32]) {
        let columns = self.exported.columns();
        let rows = self.exported.rows();
        assert!(out.len().is_multiple_of(columns.max(1)), "read: {} elements of rows of {columns}", out.len());
        for (row, out) in (first..).zip(out.chunks_exact_mut(columns)) {
            match self.exported.order {
                Order::Same => self.storage.widen(row * columns..(row + 1) * columns, out),
                Order::Interleaved(head) => {
                    let (within, half) = (row % head, head / 2);
                    let row = row - within + within % 2 * half + within / 2;
                    self.storage.widen(row * columns..(row + 1) * columns, out);
                }
                Order::Transposed => {
                    for (column, out) in out.iter_mut().enumerate() {
                        let at = column * rows + row;
                        self.storage.widen(at..at + 1, std::slice::from_mut(out));
                    }
                }
            }
        }
    }
}

/// Tensors as they are found.
pub(crate) struct Collected<'a> {
    weights: &'a Weights,
    pub(super) tensors: Vec<Exported>,
    /// Names in the checkpoint of what has its place in the file, or needs none.
    pub(crate) used: Vec<String>,
}

impl<'a> Collected<'a> {
    pub(super) fn new(weights: &'a Weights) -> Self {
        Self { weights, tensors: Vec::new(), used: Vec::new() }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.weights.get(name).is_some()
    }

    /// The tensor `from` of the checkpoint as `to`, of this shape in the new order.
    pub(crate) fn add(&mut self, from: &str, to: String, shape: &[usize], order: Order) -> Result<(), ModelError> {
        let source = self.weights.require(from)?.clone();
        let expected = if order == Order::Transposed { shape.iter().rev().copied().collect() } else { shape.to_vec() };
        if source.shape != expected {
            return Err(ModelError::Shape {
                file: self.weights.source().to_string(),
                tensor: from.to_string(),
                expected,
                found: source.shape,
            });
        }
        self.used.push(from.to_string());
        self.tensors.push(Exported { name: to, shape: shape.to_vec(), source, order });
        Ok(())
    }

    /// `weight` and, if there has to be one, `bias` of a linear layer.
    pub(crate) fn linear(
        &mut self,
        names: (String, String),
        matrix: [usize; 2],
        bias: bool,
        order: Order,
    ) -> Result<(), ModelError> {
        let (from, to) = names;
        self.add(&format!("{from}.weight"), format!("{to}.weight"), &matrix, order)?;
        if bias {
            self.add(&format!("{from}.bias"), format!("{to}.bias"), &matrix[..1], Order::Same)?;
            if let (Order::Interleaved(head), Some(last)) = (order, self.tensors.last_mut()) {
                // A row of biases is rows of one element as far as their order goes.
                let column =
                    Exported { shape: vec![matrix[0], 1], order, name: String::new(), source: last.source.clone() };
                let mut biases = vec![0.0; matrix[0]];
                column.reader().read(0, &mut biases);
                debug_assert!(matrix[0].is_multiple_of(head));
                last.source = floats(&last.source.name, &biases);
            }
        }
        Ok(())
    }

    /// The head, if it is not the embedding; a copy of that which lies in the file all the same is not used.
    pub(crate) fn head(&mut self, from: &str, spec: &Spec) -> Result<(), ModelError> {
        let from = format!("{from}.weight");
        if spec.tied_head {
            self.used.push(from);
            return Ok(());
        }
        self.add(&from, "output.weight".into(), &[spec.vocabulary, spec.width], Order::Same)
    }

    /// A vector that the checkpoint does not have.
    pub(crate) fn add_floats(&mut self, to: &str, values: &[f32]) {
        let source = floats(to, values);
        let (name, shape) = (source.name.clone(), source.shape.clone());
        self.tensors.push(Exported { name, shape, source, order: Order::Same });
    }
}

/// A vector of floats that no file holds.
fn floats(name: &str, values: &[f32]) -> Tensor {
    let bytes = Bytes::from_vec(values.iter().flat_map(|value| value.to_le_bytes()).collect());
    Tensor { name: name.to_string(), dtype: Dtype::F32, shape: vec![values.len()], bytes }
}

/// A count as GGUF stores it. Every count of a `Spec` is bounded far below.
pub(crate) fn number(number: usize) -> Value {
    Value::U32(u32::try_from(number).unwrap_or(u32::MAX))
}

/// The keys that all families have.
pub(crate) fn common(spec: &Spec) -> Keys {
    let key = |field: &str| format!("{}.{field}", spec.family);
    let epsilon = match spec.norm {
        Norm::Rms { epsilon } => ("attention.layer_norm_rms_epsilon", epsilon),
        Norm::Layer { epsilon } => ("attention.layer_norm_epsilon", epsilon),
    };
    vec![
        ("general.architecture".to_string(), spec.family.into()),
        (key("context_length"), number(spec.context_max)),
        (key("embedding_length"), number(spec.width)),
        (key("block_count"), number(spec.layers)),
        (key("feed_forward_length"), number(spec.ffn_width)),
        (key("attention.head_count"), number(spec.heads)),
        (key(epsilon.0), epsilon.1.into()),
    ]
}
