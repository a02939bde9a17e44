//! The products of quantized weights, written once: a tile of one or two panels (16 outputs each) by R rows.
//!
//! The vector operations come from the module that instantiates the macro: `Line` (64 bytes: 4 elements of each of 16
//! outputs), `Ints` (16 integers), `load_line`, `mask`, `shift_right`, `shift_left`, `or`, `look_up`, `splat4` (4
//! activations, sixteen times), `dot`/`dot_wide` (exact sums of 4 products per lane; quants of up to 7 and up to 8
//! bits), `dot_pairs`, `widen_pairs`, `first_of_pairs`, `second_of_pairs`, `splat_ints`, `load_splat`, `multiply_add`,
//! `floats`.
//!
//! Integer arithmetic is exact. The float part of each (row, output) is one fixed sequence over the blocks in order of
//! k, whatever the tile, so a row's result does not depend on other rows. Small blocks: `sum = fma(dot, scale_w *
//! scale_x, sum)`, then, with a minimum, `sum = fma(minimum, scale_x * sum_x, sum)`, where INT4's minimum is its
//! negative zero point times its scale, which is exact. Large blocks: with minimums `sum = fma(minimums . sums_x,
//! -minimum_w * scale_x, sum)`, then as above.
//!
//! Estimate for a panel of 16 outputs by 32 elements by one row: 8 dots, a conversion, a multiplication, an addition. A
//! core with two dot units (Sapphire Rapids) needs 5.5 cycles for these 512 products, a core with one (Zen 4) 10;
//! reading the 544 bytes of Q8_0 takes about 130 cycles of a core's share of memory bandwidth. So products are
//! memory-bound up to about 20 (12) rows, and with 4 bits per weight up to half as many.

/// Instantiates the products of quantized weights (see the opening paragraph). `single` lists the heights of tiles with
/// one panel, from 1 up; `double` those of tiles with two panels of small blocks, which load each activation once for
/// both. `dot_offset` is what `dot_wide` itself subtracts from each quant.
macro_rules! panel_kernels {
    (
        $(#[$feature:meta])*
        single: [$($single:literal),*], double: [$($double:literal),*],
        floats: [$($float:literal),*], float_pairs: [$($float_pair:literal),*],
        dot_offset: $dot_offset:literal
    ) => {
        use std::ops::Range;

        use $crate::block::table;
        use $crate::isa::shapes::Tile;

        /// The tiles of this module.
        pub(crate) const TILES: $crate::isa::shapes::TileShapes = $crate::isa::shapes::TileShapes {
            dot_offset: $dot_offset,
            single: &[$($single),*],
            double: &[$($double),*],
            floats: &[$($float),*],
            float_pairs: &[$($float_pair),*],
        };

        /// Adds 32 elements of 16 outputs of P panels to the sums of R rows; if there are two sums of each, elements 16
        /// to 31 are added to the second. The `LOW` low bits of each quant lie in as many lines at `from`, the `HIGH`
        /// bits above them in as many lines after these. A line is unpacked once and multiplied with all rows:
        /// independent sums hide the latency of the dots.
        ///
        /// Between the lines an equal number of lines is prefetched from `prefetch_from`, in steps of `step` bytes:
        /// prefetching all at once would fill the few buffers for cache misses.
        ///
        /// # Safety
        /// The 64 (LOW + HIGH) bytes at each place of `from` can be read, and the 32 R activations at `x`.
        $(#[$feature])*
        #[inline]
        unsafe fn group<
            const R: usize, const P: usize, const LOW: usize, const HIGH: usize, const TABLE: usize, const SUMS: usize,
        >(
            from: [*const u8; P],
            x: *const i8,
            sums: &mut [[[Ints; R]; SUMS]; P],
            prefetch_from: *const u8,
            step: usize,
        ) {
            for v in 0..LOW {
                for part in 0..8 / LOW {
                    let i = part * LOW + v;
                    let mut lines = [zero_line(); P];
                    for p in 0..P {
                        // SAFETY: guaranteed by the caller.
                        let packed = unsafe { load_line(from[p].add(64 * v)) };
                        lines[p] =
                            if LOW == 8 { packed } else { mask(shift_right(packed, part * LOW), (1 << LOW) - 1) };
                        if TABLE != table::NONE {
                            lines[p] = look_up(lines[p], &table::UNSIGNED[TABLE]);
                        }
                        if HIGH > 0 {
                            // SAFETY: guaranteed by the caller.
                            let packed = unsafe { load_line(from[p].add(64 * (LOW + i % HIGH))) };
                            let at = i / HIGH * HIGH;
                            let moved =
                                if at > LOW { shift_right(packed, at - LOW) } else { shift_left(packed, LOW - at) };
                            lines[p] = or(lines[p], mask(moved, ((1 << HIGH) - 1) << LOW));
                        }
                    }
                    for r in 0..R {
                        // SAFETY: guaranteed by the caller.
                        let four = unsafe { splat4(x.add(4 * (i * R + r))) };
                        for p in 0..P {
                            let sum = &mut sums[p][i / 4 * SUMS / 2][r];
                            let line = lines[p];
                            let wide = LOW == 8 || TABLE == table::IQ4;
                            *sum = if wide { dot_wide(*sum, line, four) } else { dot(*sum, line, four) };
                        }
                    }
                    if i < LOW + HIGH + 1 {
                        prefetch_l2(prefetch_from.wrapping_add(i * step).cast());
                    }
                }
            }
            if LOW + HIGH == 8 {
                prefetch_l2(prefetch_from.wrapping_add(8 * step).cast());
            }
        }

        /// `group` for one panel and sums that begin at zero, as a function of its own: inside a longer loop the
        /// compiler loads all activations first, and has no registers for them.
        ///
        /// # Safety
        /// As `group`.
        $(#[$feature])*
        #[inline(never)]
        unsafe fn group_from_zero<
            const R: usize, const LOW: usize, const HIGH: usize, const TABLE: usize,
        >(from: *const u8, x: *const i8, prefetch_from: *const u8, step: usize) -> [Ints; R] {
            let mut sums = [[[splat_ints(0); R]]];
            // SAFETY: guaranteed by the caller.
            unsafe { group::<R, 1, LOW, HIGH, TABLE, 1>([from], x, &mut sums, prefetch_from, step) };
            sums[0][0]
        }

        /// Prefetches the next weights, for one step of a tile. A single strip prefetches line by line while it
        /// computes: the address and the step are returned. If there are several strips, each prefetches its small
        /// share at once, and its lines prefetch only the address `fallback`.
        $(#[$feature])*
        #[inline]
        fn prefetch_next(tile: &Tile<'_>, step: usize, fallback: *const u8) -> (*const u8, usize) {
            let next = tile.prefetch_from.wrapping_add(step * tile.prefetch_bytes);
            if tile.is_single_strip {
                return (next, $crate::isa::shapes::CACHE_LINE);
            }
            for line in (0..tile.prefetch_bytes).step_by($crate::isa::shapes::CACHE_LINE) {
                prefetch_l2(next.wrapping_add(line).cast());
            }
            (fallback, 0)
        }

        /// Multiplies P panels of small blocks by R rows, over a chunk of k that is whole groups. Results are added to
        /// `out`, where the 16 sums of each row follow one another and those of the panels are `sums_stride` apart. A
        /// minimum that is a zero point (`ZERO`) is in units of the scale.
        ///
        /// # Safety
        /// The CPU has the features of this module; P panels and a strip of R rows from `row` lie where `tile` says,
        /// and `out` can be read and written.
        $(#[$feature])*
        #[inline(never)] // registers are allocated for this loop alone
        unsafe fn small_tile<
            const R: usize, const P: usize, const LOW: usize, const HIGH: usize, const TABLE: usize,
            const MINIMUM: bool, const ZERO: bool,
        >(tile: &Tile<'_>, row: usize, chunk: Range<usize>, out: *mut f32, sums_stride: usize) {
            let x = tile.rows;
            let (blocks, inputs) = (x.inputs / 32, x.inputs);
            let (quants_bytes, extras_bytes) = (64 * (LOW + HIGH), if MINIMUM { 64 } else { 32 });
            let bf16 = TABLE == table::MXFP4;
            let mut sums = [[zero(); R]; P];
            // SAFETY: all of it: `block` < blocks = inputs / 32, and every array has its shape (`Rows::check`).
            unsafe {
                for p in 0..P {
                    for r in 0..R {
                        sums[p][r] = load_f32(out.add(p * sums_stride + r * $crate::LANES));
                    }
                }
                let quants = x.quants.as_ptr().add(row * inputs);
                let scales = x.scales.as_ptr().add(row * blocks);
                let initial_sums = x.initial_sums.as_ptr().add(row * blocks);
                let weighted = x.weighted_sums.as_ptr().add(row * blocks);
                for group_of_8 in (chunk.start / 32..chunk.end / 32).step_by(8) {
                    let count = (chunk.end / 32 - group_of_8).min(8);
                    let base = tile.panel.add(group_of_8 * (quants_bytes + extras_bytes));
                    for i in 0..count {
                        let block = group_of_8 + i;
                        let mut dots = [[[splat_ints(0); R]]; P];
                        let mut from = [base; P];
                        for p in 0..P {
                            for r in 0..R {
                                dots[p][0][r] = load_splat(initial_sums.add(block * R + r));
                            }
                            from[p] = base.add(p * tile.stride + i * quants_bytes);
                        }
                        let (prefetch_from, step) = prefetch_next(tile, block, from[0]);
                        group::<R, P, LOW, HIGH, TABLE, 1>(
                            from, quants.add(block * 32 * R), &mut dots, prefetch_from, step,
                        );
                        for p in 0..P {
                            let extras = base.add(p * tile.stride + count * quants_bytes + i * extras_bytes);
                            let scale = if bf16 { load_bf16(extras.cast()) } else { load_f16(extras.cast()) };
                            for r in 0..R {
                                let both = multiply(scale, splat(*scales.add(block * R + r)));
                                sums[p][r] = fma(floats(dots[p][0][r]), both, sums[p][r]);
                            }
                            if MINIMUM {
                                let minimum = load_f16(extras.add(32).cast());
                                let minimum = if ZERO { multiply(scale, minimum) } else { minimum };
                                for r in 0..R {
                                    sums[p][r] = fma(minimum, splat(*weighted.add(block * R + r)), sums[p][r]);
                                }
                            }
                        }
                    }
                }
                for p in 0..P {
                    for r in 0..R {
                        store(out.add(p * sums_stride + r * $crate::LANES), sums[p][r]);
                    }
                }
            }
        }

        /// `small_tile` for one panel of large blocks, whose parts have `PART` elements.
        ///
        /// # Safety
        /// As `small_tile`.
        $(#[$feature])*
        #[inline(never)]
        unsafe fn large_tile<
            const R: usize, const LOW: usize, const HIGH: usize, const TABLE: usize, const MINIMUM: bool,
            const PART: usize,
        >(tile: &Tile<'_>, row: usize, chunk: Range<usize>, out: *mut f32) {
            let x = tile.rows;
            let (blocks, inputs, parts) = (x.inputs / 256, x.inputs, 256 / PART);
            let (quants_bytes, factors_bytes) = (64 * (LOW + HIGH), parts * 16);
            let block_bytes = 8 * quants_bytes + (32 + factors_bytes) * if MINIMUM { 2 } else { 1 };
            // SAFETY: all of it: `block` < blocks = inputs / 256, and every array has its shape (`Rows::check`).
            unsafe {
                let quants = x.quants.as_ptr().add(row * inputs);
                let scales = x.scales.as_ptr().add(row * blocks);
                let part_sums = x.part_sums.as_ptr().add(row * (inputs / PART)).cast::<i8>();
                for block in chunk.start / 256..chunk.end / 256 {
                    let from = tile.panel.add(block * block_bytes);
                    let extras = from.add(8 * quants_bytes);
                    let factors = extras.add(if MINIMUM { 64 } else { 32 });
                    let part_sums = part_sums.add(block * parts * 2 * R);
                    let scales = scales.add(block * R);
                    let mut int_sums = minimums::<R, MINIMUM, PART>(tile, extras, part_sums, scales, out);
                    for number in 0..8 {
                        let from = from.add(number * quants_bytes);
                        let x = quants.add((block * 256 + number * 32) * R);
                        let (prefetch_from, step) = prefetch_next(tile, block * 8 + number, from);
                        if PART == 32 {
                            let dots = group_from_zero::<R, LOW, HIGH, TABLE>(from, x, prefetch_from, step);
                            let pair = widen_pairs(factors.add(number / 2 * 32));
                            let factor = if number % 2 == 0 { first_of_pairs(pair) } else { second_of_pairs(pair) };
                            for r in 0..R {
                                int_sums[r] = multiply_add(dots[r], factor, int_sums[r]);
                            }
                        } else {
                            let mut dots = [[[splat_ints(0); R]; 2]];
                            group::<R, 1, LOW, HIGH, TABLE, 2>([from], x, &mut dots, prefetch_from, step);
                            let pair = widen_pairs(factors.add(number * 32));
                            let (first, second) = (first_of_pairs(pair), second_of_pairs(pair));
                            for r in 0..R {
                                int_sums[r] = multiply_add(dots[0][0][r], first, int_sums[r]);
                                int_sums[r] = multiply_add(dots[0][1][r], second, int_sums[r]);
                            }
                        }
                    }
                    let scale = load_f16(extras.cast());
                    for r in 0..R {
                        let (both, out) = (multiply(scale, splat(*scales.add(r))), out.add(r * $crate::LANES));
                        store(out, fma(floats(int_sums[r]), both, load_f32(out)));
                    }
                }
            }
        }

        /// Adds to `out` what a large block has besides its dots, the minimums of its parts times the sums of their
        /// activations, and returns zeros; or, for formats whose quants have an offset instead, returns the initial
        /// sums of the dots.
        ///
        /// # Safety
        /// As `large_tile`, which calls it.
        $(#[$feature])*
        #[inline]
        unsafe fn minimums<const R: usize, const MINIMUM: bool, const PART: usize>(
            tile: &Tile<'_>,
            extras: *const u8,
            part_sums: *const i8,
            scales: *const f32,
            out: *mut f32,
        ) -> [Ints; R] {
            let mut int_sums = [splat_ints(0); R];
            // SAFETY: guaranteed by the caller.
            unsafe {
                let factors = extras.add(if MINIMUM { 64 + 256 / PART * 16 } else { 32 });
                for pair in 0..128 / PART {
                    let pair_of_16 = widen_pairs(factors.add(pair * 32));
                    for r in 0..R {
                        int_sums[r] = dot_pairs(int_sums[r], pair_of_16, splat4(part_sums.add(4 * (pair * R + r))));
                    }
                }
                if !MINIMUM {
                    return int_sums.map(|sum| multiply_add(sum, splat_ints(-tile.offset), splat_ints(0)));
                }
                let minimum = load_f16(extras.add(32).cast());
                for r in 0..R {
                    let (both, out) = (multiply(minimum, splat(*scales.add(r))), out.add(r * $crate::LANES));
                    store(out, fma(floats(int_sums[r]), both, load_f32(out)));
                }
            }
            [splat_ints(0); R]
        }

        /// One panel by R rows, of any format.
        ///
        /// # Safety
        /// As `small_tile`.
        $(#[$feature])*
        #[inline]
        unsafe fn one<const R: usize>(
            tile: &Tile<'_>, row: usize, chunk: Range<usize>, out: *mut f32, sums_stride: usize,
        ) {
            use $crate::block::Format;
            use $crate::block::table::{IQ4, NONE};
            // SAFETY: guaranteed by the caller.
            unsafe {
                match tile.form.block_format() {
                    Format::Q2K => large_tile::<R, 2, 0, NONE, true, 16>(tile, row, chunk, out),
                    Format::Q3K => large_tile::<R, 2, 1, NONE, false, 16>(tile, row, chunk, out),
                    Format::Q4K => large_tile::<R, 4, 0, NONE, true, 32>(tile, row, chunk, out),
                    Format::Q5K => large_tile::<R, 4, 1, NONE, true, 32>(tile, row, chunk, out),
                    Format::Q6K => large_tile::<R, 4, 2, NONE, false, 16>(tile, row, chunk, out),
                    Format::Iq4Xs => large_tile::<R, 4, 0, IQ4, false, 32>(tile, row, chunk, out),
                    _ => small::<R, 1>(tile, row, chunk, out, sums_stride),
                }
            }
        }

        /// P panels by R rows, of any format of small blocks.
        ///
        /// # Safety
        /// As `small_tile`.
        $(#[$feature])*
        #[inline]
        unsafe fn small<const R: usize, const P: usize>(
            tile: &Tile<'_>, row: usize, chunk: Range<usize>, out: *mut f32, sums_stride: usize,
        ) {
            use $crate::block::Format;
            use $crate::block::table::{IQ4, MXFP4, NONE};
            // SAFETY: guaranteed by the caller.
            unsafe {
                match tile.form.block_format() {
                    Format::Q8_0 => small_tile::<R, P, 8, 0, NONE, false, false>(tile, row, chunk, out, sums_stride),
                    Format::Q4_0 => small_tile::<R, P, 4, 0, NONE, false, false>(tile, row, chunk, out, sums_stride),
                    Format::Q4_1 => small_tile::<R, P, 4, 0, NONE, true, false>(tile, row, chunk, out, sums_stride),
                    Format::Q5_0 => small_tile::<R, P, 4, 1, NONE, false, false>(tile, row, chunk, out, sums_stride),
                    Format::Q5_1 => small_tile::<R, P, 4, 1, NONE, true, false>(tile, row, chunk, out, sums_stride),
                    Format::Iq4Nl => small_tile::<R, P, 4, 0, IQ4, false, false>(tile, row, chunk, out, sums_stride),
                    Format::Mxfp4 => small_tile::<R, P, 4, 0, MXFP4, false, false>(tile, row, chunk, out, sums_stride),
                    Format::Int4 => small_tile::<R, P, 4, 0, NONE, true, true>(tile, row, chunk, out, sums_stride),
                    other => unreachable!("{} has large blocks", other.name()),
                }
            }
        }

        /// The panel, or the pair, by the rows of one strip, of any format of blocks.
        ///
        /// # Safety
        /// As `small_tile`.
        $(#[$feature])*
        pub(crate) unsafe fn strip_blocks(
            tile: &Tile<'_>, (row, height): (usize, usize), chunk: Range<usize>, out: *mut f32, sums_stride: usize,
        ) {
            // SAFETY: guaranteed by the caller.
            unsafe {
                if tile.is_paired {
                    match height {
                        $($double => return small::<$double, 2>(tile, row, chunk, out, sums_stride),)*
                        _ => unreachable!("a pair of tiles of {height} rows"),
                    }
                }
                match height {
                    $($single => one::<$single>(tile, row, chunk, out, sums_stride),)*
                    _ => unreachable!("a tile of {height} rows"),
                }
            }
        }
    };
}
pub(crate) use panel_kernels;
