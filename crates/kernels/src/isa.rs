//! The instruction set that computes, chosen once at start.
//!
//! The algorithms of the hot kernels are written once, as macros in `panels.rs`, `floats.rs` and `attention.rs`, over a
//! few vector operations (those of `rows.rs` are plain loops); each instruction set has one or two small files that
//! supply these operations on sixteen lanes and instantiate the macros. Integers are exact everywhere, and all sets
//! perform the same IEEE operations in the same order (a fused multiply-add per lane), so their results are equal to
//! the bit, which a test checks.
//!
//! A program may choose another set than the best ([`Isa::choose`]); environment variables are read by the callers. The
//! arguments of kernels are in `shapes.rs`. There is no NEON yet.

mod attention;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod floats;
pub(crate) mod panels;
pub(crate) mod portable;
pub(crate) mod quantize_row;
mod rows;
pub(crate) mod shapes;

use std::sync::OnceLock;

use shapes::TileShapes;

/// The instruction set that computes, once it is chosen.
static CHOSEN: OnceLock<Isa> = OnceLock::new();

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
    /// The instruction set that needs no CPU feature: it runs on every machine, but slowly.
    pub const PORTABLE: Isa = Isa(Kind::Portable);

    /// Every instruction set that this machine can execute, the slowest first.
    pub fn available() -> Vec<Isa> {
        let mut all = vec![Isa::PORTABLE];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
                all.push(Isa(Kind::Avx2));
                if is_x86_feature_detected!("avxvnni") {
                    all.push(Isa(Kind::AvxVnni));
                }
                // The first AVX-512 machines lack these features, without which products gain nothing, so they use
                // AVX2.
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

    /// The set that this program computes with: the one that was [chosen](Self::choose), or else the best of
    /// [`available`](Self::available).
    pub fn chosen() -> Isa {
        *CHOSEN.get_or_init(|| *Isa::available().last().expect("the portable path is always there"))
    }

    /// Makes [`chosen`](Self::chosen) return this set, for the whole program. Call it at the start of the program.
    ///
    /// # Panics
    /// If another one was chosen or used already, since its measurements would be taken for those of this one.
    pub fn choose(self) {
        let chosen = *CHOSEN.get_or_init(|| self);
        assert!(chosen == self, "instruction set: {} is in use, and {} was chosen", chosen.name(), self.name());
    }

    /// The set of this name: portable, avx2, avxvnni or avx512.
    ///
    /// # Errors
    /// This machine has no set of this name; the message lists those that it has. Another set is never used instead,
    /// since its measurements would be taken for those of this one.
    pub fn named(name: &str) -> Result<Isa, String> {
        let available = Isa::available();
        available.iter().find(|isa| isa.name() == name).copied().ok_or_else(|| {
            let names: Vec<_> = available.iter().map(|isa| isa.name()).collect();
            format!("expected one of {} (what this machine has), found {name:?}", names.join(", "))
        })
    }

    /// The name of the set, as [`named`](Self::named) spells it.
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

    /// The tiles of the set's products.
    pub(crate) fn tiles(self) -> TileShapes {
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
            // SAFETY: an `Isa` of this kind exists only if its features were detected.
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

pub(crate) use attention::{attention_kernels, widen_kernel};
pub(crate) use rows::row_kernels;
