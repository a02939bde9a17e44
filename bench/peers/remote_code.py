#!/usr/bin/env python3
"""Makes the golden networks of families whose checkpoints bring their own code, because transformers has no class for
them: tiny random ones, with the outputs of llama.cpp.

    python3 bench/peers/remote_code.py LLAMA_CPP crates/model/tests/golden      (--gguf FOLDER: keep the files, too)

FOLDER/NAME gets config.json and model.safetensors (f32) with the fields and tensors of the published checkpoints, and
golden.safetensors as golden.py writes it, but with the logits of llama.cpp: its own converter converts the folder, and
it runs in f32 throughout (llama_cpp_logits.py). Weights and seeds are as in golden.py, except that some matrices of
Baichuan's many layers are smaller, and that the rows of its head have length 1, so that the head of Baichuan 2, which
normalizes them, has the same outputs.

llama.cpp distinguishes the two Baichuans by their layers: 32 use rotary positions, 40 use ALiBi.

LLAMA_CPP is llama.cpp's source folder. Needs the packages of golden_gguf.py and llama_cpp_logits.py, in one
environment.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy
from safetensors.numpy import save_file

import golden_gguf
import llama_cpp_logits

VOCABULARY, TOKENS, PROMPT, FOLLOWERS, FIRST_SEED, EPSILON = 64, 96, 16, 48, 11, 0.01
CONTEXT = 512


class Draw:
    """Draws random parts of a network by their kinds."""

    def __init__(self, seed):
        self.random = numpy.random.default_rng(seed)

    def normal(self, *shape):
        return self.random.standard_normal(shape, dtype=numpy.float32)

    def matrix(self, outputs, inputs):
        return self.normal(outputs, inputs) * numpy.float32(1.6 / inputs ** 0.5)

    def norm(self, width):
        return 1 + self.normal(width) * numpy.float32(0.2)

    def bias(self, width):
        return self.normal(width) * numpy.float32(0.1)


def internlm2(draw):
    width, ffn, layers, heads, kv_heads, dim = 32, 48, 2, 4, 2, 8
    config = dict(
        architectures=["InternLM2ForCausalLM"], model_type="internlm2", vocab_size=VOCABULARY, hidden_size=width,
        intermediate_size=ffn, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
        hidden_act="silu", max_position_embeddings=CONTEXT, rms_norm_eps=EPSILON, bias=False, rope_theta=1000000,
        rope_scaling=None, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, pad_token_id=2)
    tensors = {"model.tok_embeddings.weight": draw.normal(VOCABULARY, width)}
    for layer in range(layers):
        tensors |= {f"model.layers.{layer}.{name}.weight": tensor for name, tensor in [
            ("attention.wqkv", draw.matrix((heads + 2 * kv_heads) * dim, width)),
            ("attention.wo", draw.matrix(width, heads * dim)),
            ("attention_norm", draw.norm(width)), ("ffn_norm", draw.norm(width)),
            ("feed_forward.w1", draw.matrix(ffn, width)), ("feed_forward.w3", draw.matrix(ffn, width)),
            ("feed_forward.w2", draw.matrix(width, ffn))]}
    return config, tensors | {"model.norm.weight": draw.norm(width), "output.weight": draw.matrix(VOCABULARY, width)}


def baichuan(draw, layers, width, heads, ffn, context):
    # Each of so many layers is scaled down; otherwise rounding would grow to 3e-5 of the largest logit.
    inner, outer = numpy.float32(0.6), numpy.float32(0.25)
    config = dict(
        architectures=["BaichuanForCausalLM"], model_type="baichuan", vocab_size=VOCABULARY, hidden_size=width,
        intermediate_size=ffn, num_hidden_layers=layers, num_attention_heads=heads, hidden_act="silu",
        rms_norm_eps=EPSILON, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        **{field: CONTEXT for field in context})
    tensors = {"model.embed_tokens.weight": draw.normal(VOCABULARY, width)}
    for layer in range(layers):
        tensors |= {f"model.layers.{layer}.{name}.weight": tensor for name, tensor in [
            ("self_attn.W_pack", draw.matrix(3 * width, width)),
            ("self_attn.o_proj", outer * draw.matrix(width, width)),
            ("input_layernorm", draw.norm(width)), ("post_attention_layernorm", draw.norm(width)),
            ("mlp.gate_proj", inner * draw.matrix(ffn, width)), ("mlp.up_proj", inner * draw.matrix(ffn, width)),
            ("mlp.down_proj", outer * draw.matrix(width, ffn))]}
    head = draw.normal(VOCABULARY, width)
    head /= numpy.linalg.norm(head, axis=1, keepdims=True)
    return config, tensors | {"model.norm.weight": draw.norm(width), "lm_head.weight": head}


def chatglm(draw):
    width, ffn, layers, heads, groups, dim = 32, 48, 2, 4, 2, 8
    config = dict(
        architectures=["ChatGLMModel"], model_type="chatglm", padded_vocab_size=VOCABULARY, hidden_size=width,
        ffn_hidden_size=ffn, num_layers=layers, num_attention_heads=heads, kv_channels=dim, multi_query_attention=True,
        multi_query_group_num=groups, seq_length=CONTEXT, layernorm_epsilon=EPSILON, rmsnorm=True, rope_ratio=3,
        post_layer_norm=True, apply_residual_connection_post_layernorm=False, add_qkv_bias=True, add_bias_linear=False,
        original_rope=True, tie_word_embeddings=False, eos_token_id=2, pad_token_id=0)
    tensors = {"transformer.embedding.word_embeddings.weight": draw.normal(VOCABULARY, width)}
    for layer in range(layers):
        tensors |= {f"transformer.encoder.layers.{layer}.{name}": tensor for name, tensor in [
            ("self_attention.query_key_value.weight", draw.matrix((heads + 2 * groups) * dim, width)),
            ("self_attention.query_key_value.bias", draw.bias((heads + 2 * groups) * dim)),
            ("self_attention.dense.weight", draw.matrix(width, heads * dim)),
            ("input_layernorm.weight", draw.norm(width)), ("post_attention_layernorm.weight", draw.norm(width)),
            ("mlp.dense_h_to_4h.weight", draw.matrix(2 * ffn, width)),
            ("mlp.dense_4h_to_h.weight", draw.matrix(width, ffn))]}
    return config, tensors | {"transformer.encoder.final_layernorm.weight": draw.norm(width),
                              "transformer.output_layer.weight": draw.matrix(VOCABULARY, width)}


CASES = {
    "internlm2": internlm2,
    "baichuan": lambda draw: baichuan(draw, 32, 16, 4, 24, ["max_position_embeddings", "model_max_length"]),
    # Three heads, since ALiBi's slopes differ if the number of heads is no power of two.
    "baichuan-13b": lambda draw: baichuan(draw, 40, 12, 3, 16, ["model_max_length"]),
    "chatglm": chatglm,
}


def measure(path, tokens):
    """The outputs of llama.cpp; how clear and how varied its greedy choices are."""
    network = llama_cpp_logits.Network(path, 256)
    try:
        logits = network.logits(tokens)
        greedy = network.greedy(tokens[:PROMPT], PROMPT + FOLLOWERS)
        rows = numpy.sort(network.logits(greedy)[PROMPT - 1:-1], axis=1)
    finally:
        network.close()
    clear = ((rows[:, -1] - rows[:, -2]) / numpy.abs(rows).max(1)).min()
    golden = dict(tokens=tokens.astype(numpy.int32), logits=logits, greedy=numpy.array(greedy, dtype=numpy.int32))
    return golden, clear, len(set(greedy[PROMPT:]))


def make(converter, name, folder, gguf):
    for seed in range(FIRST_SEED, FIRST_SEED + 200):
        draw = Draw(seed)
        config, tensors = CASES[name](draw)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        with tempfile.TemporaryDirectory() as stage:
            golden_gguf.convert(converter, golden_gguf.staged(folder, Path(stage)), gguf)
        golden, clear, varied = measure(gguf, draw.random.integers(1, VOCABULARY, TOKENS))
        if clear >= 1e-3 and varied >= 8:
            break
    else:
        raise SystemExit(f"{name}: no seed gives clear and varied greedy choices")
    save_file(golden, folder / "golden.safetensors")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: seed {seed}, {size / 1000:.0f} kB, logits {golden['logits'].min():.2f} to "
          f"{golden['logits'].max():.2f}, clear by {clear:.4f}, {varied} different followers", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_cpp", help="llama.cpp's source folder")
    parser.add_argument("folder", type=Path, help="the folder for the folders of the cases")
    parser.add_argument("names", nargs="*", help="only these cases of: " + ", ".join(CASES))
    parser.add_argument("--gguf", type=Path, help="the folder for the converted files")
    arguments = parser.parse_args()
    converter = golden_gguf.converter_of(arguments.llama_cpp)
    with tempfile.TemporaryDirectory() as passing:
        gguf = arguments.gguf or Path(passing)
        gguf.mkdir(parents=True, exist_ok=True)
        for name in arguments.names or CASES:
            make(converter, name, arguments.folder / name, gguf / f"{name}.gguf")


if __name__ == "__main__":
    main()
