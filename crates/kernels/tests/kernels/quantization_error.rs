//! Tests of the total error of quantization: over all elements, and weighted by importances.

use foretoken_kernels::block::{Format, quantize_by_importance};
use foretoken_testkit::rows::Numbers;

use crate::assert_same_bits;
use crate::block::{normal, quantizable_formats, round_trip, round_trip_by};

/// The root of the weighted squared error, relative to the weighted squares of the values.
fn relative_error(values: &[f32], found: &[f32], weight: impl Fn(usize) -> f32) -> f64 {
    let sum =
        |square: &dyn Fn(usize) -> f64| -> f64 { (0..values.len()).map(|i| f64::from(weight(i)) * square(i)).sum() };
    let squared_error = sum(&|i| (f64::from(values[i]) - f64::from(found[i])).powi(2));
    (squared_error / sum(&|i| f64::from(values[i]).powi(2))).sqrt()
}

/// The bounds are what the formats reach, with a margin of about 1 %. For comparison, ggml's quantizers without an
/// importance matrix leave 0.0762 for IQ4_NL, 0.0768 for IQ4_XS, 0.297 for Q2_K, 0.1511 for Q3_K, 0.0715 for Q4_K,
/// 0.0362 for Q5_K and 0.0178 for Q6_K.
#[test]
fn errors_of_normal_numbers_are_bounded() {
    let values = normal(&mut Numbers::new(7), 1 << 18);
    let bounds = [
        (Format::Q8_0, 0.0054),
        (Format::Q4_0, 0.0868),
        (Format::Q4_1, 0.0790),
        (Format::Q5_0, 0.0432),
        (Format::Q5_1, 0.0382),
        (Format::Iq4Nl, 0.0755),
        (Format::Q2K, 0.2720),
        (Format::Q3K, 0.1468),
        (Format::Q4K, 0.0713),
        (Format::Q5K, 0.0352),
        (Format::Q6K, 0.0175),
        (Format::Iq4Xs, 0.0763),
    ];
    assert!(quantizable_formats().eq(bounds.iter().map(|bound| bound.0)), "a bound for each");
    for (format, bound) in bounds {
        for size in [1.0f32, 0.02, 300.0] {
            let values: Vec<f32> = values.iter().map(|value| value * size).collect();
            let error = relative_error(&values, &round_trip(format, &values), |_| 1.0);
            println!("{} of size {size}: {error:.5}", format.name());
            assert!(error < bound, "{} of size {size}: {error:.5}", format.name());
        }
    }
}

/// The importances differ like those of columns in models. With these numbers and importances ggml's quantizers leave
/// 0.0719 for Q4_0, 0.0559 for Q4_1, 0.0356 for Q5_0, 0.0270 for Q5_1, 0.0639 for IQ4_NL, 0.2023 for Q2_K, 0.1220 for
/// Q3_K, 0.0571 for Q4_K, 0.0296 for Q5_K, 0.0147 for Q6_K and 0.0648 for IQ4_XS.
#[test]
fn importances_reduce_the_weighted_error() {
    let values = normal(&mut Numbers::new(7), 1 << 18);
    let importance: Vec<f32> = normal(&mut Numbers::new(9), 4096).iter().map(|x| (1.5 * x).exp()).collect();
    let importance: Vec<f32> = importance.iter().cycle().take(values.len()).copied().collect();
    let bounds = [
        (Format::Q4_0, 0.0725),
        (Format::Q4_1, 0.0569),
        (Format::Q5_0, 0.0359),
        (Format::Q5_1, 0.0274),
        (Format::Iq4Nl, 0.0636),
        (Format::Q2K, 0.2044),
        (Format::Q3K, 0.1239),
        (Format::Q4K, 0.0576),
        (Format::Q5K, 0.0291),
        (Format::Q6K, 0.0149),
        (Format::Iq4Xs, 0.0645),
    ];
    for (format, bound) in bounds {
        let error = relative_error(&values, &round_trip_by(format, &values, &importance), |i| importance[i]);
        let plain = relative_error(&values, &round_trip(format, &values), |i| importance[i]);
        println!("{}: {error:.5}, plainly {plain:.5}", format.name());
        assert!(error < bound && error < 0.88 * plain, "{}: {error:.5}, plainly {plain:.5}", format.name());
    }
}

/// Only ratios within a part matter; if no importance is above 0, or all are equal, the result is that without
/// importances.
#[test]
fn only_ratios_of_importances_matter() {
    let mut numbers = Numbers::new(11);
    let values = normal(&mut numbers, 1024);
    let importance: Vec<f32> = numbers.units(1024).iter().map(|x| x.abs()).collect();
    for format in quantizable_formats() {
        let by = |importance: &dyn Fn(usize) -> f32| {
            let importance: Vec<f32> = (0..1024).map(importance).collect();
            round_trip_by(format, &values, &importance)
        };
        let name = format.name();
        let found = by(&|i| importance[i]);
        for size in [1e-36, 1e-6, 4096.0, 1e30] {
            // A power of two changes no bit of a ratio.
            let size = f32::powi(2.0, (size as f32).log2() as i32);
            assert_same_bits(&by(&|i| importance[i] * size), &found, name);
        }
        let even = by(&|_| 1.0);
        assert_eq!(format == Format::Q8_0, found == even, "{name}");
        for same in [0.0, -1.0, f32::NAN, 3e-39, 1e38] {
            assert_same_bits(&by(&|_| same), &even, name);
        }
        if format.elements() == 256 || format == Format::Iq4Nl {
            assert_same_bits(&even, &round_trip(format, &values), name);
        }
    }
}

#[test]
#[should_panic(expected = "values and their importances")]
fn importances_must_be_as_many_as_values() {
    quantize_by_importance(Format::Q4_0, &[0.0; 32], &[1.0; 31], &mut [0; 18]);
}
