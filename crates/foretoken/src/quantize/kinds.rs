//! The type of each tensor: llama.cpp's names of types and mixtures, and the fallbacks for rows that do not fit.
//!
//! Most matrices get the type that the user chose; `rules.rs` decides which ones get another format in a mixture.
//! Norms, biases (T5's tables of them too) and position embeddings stay f32: they are small, and not used in products.
//! Rows that are not a multiple of 256 get the format with blocks of 32 and the next larger number of bits. Formats
//! with larger codebooks are not supported.

use foretoken_kernels::block::Format;
use foretoken_model::WeightType;
use foretoken_weights::Dtype;

mod network;
mod rules;

pub use network::Network;

/// A type as `--type` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mixture {
    base: WeightType,
    size: Size,
    /// llama.cpp's number of this file type.
    file_type: u32,
}

/// How many more bits a mixture gives to important matrices: llama.cpp's `_S`, `_M` and `_L`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// The format has only one mixture.
    Only,
    Small,
    Medium,
    Large,
}

/// All types, with llama.cpp's names. A name without a size means the medium one.
const NAMES: [(&str, WeightType, Size, u32); 22] = [
    ("f32", WeightType::F32, Size::Only, 0),
    ("f16", WeightType::F16, Size::Only, 1),
    ("bf16", WeightType::BF16, Size::Only, 32),
    ("q8_0", WeightType::Blocks(Format::Q8_0), Size::Only, 7),
    ("q6_k", WeightType::Blocks(Format::Q6K), Size::Only, 18),
    ("q5_k", WeightType::Blocks(Format::Q5K), Size::Medium, 17),
    ("q5_k_m", WeightType::Blocks(Format::Q5K), Size::Medium, 17),
    ("q5_k_s", WeightType::Blocks(Format::Q5K), Size::Small, 16),
    ("q5_1", WeightType::Blocks(Format::Q5_1), Size::Only, 9),
    ("q5_0", WeightType::Blocks(Format::Q5_0), Size::Only, 8),
    ("q4_k", WeightType::Blocks(Format::Q4K), Size::Medium, 15),
    ("q4_k_m", WeightType::Blocks(Format::Q4K), Size::Medium, 15),
    ("q4_k_s", WeightType::Blocks(Format::Q4K), Size::Small, 14),
    ("q4_1", WeightType::Blocks(Format::Q4_1), Size::Only, 3),
    ("q4_0", WeightType::Blocks(Format::Q4_0), Size::Only, 2),
    ("iq4_nl", WeightType::Blocks(Format::Iq4Nl), Size::Only, 25),
    ("iq4_xs", WeightType::Blocks(Format::Iq4Xs), Size::Only, 30),
    ("q3_k", WeightType::Blocks(Format::Q3K), Size::Medium, 12),
    ("q3_k_l", WeightType::Blocks(Format::Q3K), Size::Large, 13),
    ("q3_k_m", WeightType::Blocks(Format::Q3K), Size::Medium, 12),
    ("q3_k_s", WeightType::Blocks(Format::Q3K), Size::Small, 11),
    ("q2_k", WeightType::Blocks(Format::Q2K), Size::Only, 10),
];

/// Parses the name of a type.
///
/// # Errors
/// It is unknown.
pub fn mixture(word: &str) -> Result<Mixture, String> {
    let known = NAMES.iter().find(|(name, ..)| name.eq_ignore_ascii_case(word));
    known.map(|&(_, base, size, file_type)| Mixture { base, size, file_type }).ok_or_else(|| {
        let names: Vec<&str> = NAMES.iter().map(|(name, ..)| *name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// The type of a tensor, and why it has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeChoice {
    /// The type.
    pub dtype: Dtype,
    /// The type by the rules of the mixture; `dtype` differs if the tensor's rows are no whole blocks of it.
    pub by_rules: Dtype,
}

impl TypeChoice {
    /// Whether an importance matrix improves its blocks.
    pub fn is_searched(&self) -> bool {
        matches!(self.dtype, Dtype::Quantized(_)) && self.dtype != Dtype::Q8_0
    }
}

impl Mixture {
    /// The value of `general.file_type`.
    pub fn file_type(self) -> u32 {
        self.file_type
    }

    /// The type of one tensor; its shape is outermost first.
    pub fn of_tensor(self, name: &str, shape: &[usize], network: &Network) -> TypeChoice {
        if shape.len() < 2 || !is_matrix(name) {
            return TypeChoice { dtype: Dtype::F32, by_rules: Dtype::F32 };
        }
        let base = match self.base {
            WeightType::Blocks(base) => base,
            floats => return TypeChoice { dtype: dtype(floats), by_rules: dtype(floats) },
        };
        let by_rules = rules::format(base, self.size, name, network);
        let columns = shape.last().copied().unwrap_or(1);
        TypeChoice { dtype: dtype(fitting_type(by_rules, columns)), by_rules: dtype(WeightType::Blocks(by_rules)) }
    }
}

/// The format if rows of `columns` columns are whole blocks of it, else the format with blocks of 32 that has at least
/// as many bits, else f16.
fn fitting_type(format: Format, columns: usize) -> WeightType {
    let small = match format {
        Format::Q2K | Format::Q3K | Format::Iq4Xs => Format::Iq4Nl,
        Format::Q4K => Format::Q5_0,
        Format::Q5K => Format::Q5_1,
        Format::Q6K => Format::Q8_0,
        small => small,
    };
    let fits = |format: &Format| columns.is_multiple_of(format.elements());
    [format, small].into_iter().find(fits).map_or(WeightType::F16, WeightType::Blocks)
}

/// The element type of a weight type.
fn dtype(kind: WeightType) -> Dtype {
    match kind {
        WeightType::F32 => Dtype::F32,
        WeightType::F16 => Dtype::F16,
        WeightType::BF16 => Dtype::BF16,
        WeightType::Blocks(format) => Dtype::from_ggml_name(format.name()).expect("formats have ggml's names"),
    }
}

/// Whether the rules for matrices apply to a tensor of two dimensions or more.
fn is_matrix(name: &str) -> bool {
    const EXCEPT: [&str; 8] = [
        "_norm.weight",
        "ffn_gate_inp.weight",
        // It has one row, so llama.cpp treats it as a vector.
        "ffn_gate_inp_shexp.weight",
        "position_embd.weight",
        "token_types.weight",
        // Biases by relative position, some hundred numbers.
        "attn_rel_b.weight",
        "conv1d",
        "shortconv.conv",
    ];
    name.ends_with("weight") && !EXCEPT.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests;
