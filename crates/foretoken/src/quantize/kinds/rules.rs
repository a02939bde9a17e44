//! The format of each matrix in a mixture: the rules of llama.cpp's quantizer, by the matrix's role.
//!
//! Value matrices of attention and `ffn_down` matrices lose most by few bits and get more in some layers. llama.cpp's
//! authors found the rules by measuring a few networks, so they cannot be derived. There are no rules for unsupported
//! formats.

use foretoken_kernels::block::Format;

use super::Size;
use super::network::{Network, has_values};

/// The format of a matrix by its name, before the fallback for rows that do not fit.
pub fn format(base: Format, size: Size, name: &str, network: &Network) -> Format {
    let is_embedding = matches!(name, "token_embd.weight" | "per_layer_token_embd.weight");
    if name == "output.weight" || is_embedding && !network.has_head {
        return head(base, network);
    }
    if is_embedding {
        return base;
    }
    if has_values(name) {
        return values(base, size, name, network);
    }
    if name.contains("attn_k.weight") && network.experts == 8 {
        return Format::Q8_0;
    }
    if name.contains("attn_output.weight") {
        return output(base, size, network);
    }
    if name.contains("ffn_down") {
        return down(base, size, name, network);
    }
    base
}

/// The output head decides between tokens and keeps more bits.
fn head(base: Format, network: &Network) -> Format {
    if base == Format::Q8_0 || network.is_falcon { Format::Q8_0 } else { Format::Q6K }
}

fn values(base: Format, size: Size, name: &str, network: &Network) -> Format {
    let tensor = network.index_of_values(name);
    let is_grouped_query = network.queries_per_kv_head >= 4;
    let format = match (base, size) {
        (Format::Q2K, _) if is_grouped_query => Format::Q4K,
        (Format::Q2K, _) => Format::Q3K,
        (Format::Q3K, Size::Medium) if tensor.index < 2 => Format::Q5K,
        (Format::Q3K, Size::Medium) => Format::Q4K,
        (Format::Q3K, Size::Large) => Format::Q5K,
        (Format::Iq4Nl | Format::Iq4Xs, _) if is_grouped_query => Format::Q5K,
        (Format::Q4K | Format::Q5K, Size::Medium) if tensor.uses_more_bits() => Format::Q6K,
        (Format::Q4K, Size::Small) if tensor.index < 4 => Format::Q5K,
        _ => base,
    };
    // In these networks values are few compared with queries, so more bits cost almost nothing.
    match format {
        _ if network.experts == 8 => Format::Q8_0,
        Format::Q3K | Format::Q4K if network.is_70b => Format::Q5K,
        format => format,
    }
}

fn output(base: Format, size: Size, network: &Network) -> Format {
    match (base, size) {
        (Format::Q3K, Size::Large) if network.is_falcon => Format::Q4K,
        _ if network.is_falcon => base,
        (Format::Q3K, Size::Large) if network.experts == 8 => base,
        (Format::Q2K | Format::Q3K | Format::Q4K | Format::Iq4Nl | Format::Iq4Xs, _) if network.experts == 8 => {
            Format::Q5K
        }
        (Format::Q2K, _) => Format::Q3K,
        (Format::Q3K, Size::Medium) => Format::Q4K,
        (Format::Q3K, Size::Large) => Format::Q5K,
        _ => base,
    }
}

fn down(base: Format, size: Size, name: &str, network: &Network) -> Format {
    let tensor = network.index_of_ffn_down(name);
    let (falcon, measured) = (network.is_falcon, network.has_importances);
    match (base, size) {
        (Format::Q2K, _) => Format::Q3K,
        (Format::Q3K, Size::Medium) if tensor.is_in_first(16) => Format::Q5K,
        (Format::Q3K, Size::Medium) if !falcon || tensor.uses_more_bits() => Format::Q4K,
        (Format::Q3K, Size::Large) if falcon => Format::Q4K,
        (Format::Q3K, Size::Large) => Format::Q5K,
        (Format::Q4K, Size::Medium) if falcon && tensor.is_in_first(16) => Format::Q6K,
        (Format::Q4K, Size::Medium) if falcon && tensor.uses_more_bits() => Format::Q5K,
        (Format::Q4K | Format::Q5K, Size::Medium) if tensor.uses_more_bits() && !(falcon && base == Format::Q4K) => {
            Format::Q6K
        }
        (Format::Q4K, Size::Small) if !falcon && tensor.is_in_first(8) => Format::Q5K,
        (Format::Iq4Nl | Format::Iq4Xs, _) if !measured && tensor.is_in_first(8) => Format::Q5K,
        // In the first layers the formats without a minimum lose too much if blocks are quantized by importances.
        (Format::Q4_0, _) if measured && tensor.is_in_first(8) => Format::Q4_1,
        (Format::Q5_0, _) if measured && tensor.is_in_first(8) => Format::Q5_1,
        _ => base,
    }
}
