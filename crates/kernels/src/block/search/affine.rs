//! Levels with a scale and a minimum: `scale * level - minimum`.
//!
//! Large blocks (Q2_K, Q4_K, Q5_K) have two small integers, at least 0, for the scale and the minimum of each part.
//! Small blocks (Q4_1, Q5_1) are one part whose minimum is an f16 of either sign.

use super::super::{Format, Large, Small};
use super::{Part, Uniform, clamp, round, scaled, sums};

/// Tenths of a level by which the roundings that are tried differ from the plain one.
const TENTHS: std::ops::RangeInclusive<i32> = -10..=10;

/// The block of Q2_K, Q4_K or Q5_K nearest to these finite values.
pub(in super::super) fn large(format: Format, values: &[f32; 256], importance: Option<&[f32]>) -> Large {
    match format {
        Format::Q2K => parts::<16, 16, 3, 15>(values, importance),
        Format::Q4K => parts::<32, 8, 15, 63>(values, importance),
        _ => parts::<32, 8, 31, 63>(values, importance),
    }
}

/// A block of `P` parts of `N` elements: levels from 0 to `TOP`, scales and minimums from 0 to `LIMIT`. It is compiled
/// for each format, with these numbers as constants.
fn parts<const N: usize, const P: usize, const TOP: u8, const LIMIT: u8>(
    values: &[f32; 256],
    importance: Option<&[f32]>,
) -> Large {
    let levels = Uniform { low: 0.0, high: f32::from(TOP) };
    let limit = f32::from(LIMIT);
    let mut block = Large { quants: [0; 256], scales: [0; 16], minimums: [0; 16], scale: 0, minimum: 0 };
    let Some(scaled) = scaled(values) else { return block };
    let parts: [Part<'_, N>; P] = std::array::from_fn(|j| Part::new(&scaled.values, importance, j));
    let fits = parts.each_ref().map(|part| fit(part, levels, false));
    let greatest = fits.iter().fold([0f32; 2], |[s, m], fit| [s.max(fit.0), m.max(fit.1)]);
    let (scale_bits, scale) = scaled.ceil_f16(greatest[0] / limit);
    let (minimum_bits, minimum) = scaled.ceil_f16(greatest[1] / limit);
    (block.scale, block.minimum) = (scale_bits, minimum_bits);
    for (j, (part, fit)) in parts.iter().zip(fits).enumerate() {
        let (s, m) = best_neighbours(part, levels, fit, (scale, minimum), limit);
        (block.scales[j], block.minimums[j]) = (s as i8, m as u8);
        part.write(scale * s, minimum * m, levels, &mut block.quants[j * N..][..N]);
    }
    block
}

/// The block of Q4_1 or Q5_1 nearest to these finite values.
pub(in super::super) fn small(format: Format, values: &[f32; 32], importance: Option<&[f32]>) -> Small {
    let levels = Uniform { low: 0.0, high: if format == Format::Q4_1 { 15.0 } else { 31.0 } };
    let mut block = Small { quants: [0; 32], scale: 0, minimum: 0 };
    let Some(scaled) = scaled(values) else { return block };
    let part = Part::<'_, 32>::new(&scaled.values, importance, 0);
    let fit = fit(&part, levels, true);
    let (scale_bits, scale) = scaled.nearest_f16(fit.0);
    let (minimum_bits, minimum) = scaled.nearest_f16(-fit.1);
    (block.scale, block.minimum) = (scale_bits, minimum_bits);
    part.write(scale, -minimum, levels, &mut block.quants);
    block
}

/// The scale and the minimum for which `scale * level - minimum` is nearest to a part. The scale is at least 0, and so
/// is the minimum unless `signed`.
fn fit<const N: usize>(part: &Part<'_, N>, levels: Uniform, signed: bool) -> (f32, f32) {
    let [weight, first, second] = part.sums;
    let lowest = if signed { f32::MAX } else { 0.0 };
    let low = part.values.iter().fold(lowest, |low, &value| if value < low { value } else { low });
    let high = part.values.iter().fold(f32::MIN, |high, &value| if value > high { value } else { high });
    if high <= low {
        return (0.0, -low);
    }
    let mut best = ((high - low) / levels.high, -low);
    let mut best_error = part.error(best.0, best.1, levels);
    for tenths in TENTHS {
        let inverse = (levels.high + 0.1 * tenths as f32) / (high - low);
        let [level, square, product] = sums::<N>(|i| {
            let level = round(clamp((part.values[i] - low) * inverse, 0.0, levels.high));
            let weighted = part.weights[i] * level;
            [weighted, weighted * level, weighted * part.values[i]]
        });
        let determinant = weight * square - level * level;
        if determinant <= 0.0 {
            continue;
        }
        let mut fit =
            ((weight * product - first * level) / determinant, (level * product - square * first) / determinant);
        if fit.1 < 0.0 && !signed {
            fit = (product / square, 0.0);
        }
        let (s, m) = fit;
        // The square of (value - s level + m), written out.
        let error = second + 2.0 * (m * first - s * product - s * m * level) + s * s * square + m * m * weight;
        if s > 0.0 && error < best_error {
            (best, best_error) = (fit, error);
        }
    }
    best
}

/// The integers near a fit that leave the smallest error under the block's scale and minimum.
fn best_neighbours<const N: usize>(
    part: &Part<'_, N>,
    levels: Uniform,
    fit: (f32, f32),
    (scale, minimum): (f32, f32),
    limit: f32,
) -> (f32, f32) {
    let near = |value: f32, unit: f32| if unit > 0.0 { round(clamp(value / unit, 0.0, limit)) } else { 0.0 };
    let (s, m) = (near(fit.0, scale), near(fit.1, minimum));
    let (mut best, mut best_error) = ((s, m), f32::INFINITY);
    for s in [s, s - 1.0, s + 1.0] {
        for m in [m, m - 1.0, m + 1.0] {
            let inside = (0.0..=limit).contains(&s) && (0.0..=limit).contains(&m);
            let error = if inside { part.error(scale * s, minimum * m, levels) } else { f32::INFINITY };
            if error < best_error {
                (best, best_error) = ((s, m), error);
            }
        }
    }
    best
}
