//! The types of tensors, worked out by hand from llama.cpp's rules.

use foretoken_weights::gguf::{Metadata, Value};

use super::*;

/// A network with this number of layers, with or without an output head, and with these keys.
fn network(layers: usize, has_head: bool, keys: &[(&str, Value)]) -> Network {
    let mut names: Vec<String> = (0..layers)
        .flat_map(|layer| {
            ["attn_v.weight", "ffn_down.weight", "ffn_down.bias"].map(|part| format!("blk.{layer}.{part}"))
        })
        .collect();
    if has_head {
        names.push("output.weight".to_string());
    }
    let mut metadata = Metadata::new("test", [("general.architecture".to_string(), "llama".into())]);
    keys.iter().for_each(|(key, value)| metadata.set(*key, value.clone()));
    Network::new(names.iter().map(String::as_str), &metadata, false)
}

fn head() -> Network {
    network(32, true, &[])
}

fn name(kind: &str, tensor: &str, shape: &[usize], network: &Network) -> &'static str {
    mixture(kind).unwrap().of_tensor(tensor, shape, network).dtype.name()
}

/// The type of a matrix whose rows fit every format.
fn square(kind: &str, tensor: &str, network: &Network) -> &'static str {
    name(kind, tensor, &[256, 256], network)
}

#[test]
fn matrices_are_converted_and_the_rest_is_not() {
    for kind in ["q8_0", "F16", "bf16"] {
        for tensor in ["blk.0.attn_q.weight", "token_embd.weight", "output.weight"] {
            assert_eq!(square(kind, tensor, &head()), kind.to_uppercase(), "{tensor}");
        }
        assert_eq!(name(kind, "output_norm.weight", &[256], &head()), "F32");
        assert_eq!(square(kind, "blk.0.attn_q.bias", &head()), "F32");
        assert_eq!(square(kind, "position_embd.weight", &head()), "F32");
        assert_eq!(square(kind, "blk.3.ffn_gate_inp.weight", &head()), "F32");
        assert_eq!(name(kind, "blk.3.ffn_gate_inp_shexp.weight", &[1, 256], &head()), "F32");
        assert_eq!(name(kind, "blk.3.ffn_gate_exps.weight", &[8, 256, 256], &head()), kind.to_uppercase());
    }
}

#[test]
fn the_output_head_keeps_more_bits_even_if_it_is_the_embedding() {
    let tied = network(32, false, &[]);
    for kind in ["q4_0", "q5_1", "iq4_xs", "q2_k", "Q4_K", "q4_k_m", "q5_k_s", "q6_k"] {
        assert_eq!(square(kind, "output.weight", &head()), "Q6_K");
        assert_eq!(square(kind, "token_embd.weight", &tied), "Q6_K");
    }
    for (kind, embedding) in [("q4_k", "Q4_K"), ("q4_0", "Q4_0"), ("q2_k", "Q2_K")] {
        assert_eq!(square(kind, "token_embd.weight", &head()), embedding);
    }
    assert_eq!(square("q8_0", "token_embd.weight", &tied), "Q8_0");
    assert_eq!(square("f32", "token_embd.weight", &tied), "F32");
    let falcon = network(32, true, &[("general.architecture", "falcon".into())]);
    assert_eq!(square("q4_k_m", "output.weight", &falcon), "Q8_0");
}

#[test]
fn rows_that_are_no_whole_blocks_get_the_fallback() {
    let fallback = |kind: &str, columns: usize| {
        let choice = mixture(kind).unwrap().of_tensor("blk.9.attn_q.weight", &[8, columns], &head());
        (choice.by_rules.name(), choice.dtype.name())
    };
    for (kind, by_rules, next) in [
        ("q6_k", "Q6_K", "Q8_0"),
        ("q5_k_s", "Q5_K", "Q5_1"),
        ("q4_k_s", "Q4_K", "Q5_0"),
        ("q3_k_s", "Q3_K", "IQ4_NL"),
        ("q2_k", "Q2_K", "IQ4_NL"),
        ("iq4_xs", "IQ4_XS", "IQ4_NL"),
        ("q4_0", "Q4_0", "Q4_0"),
    ] {
        assert_eq!(fallback(kind, 512), (by_rules, by_rules));
        assert_eq!(fallback(kind, 576), (by_rules, next));
        assert_eq!(fallback(kind, 40), (by_rules, "F16"));
    }
    assert_eq!(name("q4_0", "output.weight", &[8, 96], &head()), "Q8_0");
}

/// The layers whose tensor gets a type.
fn layers_of(kind: &str, tensor: &str, dtype: &str, network: &Network, count: usize) -> Vec<usize> {
    (0..count).filter(|layer| square(kind, &format!("blk.{layer}.{tensor}"), network) == dtype).collect()
}

#[test]
fn the_medium_mixture_gives_half_of_the_layers_more() {
    for (count, layers) in [
        (32, &[0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31][..]),
        (22, &[0, 1, 4, 7, 10, 13, 16, 19, 20, 21]),
        (6, &[2, 5]),
    ] {
        let network = network(count, true, &[]);
        for (kind, tensor) in [("q4_k_m", "attn_v.weight"), ("q4_k_m", "ffn_down.weight"), ("q5_k_m", "attn_v.weight")]
        {
            assert_eq!(layers_of(kind, tensor, "Q6_K", &network, count), layers, "{kind} {tensor}");
        }
    }
    assert_eq!(square("q4_k_m", "blk.0.ffn_up.weight", &head()), "Q4_K");
    assert_eq!(square("q5_k_m", "blk.5.ffn_down.weight", &head()), "Q5_K");
}

#[test]
fn mixtures_give_more_where_llama_cpp_does() {
    let head = head();
    let of = |kind: &str, part: &str| {
        let count = |dtype: &str| layers_of(kind, part, dtype, &head, 32).len();
        let all = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"].map(|dtype| (dtype, count(dtype)));
        all.into_iter().filter(|(_, count)| *count > 0).collect::<Vec<_>>()
    };
    assert_eq!(of("q4_k_s", "attn_v.weight"), [("Q4_K", 28), ("Q5_K", 4)]);
    assert_eq!(of("q4_k_s", "ffn_down.weight"), [("Q4_K", 28), ("Q5_K", 4)]);
    assert_eq!(of("q5_k_s", "ffn_down.weight"), [("Q5_K", 32)]);
    assert_eq!(of("q3_k_m", "attn_v.weight"), [("Q4_K", 30), ("Q5_K", 2)]);
    assert_eq!(of("q3_k_m", "ffn_down.weight"), [("Q4_K", 30), ("Q5_K", 2)]);
    assert_eq!(of("q3_k_m", "attn_output.weight"), [("Q4_K", 32)]);
    assert_eq!(of("q3_k_l", "attn_v.weight"), [("Q5_K", 32)]);
    assert_eq!(of("q3_k_l", "ffn_down.weight"), [("Q5_K", 32)]);
    assert_eq!(of("q3_k_s", "ffn_down.weight"), [("Q3_K", 32)]);
    assert_eq!(of("q2_k", "attn_v.weight"), [("Q3_K", 32)]);
    assert_eq!(of("q2_k", "attn_output.weight"), [("Q3_K", 32)]);
    assert_eq!(of("q2_k", "attn_q.weight"), [("Q2_K", 32)]);
    assert_eq!(of("iq4_xs", "ffn_down.weight"), [("Q5_K", 4), ("IQ4_XS", 28)]);
    assert_eq!(of("iq4_nl", "attn_v.weight"), [("IQ4_NL", 32)]);
}

#[test]
fn rules_depend_on_the_network() {
    let keys = |heads: u32, shared: u32, experts: u32| {
        [
            ("llama.attention.head_count", heads.into()),
            ("llama.attention.head_count_kv", Value::Array(foretoken_weights::gguf::Array::U32(vec![shared; 32]))),
            ("llama.expert_count", experts.into()),
        ]
    };
    let shared = network(32, true, &keys(32, 8, 0));
    assert_eq!(square("q2_k", "blk.9.attn_v.weight", &shared), "Q4_K");
    assert_eq!(square("iq4_xs", "blk.9.attn_v.weight", &shared), "Q5_K");
    let eight = network(32, true, &keys(32, 16, 8));
    assert_eq!(square("q4_k_m", "blk.9.attn_v.weight", &eight), "Q8_0");
    assert_eq!(square("q4_k_m", "blk.9.attn_k.weight", &eight), "Q8_0");
    assert_eq!(square("q4_k_m", "blk.9.attn_output.weight", &eight), "Q5_K");
    // With experts the index is the layer, not the number of tensors before.
    assert_eq!(square("q4_k_m", "blk.3.ffn_down_exps.weight", &eight), "Q6_K");
    assert_eq!(square("q4_k_m", "blk.4.ffn_down_exps.weight", &eight), "Q4_K");
    let large = network(80, true, &keys(64, 8, 0));
    assert_eq!(layers_of("q4_k_m", "attn_v.weight", "Q5_K", &large, 80).len(), 40);
    let mut measured = network(32, true, &[]);
    measured.has_importances = true;
    assert_eq!(layers_of("q4_0", "ffn_down.weight", "Q4_1", &measured, 32), [0, 1, 2, 3]);
    assert_eq!(layers_of("q5_0", "ffn_down.weight", "Q5_1", &measured, 32), [0, 1, 2, 3]);
    assert_eq!(square("iq4_xs", "blk.0.ffn_down.weight", &measured), "IQ4_XS");
    // Invalid keys are no error.
    let odd = network(4, true, &[("llama.block_count", (-1i32 as u32).into()), ("llama.expert_count", "many".into())]);
    assert_eq!(square("q4_k_m", "blk.0.ffn_down.weight", &odd), "Q6_K");
}

/// The bytes of the tensors of a network of SmolLM2-135M's shape, whose width of 576 is no multiple of 256, worked out
/// by hand for three mixtures.
#[test]
fn a_network_of_odd_width_has_the_same_size_as_in_llama_cpp() {
    let network = network(30, false, &[]);
    let layer = [
        ("attn_q", [576, 576]),
        ("attn_k", [192, 576]),
        ("attn_v", [192, 576]),
        ("attn_output", [576, 576]),
        ("ffn_gate", [1536, 576]),
        ("ffn_up", [1536, 576]),
        ("ffn_down", [576, 1536]),
    ];
    let size = |kind: &str| {
        let bytes = |name: &str, shape: &[usize]| {
            mixture(kind).unwrap().of_tensor(name, shape, &network).dtype.size_of(shape).unwrap()
        };
        let layers = (0..30).flat_map(|i| layer.map(|(part, shape)| bytes(&format!("blk.{i}.{part}.weight"), &shape)));
        layers.sum::<usize>() + bytes("token_embd.weight", &[49152, 576]) + 61 * bytes("output_norm.weight", &[576])
    };
    let (head, norms) = (49152 * 576 / 32 * 34, 61 * 576 * 4);
    let (narrow, values, down) = (2_543_616 * 30, 110_592, 884_736);
    let q4_k_m = narrow / 32 * 22 + values * 14 / 32 * 34 + values * 16 / 32 * 22;
    assert_eq!(size("q4_k_m"), head + norms + q4_k_m + down * 14 / 256 * 210 + down * 16 / 256 * 144);
    assert_eq!(size("q4_k_m"), 103_668_480);
    assert_eq!((size("q3_k_m"), size("q6_k")), (91_724_544, 136_597_248));
}

#[test]
fn names_are_those_of_llama_cpp_in_any_case() {
    for (name, number) in [("Q4_K_M", 15), ("q4_k", 15), ("q4_k_s", 14), ("BF16", 32), ("IQ4_NL", 25), ("q3_k_l", 13)] {
        assert_eq!(mixture(name).unwrap().file_type(), number, "{name}");
    }
    let expected = "expected one of f32, f16, bf16, q8_0, q6_k, q5_k, q5_k_m, q5_k_s, q5_1, q5_0, q4_k, q4_k_m, \
        q4_k_s, q4_1, q4_0, iq4_nl, iq4_xs, q3_k, q3_k_l, q3_k_m, q3_k_s, q2_k";
    assert_eq!(mixture("iq2_xs").unwrap_err(), expected);
}
