//! Activation functions, element by element, on rows of any length.
//!
//! All functions take the instruction set to compute with, so that they have one signature. Exact GELU (its error
//! function is computed in f64) and the two ReLUs are the same loop on all sets.

use crate::Isa;
use crate::isa::dispatch;

/// `gate[i] = silu(gate[i]) * up[i]`, silu(x) = x / (1 + e^-x): the activation of Llama's gated feed-forward network.
///
/// The cost is an exponential and a division per element, 0.2 nanoseconds with 512-bit registers (Zen 4).
///
/// # Panics
/// If the lengths differ.
pub fn silu_gate(isa: Isa, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "silu_gate: lengths");
    dispatch!(isa, silu_gate(gate, up));
}

/// silu(x) = x / (1 + e^-x).
pub fn silu(isa: Isa, x: &mut [f32]) {
    dispatch!(isa, silu(x));
}

/// `gate[i] = f(gate[i]) * up[i]` for an activation f that is not SiLU.
///
/// # Panics
/// If the lengths differ.
pub fn gate(isa: Isa, f: fn(Isa, &mut [f32]), gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate: lengths");
    f(isa, gate);
    gate.iter_mut().zip(up).for_each(|(gate, up)| *gate *= up);
}

/// The gated activation of gpt-oss: `gate[i] = g / (1 + e^(-slope * g)) * (u + 1)`, where g is `gate[i]`, limited from
/// above to `limit`, and u is `up[i]`, limited to -`limit`..`limit`.
///
/// # Panics
/// If the lengths differ, or the limit is not a number that is at least 0.
pub fn clamped_gate(isa: Isa, gate: &mut [f32], up: &[f32], [slope, limit]: [f32; 2]) {
    assert_eq!(gate.len(), up.len(), "clamped_gate: lengths");
    assert!(limit >= 0.0, "clamped_gate: limit {limit}");
    dispatch!(isa, clamped_gate(gate, up, slope, limit));
}

/// GELU in its tanh form (`gelu_new`, `gelu_pytorch_tanh`): x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
///
/// With tanh(u) = 1 - 2 / (e^2u + 1) this is x - x / (e^2u + 1).
pub fn gelu_tanh(isa: Isa, x: &mut [f32]) {
    dispatch!(isa, gelu_tanh(x));
}

/// Exact GELU (`gelu`): x times the cumulative distribution function of the normal distribution, by the error function.
pub fn gelu_erf(_isa: Isa, x: &mut [f32]) {
    for x in x {
        *x = 0.5 * *x * (1.0 + erf(*x * std::f32::consts::FRAC_1_SQRT_2));
    }
}

/// The error function by formula 7.1.26 of Abramowitz and Stegun, in f64, with an absolute error below 1.5e-7.
fn erf(x: f32) -> f32 {
    let z = f64::from(x).abs();
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let p = ((((1.061_405_429 * t - 1.453_152_027) * t + 1.421_413_741) * t - 0.284_496_736) * t + 0.254_829_592) * t;
    (1.0 - p * (-z * z).exp()).copysign(f64::from(x)) as f32
}

/// max(x, 0).
pub fn relu(_isa: Isa, x: &mut [f32]) {
    for x in x {
        *x = x.max(0.0);
    }
}

/// max(x, 0)^2.
pub fn relu_squared(_isa: Isa, x: &mut [f32]) {
    for x in x {
        let above = x.max(0.0);
        *x = above * above;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_the_activation_times_the_other_half() {
        let x: Vec<f32> = (-60..60).map(|i| i as f32 / 10.0).collect();
        let up: Vec<f32> = x.iter().map(|x| x.cos()).collect();
        for (f, name) in [
            (gelu_tanh as fn(Isa, &mut [f32]), "tanh"),
            (gelu_erf, "erf"),
            (relu, "relu"),
            (silu, "silu"),
            (relu_squared, "squared"),
        ] {
            let (mut gated, mut plain) = (x.clone(), x.clone());
            gate(Isa::chosen(), f, &mut gated, &up);
            f(Isa::chosen(), &mut plain);
            let product: Vec<f32> = plain.iter().zip(&up).map(|(plain, up)| plain * up).collect();
            assert_eq!(gated, product, "{name}");
        }
        let mut found = x.clone();
        silu(Isa::chosen(), &mut found);
        for (x, found) in x.iter().zip(found) {
            let wide = f64::from(*x) / (1.0 + (-f64::from(*x)).exp());
            assert!((f64::from(found) - wide).abs() <= 1e-6, "{x}: {found} against {wide}");
        }
    }

    #[test]
    fn a_clamped_gate_matches_its_definition() {
        let (slope, limit) = (1.702, 7.0);
        let all: Vec<f32> = (-400..400).map(|i| i as f32 / 20.0).collect();
        for isa in Isa::available() {
            for shift in [0, 150, 400] {
                let mut gate = all.clone();
                let up: Vec<f32> = (0..all.len()).map(|i| all[(i + shift) % all.len()]).collect();
                clamped_gate(isa, &mut gate, &up, [slope, limit]);
                for ((found, g), u) in gate.iter().zip(&all).zip(&up) {
                    let (g, u) = (f64::from(g.min(limit)), f64::from(u.clamp(-limit, limit)));
                    let wide = g / (1.0 + (-f64::from(slope) * g).exp()) * (u + 1.0);
                    assert!((f64::from(*found) - wide).abs() <= 1e-6 * wide.abs() + 1e-12, "{g}, {u}: {found}, {wide}");
                }
            }
            for (gate, up) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
                let mut gate = [gate];
                clamped_gate(isa, &mut gate, &[up], [slope, limit]);
                assert!(gate[0].is_nan());
            }
        }
    }

    #[test]
    fn relu_is_squared_above_0() {
        let mut x = [-2.0, -0.0, 0.0, 0.5, 3.0f32];
        relu_squared(Isa::chosen(), &mut x);
        assert_eq!(x, [0.0, 0.0, 0.0, 0.25, 9.0]);
    }

    #[test]
    fn gelu_forms_match_the_definition() {
        for i in -600..600 {
            let x = i as f32 / 100.0;
            let wide = f64::from(x);
            let tanh =
                0.5 * wide * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044715 * wide.powi(3))).tanh());
            let (mut a, mut b) = ([x], [x]);
            gelu_tanh(Isa::chosen(), &mut a);
            gelu_erf(Isa::chosen(), &mut b);
            assert!((f64::from(a[0]) - tanh).abs() < 2e-6, "{x}: {} against {tanh}", a[0]);
            assert!((f64::from(b[0]) - tanh).abs() < 6e-4, "{x}: the two forms are near each other");
        }
        let mut x = [1.0f32];
        gelu_erf(Isa::chosen(), &mut x);
        assert!((x[0] - 0.841_344_7).abs() < 1e-6);
    }
}
