//! What this machine can do at most: bytes per second from memory, and operations per second from registers.
//!
//! A pass takes at least the time to read its bytes from memory, and the time of its operations with the dot
//! instruction that its weights use. Both rates are measured here, with the threads that compute, in about a second, so
//! that times of the same run can be compared with them. Memory is read by plain vector loads and, in turn, by four
//! streams with prefetches, since machines differ in which is faster. Operations run in registers alone, in more
//! independent chains than the instruction has cycles of latency. Every rate is the best of several runs, because noise
//! only lowers it; for memory the median is given, too, which shows how noisy the machine is.
//!
//! This is the only file of the crate that reads a clock. It measures instructions of the machine and nothing that a
//! kernel computes, so no result can depend on it. It does not measure caches, whose speed matters to small models, nor
//! writing.

mod loops;

use std::time::Instant;

use crate::allocator::fallibly;
use crate::{Compute, Isa, Pool};
use loops::{Loop, Read};

/// Elements of the buffer that is read: 512 MiB, beyond the caches of all but the largest machines.
const BUFFER_LEN: usize = 1 << 27;
/// Elements of the smallest buffer that is tried if memory is short: 64 MiB.
const BUFFER_LEN_MIN: usize = 1 << 24;
/// Elements of a task of reading: 1 MiB.
const CHUNK_LEN: usize = 1 << 18;
/// Times that the buffer is read in each way.
const READS: usize = 7;
/// Tasks per thread of one measured run of operations, so that a thread that wakes late delays little.
const TASKS: usize = 8;
/// Seconds that a run of operations takes at least.
const RUN_SECONDS: f64 = 0.008;
/// Measured runs of operations.
const RUNS: usize = 15;

/// Rates that no pass of this machine can exceed, measured with `threads` threads together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Bytes read from memory, GB (10^9 bytes) per second: the best run.
    pub bandwidth_gb_s: f64,
    /// The same, the median run.
    pub bandwidth_median_gb_s: f64,
    /// Fused multiply-adds in f32, 10^9 operations a second; a multiply-add counts as two.
    pub fma_gflop_s: f64,
    /// Dot products of unsigned with signed bytes, added up in 32 bits, 10^9 operations a second.
    pub int8_gop_s: f64,
    /// Dot products in bf16, added up in f32, 10^9 operations a second; `None` where there is no such instruction.
    pub bf16_gflop_s: Option<f64>,
    /// Threads that were measured together.
    pub threads: usize,
}

impl Ceilings {
    /// Measures them with these threads and this instruction set. Takes about a second and, meanwhile, 512 MiB.
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

/// Best and median GB a second of the better way to read.
fn bandwidth(isa: Isa, pool: &Pool) -> (f64, f64) {
    let mut buffer = buffer();
    // Pages that were never written are all the same page of zeros, which would be read from the L1 cache.
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
    // Zeroed memory cannot be requested fallibly, so as much is requested first and freed; `black_box` keeps the
    // compiler from removing that.
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
