//! The machine's ceilings: the maximum bytes per second from memory, and operations per second from registers.
//!
//! A pass takes at least the time to read its bytes from memory, and the time of its operations with the dot
//! instruction that its weights use. Both rates are measured here, with the threads that compute, in about a second, so
//! that times of the same run can be compared with them. Memory is read by plain vector loads and, in turn, by four
//! streams with prefetches, since machines differ in which is faster. Operations run in registers alone, in more sums
//! at a time than are needed to hide the latency of the instruction. Every rate is the best of several runs, because
//! noise only lowers it; for memory the median is given, too, which shows how noisy the machine is.
//!
//! This is the only file of the crate that reads a clock. It measures instructions of the machine and nothing that a
//! kernel computes, so no result can depend on it. It does not measure caches, whose speed matters to small models, nor
//! writing.

mod loops;

use std::time::Instant;

use crate::allocator::fallibly;
use crate::{Compute, Isa, Pool};
use loops::{Loop, Read};

/// Number of elements of the buffer that is read: 512 MiB, beyond the caches of all but the largest machines.
const BUFFER_LEN: usize = 1 << 27;
/// Number of elements of the smallest buffer that is tried if memory is short: 64 MiB.
const BUFFER_LEN_MIN: usize = 1 << 24;
/// Number of elements of a task that reads: 1 MiB.
const CHUNK_LEN: usize = 1 << 18;
/// How many times the buffer is read in each way.
const READS: usize = 7;
/// Tasks per thread in one measured run of operations, enough that a thread that wakes late delays the run little.
const TASKS: usize = 8;
/// Minimum number of seconds of a run of operations.
const RUN_SECONDS: f64 = 0.008;
/// Number of measured runs of operations.
const RUNS: usize = 15;

/// Rates that no pass on this machine can exceed, measured with `threads` threads together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Bytes read from memory, GB (10^9 bytes) per second: the best run.
    pub bandwidth_gb_s: f64,
    /// Bytes read from memory, GB (10^9 bytes) per second: the median run.
    pub bandwidth_median_gb_s: f64,
    /// Fused multiply-adds in f32, 10^9 operations a second; a multiply-add counts as two.
    pub fma_gflop_s: f64,
    /// Dot products of unsigned with signed bytes, added up in 32 bits, 10^9 operations a second.
    pub int8_gop_s: f64,
    /// Dot products in bf16, added up in f32, 10^9 operations a second; `None` if there is no such instruction.
    pub bf16_gflop_s: Option<f64>,
    /// The number of threads that were measured together.
    pub threads: usize,
}

impl Ceilings {
    /// Measures the rates with these threads and this instruction set. This takes about a second and, during that time,
    /// 512 MiB.
    ///
    /// # Panics
    /// If there are not even 64 MiB of memory.
    pub fn measure(compute: &Compute) -> Self {
        let (isa, pool) = (compute.isa, &compute.pool);
        let (best, median) = bandwidth(isa, pool);
        Self {
            bandwidth_gb_s: best,
            bandwidth_median_gb_s: median,
            fma_gflop_s: rate(pool, loops::fma(isa)),
            int8_gop_s: rate(pool, loops::int8(isa)),
            bf16_gflop_s: loops::bf16(isa).map(|body| rate(pool, body)),
            threads: pool.threads(),
        }
    }
}

fn seconds(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

/// The best and the median GB per second of the faster way to read.
fn bandwidth(isa: Isa, pool: &Pool) -> (f64, f64) {
    let mut buffer = buffer();
    // All pages that were never written are one physical page of zeros, which would be read from the L1 cache.
    pool.each_chunk(&mut buffer, CHUNK_LEN, &|_, chunk| chunk.fill(1.0));
    let ways = loops::reads(isa);
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
    for _ in 0..READS {
        for (way, times) in ways.iter().zip(&mut times) {
            let read = |task: usize| Read::run(*way, &buffer[task * CHUNK_LEN..][..CHUNK_LEN]);
            times.push(seconds(|| pool.run(buffer.len() / CHUNK_LEN, &read)));
        }
    }
    times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
    let best = times.iter().min_by(|a, b| a[0].total_cmp(&b[0])).expect("there is a way to read");
    let rate = |seconds: f64| size_of_val(buffer.as_slice()) as f64 / seconds / 1e9;
    (rate(best[0]), rate(best[READS / 2]))
}

/// A buffer of zeros, halved until there is memory for it.
fn buffer() -> Vec<f32> {
    let mut len = BUFFER_LEN;
    // Zeroed memory cannot be requested fallibly, so the same amount is requested first and freed; `black_box` keeps
    // the compiler from removing that.
    while len > BUFFER_LEN_MIN && fallibly(|| std::hint::black_box(Vec::<f32>::new()).try_reserve_exact(len)).is_err() {
        len /= 2;
    }
    vec![0.0; len]
}

/// The best rate of a loop in 10^9 operations a second, all threads together.
fn rate(pool: &Pool, body: Loop) -> f64 {
    let tasks = TASKS * pool.threads();
    let run = |rounds: usize| seconds(|| pool.run(tasks, &|_| body.run(rounds)));
    // The first runs also wake the threads and let the clock rate of wide instructions settle.
    let mut rounds = 1;
    while run(rounds) < RUN_SECONDS {
        rounds *= 2;
    }
    let best = (0..RUNS).map(|_| run(rounds)).fold(f64::INFINITY, f64::min);
    (tasks * rounds * body.operations()) as f64 / best / 1e9
}
