//! *How is it computed?* Row-independent arithmetic on slices, and the threads that run it.
//!
//! Every kernel computes row i of a batch by the same sequence of IEEE operations, whatever the other rows are, however
//! many threads run, and wherever its data lies. The order of each reduction is written in the source. In products the
//! sixteen lanes ([`LANES`]) are outputs, and each adds up its own elements in order ([`panel`]). Elsewhere lane l
//! takes the elements l, l + 16, l + 32, ... in order, then follows one fixed tree over the lanes (`lane_sum`).
//! Instruction sets differ only in how many lanes one register holds, so they agree to the bit as well.
//!
//! Weights are packed into panels when they are loaded. Floats are widened in registers, which is exact; quantized
//! weights stay quantized and are multiplied in integers with activations quantized to 8 bits.
//!
//! Imports between modules go one way: kernels of an instruction set depend only on the types of their arguments
//! (`isa/shapes.rs`), and the modules that prepare the arguments call the kernels. A module and its own parts
//! (`panel.rs` and `panel/run.rs`) may import each other.
//!
//! Kernels read slices and write slices. Shapes are arguments, checked by assertions: a wrong shape is a bug of the
//! caller. Except for file mapping and one call of the crate `text`, no other crate of the workspace has `unsafe` code.
//!
//! There is no tensor type, no I/O and no code for ARM's NEON.

#[cfg(target_endian = "big")]
compile_error!("panels are packed for little-endian machines");

pub mod activation;
pub mod allocator;
pub mod attention;
pub mod block;
pub mod ceilings;
pub mod dtype;
pub mod isa;
pub mod matmul;
pub mod naive;
pub mod norm;
pub mod panel;
pub mod pool;
mod quantized_rows;
pub mod rope;
pub mod rounding;
pub mod softmax;
mod sync;

pub use allocator::Allocator;
pub use ceilings::Ceilings;
pub use isa::Isa;
pub use panel::Panels;
pub use pool::Pool;

/// The number of lanes of every reduction, whatever the width of the machine's registers.
pub const LANES: usize = 16;

/// Adds up the lanes of an accumulator by the fixed tree with which every reduction across lanes ends.
#[inline(always)]
pub(crate) fn lane_sum(lanes: &[f32; LANES]) -> f32 {
    let mut eight = [0f32; 8];
    for l in 0..8 {
        eight[l] = lanes[l] + lanes[l + 8];
    }
    let four = [eight[0] + eight[4], eight[1] + eight[5], eight[2] + eight[6], eight[3] + eight[7]];
    (four[0] + four[2]) + (four[1] + four[3])
}

/// What a model computes with: an instruction set, chosen once, and a thread pool.
pub struct Compute {
    /// Which instruction set the kernels use.
    pub isa: Isa,
    /// The threads that the kernels run on.
    pub pool: Pool,
    /// The activations of the current products, quantized or packed; kept to reuse the memory.
    prepared: std::sync::Mutex<Vec<panel::PreparedRows>>,
}

impl Compute {
    /// Computes with the best instruction set of this machine on `threads` threads (at least one), the caller's
    /// included.
    pub fn new(threads: usize) -> Self {
        Self::with(Isa::chosen(), Pool::new(threads))
    }

    /// Computes with this instruction set on these threads.
    pub fn with(isa: Isa, pool: Pool) -> Self {
        Self { isa, pool, prepared: std::sync::Mutex::default() }
    }
}
