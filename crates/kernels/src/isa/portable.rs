//! Sixteen lanes as a plain array: the instruction set for machines without a file of their own, and the reference for
//! the others. It is right everywhere, but slow if the machine has no fused multiply-add, since Rust then calls a
//! library function.

mod products;

use crate::LANES;
use crate::dtype::f16_to_f32;

pub(crate) use products::{TILES, quantize_row, strip_bf16, strip_blocks, strip_f16, strip_f32};

pub(crate) type Vector = [f32; LANES];

#[inline(always)]
fn zero() -> Vector {
    [0.0; LANES]
}

#[inline(always)]
fn splat(x: f32) -> Vector {
    [x; LANES]
}

#[inline(always)]
fn fma(a: Vector, b: Vector, mut accumulator: Vector) -> Vector {
    for l in 0..LANES {
        accumulator[l] = a[l].mul_add(b[l], accumulator[l]);
    }
    accumulator
}

/// # Safety
/// Sixteen elements can be read at `from`.
#[inline(always)]
unsafe fn load_f32(from: *const f32) -> Vector {
    // SAFETY: guaranteed by the caller.
    unsafe { from.cast::<Vector>().read_unaligned() }
}

/// # Safety
/// As [`load_f32`].
#[inline(always)]
unsafe fn load_f16(from: *const half::f16) -> Vector {
    // SAFETY: guaranteed by the caller; an f16 is its 16 bits.
    unsafe { from.cast::<[u16; LANES]>().read_unaligned() }.map(f16_to_f32)
}

/// # Safety
/// As [`load_f32`].
#[inline(always)]
unsafe fn load_bf16(from: *const half::bf16) -> Vector {
    // SAFETY: guaranteed by the caller; a bf16 is the upper 16 bits of an f32.
    unsafe { from.cast::<[u16; LANES]>().read_unaligned() }.map(|bits| f32::from_bits(u32::from(bits) << 16))
}

/// # Safety
/// As [`load_f32`].
#[inline(always)]
unsafe fn load_i8(from: *const i8) -> Vector {
    // SAFETY: guaranteed by the caller.
    unsafe { from.cast::<[i8; LANES]>().read_unaligned() }.map(f32::from)
}

/// # Safety
/// Sixteen elements can be written at `to`.
#[inline(always)]
unsafe fn store(to: *mut f32, v: Vector) {
    // SAFETY: guaranteed by the caller.
    unsafe { to.cast::<Vector>().write_unaligned(v) }
}

#[inline(always)]
fn prefetch(_address: *const i8) {}

super::attention_kernels!(one: [1, 2, 3, 4], two: [1, 2], four: [1]);

super::row_kernels!();
