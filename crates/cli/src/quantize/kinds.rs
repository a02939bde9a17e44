//! Which tensor gets which type: llama.cpp's rules, as far as we can make its types.
//!
//! A type asked for is the type of most matrices. Norms, biases and tables of positions stay f32: they are small, and
//! computed with element by element. The head decides between tokens and keeps more bits. `q4_k_m` gives more bits to
//! half of the layers' attn_v and ffn_down too; where llama.cpp would take Q5_K (attn_qkv) it takes Q6_K. Left out:
//! llama.cpp's exceptions for mixtures of experts and for single sizes of models.

use foretoken_kernels::block::Format;
use foretoken_model::WeightType;
use foretoken_weights::Dtype;

/// A type as `--type` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mixture {
    base: WeightType,
    /// More bits where they are worth most: llama.cpp's `_M`.
    medium: bool,
    /// llama.cpp's number of this kind of file.
    file_type: u32,
}

const Q6_K: WeightType = WeightType::Blocks(Format::Q6K);

/// The types there are, as llama.cpp names them.
const NAMES: [(&str, WeightType, u32); 8] = [
    ("f32", WeightType::F32, 0),
    ("f16", WeightType::F16, 1),
    ("bf16", WeightType::BF16, 32),
    ("q8_0", WeightType::Blocks(Format::Q8_0), 7),
    ("q4_0", WeightType::Blocks(Format::Q4_0), 2),
    ("q4_k", WeightType::Blocks(Format::Q4K), 14),
    ("q4_k_m", WeightType::Blocks(Format::Q4K), 15),
    ("q6_k", Q6_K, 18),
];

/// Reads the name of a type.
///
/// # Errors
/// It is none.
pub fn mixture(word: &str) -> Result<Mixture, String> {
    let known = NAMES.iter().find(|(name, ..)| name.eq_ignore_ascii_case(word));
    known.map(|&(name, base, file_type)| Mixture { base, medium: name.ends_with("_m"), file_type }).ok_or_else(|| {
        let names: Vec<&str> = NAMES.iter().map(|(name, ..)| *name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// What has to be known of all tensors to choose for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layers {
    /// Whether there is a head besides the embedding.
    has_head: bool,
    /// One more than the number of the last layer.
    count: usize,
}

impl Layers {
    /// Looks through the names of all tensors.
    pub fn count<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        names.fold(Self::default(), |all, name| Self {
            has_head: all.has_head || name == "output.weight",
            count: all.count.max(layer(name).map_or(0, |layer| layer + 1)),
        })
    }
}

/// The layer of a tensor, as in `blk.7.ffn_up.weight`.
fn layer(name: &str) -> Option<usize> {
    // Nobody has so many layers, and the numbers stay far from overflowing.
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok().filter(|layer| *layer < 1 << 20)
}

/// The type of a tensor, and the one that it would have if its rows were whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The type.
    pub dtype: Dtype,
    /// The type that the rules give.
    pub wanted: Dtype,
}

impl Mixture {
    /// The number of `general.file_type`.
    pub fn file_type(self) -> u32 {
        self.file_type
    }

    /// The type of one tensor; its shape is outermost first.
    pub fn of_tensor(self, name: &str, shape: &[usize], layers: &Layers) -> Choice {
        if shape.len() < 2 || !is_matrix(name) {
            return Choice { dtype: Dtype::F32, wanted: Dtype::F32 };
        }
        let quantized = matches!(self.base, WeightType::Blocks(_));
        let head = name == "output.weight" || (!layers.has_head && name == "token_embd.weight");
        let wanted = if head && quantized && self.base != WeightType::Blocks(Format::Q8_0)
            || self.medium && wants_more_bits(name, layers)
        {
            Q6_K
        } else {
            self.base
        };
        let columns = shape.last().copied().unwrap_or(1);
        Choice { dtype: dtype(wanted.fitting(columns)), wanted: dtype(wanted) }
    }
}

/// The type of files that stands for a type of weights.
fn dtype(kind: WeightType) -> Dtype {
    match kind {
        WeightType::F32 => Dtype::F32,
        WeightType::F16 => Dtype::F16,
        WeightType::BF16 => Dtype::BF16,
        WeightType::Blocks(format) => Dtype::of_ggml(format.name()).expect("formats have ggml's names"),
    }
}

/// Whether the rules for matrices hold for a tensor of two dimensions or more.
fn is_matrix(name: &str) -> bool {
    const EXCEPT: [&str; 7] = [
        "_norm.weight",
        "ffn_gate_inp.weight",
        // One row: a vector to llama.cpp.
        "ffn_gate_inp_shexp.weight",
        "position_embd.weight",
        "token_types.weight",
        "conv1d",
        "shortconv.conv",
    ];
    name.ends_with("weight") && !EXCEPT.iter().any(|part| name.contains(part))
}

/// llama.cpp's `use_more_bits`: the first and the last eighth of the layers, and every third of those between.
fn wants_more_bits(name: &str, layers: &Layers) -> bool {
    if name.contains("attn_qkv.weight") {
        return true;
    }
    let Some(layer) = layer(name).filter(|_| ["attn_v.weight", "ffn_down"].iter().any(|part| name.contains(part)))
    else {
        return false;
    };
    let eighth = layers.count / 8;
    layer < eighth || layer >= 7 * layers.count / 8 || (layer - eighth) % 3 == 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Layers = Layers { has_head: true, count: 32 };

    fn name(kind: &str, tensor: &str, shape: &[usize], layers: &Layers) -> &'static str {
        mixture(kind).unwrap().of_tensor(tensor, shape, layers).dtype.name()
    }

    #[test]
    fn matrices_are_converted_and_the_rest_is_not() {
        let square = [256, 256];
        for kind in ["q8_0", "F16", "bf16"] {
            for tensor in ["blk.0.attn_q.weight", "token_embd.weight", "output.weight"] {
                assert_eq!(name(kind, tensor, &square, &HEAD), kind.to_uppercase(), "{tensor}");
            }
            assert_eq!(name(kind, "output_norm.weight", &[256], &HEAD), "F32");
            assert_eq!(name(kind, "blk.0.attn_q.bias", &square, &HEAD), "F32");
            assert_eq!(name(kind, "position_embd.weight", &square, &HEAD), "F32");
            assert_eq!(name(kind, "blk.3.ffn_gate_inp.weight", &square, &HEAD), "F32");
            assert_eq!(name(kind, "blk.3.ffn_gate_inp_shexp.weight", &[1, 256], &HEAD), "F32");
            assert_eq!(name(kind, "blk.3.ffn_gate_exps.weight", &[8, 256, 256], &HEAD), kind.to_uppercase());
        }
    }

    #[test]
    fn the_head_keeps_more_bits_also_where_it_is_the_embedding() {
        let (square, tied) = ([256, 256], Layers { has_head: false, count: 32 });
        for kind in ["q4_0", "Q4_K", "q4_k_m", "q6_k"] {
            assert_eq!(name(kind, "output.weight", &square, &HEAD), "Q6_K");
            assert_eq!(name(kind, "token_embd.weight", &square, &tied), "Q6_K");
        }
        assert_eq!(name("q4_k", "token_embd.weight", &square, &HEAD), "Q4_K");
        assert_eq!(name("q4_0", "token_embd.weight", &square, &HEAD), "Q4_0");
        assert_eq!(name("q8_0", "token_embd.weight", &square, &tied), "Q8_0");
        assert_eq!(name("f32", "token_embd.weight", &square, &tied), "F32");
    }

    #[test]
    fn rows_that_are_no_whole_blocks_take_the_next_type() {
        let choice = mixture("q4_k").unwrap().of_tensor("blk.0.ffn_up.weight", &[8, 384], &HEAD);
        assert_eq!((choice.dtype.name(), choice.wanted.name()), ("Q8_0", "Q4_K"));
        assert_eq!(name("q6_k", "blk.0.ffn_up.weight", &[8, 40], &HEAD), "F16");
        assert_eq!(name("q4_0", "blk.0.ffn_up.weight", &[8, 40], &HEAD), "F16");
        assert_eq!(name("q4_0", "output.weight", &[8, 96], &HEAD), "Q8_0");
    }

    #[test]
    fn the_medium_mixture_gives_half_of_the_layers_more() {
        let more = |layers: usize| -> Vec<usize> {
            let all = Layers { has_head: true, count: layers };
            let name = |layer| name("q4_k_m", &format!("blk.{layer}.attn_v.weight"), &[256, 256], &all);
            (0..layers).filter(|layer| name(*layer) == "Q6_K").collect()
        };
        // The rule worked out by hand.
        assert_eq!(more(32), [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]);
        assert_eq!(more(22), [0, 1, 4, 7, 10, 13, 16, 19, 20, 21]);
        assert_eq!(more(6), [2, 5]);
        assert_eq!(name("q4_k_m", "blk.0.ffn_down.weight", &[256, 256], &HEAD), "Q6_K");
        assert_eq!(name("q4_k_m", "blk.0.ffn_up.weight", &[256, 256], &HEAD), "Q4_K");
        assert_eq!(name("q4_k", "blk.0.ffn_down.weight", &[256, 256], &HEAD), "Q4_K");
    }

    #[test]
    fn names_are_those_of_llama_cpp_in_any_case() {
        assert_eq!(mixture("Q4_K_M").unwrap().file_type(), 15);
        assert_eq!(mixture("BF16").unwrap().file_type(), 32);
        assert_eq!(mixture("q5_k").unwrap_err(), "expected one of f32, f16, bf16, q8_0, q4_0, q4_k, q4_k_m, q6_k");
    }
}
