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
