//! Tests of products of quantized weights: every format on every instruction set, compared with products of the
//! dequantized floats.

use std::sync::Arc;

use foretoken_kernels::block::{Format, dequantize};
use foretoken_kernels::dtype::{Matrix, bf16, f16};
use foretoken_kernels::matmul::{Product, product, products};
use foretoken_kernels::panel::{Buffer, PanelFormat, Slot};
use foretoken_kernels::{Compute, Panels, Pool};
use foretoken_testkit::rows::Numbers;
use proptest::prelude::*;

use crate::{COMPUTES, assert_same_bits, name};

/// Random blocks whose scales are f16 of moderate size; everything else is random bits.
fn blocks(numbers: &mut Numbers, format: Format, elements: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..elements / format.elements() * format.bytes()).map(|_| numbers.below(256) as u8).collect();
    // The offsets of each format's f16 numbers.
    let halves: &[usize] = match format {
        Format::Q8_0 | Format::Q4_0 | Format::Q5_0 | Format::Iq4Nl | Format::Iq4Xs | Format::Int4 => &[0],
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
        Format::Q2K => &[80, 82],
        Format::Q3K => &[108],
        Format::Q6K => &[208],
        Format::Mxfp4 => &[],
    };
    for block in bytes.chunks_exact_mut(format.bytes()) {
        for at in halves {
            // The exponents are from 2^-5 to 2^-2, with any sign and fraction.
            block[at + 1] = (block[at + 1] & 0x83) | ((10 + numbers.below(4)) << 2) as u8;
        }
        if format == Format::Mxfp4 {
            block[0] = (122 + numbers.below(4)) as u8;
        }
    }
    bytes
}

struct Case {
    format: Format,
    rows: usize,
    inputs: usize,
    outputs: usize,
    x: Vec<f32>,
    bytes: Vec<u8>,
}

impl Case {
    fn random(seed: u64, format: Format) -> Self {
        let mut numbers = Numbers::new(seed);
        let (rows, outputs) = (1 + numbers.below(19), 1 + numbers.below(70));
        let inputs = format.elements() * (1 + numbers.below(if format.is_large() { 3 } else { 9 }));
        let mut x = numbers.units(rows * inputs);
        // The blocks have very different magnitudes, like those of activations.
        for block in x.chunks_exact_mut(32) {
            let factor = [1.0, 30.0, 1e-3, 0.0][numbers.below(4)];
            block.iter_mut().for_each(|x| *x *= factor);
        }
        let bytes = blocks(&mut numbers, format, outputs * inputs);
        Self { format, rows, inputs, outputs, x, bytes }
    }

    fn panels(&self, pool: &Pool) -> Panels {
        Panels::pack(pool, self.format, self.outputs, self.inputs, &self.bytes).expect("there is memory")
    }

    fn run(&self, compute: &Compute, panels: &Panels, x: &[f32]) -> Vec<f32> {
        let rows = x.len() / self.inputs;
        let mut out = vec![f32::NAN; rows * self.outputs];
        let one = Product { weights: panels, bias: None, out: &mut out, accumulate: false };
        product(compute, x, rows, self.inputs, one);
        out
    }

    /// The product in f64, and the maximum error that quantizing the activations may cause: half a step of each block,
    /// times the weights, plus a little for the sums in f32.
    fn expected(&self, row: usize, output: usize, weights: &[f32]) -> (f64, f64) {
        let x = &self.x[row * self.inputs..][..self.inputs];
        let w = &weights[output * self.inputs..][..self.inputs];
        let (mut sum, mut bound) = (0.0, 0.0);
        for (x, w) in x.chunks_exact(self.format.elements()).zip(w.chunks_exact(self.format.elements())) {
            let largest = x.iter().fold(0f32, |largest, x| largest.max(x.abs()));
            let half_step = f64::from(largest) / 127.0 * 0.5001;
            for (x, w) in x.iter().zip(w) {
                sum += f64::from(*x) * f64::from(*w);
                bound += half_step * f64::from(w.abs());
            }
            // If a minimum nearly cancels the rest, the rounding errors of both are left.
            bound += 1e-6 * f64::from(largest) * self.format.elements() as f64 * 64.0 * 31.0 * 0.25;
        }
        (sum, bound)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Products are near those of the floats, and have the same bits on every instruction set, with every number of
    /// threads, and for each row alone.
    #[test]
    fn a_quantized_product_is_near_and_its_rows_are_independent(seed: u64) {
        for format in Format::ALL {
            let case = Case::random(seed, format);
            let mut weights = vec![0.0; case.outputs * case.inputs];
            dequantize(format, &case.bytes, &mut weights);
            let panels = case.panels(&COMPUTES[0].pool);
            let all = case.run(&COMPUTES[0], &panels, &case.x);
            for row in 0..case.rows {
                for output in 0..case.outputs {
                    let (expected, bound) = case.expected(row, output, &weights);
                    let found = f64::from(all[row * case.outputs + output]);
                    prop_assert!(
                        (found - expected).abs() <= bound,
                        "{} row {row} output {output}: {found}, expected {expected} within {bound}", format.name()
                    );
                }
            }
            for compute in COMPUTES.iter() {
                let what = format!("{} {}", format.name(), name(compute));
                assert_same_bits(&case.run(compute, &panels, &case.x), &all, &what);
                let row = (seed % case.rows as u64) as usize;
                let alone = case.run(compute, &panels, &case.x[row * case.inputs..][..case.inputs]);
                assert_same_bits(&alone, &all[row * case.outputs..][..case.outputs], &what);
            }
        }
    }

    /// Products of one input in different formats, with bias and residual, equal those computed alone.
    #[test]
    fn formats_side_by_side(seed: u64) {
        let mut numbers = Numbers::new(seed);
        let (rows, inputs) = (1 + numbers.below(11), 512);
        let x = numbers.units(rows * inputs);
        let pool = Pool::new(1);
        let layers: Vec<(Panels, Vec<f32>, Vec<f32>)> = (0..4)
            .map(|_| {
                let format = Format::ALL[numbers.below(Format::ALL.len())];
                let outputs = 1 + numbers.below(50);
                let bytes = blocks(&mut numbers, format, outputs * inputs);
                let panels = Panels::pack(&pool, format, outputs, inputs, &bytes).expect("there is memory");
                (panels, numbers.units(outputs), numbers.units(rows * outputs))
            })
            .collect();
        for compute in COMPUTES.iter() {
            let mut outs: Vec<Vec<f32>> = layers.iter().map(|(_, _, residual)| residual.clone()).collect();
            let mut all: Vec<_> = layers.iter().zip(&mut outs).map(|((panels, bias, _), out)| Product {
                weights: panels, bias: Some(bias), out, accumulate: true,
            }).collect();
            products(compute, &x, rows, inputs, &mut all);
            for ((panels, bias, residual), found) in layers.iter().zip(&outs) {
                let mut alone = vec![0.0; found.len()];
                let one = Product { weights: panels, bias: None, out: &mut alone, accumulate: false };
                product(compute, &x, rows, inputs, one);
                let outputs = bias.len();
                for (i, alone) in alone.iter_mut().enumerate() {
                    *alone = residual[i] + (*alone + bias[i % outputs]);
                }
                assert_same_bits(found, &alone, &name(compute));
            }
        }
    }
}

/// Every format in the smallest shape whose last panel and tile are not full, which is small enough for Miri.
#[test]
fn small_shapes_of_every_format() {
    let mut numbers = Numbers::new(8);
    for format in Format::ALL {
        let (rows, inputs, outputs) = (3, format.elements().max(32), 17);
        let bytes = blocks(&mut numbers, format, outputs * inputs);
        let case = Case { format, rows, inputs, outputs, x: numbers.units(rows * inputs), bytes };
        let alone: Vec<f32> = (0..rows)
            .flat_map(|row| {
                let x = &case.x[row * inputs..][..inputs];
                case.run(&COMPUTES[0], &case.panels(&COMPUTES[0].pool), x)
            })
            .collect();
        for compute in COMPUTES.iter().filter(|compute| compute.pool.threads() <= 2) {
            let found = case.run(compute, &case.panels(&compute.pool), &case.x);
            assert_same_bits(&found, &alone, &format!("{} {}", format.name(), name(compute)));
        }
        println!("{}", format.name()); // Miri takes minutes for each
    }
}

/// A matrix that is packed into used memory gives the same products as one in memory of its own, in every format.
#[test]
fn used_memory_changes_no_product() {
    let mut numbers = Numbers::new(9);
    let compute = &COMPUTES[0];
    let (rows, outputs) = (3, 21);
    let x = numbers.units(rows * 512);
    let product_of = |panels: &Panels, inputs: usize| {
        let mut out = vec![f32::NAN; rows * outputs];
        let one = Product { weights: panels, bias: None, out: &mut out, accumulate: false };
        product(compute, &x[..rows * inputs], rows, inputs, one);
        out
    };
    for format in Format::ALL {
        let inputs = 512;
        let [first, second] = [0; 2].map(|_| blocks(&mut numbers, format, outputs * inputs));
        let own = Panels::pack(&compute.pool, format, outputs, inputs, &second).expect("there is memory");
        let mut reused = Panels::reserve(own.form(), outputs, inputs).expect("there is memory");
        assert_eq!(Panels::bytes_of(own.form(), outputs, inputs), Some(own.bytes()), "{}", format.name());
        for bytes in [&first, &second] {
            reused.refill(&compute.pool, bytes);
        }
        assert_same_bits(&product_of(&reused, inputs), &product_of(&own, inputs), format.name());
    }
    // With an odd number of inputs the last pair of bf16 is not full.
    let inputs = 33;
    let [first, second] = [0; 2].map(|_| numbers.units(outputs * inputs));
    let halves = |floats: &[f32]| floats.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>();
    let uppers = |floats: &[f32]| floats.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>();
    let (first_halves, second_halves) = (halves(&first), halves(&second));
    let (first_uppers, second_uppers) = (uppers(&first), uppers(&second));
    for [first, second] in [
        [Matrix::F32(&first), Matrix::F32(&second)],
        [Matrix::F16(&first_halves), Matrix::F16(&second_halves)],
        [Matrix::BF16(&first_uppers), Matrix::BF16(&second_uppers)],
    ] {
        let own = Panels::pack_floats(&compute.pool, second, outputs, inputs).expect("there is memory");
        let mut reused = Panels::reserve(own.form(), outputs, inputs).expect("there is memory");
        reused.refill_floats(&compute.pool, first);
        reused.refill_floats(&compute.pool, second);
        assert_same_bits(&product_of(&reused, inputs), &product_of(&own, inputs), own.form().name());
    }
}

/// Scales and activations that are not finite give NaN in their own row and output, and nowhere else.
#[test]
fn non_finite_numbers_stay_in_their_row_and_output() {
    for format in Format::ALL {
        let mut case = Case::random(7, format);
        case.x.fill(0.25);
        let row_bytes = case.inputs / format.elements() * format.bytes();
        let scale = match format {
            Format::Q2K => 80,
            Format::Q3K => 108,
            Format::Q6K => 208,
            _ => 0,
        };
        // Every scale of MXFP4 is a number.
        let bad = if format == Format::Mxfp4 { vec![] } else { vec![0x7e00_u16, 0x7c00, 0xfc00] };
        for bits in bad {
            let mut bytes = case.bytes.clone();
            bytes[scale..scale + 2].copy_from_slice(&bits.to_le_bytes());
            for compute in COMPUTES.iter() {
                let affected =
                    Panels::pack(&compute.pool, format, case.outputs, case.inputs, &bytes).expect("there is memory");
                let (found, intact) =
                    (case.run(compute, &affected, &case.x), case.run(compute, &case.panels(&compute.pool), &case.x));
                for (i, (found, intact)) in found.iter().zip(&intact).enumerate() {
                    if i % case.outputs == 0 {
                        assert!(!found.is_finite() || found == intact, "{}: {found}", format.name());
                    } else {
                        assert_eq!(found.to_bits(), intact.to_bits(), "{}: another output", format.name());
                    }
                }
            }
        }
        assert_eq!(row_bytes * case.outputs, case.bytes.len());
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = case.x.clone();
            x[case.inputs - 1] = bad;
            for compute in COMPUTES.iter() {
                let panels = case.panels(&compute.pool);
                let found = case.run(compute, &panels, &x);
                let (affected, others) = found.split_at(case.outputs);
                assert!(affected.iter().all(|y| y.is_nan()), "{} {}", format.name(), name(compute));
                assert!(others.iter().all(|y| y.is_finite()), "{} {}", format.name(), name(compute));
            }
        }
    }
}

/// The buffer of a slot holds what a file had, and moves to the slot of the next layer.
#[test]
fn panels_in_a_slot_give_the_bits_of_panels_in_memory() {
    let compute = &COMPUTES[0];
    let cases = [Case::random(3, Format::Q8_0), Case::random(4, Format::Q4K)];
    let slots: [Arc<Slot>; 2] = Default::default();
    let own = cases.each_ref().map(|case| case.panels(&compute.pool));
    let bytes = own.each_ref().map(|panels| panels.as_bytes().expect("they have memory of their own"));
    let offset = 64;
    let placed = [0, 1].map(|at| {
        let Case { outputs, inputs, format, .. } = cases[at];
        Panels::in_slot(PanelFormat::Blocks(format), outputs, inputs, &slots[at], offset).expect("it is small")
    });
    let mut buffer = Buffer::zeroed(offset + bytes.map(<[u8]>::len).into_iter().max().unwrap_or(0));
    for round in 0..4 {
        let at = round % 2;
        let mut filled = buffer.take().expect("there is memory");
        filled[offset..][..bytes[at].len()].copy_from_slice(bytes[at]);
        assert!(slots[at].put(filled).is_none());
        let Case { x, rows, inputs, outputs, .. } = &cases[at];
        let [expected, found] = [&own[at], &placed[at]].map(|weights| {
            let mut out = vec![0.0; rows * outputs];
            product(compute, x, *rows, *inputs, Product { weights, bias: None, out: &mut out, accumulate: false });
            out
        });
        assert_same_bits(&found, &expected, "a slot");
        buffer = slots[at].take();
    }
    assert!(placed[0].as_bytes().is_none() && slots[0].take().is_none());
}

#[test]
#[should_panic(expected = "panels: the layer is not in memory")]
fn an_empty_slot_is_refused() {
    let case = Case::random(3, Format::Q8_0);
    let slot = Arc::new(Slot::default());
    let form = PanelFormat::Blocks(case.format);
    let weights = &Panels::in_slot(form, case.outputs, case.inputs, &slot, 0).expect("it is small");
    let mut out = vec![0.0; case.rows * case.outputs];
    let product_of = Product { weights, bias: None, out: &mut out, accumulate: false };
    product(&COMPUTES[0], &case.x, case.rows, case.inputs, product_of);
}
