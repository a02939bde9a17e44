//! Converts a tensor to another type, slab by slab, each slab with all threads.
//!
//! A slab is a range of rows. Each task dequantizes some of its rows to floats and encodes them. Rows do not depend on
//! each other, so the file is the same for any number of threads. Tensors that keep their type are copied.

use std::sync::atomic::{AtomicUsize, Ordering};

use foretoken_kernels::Pool;
use foretoken_kernels::block::{self, Format};
use foretoken_kernels::dtype::{bf16, f16};
use foretoken_model::export::Exported;
use foretoken_weights::{Dtype, WeightsError};

use super::importance::matrices;

/// Elements of a task, or one row if that is longer: a quarter of a megabyte of floats.
const TASK: usize = 1 << 16;
/// Tasks of a slab for each thread.
const TASKS: usize = 8;
/// Bytes that are copied at once.
const COPY: usize = 1 << 24;

/// The reason why a tensor was not written.
pub enum Problem {
    /// The caller stopped the conversion.
    Stopped,
    /// A row to be quantized holds a number that is not finite.
    NotFinite { row: usize },
    /// The file could not be written.
    Write(WeightsError),
}

/// How a tensor is converted.
#[derive(Clone, Copy)]
pub struct Conversion<'a> {
    /// The new type of its elements.
    pub dtype: Dtype,
    /// The importance of each column, for all its matrices in order, if it is known.
    pub importance: Option<&'a [f32]>,
}

/// Passes the converted bytes of `tensor` to `put`, and returns how many numbers exceeded the type's range.
///
/// # Errors
/// `stopped` returns true, `put` fails, or numbers to be quantized are not finite.
pub fn convert(
    tensor: &Exported,
    conversion: Conversion<'_>,
    pool: &Pool,
    stopped: &dyn Fn() -> bool,
    put: &mut dyn FnMut(&[u8]) -> Result<(), WeightsError>,
) -> Result<usize, Problem> {
    let dtype = conversion.dtype;
    let mut put = |bytes: &[u8]| if stopped() { Err(Problem::Stopped) } else { put(bytes).map_err(Problem::Write) };
    if let Some(mut parts) = tensor.verbatim(dtype) {
        parts.try_for_each(|bytes| bytes.chunks(COPY).try_for_each(&mut put))?;
        return Ok(0);
    }
    let (rows, columns) = (tensor.rows(), tensor.columns());
    if rows == 0 || columns == 0 {
        return Ok(0);
    }
    let row_bytes = dtype.size_of(&[columns]).expect("types are chosen to fit the rows");
    let rows_each = rows / matrices(tensor);
    let reader = tensor.reader();
    let task_rows = (TASK / columns).max(1);
    let slab_rows = (task_rows * TASKS * pool.threads()).min(rows);
    let (saturated, not_finite) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
    let mut slab = vec![0u8; slab_rows * row_bytes];
    for first in (0..rows).step_by(slab_rows) {
        let slab = &mut slab[..slab_rows.min(rows - first) * row_bytes];
        pool.each_chunk(slab, task_rows * row_bytes, &|task, out| {
            let first = first + task * task_rows;
            let mut values = vec![0.0; out.len() / row_bytes * columns];
            reader.read(first, &mut values);
            let encoded = match conversion.importance {
                None => encode(dtype, &values, None, out).map_err(|at| at / columns),
                Some(importance) => {
                    // Rows of one matrix share its importances.
                    let columns_of = |row: usize| row / rows_each * columns..(row / rows_each + 1) * columns;
                    let mut rows = values.chunks_exact(columns).zip(out.chunks_exact_mut(row_bytes)).enumerate();
                    rows.try_fold(0, |sum, (row, (values, out))| {
                        let importance = Some(&importance[columns_of(first + row)]);
                        encode(dtype, values, importance, out).map(|count| sum + count).map_err(|_| row)
                    })
                }
            };
            match encoded {
                Ok(count) => drop(saturated.fetch_add(count, Ordering::Relaxed)),
                Err(row) => drop(not_finite.fetch_min(first + row, Ordering::Relaxed)),
            }
        });
        match not_finite.load(Ordering::Relaxed) {
            usize::MAX => put(slab)?,
            row => return Err(Problem::NotFinite { row }),
        }
    }
    Ok(saturated.into_inner())
}

/// Encodes floats as elements of a type. `Ok` counts finite floats that exceed the type's range, `Err` is the index of
/// the first that cannot be quantized.
fn encode(dtype: Dtype, values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<usize, usize> {
    let mut saturated = 0;
    match dtype {
        Dtype::F32 => {
            out.chunks_exact_mut(4).zip(values).for_each(|(out, value)| out.copy_from_slice(&value.to_le_bytes()));
        }
        Dtype::BF16 => {
            let bits = |value: &f32| bf16::from_f32(*value).to_le_bytes();
            out.chunks_exact_mut(2).zip(values).for_each(|(out, value)| out.copy_from_slice(&bits(value)));
        }
        Dtype::F16 => {
            for (out, value) in out.chunks_exact_mut(2).zip(values) {
                let mut half = f16::from_f32(*value);
                if half.is_infinite() && value.is_finite() {
                    half = if *value > 0.0 { f16::MAX } else { f16::MIN };
                    saturated += 1;
                }
                out.copy_from_slice(&half.to_le_bytes());
            }
        }
        blocks => {
            let format = Format::ALL.into_iter().find(|format| format.name() == blocks.name());
            let format = format.expect("types are chosen among those that can be made");
            if let Some(at) = block::first_unrepresentable(format, values) {
                return Err(at);
            }
            match importance {
                None => block::quantize(format, values, out),
                Some(importance) => block::quantize_by_importance(format, values, importance, out),
            }
        }
    }
    Ok(saturated)
}
