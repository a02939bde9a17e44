//! Tests the ceilings on every instruction set: each rate is measured, finite and not implausibly low.

use foretoken_kernels::{Ceilings, Compute, Isa, Pool};

/// A rate below that of any machine, even of a busy one in a debug build.
const RATE_MIN: f64 = 0.01;

#[test]
fn every_rate_is_measured_with_the_threads_that_were_given() {
    for (isa, threads) in Isa::available().into_iter().zip([2, 1].into_iter().cycle()) {
        let found = Ceilings::measure(&Compute::with(isa, Pool::new(threads)));
        let Ceilings { bandwidth_gb_s, bandwidth_median_gb_s, fma_gflop_s, int8_gop_s, bf16_gflop_s, .. } = found;
        assert_eq!(found.threads, threads, "{}", isa.name());
        let all = [bandwidth_gb_s, bandwidth_median_gb_s, fma_gflop_s, int8_gop_s, bf16_gflop_s.unwrap_or(RATE_MIN)];
        assert!(all.iter().all(|rate| rate.is_finite() && *rate >= RATE_MIN), "{}: {found:?}", isa.name());
        assert!(bandwidth_median_gb_s <= bandwidth_gb_s, "{}: {found:?}", isa.name());
        assert!(isa != Isa::PORTABLE || bf16_gflop_s.is_none(), "{found:?}");
        println!("{}: {found:?}", isa.name());
    }
}
