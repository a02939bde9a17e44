//! Tests of the row-independence runner: it detects every canary, and passes correct kernels.

use foretoken_kernels::dtype::Matrix;
use foretoken_kernels::matmul::{Product, product};
use foretoken_kernels::{Compute, Panels, naive};
use foretoken_testkit::rows::{Numbers, RowKernel, first_dependence};

const ROWS: usize = 12;
const INPUTS: usize = 96;
const OUTPUTS: usize = 8;

fn data() -> (Vec<f32>, Vec<f32>) {
    let mut numbers = Numbers::new(7);
    (numbers.units(ROWS * INPUTS), numbers.units(OUTPUTS * INPUTS))
}

fn dot(x: &[f32], w: &[f32]) -> f32 {
    x.iter().zip(w).fold(0.0, |sum, (x, w)| sum + x * w)
}

/// A product whose sums are split into `parts` parts, like a kernel that parallelizes over k.
fn split_product(x: &[f32], rows: usize, w: &[f32], parts: usize) -> Vec<f32> {
    let mut out = Vec::new();
    for row in x.chunks_exact(INPUTS).take(rows) {
        for w in w.chunks_exact(INPUTS) {
            let part = INPUTS / parts;
            out.push((0..parts).map(|p| dot(&row[p * part..][..part], &w[p * part..][..part])).sum());
        }
    }
    out
}

fn assert_detected(name: &str, kernel: &mut RowKernel<'_>) {
    let (x, _) = data();
    let found = first_dependence(kernel, &x, INPUTS);
    println!("{name}: {}", found.as_ref().map_or("not detected".to_string(), ToString::to_string));
    assert!(found.is_some(), "the canary {name:?} was not detected");
}

#[test]
fn a_reduction_split_by_the_batch_is_detected() {
    let (_, w) = data();
    assert_detected("k split by rows", &mut |x, rows| split_product(x, rows, &w, if rows < 4 { 4 } else { 2 }));
    assert_detected("large batches only", &mut |x, rows| split_product(x, rows, &w, if rows == ROWS { 1 } else { 2 }));
}

#[test]
fn a_special_kernel_for_one_row_is_detected() {
    let (_, w) = data();
    assert_detected("gemv for one row", &mut |x, rows| split_product(x, rows, &w, if rows == 1 { 1 } else { 2 }));
}

#[test]
fn a_tail_in_another_order_is_detected() {
    let (_, w) = data();
    assert_detected("rows after the last whole tile", &mut |x, rows| {
        let whole = rows / 4 * 4;
        let mut out = split_product(&x[..whole * INPUTS], whole, &w, 2);
        out.extend(split_product(&x[whole * INPUTS..], rows - whole, &w, 1));
        out
    });
}

#[test]
fn a_result_that_depends_on_the_index_is_detected() {
    let (_, w) = data();
    assert_detected("the last row is padded", &mut |x, rows| {
        let mut out = split_product(x, rows, &w, 2);
        if rows > 2 {
            out[(rows - 1) * OUTPUTS] = split_product(&x[(rows - 1) * INPUTS..], 1, &w, 3)[0];
        }
        out
    });
}

#[test]
fn other_rows_multiplied_by_zero_are_detected() {
    let (_, w) = data();
    assert_detected("zero times infinity", &mut |x, rows| {
        let mut out = split_product(x, rows, &w, 2);
        let leak: f32 = x.iter().map(|x| x * 0.0).sum();
        out.iter_mut().for_each(|out| *out += leak);
        out
    });
}

#[test]
fn correct_kernels_pass() {
    let (x, w) = data();
    assert_eq!(first_dependence(&mut |x, _| naive::product(x, Matrix::F32(&w), INPUTS), &x, INPUTS), None);
    let compute = Compute::new(2);
    let panels = Panels::pack_floats(&compute.pool, Matrix::F32(&w), OUTPUTS, INPUTS).expect("there is memory");
    let mut correct = |x: &[f32], rows: usize| {
        let mut out = vec![0.0; rows * OUTPUTS];
        let one = Product { weights: &panels, bias: None, out: &mut out, accumulate: false };
        product(&compute, x, rows, INPUTS, one);
        out
    };
    assert_eq!(first_dependence(&mut correct, &x, INPUTS), None);
}
