#!/usr/bin/env python3
"""Makes the golden networks of families whose checkpoints bring their own code, because transformers has no class for
them: tiny random ones, with the outputs of llama.cpp.

    python3 bench/peers/remote_code.py LLAMA_CPP crates/model/tests/golden      (--gguf FOLDER: keep the files, too)

FOLDER/NAME gets config.json and model.safetensors (f32) with the fields and tensors of the published checkpoints, and
golden.safetensors as golden.py writes it, but with the logits of llama.cpp: its own converter converts the folder, and
it runs in f32 throughout (llama_cpp_logits.py). Weights and seeds are as in golden.py, except that some matrices of
Baichuan's many layers are smaller, and that the rows of its head have length 1, so that the head of Baichuan 2, which
normalizes them, has the same outputs.

llama.cpp distinguishes the two Baichuans by their layers: 32 use rotary positions, 40 use ALiBi. It does not do what
Qwen 1 does in texts longer than it was trained for; those logits (qwen-long) are computed by the few lines of numpy
here, in f64, once their logits of the network without it (qwen) equal llama.cpp's.

LLAMA_CPP is llama.cpp's source folder. Needs the packages of golden_gguf.py and llama_cpp_logits.py, in one
environment.
"""

import argparse
import json
import math
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


def qwen(draw, trained):
    width, ffn, layers, heads, dim = 32, 48, 2, 4, 8
    config = dict(
        architectures=["QWenLMHeadModel"], model_type="qwen", vocab_size=VOCABULARY, hidden_size=width,
        intermediate_size=2 * ffn, num_hidden_layers=layers, num_attention_heads=heads, kv_channels=dim,
        layer_norm_epsilon=EPSILON, max_position_embeddings=CONTEXT, seq_length=trained, rotary_emb_base=10000,
        rotary_pct=1.0, use_dynamic_ntk=True, use_logn_attn=True, no_bias=True, scale_attn_weights=True,
        use_flash_attn="auto", tie_word_embeddings=False, tokenizer_class="QWenTokenizer")
    tensors = {"transformer.wte.weight": draw.normal(VOCABULARY, width)}
    for layer in range(layers):
        tensors |= {f"transformer.h.{layer}.{name}": tensor for name, tensor in [
            ("attn.c_attn.weight", draw.matrix(3 * width, width)), ("attn.c_attn.bias", draw.bias(3 * width)),
            ("attn.c_proj.weight", draw.matrix(width, width)),
            ("ln_1.weight", draw.norm(width)), ("ln_2.weight", draw.norm(width)),
            ("mlp.w1.weight", draw.matrix(ffn, width)), ("mlp.w2.weight", draw.matrix(ffn, width)),
            ("mlp.c_proj.weight", draw.matrix(width, ffn))]}
    return config, tensors | {"transformer.ln_f.weight": draw.norm(width),
                              "lm_head.weight": draw.matrix(VOCABULARY, width)}


class QwenByHand:
    """Qwen 1 in f64, with the frequencies that its code chooses for a prompt of `context` tokens."""

    def __init__(self, config, tensors, context):
        self.config, self.tensors = config, {name: tensor.astype(numpy.float64) for name, tensor in tensors.items()}
        self.context = context

    def close(self):
        pass

    def norm(self, x, name):
        mean = (x * x).mean(1, keepdims=True)
        return x / numpy.sqrt(mean + self.config["layer_norm_epsilon"]) * self.tensors[f"transformer.{name}.weight"]

    def linear(self, x, name):
        bias = self.tensors.get(f"transformer.{name}.bias", 0)
        return x @ self.tensors[f"transformer.{name}.weight"].T + bias

    def logits(self, tokens):
        """Logits [tokens, vocabulary] of a text."""
        count, heads, dim = len(tokens), self.config["num_attention_heads"], self.config["kv_channels"]
        trained = self.config["seq_length"]
        alpha = max(1, 2 ** math.ceil(math.log2(self.context / trained) + 1) - 1)
        base = self.config["rotary_emb_base"] * alpha ** (dim / (dim - 2))
        angles = numpy.outer(numpy.arange(count), base ** (-numpy.arange(0, dim, 2) / dim))
        cos, sin = (numpy.tile(of(angles), 2)[:, None] for of in (numpy.cos, numpy.sin))
        rotate = lambda x: x * cos + numpy.concatenate([-x[..., dim // 2:], x[..., :dim // 2]], 2) * sin
        growth = numpy.maximum(1, numpy.log(numpy.arange(1, count + 1)) / math.log(trained))
        x = self.tensors["transformer.wte.weight"][tokens]
        for layer in range(self.config["num_hidden_layers"]):
            fused = self.linear(self.norm(x, f"h.{layer}.ln_1"), f"h.{layer}.attn.c_attn")
            q, k, v = (part.reshape(count, heads, dim) for part in numpy.split(fused, 3, 1))
            scores = numpy.einsum("qhd,khd->hqk", rotate(q) * growth[:, None, None], rotate(k)) / math.sqrt(dim)
            scores += numpy.triu(numpy.full((count, count), -numpy.inf), 1)
            weights = numpy.exp(scores - scores.max(2, keepdims=True))
            heads_out = numpy.einsum("hqk,khd->qhd", weights / weights.sum(2, keepdims=True), v)
            x = x + self.linear(heads_out.reshape(count, -1), f"h.{layer}.attn.c_proj")
            normed = self.norm(x, f"h.{layer}.ln_2")
            up, gate = self.linear(normed, f"h.{layer}.mlp.w1"), self.linear(normed, f"h.{layer}.mlp.w2")
            x = x + self.linear(up * gate / (1 + numpy.exp(-gate)), f"h.{layer}.mlp.c_proj")
        return (self.norm(x, "ln_f") @ self.tensors["lm_head.weight"].T).astype(numpy.float32)

    greedy = llama_cpp_logits.Network.greedy


CASES = {
    "internlm2": internlm2,
    "baichuan": lambda draw: baichuan(draw, 32, 16, 4, 24, ["max_position_embeddings", "model_max_length"]),
    # Three heads, since ALiBi's slopes differ if the number of heads is no power of two.
    "baichuan-13b": lambda draw: baichuan(draw, 40, 12, 3, 16, ["model_max_length"]),
    "chatglm": chatglm,
    "qwen": lambda draw: qwen(draw, CONTEXT),
    # Queries grow with their position from the 49th token on; the base is that of twice the trained length.
    "qwen-long": lambda draw: qwen(draw, TOKENS // 2),
}
BY_HAND = ["qwen-long"]


def measure(network, tokens):
    """The outputs of a network; how clear and how varied its greedy choices are."""
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
        tokens = draw.random.integers(1, VOCABULARY, TOKENS)
        if name in BY_HAND:
            network = QwenByHand(config, tensors, TOKENS)
        else:
            with tempfile.TemporaryDirectory() as stage:
                golden_gguf.convert(converter, golden_gguf.staged(folder, Path(stage)), gguf)
            network = llama_cpp_logits.Network(gguf, 256)
        golden, clear, varied = measure(network, tokens)
        if config["model_type"] == "qwen" and name not in BY_HAND:
            off = llama_cpp_logits.difference(QwenByHand(config, tensors, TOKENS).logits(tokens), golden["logits"])
            assert off < 1e-5, f"{name}: by hand it is off by {off:.1e} of the largest logit"
        if clear >= 1e-3 and varied >= 8:
            break
    else:
        raise SystemExit(f"{name}: no seed gives clear and varied greedy choices")
    if name in BY_HAND:
        golden["context"] = numpy.array([TOKENS], dtype=numpy.int32)
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
