//! The types that weights can be converted to when they are loaded.
//!
//! Matrices of floats are rounded or quantized tensor by tensor on all threads, so that there is never a second copy of
//! the model in memory. Few bits cause the largest loss in the output head, so it gets Q6_K if the layers get Q4_K, as
//! in llama.cpp. Rows that are not a whole number of blocks get the next type that fits. Quantized types are not
//! converted to others, which would lose precision twice.

use std::cell::RefCell;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use foretoken_kernels::Pool;
use foretoken_kernels::block::{self, Format};
use foretoken_kernels::dtype::{Matrix, bf16, f16};
use foretoken_kernels::panel::PanelFormat;

use crate::storage::{Storage, View};

/// A type of weights that floats can be converted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightType {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper halves of 32-bit floats.
    BF16,
    /// Blocks of a format that [`Format::can_quantize`].
    Blocks(Format),
}

/// All types, by the names that users know.
const TYPES: [(&str, WeightType); 7] = [
    ("f32", WeightType::F32),
    ("f16", WeightType::F16),
    ("bf16", WeightType::BF16),
    ("q8_0", WeightType::Blocks(Format::Q8_0)),
    ("q4_0", WeightType::Blocks(Format::Q4_0)),
    ("q4_k", WeightType::Blocks(Format::Q4K)),
    ("q6_k", WeightType::Blocks(Format::Q6K)),
];

impl FromStr for WeightType {
    /// The expected names; the caller knows what was found.
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = TYPES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        known.map(|(_, kind)| *kind).ok_or_else(|| {
            let names: Vec<&str> = TYPES.iter().map(|(name, _)| *name).collect();
            format!("expected one of {}", names.join(", "))
        })
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = TYPES.iter().find(|(_, kind)| kind == self);
        f.write_str(known.map_or("", |(name, _)| name))
    }
}

impl WeightType {
    /// The type of the output head if the layers have this type.
    pub fn of_head(self) -> Self {
        if self == Self::Blocks(Format::Q4K) { Self::Blocks(Format::Q6K) } else { self }
    }

    /// This type, or the nearest that holds rows of `inputs` weights.
    pub fn fitting(self, inputs: usize) -> Self {
        match self {
            Self::Blocks(format) if inputs.is_multiple_of(format.elements()) => self,
            Self::Blocks(_) if inputs.is_multiple_of(Format::Q8_0.elements()) => Self::Blocks(Format::Q8_0),
            Self::Blocks(_) => Self::F16,
            floats => floats,
        }
    }

    /// The form of panels with rows of `inputs` weights in this type, or in the nearest that fits.
    pub(crate) fn form(self, inputs: usize) -> PanelFormat {
        match self.fitting(inputs) {
            Self::F32 => PanelFormat::F32,
            Self::F16 => PanelFormat::F16,
            Self::BF16 => PanelFormat::BF16,
            Self::Blocks(format) => PanelFormat::Blocks(format),
        }
    }

    /// Converts floats `[outputs, inputs]` to this type, or the nearest that fits. `Err` has the first row that the
    /// type cannot hold, and its first number that is not finite or too large.
    pub(crate) fn convert(
        self,
        pool: &Pool,
        storage: &Storage,
        (outputs, inputs): (usize, usize),
        into: &mut Converted,
    ) -> Result<(), (usize, f32)> {
        let beyond = Mutex::new(None::<(usize, f32)>);
        let kind = self.fitting(inputs);
        into.kind = Some(kind);
        match kind {
            Self::F32 => rows(pool, storage, [outputs, inputs, 1], &mut into.f32, to_f32),
            Self::F16 => rows(pool, storage, [outputs, inputs, 1], &mut into.f16, to_f16),
            Self::BF16 => rows(pool, storage, [outputs, inputs, 1], &mut into.bf16, to_bf16),
            Self::Blocks(format) => {
                let shape = [outputs, inputs / format.elements(), format.bytes()];
                rows(pool, storage, shape, &mut into.blocks, |row, x, out| {
                    if let Some(at) = block::first_unrepresentable(format, x) {
                        let mut beyond = beyond.lock().unwrap_or_else(PoisonError::into_inner);
                        // The error of the first row is kept, whichever thread finds one first.
                        if beyond.is_none_or(|(first, _)| row < first) {
                            *beyond = Some((row, x[at]));
                        }
                    }
                    block::quantize(format, x, out);
                });
            }
        }
        beyond.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

/// A matrix that was converted to another type. Its buffers are reused for the next one.
#[derive(Default)]
pub(crate) struct Converted {
    /// Its type; `None` if there is no matrix yet.
    kind: Option<WeightType>,
    f32: Vec<f32>,
    f16: Vec<f16>,
    bf16: Vec<bf16>,
    blocks: Vec<u8>,
}

impl Converted {
    /// Its elements.
    pub(crate) fn view(&self) -> View<'_> {
        match self.kind {
            None => View::Floats(Matrix::F32(&[])),
            Some(WeightType::F32) => View::Floats(Matrix::F32(&self.f32)),
            Some(WeightType::F16) => View::Floats(Matrix::F16(&self.f16)),
            Some(WeightType::BF16) => View::Floats(Matrix::BF16(&self.bf16)),
            Some(WeightType::Blocks(format)) => View::Blocks(format, &self.blocks),
        }
    }
}

fn to_f32(_: usize, x: &[f32], out: &mut [f32]) {
    out.copy_from_slice(x);
}

fn to_f16(_: usize, x: &[f32], out: &mut [f16]) {
    out.iter_mut().zip(x).for_each(|(out, x)| *out = f16::from_f32(*x));
}

fn to_bf16(_: usize, x: &[f32], out: &mut [bf16]) {
    out.iter_mut().zip(x).for_each(|(out, x)| *out = bf16::from_f32(*x));
}

thread_local! {
    /// A thread's buffer for the floats of the row that it converts.
    static ROW: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Fills `all` with rows, one for each output, which `make` makes of the row's number and floats. A row has `blocks`
/// blocks of `size` elements.
fn rows<T: Clone + Default + Send>(
    pool: &Pool,
    storage: &Storage,
    [outputs, blocks, size]: [usize; 3],
    all: &mut Vec<T>,
    make: impl Fn(usize, &[f32], &mut [T]) + Sync,
) {
    all.resize(outputs * blocks * size, T::default());
    let inputs = storage.elements() / outputs.max(1);
    pool.each_chunk(all, blocks * size, &|row, out| {
        ROW.with_borrow_mut(|x| {
            x.resize(inputs, 0.0);
            storage.widen(row * inputs..(row + 1) * inputs, x);
            make(row, x, out);
        });
    });
}
