//! Tests that no row depends on the other rows of its batch, with random shapes, batches, threads and instruction sets,
//! bit for bit.

use foretoken_kernels::Isa;
use foretoken_kernels::activation::{gelu_erf, gelu_tanh, relu, silu_gate};
use foretoken_kernels::norm::{layer_norm, rms_norm};
use foretoken_testkit::rows::{Numbers, RowKernel, first_dependence};
use proptest::prelude::*;

use crate::{COMPUTES, Layer, assert_same_bits, name};

#[track_caller]
fn assert_independent(kernel: &mut RowKernel<'_>, x: &[f32], width: usize, what: &str) {
    if let Some(found) = first_dependence(kernel, x, width) {
        panic!("{what}: {found}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// A row computed alone on the portable instruction set equals the row in any batch, with any threads, on any
    /// instruction set.
    #[test]
    fn products(seed: u64, kind in 0..3usize, inputs in 1..150usize, outputs in 1..150usize, rows in 1..=40usize) {
        let mut numbers = Numbers::new(seed);
        let layer = Layer::random(&mut numbers, kind, inputs, outputs);
        let x = numbers.units(rows * inputs);
        let alone: Vec<f32> = x.chunks_exact(inputs).flat_map(|row| layer.run(&COMPUTES[0], row, 1)).collect();
        for compute in COMPUTES.iter() {
            assert_same_bits(&layer.run(compute, &x, rows), &alone, &name(compute));
        }
    }

    /// Tests products by `first_dependence`, with all batch sizes, several offsets, another order, and NaN and huge
    /// values in other rows.
    #[test]
    fn products_among_other_rows(seed: u64, kind in 0..3usize, inputs in 1..70usize, outputs in 1..70usize) {
        let mut numbers = Numbers::new(seed);
        let layer = Layer::random(&mut numbers, kind, inputs, outputs);
        let rows = 1 + numbers.below(14);
        let x = numbers.units(rows * inputs);
        let fast: Vec<_> = COMPUTES.iter().filter(|compute| compute.isa.name() != "portable").collect();
        let compute = if fast.is_empty() { &COMPUTES[0] } else { fast[numbers.below(fast.len())] };
        assert_independent(&mut |x, rows| layer.run(compute, x, rows), &x, inputs, &name(compute));
    }

    #[test]
    fn norms_and_activations(seed: u64, width in 1..200usize, rows in 1..12usize) {
        let mut numbers = Numbers::new(seed);
        let (weight, bias) = (numbers.units(width), numbers.units(width));
        let x: Vec<f32> = numbers.units(rows * width).iter().map(|x| 9.0 * x).collect();
        let into = |kernel: &dyn Fn(&[f32], &mut [f32]), x: &[f32]| {
            let mut out = vec![f32::NAN; x.len()];
            kernel(x, &mut out);
            out
        };
        let in_place = |kernel: fn(Isa, &mut [f32]), x: &[f32]| {
            let mut out = x.to_vec();
            kernel(Isa::chosen(), &mut out);
            out
        };
        let rms = |x: &[f32], out: &mut [f32]| rms_norm(Isa::chosen(), x, &weight, 1e-6, out);
        let layer = |x: &[f32], out: &mut [f32]| layer_norm(Isa::chosen(), x, &weight, &bias, 1e-5, out);
        let gated = |x: &[f32], out: &mut [f32]| {
            out.copy_from_slice(x);
            let up: Vec<f32> = x.iter().rev().copied().collect();
            // Each row is gated by its own reverse, so that rows do not mix.
            for (out, up) in out.chunks_exact_mut(width).zip(up.chunks_exact(width).rev()) {
                silu_gate(Isa::chosen(), out, up);
            }
        };
        assert_independent(&mut |x, _| into(&rms, x), &x, width, "rms_norm");
        assert_independent(&mut |x, _| into(&layer, x), &x, width, "layer_norm");
        assert_independent(&mut |x, _| into(&gated, x), &x, width, "silu_gate");
        assert_independent(&mut |x, _| in_place(gelu_tanh, x), &x, width, "gelu_tanh");
        assert_independent(&mut |x, _| in_place(gelu_erf, x), &x, width, "gelu_erf");
        assert_independent(&mut |x, _| in_place(relu, x), &x, width, "relu");
    }
}

/// Floats of every type in the smallest shape whose last panel, tile and pair are not full, which is small enough for
/// Miri.
#[test]
fn small_shapes_of_floats() {
    let mut numbers = Numbers::new(10);
    for kind in 0..3 {
        let layer = Layer::random(&mut numbers, kind, 17, 18);
        let x = numbers.units(5 * 17);
        let alone: Vec<f32> = x.chunks_exact(17).flat_map(|row| layer.run(&COMPUTES[0], row, 1)).collect();
        for compute in COMPUTES.iter().filter(|compute| compute.pool.threads() <= 2) {
            assert_same_bits(&layer.run(compute, &x, 5), &alone, &name(compute));
        }
    }
}

/// The product is large enough for threads to be woken on every instruction set.
#[test]
fn a_large_product_is_the_same_on_every_path() {
    let mut numbers = Numbers::new(9);
    for kind in 0..3 {
        let layer = Layer::random(&mut numbers, kind, 203, 530);
        let x = numbers.units(9 * 203);
        let alone: Vec<f32> = x.chunks_exact(203).flat_map(|row| layer.run(&COMPUTES[0], row, 1)).collect();
        for compute in COMPUTES.iter() {
            assert_same_bits(&layer.run(compute, &x, 9), &alone, &name(compute));
        }
    }
}
