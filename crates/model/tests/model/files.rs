//! Writers of model files for tests: safetensors of any type and alignment, and GGUF as llama.cpp's converter writes
//! it.

use std::collections::BTreeMap;
use std::path::Path;

use foretoken_kernels::dtype::{bf16, f16};
use foretoken_weights::{Weights, safetensors};
use serde_json::{Value, json};

/// A tensor in f32, before it is written in some type.
#[derive(Clone, Debug)]
pub(crate) struct Wide {
    pub(crate) shape: Vec<usize>,
    pub(crate) elements: Vec<f32>,
}

/// Tensors by name.
pub(crate) type Tensors = BTreeMap<String, Wide>;

/// The tensors of a fixture, which are all f32.
pub(crate) fn read(folder: &Path) -> Tensors {
    let weights: Weights = safetensors::open(folder.join("model.safetensors")).unwrap();
    let wide = |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let tensors = weights.iter().map(|t| (t.name.clone(), Wide { shape: t.shape.clone(), elements: wide(&t.bytes) }));
    tensors.collect()
}

/// The configuration of a fixture.
pub(crate) fn config(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap()
}

/// The types that files can have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Form {
    F32,
    F16,
    BF16,
    /// The type of blocks, only in GGUF files.
    Q8,
}

impl Form {
    /// The elements as bytes.
    pub(crate) fn bytes(self, elements: &[f32]) -> Vec<u8> {
        match self {
            Form::F32 => elements.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Form::F16 => elements.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
            Form::BF16 => elements.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
            Form::Q8 => elements.chunks(32).flat_map(|block| q8_block(block).0).collect(),
        }
    }

    /// The elements rounded to this type.
    pub(crate) fn rounded(self, elements: &[f32]) -> Vec<f32> {
        match self {
            Form::F32 => elements.to_vec(),
            Form::F16 => elements.iter().map(|x| f16::from_f32(*x).to_f32()).collect(),
            Form::BF16 => elements.iter().map(|x| bf16::from_f32(*x).to_f32()).collect(),
            Form::Q8 => elements.chunks(32).flat_map(|block| q8_block(block).1).collect(),
        }
    }

    /// ggml's number of the type.
    fn ggml(self) -> u32 {
        match self {
            Form::F32 => 0,
            Form::F16 => 1,
            Form::Q8 => 8,
            Form::BF16 => 30,
        }
    }
}

/// 32 elements as an f16 scale and signed bytes, and the values that these represent.
fn q8_block(block: &[f32]) -> (Vec<u8>, Vec<f32>) {
    assert_eq!(block.len(), 32, "rows of Q8_0 are whole blocks");
    let largest = block.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    let scale = f16::from_f32(largest / 127.0);
    let quants: Vec<i8> = block.iter().map(|x| (x / scale.to_f32()).round().clamp(-127.0, 127.0) as i8).collect();
    let bytes = scale.to_le_bytes().into_iter().chain(quants.iter().map(|q| *q as u8)).collect();
    (bytes, quants.iter().map(|q| scale.to_f32() * f32::from(*q)).collect())
}

/// A safetensors file of one type whose data begins `offset` bytes after a multiple of 64.
pub(crate) fn safetensors_file(tensors: &Tensors, form: Form, offset: usize) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, Wide { shape, elements }) in tensors {
        let from = data.len();
        data.extend(form.bytes(elements));
        let dtype = format!("{form:?}");
        header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": [from, data.len()]}));
    }
    let mut header = Value::Object(header).to_string();
    let end = (header.len() + 8).next_multiple_of(64) + offset;
    header.extend(std::iter::repeat_n(' ', end - header.len() - 8));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

/// A builder of GGUF files.
#[derive(Default)]
pub(crate) struct Gguf {
    entries: Vec<Vec<u8>>,
    /// The name, the shape, ggml's number of the type and the bytes of each tensor.
    tensors: Vec<(String, Vec<usize>, u32, Vec<u8>)>,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl Gguf {
    /// Replaces the bytes at this offset of a tensor.
    pub(crate) fn with_bytes(mut self, tensor: &str, at: usize, bytes: &[u8]) -> Self {
        let found = self.tensors.iter_mut().find(|(name, ..)| name == tensor).expect("it is there");
        found.3[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Removes a key.
    pub(crate) fn without(mut self, key: &str) -> Self {
        self.entries.retain(|entry| !entry.starts_with(&text(key)));
        self
    }

    /// Names of all tensors.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().map(|(name, ..)| name.as_str())
    }

    /// The shape of a tensor, if it is there.
    pub(crate) fn shape(&self, tensor: &str) -> Option<Vec<usize>> {
        self.tensors.iter().find(|(name, ..)| name == tensor).map(|(_, shape, ..)| shape.clone())
    }

    /// Removes a tensor.
    pub(crate) fn without_tensor(mut self, tensor: &str) -> Self {
        self.tensors.retain(|(name, ..)| name != tensor);
        self
    }

    /// Gives a tensor of f32 another shape, with the number of bytes that it needs.
    pub(crate) fn with_shape(mut self, tensor: &str, shape: &[usize]) -> Self {
        let found = self.tensors.iter_mut().find(|(name, ..)| name == tensor).expect("it is there");
        found.1 = shape.to_vec();
        found.3.resize(4 * shape.iter().product::<usize>(), 0);
        self
    }

    fn entry(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.entries.push([&text(key)[..], &kind.to_le_bytes(), value].concat());
        self
    }

    pub(crate) fn u32(self, key: &str, value: usize) -> Self {
        self.entry(key, 4, &(value as u32).to_le_bytes())
    }

    pub(crate) fn f32(self, key: &str, value: f32) -> Self {
        self.entry(key, 6, &value.to_le_bytes())
    }

    pub(crate) fn str(self, key: &str, value: &str) -> Self {
        self.entry(key, 8, &text(value))
    }

    pub(crate) fn bool(self, key: &str, value: bool) -> Self {
        self.entry(key, 7, &[u8::from(value)])
    }

    /// A list of numbers of 32 bits.
    pub(crate) fn u32s(self, key: &str, values: &[usize]) -> Self {
        let values: Vec<u8> = values.iter().flat_map(|value| (*value as u32).to_le_bytes()).collect();
        self.list(key, (4, values.len() / 4), &values)
    }

    /// A list of booleans.
    pub(crate) fn bools(self, key: &str, values: &[bool]) -> Self {
        let values: Vec<u8> = values.iter().map(|value| u8::from(*value)).collect();
        self.list(key, (7, values.len()), &values)
    }

    fn list(self, key: &str, (kind, len): (u32, usize), values: &[u8]) -> Self {
        self.entry(key, 9, &[&kind.to_le_bytes()[..], &(len as u64).to_le_bytes(), values].concat())
    }

    pub(crate) fn tensor(self, name: &str, tensor: &Wide, form: Form) -> Self {
        self.raw(name, &tensor.shape, form.ggml(), form.bytes(&tensor.elements))
    }

    /// A tensor of any type, even an invalid one: ggml's number and the bytes are not checked.
    pub(crate) fn raw(mut self, name: &str, shape: &[usize], number: u32, bytes: Vec<u8>) -> Self {
        self.tensors.push((name.to_string(), shape.to_vec(), number, bytes));
        self
    }

    /// The bytes of the file: version 3, with tensors aligned to 32 bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.entries.len() as u64).to_le_bytes());
        file.extend(self.entries.concat());
        let mut offset = 0usize;
        for (name, shape, number, data) in &self.tensors {
            file.extend(text(name));
            file.extend((shape.len() as u32).to_le_bytes());
            file.extend(shape.iter().rev().flat_map(|dimension| (*dimension as u64).to_le_bytes()));
            file.extend(number.to_le_bytes());
            file.extend((offset as u64).to_le_bytes());
            offset = (offset + data.len()).next_multiple_of(32);
        }
        for (.., data) in &self.tensors {
            file.resize(file.len().next_multiple_of(32), 0);
            file.extend(data);
        }
        file
    }
}
