//! Compares each kernel with its naive reference, which computes in f64.
//!
//! Tolerances cover the rounding that the kernel's own order of operations can cause, and are explained at their uses;
//! a wrong element, a missing tail or a swapped pair causes an error a thousand times larger.

use foretoken_kernels::Isa;
use foretoken_kernels::activation::{gelu_tanh, relu, silu, silu_gate};
use foretoken_kernels::naive;
use foretoken_kernels::norm::{layer_norm, rms_norm};
use foretoken_kernels::rope::{Pairing, angles, rotate};
use foretoken_kernels::softmax::softmax;
use foretoken_testkit::rows::Numbers;

use crate::{COMPUTES, Layer, Weights, name};

/// Asserts `|found - expected| <= tolerance`, element by element.
#[track_caller]
fn assert_near(found: &[f32], expected: &[f32], tolerance: impl Fn(usize) -> f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: lengths");
    for i in 0..found.len() {
        let (a, b) = (found[i], expected[i]);
        assert!((a - b).abs() <= tolerance(i), "{what}: element {i}: {a} against {b}, allowed {}", tolerance(i));
    }
}

/// Numbers of inputs whose last step of sixteen has all, no, one or fifteen elements.
const INPUTS: [usize; 7] = [1, 15, 16, 17, 64, 95, 257];
/// Numbers of outputs around those of a tile and of a task.
const OUTPUTS: [usize; 6] = [1, 3, 4, 33, 64, 97];

#[test]
fn products() {
    let mut numbers = Numbers::new(1);
    for (inputs, outputs) in INPUTS.iter().flat_map(|inputs| OUTPUTS.map(|outputs| (*inputs, outputs))) {
        for kind in 0..3 {
            let layer = Layer::random(&mut numbers, kind, inputs, outputs);
            let rows = 1 + numbers.below(9);
            let x = numbers.units(rows * inputs);
            let mut expected = naive::product(&x, layer.weights.matrix(), inputs);
            for (i, expected) in expected.iter_mut().enumerate() {
                *expected += layer.bias.as_ref().map_or(0.0, |bias| bias[i % outputs]);
                *expected += layer.residual.as_ref().map_or(0.0, |residual| residual[i % outputs]);
            }
            for compute in COMPUTES.iter() {
                let what = format!("{rows} x {inputs} x {outputs}, type {kind}, {}", name(compute));
                // Each addition of the chain rounds once, and the sums grow as the square root of their length.
                let allowed = 1e-6 * (4.0 + inputs as f32).sqrt();
                assert_near(&layer.run(compute, &x, rows), &expected, |_| allowed, &what);
            }
        }
    }
}

#[test]
fn several_products_of_one_input_equal_products_alone() {
    let mut numbers = Numbers::new(2);
    let (rows, inputs) = (5, 80);
    let x = numbers.units(rows * inputs);
    let layers = [96, 1, 40].map(|outputs| Layer::random(&mut numbers, outputs % 3, inputs, outputs));
    for compute in COMPUTES.iter() {
        let start = |layer: &Layer| layer.residual.clone().unwrap_or(vec![0.0; layer.outputs]).repeat(rows);
        let mut outs: Vec<Vec<f32>> = layers.iter().map(start).collect();
        let panels = layers.each_ref().map(|layer| layer.panels(compute));
        let mut all: Vec<_> = layers
            .iter()
            .zip(&panels)
            .zip(&mut outs)
            .map(|((layer, panels), out)| foretoken_kernels::matmul::Product {
                weights: panels,
                bias: layer.bias.as_deref(),
                out,
                accumulate: layer.residual.is_some(),
            })
            .collect();
        foretoken_kernels::matmul::products(compute, &x, rows, inputs, &mut all);
        for (layer, out) in layers.iter().zip(&outs) {
            assert_eq!(out, &layer.run(&COMPUTES[0], &x, rows), "{}", name(compute));
        }
    }
}

#[test]
fn norms() {
    let mut numbers = Numbers::new(4);
    for width in [1, 2, 15, 16, 17, 100, 768] {
        let x: Vec<f32> = numbers.units(3 * width).iter().map(|x| x * 3.0 + 0.5).collect();
        let (weight, bias) = (numbers.units(width), numbers.units(width));
        let mut out = vec![f32::NAN; x.len()];
        rms_norm(Isa::chosen(), &x, &weight, 1e-6, &mut out);
        let expected: Vec<f32> = x.chunks_exact(width).flat_map(|x| naive::rms_norm(x, &weight, 1e-6)).collect();
        assert_near(&out, &expected, |i| 1e-6 * expected[i].abs(), &format!("rms_norm of {width}"));
        layer_norm(Isa::chosen(), &x, &weight, &bias, 1e-5, &mut out);
        let expected: Vec<f32> =
            x.chunks_exact(width).flat_map(|x| naive::layer_norm(x, &weight, &bias, 1e-5)).collect();
        // The mean's rounding is divided by the deviation, which can be small for one or two elements, but not here.
        assert_near(&out, &expected, |_| 1e-5, &format!("layer_norm of {width}"));
    }
}

#[test]
fn softmax_is_a_distribution_with_the_right_ratios() {
    let mut numbers = Numbers::new(5);
    for len in [1, 2, 15, 16, 17, 33, 1000] {
        let scores: Vec<f32> = numbers.units(len).iter().map(|x| x * 30.0).collect();
        let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exact: Vec<f64> = scores.iter().map(|s| (f64::from(*s) - f64::from(highest)).exp()).collect();
        let total: f64 = exact.iter().sum();
        let expected: Vec<f32> = exact.iter().map(|e| (e / total) as f32).collect();
        let mut found = scores.clone();
        softmax(&mut found);
        // A difference of scores up to 60 is rounded by up to 2e-6, which is the relative error of its exponential.
        assert_near(&found, &expected, |i| 5e-6 * expected[i] + 1e-30, &format!("softmax of {len}"));
        assert!((found.iter().map(|p| f64::from(*p)).sum::<f64>() - 1.0).abs() < 1e-6);
    }
}

#[test]
fn nan_scores_give_nan_and_masked_scores_zero() {
    let mut with_nan = [0.0, f32::NAN, 1.0];
    softmax(&mut with_nan);
    assert!(with_nan.iter().all(|p| p.is_nan()), "{with_nan:?}");
    let mut masked = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY];
    softmax(&mut masked);
    assert_eq!(masked, [0.0, 1.0, 0.0]);
}

#[test]
fn rotations_of_both_pairings() {
    let mut numbers = Numbers::new(6);
    for (head_dim, pairs) in [(8, 4), (8, 2), (10, 5), (64, 32), (128, 64), (128, 16)] {
        let frequencies: Vec<f32> = (0..pairs).map(|i| 10_000f32.powf(-(i as f32) / pairs as f32)).collect();
        for (position, pairing) in [(0, Pairing::Halves), (7, Pairing::Halves), (5000, Pairing::Interleaved)] {
            let row = numbers.units(3 * head_dim);
            let mut rotations = vec![f32::NAN; 2 * pairs];
            angles(position, &frequencies, 1.0, &mut rotations);
            let mut found = row.clone();
            rotate(Isa::chosen(), &mut found, head_dim, &rotations, pairing);
            let mut expected = row.clone();
            for head in expected.chunks_exact_mut(head_dim) {
                for i in 0..pairs {
                    let (a, b) = if pairing == Pairing::Halves { (i, i + pairs) } else { (2 * i, 2 * i + 1) };
                    // The angle itself is an f32, as in every implementation.
                    let (sine, cosine) = f64::from(position as f32 * frequencies[i]).sin_cos();
                    let (x, y) = (f64::from(head[a]), f64::from(head[b]));
                    (head[a], head[b]) = ((x * cosine - y * sine) as f32, (x * sine + y * cosine) as f32);
                }
            }
            assert_near(&found, &expected, |_| 3e-7, &format!("{pairing:?}, {pairs} pairs of {head_dim}"));
        }
    }
}

#[test]
fn gates_and_relu() {
    let mut numbers = Numbers::new(7);
    let gate: Vec<f32> = numbers.units(1001).iter().map(|x| x * 20.0).collect();
    let up = numbers.units(1001);
    let mut found = gate.clone();
    silu_gate(Isa::chosen(), &mut found, &up);
    let silu = |x: f32| f64::from(x) / (1.0 + (-f64::from(x)).exp());
    let expected: Vec<f32> = gate.iter().zip(&up).map(|(g, u)| (silu(*g) * f64::from(*u)) as f32).collect();
    assert_near(&found, &expected, |i| 1e-6 * expected[i].abs() + 1e-12, "silu_gate");
    let mut found = gate.clone();
    relu(Isa::chosen(), &mut found);
    assert!(found.iter().zip(&gate).all(|(r, x)| *r == if *x > 0.0 { *x } else { 0.0 }));
}

#[test]
fn slices_of_a_matrix_widen_to_their_elements() {
    let mut numbers = Numbers::new(8);
    for kind in 0..3 {
        let table = Weights::random(&mut numbers, kind, 11 * 5);
        for row in [3, 0, 10] {
            let mut out = [f32::NAN; 5];
            table.matrix().slice(row * 5..row * 5 + 5).widen(&mut out);
            assert_eq!(out, std::array::from_fn(|i| table.matrix().get(row * 5 + i)));
        }
    }
}

/// Multiplies every finite half by one: the widening inside the kernels must equal that of the crate `half`, also for
/// denormals, zeros of both signs and infinities.
#[test]
fn every_half_is_widened_by_every_instruction_set() {
    use foretoken_kernels::dtype::{bf16, f16};
    let bits: Vec<u16> = (0..=u16::MAX).collect();
    let halves = Weights::F16(bits.iter().map(|bits| f16::from_bits(*bits)).collect());
    let upper_halves = Weights::BF16(bits.iter().map(|bits| bf16::from_bits(*bits)).collect());
    for weights in [halves, upper_halves] {
        let layer = Layer { weights, bias: None, inputs: 1, outputs: bits.len(), residual: None };
        for compute in COMPUTES.iter().filter(|compute| compute.pool.threads() == 2) {
            let found = layer.run(compute, &[1.0], 1);
            for (i, found) in found.iter().enumerate() {
                let expected = layer.weights.matrix().get(i);
                let same = *found == expected || (found.is_nan() && expected.is_nan());
                assert!(same, "{i:#x}: {found:e} instead of {expected:e}, {}", name(compute));
            }
        }
    }
}

/// The loops of `rows.rs` are compiled for each instruction set, and give the same bits on all.
#[test]
fn loops_over_rows_are_equal_on_all_instruction_sets() {
    let (width, rows) = (88, 3);
    let mut numbers = Numbers::new(11);
    let x: Vec<f32> = numbers.units(rows * width).iter().map(|x| 9.0 * x).collect();
    let (weight, bias) = (numbers.units(width), numbers.units(width));
    let mut rotations = vec![0.0; 36];
    angles(1234, &numbers.units(18), 1.1, &mut rotations);
    let results = |isa: Isa| {
        let mut all: Vec<Vec<f32>> = vec![x.clone(); 8];
        rms_norm(isa, &x, &weight, 1e-6, &mut all[0]);
        layer_norm(isa, &x, &weight, &bias, 1e-5, &mut all[1]);
        silu_gate(isa, &mut all[2], &x.iter().rev().copied().collect::<Vec<_>>());
        silu(isa, &mut all[3]);
        gelu_tanh(isa, &mut all[4]);
        relu(isa, &mut all[5]);
        rotate(isa, &mut all[6], 44, &rotations, Pairing::Halves);
        rotate(isa, &mut all[7], 44, &rotations, Pairing::Interleaved);
        all.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    let portable = results(Isa::PORTABLE);
    for isa in Isa::available() {
        assert!(results(isa) == portable, "{}", isa.name());
    }
}
