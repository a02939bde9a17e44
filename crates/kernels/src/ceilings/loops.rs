//! The loops that are timed: one instruction, in enough chains (in each of which it waits for its own last result) to
//! keep a core busy, and two ways to read memory.
//!
//! The optimizer cannot remove them: sums start from numbers that it cannot see, a different one for each chain, and
//! end in `black_box`. Instructions that do not depend on the sum would be moved out of the loop, so their operand
//! passes through an empty piece of assembly, which costs nothing, and which the compiler must assume to change it.

use std::hint::black_box;

use crate::Isa;

/// A loop over an instruction on registers.
#[derive(Clone, Copy)]
pub(super) struct Loop {
    body: unsafe fn(usize),
    operations: usize,
}

impl Loop {
    /// Executes the loop's body `rounds` times.
    pub(super) fn run(self, rounds: usize) {
        // SAFETY: `fma`, `int8` and `bf16` return loops of features that were detected.
        unsafe { (self.body)(rounds) }
    }

    /// Number of operations of one round; a multiply-add counts as two.
    pub(super) fn operations(self) -> usize {
        self.operations
    }
}

/// A way to read a chunk of memory.
#[derive(Clone, Copy)]
pub(super) struct Read(unsafe fn(&[f32]));

impl Read {
    /// Reads all of `chunk`, which is whole groups of [`GROUP`] elements.
    pub(super) fn run(self, chunk: &[f32]) {
        assert!(chunk.len().is_multiple_of(GROUP), "read: {} elements are not whole groups of {GROUP}", chunk.len());
        // SAFETY: `reads` returns ways of features that were detected.
        unsafe { (self.0)(chunk) }
    }
}

/// The length of a chunk to be read is a multiple of this many elements, which are 2 KiB.
const GROUP: usize = 512;

/// Fused multiply-adds in f32.
pub(super) fn fma(isa: Isa) -> Loop {
    match isa.name() {
        "portable" => Loop { body: portable::fma, operations: 2 * portable::LEN },
        #[cfg(target_arch = "x86_64")]
        "avx512" => Loop { body: avx512::fma, operations: 2 * 16 * avx512::CHAINS },
        #[cfg(target_arch = "x86_64")]
        "avx2" | "avxvnni" => Loop { body: avx2::fma, operations: 2 * 8 * avx2::CHAINS },
        other => unreachable!("no loops for {other}"),
    }
}

/// Dot products of unsigned with signed bytes, by the best instruction of this set.
pub(super) fn int8(isa: Isa) -> Loop {
    match isa.name() {
        "portable" => Loop { body: portable::int8, operations: 2 * portable::LEN },
        #[cfg(target_arch = "x86_64")]
        "avx512" if is_x86_feature_detected!("avx512vnni") => {
            Loop { body: avx512::int8, operations: 2 * 64 * avx512::CHAINS }
        }
        #[cfg(target_arch = "x86_64")]
        "avxvnni" => Loop { body: avx2::int8_vnni, operations: 2 * 32 * avx2::CHAINS },
        #[cfg(target_arch = "x86_64")]
        "avx2" | "avx512" => Loop { body: avx2::int8, operations: 2 * 32 * avx2::CHAINS },
        other => unreachable!("no loops for {other}"),
    }
}

/// Dot products in bf16, if there is an instruction for them.
pub(super) fn bf16(isa: Isa) -> Option<Loop> {
    match isa.name() {
        #[cfg(target_arch = "x86_64")]
        "avx512" if is_x86_feature_detected!("avx512bf16") => {
            Some(Loop { body: avx512::bf16, operations: 2 * 32 * avx512::CHAINS })
        }
        _ => None,
    }
}

/// The ways to read memory with this instruction set.
pub(super) fn reads(isa: Isa) -> Vec<Read> {
    match isa.name() {
        "portable" => vec![Read(portable::read)],
        #[cfg(target_arch = "x86_64")]
        "avx512" => vec![Read(avx512::read), Read(avx512::read_streams)],
        #[cfg(target_arch = "x86_64")]
        "avx2" | "avxvnni" => vec![Read(avx2::read), Read(avx2::read_streams)],
        other => unreachable!("no loops for {other}"),
    }
}

mod portable {
    use super::black_box;

    /// Number of multiply-adds of a round.
    pub(super) const LEN: usize = 64;

    /// # Safety
    /// Nothing is required; the function is only unsafe so that it has the type of the others.
    pub(super) unsafe fn fma(rounds: usize) {
        let (a, b) = black_box(([1.0f32; LEN], [1e-9f32; LEN]));
        let mut sums = black_box([1.0f32; LEN]);
        for _ in 0..rounds {
            for l in 0..LEN {
                sums[l] = a[l].mul_add(b[l], sums[l]);
            }
        }
        black_box(sums);
    }

    /// # Safety
    /// As [`fma`].
    pub(super) unsafe fn int8(rounds: usize) {
        let (mut a, b) = black_box(([200u8; LEN], [-77i8; LEN]));
        let mut sums = black_box([1i32; LEN / 4]);
        for _ in 0..rounds {
            a = black_box(a);
            for l in 0..LEN {
                sums[l / 4] = sums[l / 4].wrapping_add(i32::from(a[l]) * i32::from(b[l]));
            }
        }
        black_box(sums);
    }

    /// # Safety
    /// As [`fma`].
    pub(super) unsafe fn read(chunk: &[f32]) {
        let mut lanes = [0u32; 32];
        for words in chunk.as_chunks::<32>().0 {
            for l in 0..32 {
                lanes[l] = lanes[l].wrapping_add(words[l].to_bits());
            }
        }
        black_box(lanes);
    }
}

/// Loops that read, written once over `Wide`, `zero_vector()` and `add_load(sum, address)`: in ascending order with
/// eight sums, and in four streams that prefetch into the L2 cache what comes [`PREFETCH_DISTANCE_BYTES`] bytes later.
#[cfg(target_arch = "x86_64")]
macro_rules! read_loops {
    ($feature:literal, $lanes:literal) => {
        /// # Safety
        /// The CPU has the features of this module; the chunk is whole groups.
        #[target_feature(enable = $feature)]
        pub(super) unsafe fn read(chunk: &[f32]) {
            let mut sums = [zero_vector(); 8];
            for group in chunk.as_chunks::<{ 8 * $lanes }>().0 {
                for n in 0..8 {
                    // SAFETY: the group has eight vectors.
                    sums[n] = unsafe { add_load(sums[n], group.as_ptr().add(n * $lanes)) };
                }
            }
            super::black_box(sums);
        }

        /// # Safety
        /// As [`read`].
        #[target_feature(enable = $feature)]
        pub(super) unsafe fn read_streams(chunk: &[f32]) {
            let mut sums = [zero_vector(); 8];
            let stream_len = chunk.len() / 4;
            for at in (0..stream_len).step_by(32) {
                for stream in 0..4 {
                    // SAFETY: whole groups are four streams of a multiple of 32 elements.
                    let from = unsafe { chunk.as_ptr().add(stream * stream_len + at) };
                    for line in 0..2 {
                        _mm_prefetch::<_MM_HINT_T1>(
                            from.wrapping_add(16 * line).wrapping_byte_add(super::PREFETCH_DISTANCE_BYTES).cast(),
                        );
                    }
                    for n in 0..32 / $lanes {
                        let to = (2 * stream + n) % 8;
                        // SAFETY: as above.
                        sums[to] = unsafe { add_load(sums[to], from.add(n * $lanes)) };
                    }
                }
            }
            super::black_box(sums);
        }
    };
}

/// Bytes between what is read and what is prefetched.
#[cfg(target_arch = "x86_64")]
const PREFETCH_DISTANCE_BYTES: usize = 1024;

/// Loops over one instruction: `(accumulator, operands) = instruction`, in `CHAINS` chains.
#[cfg(target_arch = "x86_64")]
macro_rules! chains {
    ($name:ident, $feature:literal, $zero:expr, $operands:expr, $step:expr) => {
        /// # Safety
        /// The CPU has the features that the attribute names.
        #[target_feature(enable = $feature)]
        pub(super) unsafe fn $name(rounds: usize) {
            let mut sums = super::black_box([$zero; CHAINS]);
            let (a, b) = super::black_box($operands);
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = $step(*sum, a, b);
                }
            }
            super::black_box(sums);
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::asm;
    use std::arch::x86_64::*;

    /// Number of chains: more than latency times instructions per cycle, and few enough for sixteen registers.
    pub(super) const CHAINS: usize = 10;

    type Wide = __m256i;

    #[inline]
    #[target_feature(enable = "avx2")]
    fn zero_vector() -> Wide {
        _mm256_setzero_si256()
    }

    /// # Safety
    /// A vector can be read at `from`.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn add_load(sum: Wide, from: *const f32) -> Wide {
        // SAFETY: guaranteed by the caller.
        _mm256_add_epi32(sum, unsafe { _mm256_loadu_si256(from.cast()) })
    }

    read_loops!("avx2", 8);

    chains!(fma, "avx2,fma", _mm256_set1_ps(1.0), (_mm256_set1_ps(1.0), _mm256_set1_ps(1e-9)), |sum, a, b| {
        _mm256_fmadd_ps(a, b, sum)
    });

    chains!(
        int8_vnni,
        "avx2,avxvnni",
        _mm256_setzero_si256(),
        (_mm256_set1_epi8(99), _mm256_set1_epi8(-77)),
        |sum, a, b| _mm256_dpbusd_avx_epi32(sum, a, b)
    );

    chains!(int8, "avx2", _mm256_setzero_si256(), (_mm256_set1_epi8(99), _mm256_set1_epi8(-77)), |sum, a, b| {
        _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(opaque(a), b), _mm256_set1_epi16(1)))
    });

    /// Returns the vector, without the compiler knowing that it is unchanged.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn opaque(mut vector: __m256i) -> __m256i {
        // SAFETY: no instruction at all.
        unsafe { asm!("/* {0} */", inout(ymm_reg) vector, options(nomem, nostack, preserves_flags)) };
        vector
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    /// Number of chains, as in `avx2`, for thirty-two registers.
    pub(super) const CHAINS: usize = 20;

    type Wide = __m512i;

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn zero_vector() -> Wide {
        _mm512_setzero_si512()
    }

    /// # Safety
    /// A vector can be read at `from`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn add_load(sum: Wide, from: *const f32) -> Wide {
        // SAFETY: guaranteed by the caller.
        _mm512_add_epi32(sum, unsafe { _mm512_loadu_si512(from.cast()) })
    }

    read_loops!("avx512f", 16);

    chains!(fma, "avx512f", _mm512_set1_ps(1.0), (_mm512_set1_ps(1.0), _mm512_set1_ps(1e-9)), |sum, a, b| {
        _mm512_fmadd_ps(a, b, sum)
    });

    chains!(
        int8,
        "avx512f,avx512vnni",
        _mm512_setzero_si512(),
        (_mm512_set1_epi32(0x6363_6363), _mm512_set1_epi32(0x7777_7777)),
        |sum, a, b| _mm512_dpbusd_epi32(sum, a, b)
    );

    chains!(
        bf16,
        "avx512f,avx512bf16",
        _mm512_set1_ps(1.0),
        (
            _mm512_cvtne2ps_pbh(_mm512_set1_ps(1.0), _mm512_set1_ps(1.0)),
            _mm512_cvtne2ps_pbh(_mm512_set1_ps(1e-9), _mm512_set1_ps(1e-9))
        ),
        |sum, a, b| _mm512_dpbf16_ps(sum, a, b)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri minutes")]
    fn every_loop_takes_time_in_proportion_to_its_rounds() {
        // A loop that the optimizer removed would take no time; a factor of 64 leaves room for noise.
        for isa in Isa::available() {
            let all = [Some(fma(isa)), Some(int8(isa)), bf16(isa)];
            for (number, body) in all.into_iter().flatten().enumerate() {
                let shortest = |rounds: usize| {
                    let times = (0..5).map(|_| super::super::seconds(|| body.run(rounds)));
                    times.fold(f64::INFINITY, f64::min)
                };
                let (short, long) = (shortest(1 << 11), shortest(1 << 17));
                assert!(
                    long > 8.0 * short,
                    "{}, loop {number}: {short} s, 64 times as many rounds {long} s",
                    isa.name()
                );
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri minutes")]
    fn every_way_to_read_takes_time() {
        let chunk = vec![1.0; 1 << 20];
        for isa in Isa::available() {
            for (number, way) in reads(isa).into_iter().enumerate() {
                let took = (0..5).map(|_| super::super::seconds(|| way.run(&chunk))).fold(f64::INFINITY, f64::min);
                // These are 4 MiB, and no machine reads faster than 4 TB a second with one thread.
                assert!(took > 1e-6, "{}, way {number}: {took} s", isa.name());
            }
        }
    }
}
