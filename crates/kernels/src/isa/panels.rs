//! The products of quantized weights, written once: a tile of one panel (16 outputs) by R rows.
//!
//! Over the vector operations of the module that instantiates it: `Line` (64 bytes: 4 elements of each of 16 outputs),
//! `Ints` (16 whole numbers), `load_line`, `mask`, `right`, `left`, `or`, `look_up`, `splat4` (4 activations, sixteen
//! times), `dot`/`dot_wide` (exact sums of 4 products a lane; quants of up to 7 and up to 8 bits), `dot_pairs`,
//! `widen_pairs`, `first_of_pairs`, `second_of_pairs`, `splat_ints`, `load_splat`, `multiply_add`, `floats`.
//!
//! Everything in integers is exact. The float part of each (row, output) is one fixed sequence over the blocks in order
//! of k, whatever the tile, so a row's result does not know its neighbours:
//! small blocks: `sum = fma(dot, scale_w * scale_x, sum)`, then, with a minimum, `sum = fma(minimum, scale_x * sum_x, sum)`;
//! large blocks: with minimums `sum = fma(minimums . sums_x, -minimum_w * scale_x, sum)`, then as above.
//!
//! Estimate, a panel of 16 outputs by 32 elements by one row: 8 dots, a conversion, a multiplication, an addition. A core
//! with two dot units (Sapphire Rapids) needs 5.5 cycles for these 512 products, one with one (Zen 4) 10; reading the 544
//! bytes of Q8_0 takes about 130 cycles of a core's share of memory. So memory decides up to some 20 (12) rows, and
//! with 4 bits a weight up to half as many.

/// See the file's head. `rows` lists the heights of tiles; `bias` is what `dot_wide` takes off each quant by itself.
macro_rules! panel_kernels {
    ($(#[$feature:meta])* rows: [$($rows:literal),*], bias: $bias:literal) => {
        use std::ops::Range;

        /// Reads 32 elements of 16 outputs: eight lines of unsigned quants, of `LOW` bits and `HIGH` more above these.
        ///
        /// # Safety
        /// The 64 (LOW + HIGH) bytes at `from` can be read.
        $(#[$feature])*
        #[inline]
        unsafe fn decode<const LOW: usize, const HIGH: usize, const TABLE: bool>(from: *const u8) -> [Line; 8] {
            let mut lines = [zero_line(); 8];
            for v in 0..LOW {
                // SAFETY: the caller's promise.
                let packed = unsafe { load_line(from.add(64 * v)) };
                for part in 0..8 / LOW {
                    let quants = if LOW == 8 { packed } else { mask(right(packed, part * LOW), (1 << LOW) - 1) };
                    lines[part * LOW + v] = if TABLE { look_up(quants) } else { quants };
                }
            }
            for v in 0..HIGH {
                // SAFETY: the caller's promise.
                let packed = unsafe { load_line(from.add(64 * (LOW + v))) };
                for part in 0..8 / HIGH {
                    let (at, to) = (part * HIGH, LOW);
                    let moved = if at > to { right(packed, at - to) } else { left(packed, to - at) };
                    let line = part * HIGH + v;
                    lines[line] = or(lines[line], mask(moved, ((1 << HIGH) - 1) << LOW));
                }
            }
            lines
        }

        /// Adds four lines against 16 activations, or eight against 32.
        ///
        /// # Safety
        /// Four activations a line can be read at `x`.
        $(#[$feature])*
        #[inline]
        unsafe fn dots(wide: bool, lines: &[Line], x: *const i8, mut sum: Ints) -> Ints {
            for (i, line) in lines.iter().enumerate() {
                // SAFETY: the caller's promise.
                let four = unsafe { splat4(x.add(4 * i)) };
                sum = if wide { dot_wide(sum, *line, four) } else { dot(sum, *line, four) };
            }
            sum
        }

        /// Asks for the part of what comes next that falls to one step of this tile.
        $(#[$feature])*
        #[inline]
        fn fetch(ahead: &mut *const u8, share: usize) {
            let mut line = 0;
            while line < share {
                prefetch_far(ahead.wrapping_add(line).cast());
                line += $crate::isa::CACHE_LINE;
            }
            *ahead = ahead.wrapping_add(share);
        }

        /// One panel of small blocks by R rows, over a chunk of k that is whole blocks; added to `out` `[R, 16]`.
        ///
        /// # Safety
        /// The features of this module are there; the panel and R rows from `row` lie where `tile` says, and `out` is
        /// there to be read and written.
        $(#[$feature])*
        #[inline(never)] // registers are allocated for this loop alone
        unsafe fn small_tile<
            const R: usize, const LOW: usize, const HIGH: usize, const TABLE: bool, const MINIMUM: bool,
        >(tile: &$crate::panel::Tile<'_>, row: usize, chunk: Range<usize>, out: *mut f32) {
            let x = tile.rows;
            let (blocks, inputs) = (x.inputs / 32, x.inputs);
            let mut sums = [zero(); R];
            let mut ahead = tile.ahead;
            // SAFETY: all of it: `block` < blocks = inputs / 32, and every array has its shape (`Tile` checked it).
            unsafe {
                for r in 0..R {
                    sums[r] = load_f32(out.add(r * $crate::LANES));
                }
                let quants = x.quants.as_ptr().add(row * inputs);
                let scales = x.scales.as_ptr().add(row * blocks);
                let starts = x.starts.as_ptr().add(row * blocks);
                let weighted = x.weighted_sums.as_ptr().wrapping_add(row * blocks);
                for block in chunk.start / 32..chunk.end / 32 {
                    fetch(&mut ahead, tile.share);
                    let lines = decode::<LOW, HIGH, TABLE>(tile.quants.add(block * 64 * (LOW + HIGH)));
                    let extras = tile.extras.add(block * if MINIMUM { 64 } else { 32 });
                    let scale = load_f16(extras.cast());
                    for r in 0..R {
                        let dot = dots(
                            LOW == 8 || TABLE,
                            &lines,
                            quants.add(r * inputs + block * 32),
                            load_splat(starts.add(r * blocks + block)),
                        );
                        let both = multiply(scale, splat(*scales.add(r * blocks + block)));
                        sums[r] = fma(floats(dot), both, sums[r]);
                    }
                    if MINIMUM {
                        let minimum = load_f16(extras.add(32).cast());
                        for r in 0..R {
                            sums[r] = fma(minimum, splat(*weighted.add(r * blocks + block)), sums[r]);
                        }
                    }
                }
                for r in 0..R {
                    store(out.add(r * $crate::LANES), sums[r]);
                }
            }
        }

        /// The same of large blocks, whose parts have `PART` elements.
        ///
        /// # Safety
        /// As `small_tile`.
        $(#[$feature])*
        #[inline(never)]
        unsafe fn large_tile<
            const R: usize, const LOW: usize, const HIGH: usize, const TABLE: bool, const MINIMUM: bool,
            const PART: usize,
        >(tile: &$crate::panel::Tile<'_>, row: usize, chunk: Range<usize>, out: *mut f32) {
            let x = tile.rows;
            let (blocks, inputs, parts) = (x.inputs / 256, x.inputs, 256 / PART);
            let pairs_bytes = parts * 16;
            let mut sums = [zero(); R];
            let mut ahead = tile.ahead;
            // SAFETY: all of it: `block` < blocks = inputs / 256, and every array has its shape (`Tile` checked it).
            unsafe {
                for r in 0..R {
                    sums[r] = load_f32(out.add(r * $crate::LANES));
                }
                let quants = x.quants.as_ptr().add(row * inputs);
                let scales = x.scales.as_ptr().add(row * blocks);
                let part_sums = x.part_sums.as_ptr().add(row * (inputs / PART)).cast::<i8>();
                for block in chunk.start / 256..chunk.end / 256 {
                    let extras = tile.extras.add(block * (if MINIMUM { 64 + 2 * pairs_bytes } else { 32 + pairs_bytes }));
                    let factors = extras.add(if MINIMUM { 64 } else { 32 });
                    // What each part's sum of activations is multiplied with: its minimum, or, where quants have an
                    // offset instead, its scale.
                    let minimums = if MINIMUM { factors.add(pairs_bytes) } else { factors };
                    let mut wholes = [splat_ints(0); R];
                    for pair in 0..parts / 2 {
                        let pair_of_16 = widen_pairs(minimums.add(pair * 32));
                        for r in 0..R {
                            let at = (r * (inputs / PART) + block * parts + 2 * pair) * 2;
                            wholes[r] = dot_pairs(wholes[r], pair_of_16, splat4(part_sums.add(at)));
                        }
                    }
                    for r in 0..R {
                        if MINIMUM {
                            let minimum = load_f16(extras.add(32).cast());
                            let both = multiply(minimum, splat(*scales.add(r * blocks + block)));
                            sums[r] = fma(floats(wholes[r]), both, sums[r]);
                            wholes[r] = splat_ints(0);
                        } else {
                            wholes[r] = multiply_add(wholes[r], splat_ints(-tile.offset), splat_ints(0));
                        }
                    }
                    for group in 0..8 {
                        fetch(&mut ahead, tile.share);
                        let lines = decode::<LOW, HIGH, TABLE>(tile.quants.add((block * 8 + group) * 64 * (LOW + HIGH)));
                        let x = quants.add(block * 256 + group * 32);
                        if PART == 32 {
                            let pair = widen_pairs(factors.add(group / 2 * 32));
                            let factor = if group % 2 == 0 { first_of_pairs(pair) } else { second_of_pairs(pair) };
                            for r in 0..R {
                                let dot = dots(LOW == 8 || TABLE, &lines, x.add(r * inputs), splat_ints(0));
                                wholes[r] = multiply_add(dot, factor, wholes[r]);
                            }
                        } else {
                            let pair = widen_pairs(factors.add(group * 32));
                            let (first, second) = (first_of_pairs(pair), second_of_pairs(pair));
                            for r in 0..R {
                                let x = x.add(r * inputs);
                                let dot = dots(LOW == 8 || TABLE, &lines[..4], x, splat_ints(0));
                                wholes[r] = multiply_add(dot, first, wholes[r]);
                                let dot = dots(LOW == 8 || TABLE, &lines[4..], x.add(16), splat_ints(0));
                                wholes[r] = multiply_add(dot, second, wholes[r]);
                            }
                        }
                    }
                    let scale = load_f16(extras.cast());
                    for r in 0..R {
                        let both = multiply(scale, splat(*scales.add(r * blocks + block)));
                        sums[r] = fma(floats(wholes[r]), both, sums[r]);
                    }
                }
                for r in 0..R {
                    store(out.add(r * $crate::LANES), sums[r]);
                }
            }
        }

        /// One panel by R rows, of whatever format.
        ///
        /// # Safety
        /// As `small_tile`.
        $(#[$feature])*
        #[inline]
        unsafe fn tile_rows<const R: usize>(
            tile: &$crate::panel::Tile<'_>, row: usize, chunk: Range<usize>, out: *mut f32,
        ) {
            use $crate::block::Format;
            // SAFETY: the caller's promise.
            unsafe {
                match tile.format {
                    Format::Q8_0 => small_tile::<R, 8, 0, false, false>(tile, row, chunk, out),
                    Format::Q4_0 => small_tile::<R, 4, 0, false, false>(tile, row, chunk, out),
                    Format::Q4_1 => small_tile::<R, 4, 0, false, true>(tile, row, chunk, out),
                    Format::Q5_0 => small_tile::<R, 4, 1, false, false>(tile, row, chunk, out),
                    Format::Q5_1 => small_tile::<R, 4, 1, false, true>(tile, row, chunk, out),
                    Format::Iq4Nl => small_tile::<R, 4, 0, true, false>(tile, row, chunk, out),
                    Format::Q2K => large_tile::<R, 2, 0, false, true, 16>(tile, row, chunk, out),
                    Format::Q3K => large_tile::<R, 2, 1, false, false, 16>(tile, row, chunk, out),
                    Format::Q4K => large_tile::<R, 4, 0, false, true, 32>(tile, row, chunk, out),
                    Format::Q5K => large_tile::<R, 4, 1, false, true, 32>(tile, row, chunk, out),
                    Format::Q6K => large_tile::<R, 4, 2, false, false, 16>(tile, row, chunk, out),
                    Format::Iq4Xs => large_tile::<R, 4, 0, true, false, 32>(tile, row, chunk, out),
                }
            }
        }

        /// All rows against the panels of a task, in tiles of nearly equal height. Where there are several, they pass in
        /// turn over chunks of k, which stay in the nearest cache meanwhile; the sums wait in memory between chunks, which
        /// changes no bit of them. What comes next is fetched in equal parts by all tiles.
        ///
        /// # Safety
        /// As `small_tile`, and the columns of the output are written by nobody else.
        $(#[$feature])*
        pub(crate) unsafe fn panels(
            tiles: &mut [$crate::panel::Tile<'_>], columns: &$crate::matmul::Columns<'_>, output: usize,
        ) {
            use $crate::panel::{AT_ONCE, CHUNK, FAR, ROWS_AT_ONCE};
            const HIGHEST: usize = [$($rows),*].len();
            let Some(inputs) = tiles.first().map(|tile| tile.rows.inputs) else { return };
            let strips = columns.rows.div_ceil(HIGHEST);
            for tile in tiles.iter_mut() {
                tile.share = tile.stride.div_ceil(inputs / 32).div_ceil(strips);
            }
            let mut strip = 0;
            let mut from = 0;
            while from < columns.rows {
                let rows = (columns.rows - from).min(ROWS_AT_ONCE);
                let mut sums = [[[0f32; $crate::LANES]; ROWS_AT_ONCE]; AT_ONCE];
                let chunk = if rows <= HIGHEST { inputs } else { CHUNK };
                let mut k = 0;
                while k < inputs {
                    let chunk = k..(k + chunk).min(inputs);
                    let mut row = 0;
                    while row < rows {
                        let left = rows - row;
                        let height = left.div_ceil(left.div_ceil(HIGHEST));
                        for (i, tile) in tiles.iter_mut().enumerate() {
                            // One strip reads the panel from memory, and asks for what it will read itself a little later;
                            // several read it from a cache, and ask for the panel after next in equal parts.
                            let distance = if strips == 1 { FAR } else { AT_ONCE * tile.stride };
                            let steps = (strip + row / HIGHEST) * (inputs / 32) + k / 32;
                            tile.ahead = tile.quants.wrapping_add(distance + steps * tile.share);
                            let out = sums[i][row..].as_mut_ptr().cast();
                            // SAFETY: row + height <= rows, and `sums` has as many; the rest is the caller's promise.
                            unsafe {
                                match height {
                                    $($rows => tile_rows::<$rows>(tile, from + row, chunk.clone(), out),)*
                                    _ => unreachable!("a tile of {height} rows"),
                                }
                            }
                        }
                        row += height;
                    }
                    k = chunk.end;
                }
                for (i, sums) in sums.iter().enumerate().take(tiles.len()) {
                    for (row, lanes) in sums.iter().enumerate().take(rows) {
                        // SAFETY: the caller's promise.
                        unsafe { columns.set_lanes(from + row, output + i * $crate::LANES, lanes) };
                    }
                }
                strip += rows.div_ceil(HIGHEST);
                from += rows;
            }
        }

        /// See `rounded.rs`.
        ///
        /// # Safety
        /// The features of this module are there.
        $(#[$feature])*
        pub(crate) unsafe fn round_row(x: &[f32], row: &mut $crate::rounded::Row<'_>) {
            $crate::rounded::round_row(x, row);
        }

        /// What `dot_wide` takes off each quant of 8 bits.
        pub(crate) const BIAS: i32 = $bias;
    };
}
pub(crate) use panel_kernels;
