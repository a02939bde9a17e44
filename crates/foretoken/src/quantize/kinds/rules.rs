//! Which format a matrix gets in a mixture: the choices of llama.cpp's quantizer, told by what a matrix is for.
//!
//! Values of attention and the matrices out of feed-forward parts suffer most from few bits and get more in some
//! layers; how many is a matter of what was measured on a handful of networks, so there is nothing to derive here. The
//! names of mixtures are those of [`Size`]. Left out: llama.cpp's choices for formats that are not made here.

use foretoken_kernels::block::Format;

use super::Size;
use super::network::{Network, has_values};

/// The format of a matrix by this name, whatever its rows hold.
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

/// The head decides between tokens and keeps more bits.
fn head(base: Format, network: &Network) -> Format {
    if base == Format::Q8_0 || network.is_falcon { Format::Q8_0 } else { Format::Q6K }
}

fn values(base: Format, size: Size, name: &str, network: &Network) -> Format {
    let place = network.place_of_values(name);
    let is_shared = network.sharing >= 4;
    let format = match (base, size) {
        (Format::Q2K, _) if is_shared => Format::Q4K,
        (Format::Q2K, _) => Format::Q3K,
        (Format::Q3K, Size::Medium) if place.index < 2 => Format::Q5K,
        (Format::Q3K, Size::Medium) => Format::Q4K,
        (Format::Q3K, Size::Large) => Format::Q5K,
        (Format::Iq4Nl | Format::Iq4Xs, _) if is_shared => Format::Q5K,
        (Format::Q4K | Format::Q5K, Size::Medium) if place.is_worth_more() => Format::Q6K,
        (Format::Q4K, Size::Small) if place.index < 4 => Format::Q5K,
        _ => base,
    };
    // Few rows beside those of the queries: more bits cost next to nothing.
    match format {
        _ if network.experts == 8 => Format::Q8_0,
        Format::Q3K | Format::Q4K if network.is_of_70_billion => Format::Q5K,
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
    let place = network.place_of_down(name);
    let (falcon, measured) = (network.is_falcon, network.is_measured);
    match (base, size) {
        (Format::Q2K, _) => Format::Q3K,
        (Format::Q3K, Size::Medium) if place.is_in_first(16) => Format::Q5K,
        (Format::Q3K, Size::Medium) if !falcon || place.is_worth_more() => Format::Q4K,
        (Format::Q3K, Size::Large) if falcon => Format::Q4K,
        (Format::Q3K, Size::Large) => Format::Q5K,
        (Format::Q4K, Size::Medium) if falcon && place.is_in_first(16) => Format::Q6K,
        (Format::Q4K, Size::Medium) if falcon && place.is_worth_more() => Format::Q5K,
        (Format::Q4K | Format::Q5K, Size::Medium) if place.is_worth_more() && !(falcon && base == Format::Q4K) => {
            Format::Q6K
        }
        (Format::Q4K, Size::Small) if !falcon && place.is_in_first(8) => Format::Q5K,
        (Format::Iq4Nl | Format::Iq4Xs, _) if !measured && place.is_in_first(8) => Format::Q5K,
        // Rounded by importances, these go astray in the first layers without a minimum.
        (Format::Q4_0, _) if measured && place.is_in_first(8) => Format::Q4_1,
        (Format::Q5_0, _) if measured && place.is_in_first(8) => Format::Q5_1,
        _ => base,
    }
}
