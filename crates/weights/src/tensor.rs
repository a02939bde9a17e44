//! Tensors and sets of tensors.
//!
//! A new set checks that every tensor has the bytes that its shape and type require and that no name occurs twice, so a
//! reader of a [`Tensor`] need not check again. Tensors are kept in the order of their names; their order in the file
//! has no meaning.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};

use crate::{Bytes, Dtype, Layout, WeightsError};

/// One tensor of a model file. It is a view: nothing is copied or converted.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its name in the file.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its dimensions, row-major, outermost first: a matrix from `n` inputs to `m` outputs is `[m, n]` in both formats.
    pub shape: Vec<usize>,
    /// Its elements, little-endian, row after row. They may begin at any address, without alignment.
    pub bytes: Bytes,
}

/// A set of named tensors from one or several files.
#[derive(Clone, Debug)]
pub struct Weights {
    source: String,
    tensors: BTreeMap<String, Tensor>,
    metadata: HashMap<String, String>,
}

impl Weights {
    /// Makes a set of tensors from `source`, which is a file name for error messages.
    ///
    /// # Errors
    /// [`WeightsError::Tensor`] if two tensors have one name, or a tensor does not have the bytes that its shape and
    /// type ask for.
    pub fn new(source: &str, tensors: impl IntoIterator<Item = Tensor>) -> Result<Weights, WeightsError> {
        let mut set = Weights { source: source.to_string(), tensors: BTreeMap::new(), metadata: HashMap::new() };
        for tensor in tensors {
            let size = size_in_bytes(source, &tensor.name, tensor.dtype, &tensor.shape)?;
            if size != tensor.bytes.len() {
                let expected = format!("{size} bytes for {} {:?}", tensor.dtype, tensor.shape);
                let found = format!("{} bytes", tensor.bytes.len());
                return Err(WeightsError::tensor(source, &tensor.name, "size", expected, found));
            }
            match set.tensors.entry(tensor.name.clone()) {
                Entry::Vacant(entry) => entry.insert(tensor),
                Entry::Occupied(_) => {
                    return Err(WeightsError::tensor(source, &tensor.name, "name", "each name once", "it twice"));
                }
            };
        }
        Ok(set)
    }

    /// Adds the `__metadata__` strings of the file.
    pub(crate) fn with_metadata(self, metadata: HashMap<String, String>) -> Weights {
        Weights { metadata, ..self }
    }

    /// The string of this name in `__metadata__`, if the tensors are from one safetensors file.
    pub fn metadata(&self, name: &str) -> Option<&str> {
        self.metadata.get(name).map(String::as_str)
    }

    /// The tensor of this name, of any type.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// The tensor of this name, which must be there and of a type that can be computed with (not [`Dtype::Other`]).
    ///
    /// # Errors
    /// [`WeightsError::MissingTensor`] or [`WeightsError::UnsupportedDtype`].
    pub fn require(&self, name: &str) -> Result<&Tensor, WeightsError> {
        let found = self.find(name)?;
        match found.dtype {
            Dtype::Other(layout) => Err(WeightsError::UnsupportedDtype {
                file: self.source.clone(),
                tensor: name.to_string(),
                dtype: layout.name,
            }),
            _ => Ok(found),
        }
    }

    /// The tensor of this name, of any type, which must be there.
    pub(crate) fn find(&self, name: &str) -> Result<&Tensor, WeightsError> {
        self.get(name).ok_or_else(|| WeightsError::MissingTensor {
            file: self.source.clone(),
            tensor: name.to_string(),
            count: self.tensors.len(),
        })
    }

    /// The names of all tensors, in alphabetical order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// All tensors, in order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.tensors.values()
    }

    /// The number of tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there are no tensors, as in a GGUF file that holds only a vocabulary.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The file that the tensors came from or, for a model in shards, its index. It is for error messages.
    pub fn source(&self) -> &str {
        &self.source
    }
}

/// The number of bytes that a tensor needs, or an error if no tensor can have this type and shape.
pub(crate) fn size_in_bytes(file: &str, tensor: &str, dtype: Dtype, shape: &[usize]) -> Result<usize, WeightsError> {
    dtype.size_of(shape).ok_or_else(|| {
        let Layout { name, elements, .. } = dtype.layout();
        let blocks =
            if elements > 1 { format!("rows of a multiple of {elements} {name} elements and ") } else { String::new() };
        let expected = format!("{blocks}a size below 2^{} bytes", usize::BITS);
        WeightsError::tensor(file, tensor, "shape", expected, format!("{shape:?}"))
    })
}
