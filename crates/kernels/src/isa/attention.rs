//! Attention's arithmetic, written once over the vector operations of an instruction set.
//!
//! Scores and weighted sums are the same operation, [`Sum`](crate::isa::shapes::Sum): products of factors and vectors,
//! added up in order for each row of factors. A tile of R rows by N vectors keeps R x N accumulators in registers, so
//! each loaded vector is used for R rows and each factor for N vectors, and there are enough independent sums to hide
//! the latency of a multiply-add. The tile that an accumulator belongs to cannot change its bits, since each is a sum
//! of its own, added up in order.
//!
//! All arithmetic is in f32: blocks of the cache are widened first, once for all rows.

/// The kernels of `Sum`, of the widening of each cache type and of the exponentials, over `Vector`, `zero`, `splat`,
/// `fma`, `load_f32`, `load_f16`, `load_bf16`, `load_i8`, `store` and `prefetch` of the module that instantiates it.
/// The three lists are the heights of tiles with one, two and four vectors, each from 1 up.
macro_rules! attention_kernels {
    (
        $(#[$feature:meta])*
        one: [$($one:literal),*], two: [$($two:literal),*], four: [$($four:literal),*]
    ) => {
        /// Computes a [`Sum`](crate::isa::shapes::Sum), all of its rows and vectors.
        ///
        /// # Safety
        /// The CPU has the features of this module, and the sum's pointers lead to what its fields say.
        $(#[$feature])*
        pub(crate) unsafe fn accumulate(sum: &$crate::isa::shapes::Sum<'_>) {
            const ONE: usize = [$($one),*].len();
            const TWO: usize = [$($two),*].len();
            const FOUR: usize = [$($four),*].len();
            let mut row = 0;
            while row < sum.rows {
                let remaining = sum.rows - row;
                let height = remaining.div_ceil(remaining.div_ceil(ONE));
                let mut vector = 0;
                while vector < sum.vectors {
                    let width = match sum.vectors - vector {
                        4.. if height <= FOUR => 4,
                        2.. if height <= TWO => 2,
                        _ => 1,
                    };
                    // SAFETY: the tile lies inside the sum's rows and vectors.
                    unsafe {
                        match (height, width) {
                            $(($four, 4) => sum_tile::<$four, 4>(sum, row, vector),)*
                            $(($two, 2) => sum_tile::<$two, 2>(sum, row, vector),)*
                            $(($one, 1) => sum_tile::<$one, 1>(sum, row, vector),)*
                            _ => unreachable!("a tile of {height} rows by {width}"),
                        }
                    }
                    vector += width;
                }
                row += height;
            }
        }

        /// A tile of `accumulate`: R rows from `row` on, N vectors from `vector` on.
        ///
        /// # Safety
        /// As `accumulate`.
        $(#[$feature])*
        #[inline(never)] // registers are allocated for this loop alone; inside a larger function they spill
        unsafe fn sum_tile<const R: usize, const N: usize>(
            sum: &$crate::isa::shapes::Sum<'_>,
            row: usize,
            vector: usize,
        ) {
            let mut sums = [[zero(); N]; R];
            // The tiles of the first row prefetch what is needed next, each an equal share as far as possible.
            let (mut blocks, mut lines, mut line, mut remaining) = (std::ptr::null::<usize>(), 0, 0, 0);
            if let (0, Some(list)) = (row, sum.prefetch) {
                let all = list.lines * list.blocks.len();
                let first = all * vector / sum.vectors;
                remaining = all * (vector + N) / sum.vectors - first;
                lines = list.lines;
                if remaining > 0 {
                    line = first % lines;
                    blocks = list.blocks[first / lines..].as_ptr();
                }
            }
            let share = remaining.div_ceil(sum.count);
            // SAFETY: as many lines are left as the blocks from `blocks` on have; row + R <= rows and vector + N <=
            // vectors, and so each address is one of the sum's.
            unsafe {
                let out = sum.sums.add(row * sum.sums_stride + vector * $crate::LANES);
                if !sum.fresh {
                    for r in 0..R {
                        for n in 0..N {
                            sums[r][n] = load_f32(out.add(r * sum.sums_stride + n * $crate::LANES));
                        }
                    }
                }
                let mut factors = sum.factors.add(row * $crate::isa::shapes::FACTORS_STRIDE);
                let mut terms = sum.terms.add(vector * sum.terms_next);
                for _ in 0..sum.count {
                    for _ in 0..share.min(remaining) {
                        prefetch(std::ptr::without_provenance(*blocks + line * $crate::isa::shapes::CACHE_LINE));
                        (line, remaining) = (line + 1, remaining - 1);
                        if line == lines {
                            (line, blocks) = (0, blocks.add(1));
                        }
                    }
                    let mut vectors = [zero(); N];
                    for n in 0..N {
                        vectors[n] = load_f32(terms.add(n * sum.terms_next));
                    }
                    for r in 0..R {
                        let factor = splat(*factors.add(r * $crate::isa::shapes::FACTORS_STRIDE));
                        for n in 0..N {
                            sums[r][n] = fma(factor, vectors[n], sums[r][n]);
                        }
                    }
                    factors = factors.add(1);
                    terms = terms.wrapping_add(sum.terms_step);
                }
                for r in 0..R {
                    for n in 0..N {
                        store(out.add(r * sum.sums_stride + n * $crate::LANES), sums[r][n]);
                    }
                }
            }
        }

        $crate::isa::widen_kernel!($(#[$feature])* widen_f32, f32, load_f32);
        $crate::isa::widen_kernel!($(#[$feature])* widen_f16, half::f16, load_f16);
        $crate::isa::widen_kernel!($(#[$feature])* widen_bf16, half::bf16, load_bf16);

        /// Widens a block of quantized keys `[dim, 16]`, times its scales `[dim / 32, 16]`.
        ///
        /// # Safety
        /// The CPU has the features of this module; this many elements can be read and written.
        $(#[$feature])*
        pub(crate) unsafe fn widen_q8_keys(
            from: *const i8,
            scales: *const half::f16,
            to: *mut f32,
            dim: usize,
        ) {
            for first in (0..dim).step_by($crate::isa::shapes::Q8_BLOCK) {
                // SAFETY: guaranteed by the caller.
                let scale = unsafe { load_f16(scales.add(first / $crate::isa::shapes::Q8_BLOCK * $crate::LANES)) };
                for at in (first..first + $crate::isa::shapes::Q8_BLOCK).map(|d| d * $crate::LANES) {
                    // SAFETY: guaranteed by the caller.
                    unsafe { store(to.add(at), fma(load_i8(from.add(at)), scale, zero())) };
                }
            }
        }

        /// Widens `count` rows of quantized values `[count, dim]`, times their scales, which begin at `lane` among
        /// those of a block, `[dim / 32, 16]`.
        ///
        /// # Safety
        /// As `widen_q8_keys`.
        $(#[$feature])*
        pub(crate) unsafe fn widen_q8_values(
            from: *const i8,
            scales: *const half::f16,
            to: *mut f32,
            dim: usize,
            lane: usize,
            count: usize,
        ) {
            for first in (0..dim).step_by($crate::isa::shapes::Q8_BLOCK) {
                let mut wide = [0f32; $crate::LANES];
                // SAFETY: guaranteed by the caller; the array has sixteen elements.
                unsafe {
                    let scales = load_f16(scales.add(first / $crate::isa::shapes::Q8_BLOCK * $crate::LANES));
                    store(wide.as_mut_ptr(), scales);
                }
                for row in 0..count {
                    let scale = splat(wide[lane + row]);
                    for half in 0..$crate::isa::shapes::Q8_BLOCK / $crate::LANES {
                        let at = row * dim + first + half * $crate::LANES;
                        // SAFETY: guaranteed by the caller.
                        unsafe { store(to.add(at), fma(load_i8(from.add(at)), scale, zero())) };
                    }
                }
            }
        }

        /// The loop of [`exponentials`](crate::softmax::exponentials).
        ///
        /// # Safety
        /// The CPU has the features of this module.
        $(#[$feature])*
        pub(crate) unsafe fn exponentials(scores: &mut [f32], scale: f32) -> (f32, f32) {
            $crate::softmax::exponentials(scores, scale)
        }

        /// The loop of [`cap_scores`](crate::softmax::cap_scores).
        ///
        /// # Safety
        /// The CPU has the features of this module.
        $(#[$feature])*
        pub(crate) unsafe fn cap_scores(scores: &mut [f32], scale: f32, cap: f32) {
            $crate::softmax::cap_scores(scores, scale, cap);
        }

        /// The loop of [`slope_scores`](crate::softmax::slope_scores).
        ///
        /// # Safety
        /// The CPU has the features of this module.
        $(#[$feature])*
        pub(crate) unsafe fn slope_scores(scores: &mut [f32], scale: f32, slope: f32, distance: usize) {
            $crate::softmax::slope_scores(scores, scale, slope, distance);
        }

        /// The loop of [`bias_scores`](crate::softmax::bias_scores).
        ///
        /// # Safety
        /// The CPU has the features of this module.
        $(#[$feature])*
        pub(crate) unsafe fn bias_scores(scores: &mut [f32], scale: f32, biases: &[f32], first: isize) {
            $crate::softmax::bias_scores(scores, scale, biases, first);
        }
    };
}
pub(crate) use attention_kernels;

/// Widens elements of one type to f32.
macro_rules! widen_kernel {
    ($(#[$feature:meta])* $widen:ident, $type:ty, $load:ident) => {
        /// Widens `count` elements, rounded up to a multiple of sixteen.
        ///
        /// # Safety
        /// The CPU has the features of this module; this many elements can be read and written.
        $(#[$feature])*
        pub(crate) unsafe fn $widen(from: *const $type, to: *mut f32, count: usize) {
            for i in (0..count).step_by($crate::LANES) {
                // SAFETY: guaranteed by the caller.
                unsafe { store(to.add(i), $load(from.add(i))) };
            }
        }
    };
}
pub(crate) use widen_kernel;
