//! Which instruction set computes, decided once at start.
//!
//! The algorithm of the hot kernels is written once, in [`kernels!`](self), over a handful of vector operations;
//! each instruction set is a small file that supplies these operations on sixteen lanes and instantiates it.
//! All of them perform the same IEEE operations in the same order (a fused multiply-add a lane), so their
//! results are equal to the bit, and a test says so.
//!
//! `FORETOKEN_ISA=portable|avx2|avxvnni|avx512` forces one. Left out: NEON, whose file will stand beside these.

mod attention;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
mod operations_256;
pub(crate) mod panels;
pub(crate) mod portable;

use std::sync::OnceLock;

use crate::panel::Tiles;

/// An instruction set that this machine was found to have. A value other than
/// [`Isa::PORTABLE`] proves that its instructions may be executed: only [`Isa::available`] makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// The path that needs nothing of the machine: right everywhere, fast nowhere.
    pub const PORTABLE: Isa = Isa(Kind::Portable);

    /// Every instruction set that this machine can execute, the plainest first.
    pub fn available() -> Vec<Isa> {
        let mut all = vec![Isa::PORTABLE];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
                all.push(Isa(Kind::Avx2));
                if is_x86_feature_detected!("avxvnni") {
                    all.push(Isa(Kind::AvxVnni));
                }
                // The first AVX-512 machines lack what their products would gain from: they are served by AVX2.
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vnni")
                {
                    all.push(Isa(Kind::Avx512));
                }
            }
        }
        all
    }

    /// The best of [`available`](Self::available), or the one that the variable `FORETOKEN_ISA` names.
    ///
    /// # Panics
    /// If the variable names a set that this machine does not have: running another one silently would make
    /// a measurement a lie. Doors ask [`forced`](Self::forced) first and report it as bad input.
    pub fn chosen() -> Isa {
        static CHOSEN: OnceLock<Isa> = OnceLock::new();
        *CHOSEN.get_or_init(|| match Isa::forced() {
            Ok(Some(isa)) => isa,
            Ok(None) => *Isa::available().last().expect("the portable path is always there"),
            Err(message) => panic!("{message}"),
        })
    }

    /// What `FORETOKEN_ISA` asks for, or a line that says what is wrong with it.
    ///
    /// # Errors
    /// The variable's value is not the name of a set that this machine has.
    pub fn forced() -> Result<Option<Isa>, String> {
        let Ok(name) = std::env::var("FORETOKEN_ISA") else { return Ok(None) };
        let available = Isa::available();
        match available.iter().find(|isa| isa.name() == name) {
            Some(isa) => Ok(Some(*isa)),
            None => {
                let names: Vec<_> = available.iter().map(|isa| isa.name()).collect();
                Err(format!(
                    "FORETOKEN_ISA: expected one of {} (what this machine has), found {name:?}",
                    names.join(", ")
                ))
            }
        }
    }

    /// The name as `FORETOKEN_ISA` spells it.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni => "avxvnni",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
        }
    }

    /// What its products of panels are made for.
    pub(crate) fn tiles(self) -> Tiles {
        match self.0 {
            Kind::Portable => portable::TILES,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => avx2::TILES,
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni => avx2::vnni::TILES,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => avx512::TILES,
        }
    }

    pub(crate) fn kind(self) -> Kind {
        self.0
    }
}

/// Calls a kernel of the instruction set that `$isa` proves to be there.
macro_rules! dispatch {
    ($isa:expr, $kernel:ident($($argument:expr),* $(,)?)) => {
        match $isa.kind() {
            // SAFETY: the portable kernels need no feature; their pointer contract is the caller's, as below.
            $crate::isa::Kind::Portable => unsafe { $crate::isa::portable::$kernel($($argument),*) },
            // SAFETY: an `Isa` of this kind exists only where its features were detected.
            #[cfg(target_arch = "x86_64")]
            $crate::isa::Kind::Avx2 => unsafe { $crate::isa::avx2::$kernel($($argument),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            $crate::isa::Kind::AvxVnni => unsafe { $crate::isa::avx2::vnni::$kernel($($argument),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            $crate::isa::Kind::Avx512 => unsafe { $crate::isa::avx512::$kernel($($argument),*) },
        }
    };
}
pub(crate) use dispatch;

/// Bytes that memory delivers at once.
pub(crate) const CACHE_LINE: usize = 64;

/// The hot kernels, written once over the vector operations of the module that instantiates it:
/// `Vector`, `zero()`, `fma(a, b, accumulator)`, `lane_sum(v)`, `load_f32`, `load_f16`, `load_bf16`, `store`, `splat`,
/// `prefetch`.
/// `rows` lists the heights of its tiles, 1 up to the largest, and `outputs` is their width.
macro_rules! kernels {
    ($(#[$feature:meta])* rows: $rows:tt, outputs: $outputs:literal) => {
        $crate::isa::product_kernel!($(#[$feature])* product_f32, steps_f32, tile_f32, strip_f32, f32, load_f32, $rows, $outputs);
        $crate::isa::product_kernel!($(#[$feature])* product_f16, steps_f16, tile_f16, strip_f16, half::f16, load_f16, $rows, $outputs);
        $crate::isa::product_kernel!($(#[$feature])* product_bf16, steps_bf16, tile_bf16, strip_bf16, half::bf16, load_bf16, $rows, $outputs);
    };
}
pub(crate) use attention::{attention_kernels, widen_kernel};
pub(crate) use kernels;

/// A product in one weight type: a tile of R rows by N outputs, and the loop of tiles over a block of outputs.
/// Each (row, output) has an accumulator of its own and takes its elements in order of k whatever the tile, so
/// the shape of the tiles is invisible in the result.
macro_rules! product_kernel {
    (
        $(#[$feature:meta])* $product:ident, $steps:ident, $tile:ident, $strip:ident, $type:ty, $load:ident,
        [$($rows:literal),*], $outputs:literal
    ) => {
        /// The whole steps of k of R rows times N rows of weights, into accumulators. Meanwhile `share` bytes a step
        /// are fetched from `ahead`: rows that are computed from the nearest cache would leave the memory idle.
        ///
        /// # Safety
        /// As `$tile`.
        $(#[$feature])*
        #[inline(never)] // registers are allocated for this loop alone; inside a larger function they spill
        unsafe fn $steps<const R: usize, const N: usize>(
            x: *const f32,
            w: *const $type,
            inputs: usize,
            mut ahead: *const i8,
            share: usize,
        ) -> [[Vector; N]; R] {
            let mut sums = [[zero(); N]; R];
            let whole = inputs / $crate::LANES * $crate::LANES;
            let mut k = 0;
            while k < whole {
                let mut line = 0;
                while line < share {
                    prefetch(ahead.wrapping_add(line));
                    line += $crate::isa::CACHE_LINE;
                }
                ahead = ahead.wrapping_add(share);
                let mut weights = [zero(); N];
                for n in 0..N {
                    // SAFETY: the caller passes N rows of weights of `inputs` elements, and k + 16 <= inputs.
                    weights[n] = unsafe { $load(w.add(n * inputs + k)) };
                }
                for r in 0..R {
                    // SAFETY: the caller passes R rows of activations of `inputs` elements, and k + 16 <= inputs.
                    let activation = unsafe { load_f32(x.add(r * inputs + k)) };
                    for n in 0..N {
                        sums[r][n] = fma(weights[n], activation, sums[r][n]);
                    }
                }
                k += $crate::LANES;
            }
            sums
        }

        /// Dot products of R rows with N rows of weights, all of length `inputs`.
        ///
        /// # Safety
        /// There are R rows of `inputs` elements at `x` and N at `w`; the outputs belong to this task alone.
        $(#[$feature])*
        #[inline]
        unsafe fn $tile<const R: usize, const N: usize>(
            x: *const f32,
            w: *const $type,
            inputs: usize,
            columns: &$crate::matmul::Columns,
            row: usize,
            output: usize,
            strips: usize,
        ) {
            // The weights of the next tile are fetched in equal parts by the strips of this one.
            let whole = inputs / $crate::LANES * $crate::LANES;
            let share = (N * $crate::LANES * size_of::<$type>()).div_ceil(strips);
            let strip = row * strips / columns.rows;
            let ahead = w.wrapping_add(N * inputs).cast::<i8>().wrapping_add(strip * share * (whole / $crate::LANES));
            // SAFETY: the caller's promise.
            let mut sums = unsafe { $steps::<R, N>(x, w, inputs, ahead, share) };
            if whole < inputs {
                // The last, incomplete step of k: the missing lanes hold zeros on both sides.
                let rest = inputs - whole;
                let mut weights = [zero(); N];
                for n in 0..N {
                    let mut padded = [<$type>::default(); $crate::LANES];
                    // SAFETY: `rest` elements remain in each row of weights, and `padded` has room for 16.
                    weights[n] = unsafe {
                        std::ptr::copy_nonoverlapping(w.add(n * inputs + whole), padded.as_mut_ptr(), rest);
                        $load(padded.as_ptr())
                    };
                }
                for r in 0..R {
                    let mut padded = [0f32; $crate::LANES];
                    // SAFETY: as above, for the rows of activations.
                    let activation = unsafe {
                        std::ptr::copy_nonoverlapping(x.add(r * inputs + whole), padded.as_mut_ptr(), rest);
                        load_f32(padded.as_ptr())
                    };
                    for n in 0..N {
                        sums[r][n] = fma(weights[n], activation, sums[r][n]);
                    }
                }
            }
            for r in 0..R {
                for n in 0..N {
                    // SAFETY: the block's columns belong to this task alone.
                    unsafe { columns.set(row + r, output + n, lane_sum(sums[r][n])) };
                }
            }
        }

        /// All rows of activations against N rows of weights, in tiles of nearly equal height.
        ///
        /// # Safety
        /// As `$tile`, with all rows of the output.
        $(#[$feature])*
        #[inline]
        unsafe fn $strip<const N: usize>(
            x: *const f32,
            w: *const $type,
            inputs: usize,
            columns: &$crate::matmul::Columns,
            output: usize,
        ) {
            const HIGHEST: usize = [$($rows),*].len();
            let strips = columns.rows.div_ceil(HIGHEST);
            let mut row = 0;
            while row < columns.rows {
                let left = columns.rows - row;
                let height = left.div_ceil(left.div_ceil(HIGHEST));
                // SAFETY: row + height <= rows.
                unsafe {
                    let activations = x.add(row * inputs);
                    match height {
                        $($rows => $tile::<$rows, N>(activations, w, inputs, columns, row, output, strips),)*
                        _ => unreachable!("a tile of {height} rows"),
                    }
                }
                row += height;
            }
        }

        /// All rows of `x` `[rows, inputs]` against the rows `from..to` of `w` `[outputs, inputs]`.
        ///
        /// # Safety
        /// The features of this module are there, and the columns `from..to` of the output are written by nobody
        /// else.
        $(#[$feature])*
        pub(crate) unsafe fn $product(
            x: &[f32],
            w: &[$type],
            inputs: usize,
            columns: &$crate::matmul::Columns,
            from: usize,
            to: usize,
        ) {
            assert!(x.len() == columns.rows * inputs && to * inputs <= w.len());
            let mut output = from;
            while output < to {
                // SAFETY: rows and outputs stay inside the slices by the assertion and the loop bounds.
                unsafe {
                    let weights = w.as_ptr().add(output * inputs);
                    if to - output >= $outputs {
                        $strip::<$outputs>(x.as_ptr(), weights, inputs, columns, output);
                        output += $outputs;
                    } else {
                        $strip::<1>(x.as_ptr(), weights, inputs, columns, output);
                        output += 1;
                    }
                }
            }
        }
    };
}
pub(crate) use product_kernel;
