//! The products of float weights, written once: a tile of one or two panels (16 outputs each) by R rows.
//!
//! The vector operations come from the module that instantiates the macro: `zero`, `splat`, `fma`, `load_f32`,
//! `load_f16`, `two_bf16` (a line of pairs, as two vectors), `store`, `prefetch_l2`. Weights are widened in registers,
//! which is exact; each (row, output) is one sum of fused multiply-adds in order of k, on every instruction set, so its
//! bits depend on nothing else.
//!
//! Estimate for 16 outputs by one element of k: for each row one multiply-add; for all rows together one load, and for
//! half types one or two conversions. A core with two multipliers (Sapphire Rapids) computes 8 rows in 4 cycles while
//! its share of the memory bandwidth delivers 32 bytes of bf16 in 5 to 8: products are memory-bound up to about 10
//! rows, on a core with one multiplier (Zen 4) up to 6 or 7. `vdpbf16ps` would double that on Zen 4, and halve it on
//! Sapphire Rapids, where it was measured at a quarter of the rate; it is not used, since it rounds activations.

/// Instantiates the float products (see the opening paragraph). `single` and `double` list the heights of tiles with
/// one panel and with two.
macro_rules! float_kernels {
    ($(#[$feature:meta])* single: [$($single:literal),*], double: [$($double:literal),*]) => {
        /// # Safety
        /// A line of weights can be read at `from`.
        $(#[$feature])*
        #[inline]
        unsafe fn one_f32(from: *const u8) -> [Vector; 1] {
            // SAFETY: guaranteed by the caller.
            [unsafe { load_f32(from.cast()) }]
        }

        /// # Safety
        /// As `one_f32`.
        $(#[$feature])*
        #[inline]
        unsafe fn one_f16(from: *const u8) -> [Vector; 1] {
            // SAFETY: guaranteed by the caller.
            [unsafe { load_f16(from.cast()) }]
        }

        $crate::isa::floats::float_tile!(
            $(#[$feature])*
            tile_f32, strip_f32, f32, 1, one_f32, [$($single),*], [$($double),*]
        );
        $crate::isa::floats::float_tile!(
            $(#[$feature])*
            tile_f16, strip_f16, half::f16, 1, one_f16, [$($single),*], [$($double),*]
        );
        $crate::isa::floats::float_tile!(
            $(#[$feature])*
            tile_bf16, strip_bf16, half::bf16, 2, two_bf16, [$($single),*], [$($double),*]
        );
    };
}
pub(crate) use float_kernels;

/// The tile of one type, and the choice of its height.
macro_rules! float_tile {
    (
        $(#[$feature:meta])*
        $tile:ident, $strip:ident, $type:ty, $unit:literal, $load:ident,
        [$($single:literal),*], [$($double:literal),*]
    ) => {
        /// Multiplies P panels by R rows over a chunk of k. Results are added to `out`, where the 16 sums of each row
        /// follow one another and those of the panels are `sums_stride` apart.
        ///
        /// # Safety
        /// The CPU has the features of this module; P panels and a strip of R rows from `row` lie where `tile` says,
        /// and `out` can be read and written.
        $(#[$feature])*
        #[inline(never)] // registers are allocated for this loop alone
        unsafe fn $tile<const R: usize, const P: usize>(
            tile: &Tile<'_>, row: usize, chunk: Range<usize>, out: *mut f32, sums_stride: usize,
        ) {
            const LINE: usize = $crate::LANES * $unit * size_of::<$type>();
            let mut sums = [[zero(); R]; P];
            // SAFETY: all of it: k < inputs, and the arrays have their shapes (`Rows::check`).
            unsafe {
                for p in 0..P {
                    for r in 0..R {
                        sums[p][r] = load_f32(out.add(p * sums_stride + r * $crate::LANES));
                    }
                }
                let x = tile.rows.floats.as_ptr().add(row * tile.rows.inputs);
                let whole = chunk.end / $unit;
                for unit in chunk.start / $unit..whole {
                    let skipped = if unit < tile.next_pair_step { 0 } else { (P - 1) * tile.stride };
                    let mut weights = [[zero(); $unit]; P];
                    for p in 0..P {
                        weights[p] = $load(tile.panel.add(p * tile.stride + unit * LINE));
                        prefetch_l2(
                            tile.prefetch_from
                                .wrapping_add(p * tile.stride + skipped + unit * tile.prefetch_bytes)
                                .cast(),
                        );
                    }
                    for u in 0..$unit {
                        for r in 0..R {
                            let x = splat(*x.add((unit * $unit + u) * R + r));
                            for p in 0..P {
                                sums[p][r] = fma(weights[p][u], x, sums[p][r]);
                            }
                        }
                    }
                }
                if !chunk.end.is_multiple_of($unit) {
                    // The first half of the last pair.
                    for p in 0..P {
                        let weights = $load(tile.panel.add(p * tile.stride + whole * LINE));
                        for r in 0..R {
                            sums[p][r] = fma(weights[0], splat(*x.add(whole * $unit * R + r)), sums[p][r]);
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

        /// The panel, or the pair, by the rows of one strip.
        ///
        /// # Safety
        /// As the tile's.
        $(#[$feature])*
        pub(crate) unsafe fn $strip(
            tile: &Tile<'_>, (row, height): (usize, usize), chunk: Range<usize>, out: *mut f32, sums_stride: usize,
        ) {
            // SAFETY: guaranteed by the caller.
            unsafe {
                if tile.is_paired {
                    match height {
                        $($double => return $tile::<$double, 2>(tile, row, chunk, out, sums_stride),)*
                        _ => unreachable!("a pair of tiles of {height} rows"),
                    }
                }
                match height {
                    $($single => $tile::<$single, 1>(tile, row, chunk, out, sums_stride),)*
                    _ => unreachable!("a tile of {height} rows"),
                }
            }
        }
    };
}
pub(crate) use float_tile;
