//! The slopes of ALiBi: what is subtracted from the scores of each head per position of distance.

/// The slopes 2^(-8/n), 2^(-16/n), ... for n heads. If n is not a power of two, they are those of the next lower power
/// of two, and then every second slope of twice that number of heads (Press et al. 2022, as in BLOOM).
pub(super) fn slopes(heads: usize) -> Vec<f32> {
    let power = (heads / 2 + 1).next_power_of_two();
    let slope = |i: usize, heads: usize| (-8.0 * i as f64 / heads as f64).exp2() as f32;
    let first = (1..=power).map(|i| slope(i, power));
    first.chain((1..).step_by(2).map(|i| slope(i, 2 * power))).take(heads).collect()
}

#[cfg(test)]
mod tests {
    use super::slopes;

    #[test]
    fn slopes_of_powers_of_two_and_between() {
        assert_eq!(slopes(1), [2f32.powi(-8)]);
        assert_eq!(slopes(4), [-2, -4, -6, -8].map(|power| 2f32.powi(power)));
        assert_eq!(slopes(3), [-4, -8, -2].map(|power| 2f32.powi(power)));
        assert_eq!((slopes(40).len(), slopes(40)[32], slopes(40)[31]), (40, (-0.125f32).exp2(), 2f32.powi(-8)));
    }
}
