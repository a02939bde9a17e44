//! The time of attention, measured on request.

use foretoken_kernels::attention::{Arguments, CacheTensor, CacheType, RowSlots, Scratch, attention};
use foretoken_testkit::rows::Numbers;

use super::Case;
use crate::{COMPUTES, name};

/// The figures in the opening paragraph of `attention.rs`, of one layer:
/// `cargo test --release -p foretoken-kernels --test kernels cost_of_attention -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn cost_of_attention() {
    let compute = &COMPUTES[COMPUTES.len() - 3];
    println!("{}; nanoseconds times threads a query head and position, GB/s of the cache", name(compute));
    for (kv_heads, group) in [(12, 1), (4, 8)] {
        for kind in [CacheType::F32, CacheType::F16, CacheType::Q8_0] {
            for (prefix, rows) in
                [(1000, 1), (1000, 2), (1000, 4), (1000, 8), (1000, 16), (4000, 1), (4000, 8), (0, 512)]
            {
                // The cache has several layers, so that each call reads its own from memory and not from a processor
                // cache.
                let layers = 1 + 200_000_000 / (8 * kv_heads * 64 * (prefix + rows));
                let slots: Vec<u32> = (0..(prefix + rows) as u32).collect();
                let mut case = Case::chain(&mut Numbers::new(17), 64, prefix, rows);
                (case.kv_heads, case.heads, case.types) = (kv_heads, kv_heads * group, [kind; 2]);
                (case.soft_cap, case.slopes, case.sinks, case.window) = (None, vec![], vec![], None);
                case.biases.0.clear();
                case.keys = Numbers::new(18).units((prefix + rows) * case.width());
                case.values = case.keys.clone();
                case.queries = Numbers::new(19).units(rows * case.heads * 64);
                let caches: Vec<[CacheTensor; 2]> = (0..layers).map(|_| case.cache(&slots, slots.len())).collect();
                let row_slots: Vec<_> =
                    (0..rows).map(|row| RowSlots { prefix: &slots[..prefix + row + 1], tail: &[] }).collect();
                let (mut scratch, mut out) = (Scratch::default(), vec![0.0; case.queries.len()]);
                let mut pass = || {
                    let start = std::time::Instant::now();
                    for cache in &caches {
                        let arguments = Arguments::new(case.heads, 0.25, &cache[0], &cache[1]);
                        attention(compute, &arguments, &case.queries, &row_slots, &mut scratch, &mut out);
                    }
                    start.elapsed().as_secs_f64() / layers as f64
                };
                let mut times: Vec<f64> = (0..12).map(|_| pass()).collect();
                times.sort_by(f64::total_cmp);
                let seen: usize = row_slots.iter().map(|slots| slots.prefix.len()).sum();
                let bytes = 2 * kind.bytes(64) * kv_heads * slots.len();
                println!(
                    "{kv_heads:2} x {group} heads, {}, {rows:3} rows behind {prefix:4}: \
                     {:6.3} ms, {:5.2} ns, {:5.1} GB/s",
                    kind.name(),
                    times[0] * 1e3,
                    times[0] * 1e9 * compute.pool.threads() as f64 / (seen * case.heads) as f64,
                    bytes as f64 / times[0] / 1e9,
                );
            }
        }
    }
}
