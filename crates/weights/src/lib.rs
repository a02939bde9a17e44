//! *What is in this file?* Readers of model files in safetensors and GGUF: untrusted bytes in, typed views out.
//!
//! A file is mapped once and never copied: a [`Tensor`] is a name, an element type, a shape and a range of the mapping
//! ([`Bytes`]). Everything in a header is checked before it is used: when a parser returns, every tensor lies inside
//! its file, no two overlap, and each has exactly the bytes that its shape and type ask for. A parser never allocates
//! more than a small multiple of the bytes that it has seen.
//!
//! The crate knows no models, so a missing tensor is reported only to the caller that asks for it
//! ([`Weights::require`]), and it does not know what the bytes of a block mean. A safetensors tensor may begin at any
//! byte, so readers must not rely on alignment.
//!
//! ```
//! use foretoken_weights::{Bytes, Dtype, safetensors};
//!
//! let header = br#"{"bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
//! let mut file = (header.len() as u64).to_le_bytes().to_vec();
//! file.extend_from_slice(header);
//! file.extend_from_slice(&[0; 8]);
//!
//! let weights = safetensors::parse("tiny.safetensors", Bytes::from_vec(file))?;
//! let bias = weights.require("bias")?;
//! assert_eq!((bias.dtype, bias.shape.as_slice(), bias.bytes.len()), (Dtype::F32, &[2][..], 8));
//! # Ok::<(), foretoken_weights::WeightsError>(())
//! ```

#![deny(unsafe_code)]

mod dtype;
mod error;
pub mod gguf;
pub mod imatrix;
pub mod line;
#[allow(unsafe_code)] // the only module that maps files
mod map;
pub mod safetensors;
mod tensor;
pub mod whole;

pub use dtype::{Dtype, Layout};
pub use error::WeightsError;
pub use map::{Bytes, exit_if_a_mapped_file_is_truncated, fail_where_a_file_may_not_grow};
pub use tensor::{Tensor, Weights};
