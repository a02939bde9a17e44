//! A type that weights are brought to when they are loaded.
//!
//! Matrices of floats are rounded or quantized tensor by tensor on all threads, so that no second copy of the model is
//! ever there. The head loses most by few bits and is kept in Q6_K where the layers get Q4_K, as llama.cpp does. Rows
//! that are no whole blocks take the next type that fits. Left out: from one quantized type to another, which would
//! lose twice.

use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use foretoken_kernels::block::{self, Format};
use foretoken_kernels::dtype::{bf16, f16};
use foretoken_kernels::{Panels, Pool};

use crate::storage::Storage;

/// A type of weights that floats can be brought to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightType {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper halves of 32-bit floats.
    BF16,
    /// Blocks that [`Format::can_quantize`].
    Blocks(Format),
}

/// The types there are, by the names that users know.
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
    /// What was expected; what was found is known to who asks.
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
    /// The type of the head where the layers have this one.
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

    /// Brings floats `[outputs, inputs]` to this type, or the nearest that fits, and to the form of products. `Err`: a
    /// row that the type cannot hold, and its first number that is not finite or too large.
    pub(crate) fn convert(
        self,
        pool: &Pool,
        storage: &Storage,
        outputs: usize,
        inputs: usize,
    ) -> Result<Option<Panels>, (usize, f32)> {
        Ok(match self.fitting(inputs) {
            Self::F32 => Storage::F32(rows(pool, storage, outputs, inputs, 1, |_, x, out| {
                out.copy_from_slice(x);
            }))
            .pack(pool, outputs, inputs),
            Self::F16 => Storage::F16(rows(pool, storage, outputs, inputs, 1, |_, x, out| {
                out.iter_mut().zip(x).for_each(|(out, x)| *out = f16::from_f32(*x));
            }))
            .pack(pool, outputs, inputs),
            Self::BF16 => Storage::BF16(rows(pool, storage, outputs, inputs, 1, |_, x, out| {
                out.iter_mut().zip(x).for_each(|(out, x)| *out = bf16::from_f32(*x));
            }))
            .pack(pool, outputs, inputs),
            Self::Blocks(format) => {
                let beyond = Mutex::new(None::<(usize, f32)>);
                let bytes = rows(pool, storage, outputs, inputs / format.elements(), format.bytes(), |row, x, out| {
                    if let Some(at) = block::first_beyond(format, x) {
                        let mut beyond = beyond.lock().unwrap_or_else(PoisonError::into_inner);
                        // The first by place, whichever thread was first.
                        if beyond.is_none_or(|(first, _)| row < first) {
                            *beyond = Some((row, x[at]));
                        }
                    }
                    block::quantize(format, x, out);
                });
                if let Some(beyond) = beyond.into_inner().unwrap_or_else(PoisonError::into_inner) {
                    return Err(beyond);
                }
                Panels::pack(pool, format, outputs, inputs, &bytes)
            }
        })
    }
}

/// Rows of one output each, made by `make` from the row's number and floats; `blocks` of `size` elements a row.
fn rows<T: Clone + Default + Send>(
    pool: &Pool,
    storage: &Storage,
    outputs: usize,
    blocks: usize,
    size: usize,
    make: impl Fn(usize, &[f32], &mut [T]) + Sync,
) -> Vec<T> {
    let mut all = vec![T::default(); outputs * blocks * size];
    let inputs = storage.elements() / outputs.max(1);
    pool.each_chunk(&mut all, blocks * size, &|row, out| {
        let mut x = vec![0.0; inputs];
        storage.widen(row * inputs..(row + 1) * inputs, &mut x);
        make(row, &x, out);
    });
    all
}
