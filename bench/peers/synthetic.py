#!/usr/bin/env python3
"""Writes a GGUF file of a known shape with random weights, for timing only.

    python3 bench/peers/synthetic.py OUT.gguf --shape 1b --type Q8_0
    python3 bench/peers/synthetic.py FOLDER --shape mistral-window --type BF16

Blocks are drawn in the format of the file, with random quants and with scales that give every matrix the standard
deviation 1 / sqrt(inputs), so that activations stay in range. Nothing is quantized, so types need no support by the
package gguf, and a model of 1.1 B weights takes seconds. The vocabulary is generated as well: three control tokens, the
256 bytes, and pieces of one to three letters.

Types: F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q6_K, and Q4_K_M, which is Q4_K with Q6_K where llama.cpp's mixture has it: the
head, and attn_v and ffn_down of about half of the layers; MXFP4 is that of experts, with Q8_0 for the other matrices.
Vectors and routers are F32. Shapes are Llama's, and Qwen 2.5's of 0.5 B: a vocabulary of 151,936, a head that is the
embedding, biases of q, k and v. Mistral's shape, four layers of width 1024, exists with its window of 4096 and without;
GGUF has no key for the window, so it is written as Hugging Face folders, with matrices of floats. Networks of experts
(64 of which a row reads 8, and 8 of which it reads 2) have 1.1 B weights in all; those called dense have about as many
weights as a row of these reads. Other architectures are not supported. Needs gguf and numpy, in the versions of
README.md.
"""

import argparse
import itertools
import json
import os

import gguf
import numpy as np

# architecture, vocabulary, width, layers, heads, heads of keys and values, width inside the feed-forward half, or of an
# expert
SHAPES = {
    "1b": ("llama", 32000, 2048, 22, 32, 4, 5632),
    "110m": ("llama", 32000, 768, 12, 12, 12, 2048),
    "tiny": ("llama", 32000, 256, 2, 4, 2, 768),
    "qwen-0.5b": ("qwen2", 151936, 896, 24, 14, 2, 4864),
    "64x8": ("llama", 32000, 1024, 10, 16, 4, 512),
    "64x8-dense": ("llama", 32000, 1024, 10, 16, 4, 8 * 512),
    "8x2": ("llama", 32000, 1024, 11, 16, 4, 3840),
    "8x2-dense": ("llama", 32000, 1024, 11, 16, 4, 2 * 3840),
    "mistral": ("mistral", 4096, 1024, 4, 16, 4, 2816),
    "mistral-window": ("mistral", 4096, 1024, 4, 16, 4, 2816),
}
# Experts of a layer, and how many of them a row reads, in the shapes that have experts.
EXPERTS = {"64x8": (64, 8), "8x2": (8, 2)}
# The latest positions that a row attends to, in the shapes that have a window.
WINDOWS = {"mistral-window": 4096}
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "Q4_K_M", "MXFP4"]
CONTEXT_LEN = 4096
# Types of a folder's matrices, and the bytes of an element.
FLOATS = {"F32": 4, "F16": 2, "BF16": 2}
FOLDER_CONTEXT_LEN = 65536

# Standard deviation of a whole number drawn evenly from so many consecutive ones.
spread = lambda count: ((count * count - 1) / 12) ** 0.5


def halves(scale, count):
    """`count` times the same f16, as bytes [count, 2]."""
    return np.full(count, scale, np.float16).view(np.uint8).reshape(count, 2)


def q8_0(rng, blocks, deviation):
    """32 elements: a scale, then 32 signed bytes."""
    quants = rng.integers(0, 256, (blocks, 32), np.uint8)
    return np.hstack([halves(deviation / spread(256), blocks), quants])


def q4_0(rng, blocks, deviation):
    """32 elements: a scale, then 32 times 4 bits."""
    quants = rng.integers(0, 256, (blocks, 16), np.uint8)
    return np.hstack([halves(deviation / spread(16), blocks), quants])


def q4_k(rng, blocks, deviation):
    """256 elements: two scales, eight scales and eight minimums of 6 bits in 12 bytes, then 256 times 4 bits.

    An element is scale * scales[j] * quant - minimum * minimums[j]; the minimums subtract the mean."""
    scales = rng.integers(32, 64, (blocks, 8), np.uint8)
    minimums = scales
    low, high = scales[:, :4], scales[:, 4:]
    low_minimums, high_minimums = minimums[:, :4], minimums[:, 4:]
    packed = np.hstack([
        low | (high >> 4) << 6,
        low_minimums | (high_minimums >> 4) << 6,
        (high & 15) | (high_minimums & 15) << 4,
    ])
    scale = deviation / (spread(16) * np.sqrt(np.mean(np.arange(32, 64) ** 2.0)))
    quants = rng.integers(0, 256, (blocks, 128), np.uint8)
    return np.hstack([halves(scale, blocks), halves(7.5 * scale, blocks), packed, quants])


def q6_k(rng, blocks, deviation):
    """256 elements: lower 4 bits, upper 2 bits, sixteen signed scales, and one more scale."""
    quants = rng.integers(0, 256, (blocks, 128 + 64), np.uint8)
    scales = rng.integers(64, 128, (blocks, 16), np.uint8)
    scale = deviation / (spread(64) * np.sqrt(np.mean(np.arange(64, 128) ** 2.0)))
    return np.hstack([quants, scales, halves(scale, blocks)])


def mxfp4(rng, blocks, deviation):
    """32 elements: an exponent of two, then 32 times 4 bits, each a sign and one of 0, 1/2, 1, 3/2, 2, 3, 4, 6."""
    exponent = 127 + round(float(np.log2(deviation / np.sqrt(np.mean(np.array([0, .5, 1, 1.5, 2, 3, 4, 6]) ** 2)))))
    return np.hstack([np.full((blocks, 1), exponent, np.uint8), rng.integers(0, 256, (blocks, 16), np.uint8)])


BLOCKS = {"MXFP4": (32, mxfp4), "Q8_0": (32, q8_0), "Q4_0": (32, q4_0), "Q4_K": (256, q4_k), "Q6_K": (256, q6_k)}


def drawn(rng, kind, rows, columns):
    """A random matrix: floats, or bytes of blocks [rows, bytes of a row]."""
    deviation = columns**-0.5
    if kind in BLOCKS:
        elements, draw = BLOCKS[kind]
        return draw(rng, rows * columns // elements, deviation).reshape(rows, -1)
    floats = rng.standard_normal((rows, columns), np.float32) * np.float32(deviation)
    if kind == "F32":
        return floats
    if kind == "F16":
        return floats.astype(np.float16)
    return (floats.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def finer(layer, layers):
    """Whether llama.cpp's mixtures give this layer the finer type: first and last eighth, and each third between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def kind_of(name, asked, layer, layers):
    """The type of a matrix in a file of type `asked`."""
    if asked == "MXFP4":
        return "MXFP4" if "_exps" in name else "Q8_0"
    if asked != "Q4_K_M":
        return asked
    fine = name == "output.weight" or ("attn_v" in name or "ffn_down" in name) and finer(layer, layers)
    return "Q6_K" if fine else "Q4_K"


def tensors(shape, asked, experts=None):
    """Names, types and shapes of all tensors; vectors have a shape of one number and type F32."""
    architecture, vocabulary_len, width, layers, heads, kv_heads, ffn = shape
    keys = width // heads * kv_heads
    yield "token_embd.weight", kind_of("token_embd.weight", asked, 0, layers), (vocabulary_len, width)
    if architecture != "qwen2":
        yield "output.weight", kind_of("output.weight", asked, 0, layers), (vocabulary_len, width)
    yield "output_norm.weight", "F32", (width,)
    matrices = [
        ("attn_q", (width, width)), ("attn_k", (keys, width)), ("attn_v", (keys, width)),
        ("attn_output", (width, width)),
        ("ffn_gate", (ffn, width)), ("ffn_up", (ffn, width)), ("ffn_down", (width, ffn)),
    ]
    if experts:
        stacked = [(f"{name}_exps", (experts[0], *matrix)) for name, matrix in matrices[4:]]
        matrices = matrices[:4] + [("ffn_gate_inp", (experts[0], width))] + stacked
    for layer in range(layers):
        for name in ["attn_norm", "ffn_norm"]:
            yield f"blk.{layer}.{name}.weight", "F32", (width,)
        if architecture == "qwen2":
            for name, matrix in matrices[:3]:
                yield f"blk.{layer}.{name}.bias", "F32", matrix[:1]
        for name, matrix in matrices:
            kind = "F32" if name == "ffn_gate_inp" else kind_of(name, asked, layer, layers)
            yield f"blk.{layer}.{name}.weight", kind, matrix


def vocabulary(len_):
    """Tokens, scores and kinds: control tokens, bytes, then generated pieces, the short ones first."""
    kinds = gguf.TokenType
    all = [("<unk>", 0.0, kinds.UNKNOWN), ("<s>", 0.0, kinds.CONTROL), ("</s>", 0.0, kinds.CONTROL)]
    all += [(f"<0x{byte:02X}>", 0.0, kinds.BYTE) for byte in range(256)]
    letters = "etaoinshrdlcumwfgypbvkjxqz"
    words = ("".join(word) for letters_len in (1, 2, 3, 4) for word in itertools.product(letters, repeat=letters_len))
    pieces = itertools.chain(["\u2581"], *((word, "\u2581" + word) for word in words))
    pieces = itertools.islice(pieces, len_ - len(all))
    return all + [(piece, -float(rank), kinds.NORMAL) for rank, piece in enumerate(pieces)]


def write(path, shape, asked, experts, seed):
    """Writes the file, one tensor after another, so that it never lies in memory as a whole."""
    architecture, vocabulary_len, width, layers, heads, kv_heads, ffn = shape
    tokens, scores, kinds = zip(*vocabulary(vocabulary_len))
    out = gguf.GGUFWriter(path, architecture)
    out.add_name(f"random {asked}")
    out.add_context_length(CONTEXT_LEN)
    out.add_embedding_length(width)
    out.add_block_count(layers)
    out.add_feed_forward_length(ffn)
    out.add_head_count(heads)
    out.add_head_count_kv(kv_heads)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(width // heads)
    out.add_vocab_size(len(tokens))
    out.add_tokenizer_model("llama")
    out.add_token_list(list(tokens))
    out.add_token_scores(list(scores))
    out.add_token_types([int(kind) for kind in kinds])
    out.add_unk_token_id(0)
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    if experts:
        out.add_expert_count(experts[0])
        out.add_expert_used_count(experts[1])
    plan = list(tensors(shape, asked, experts))
    for name, kind, dimensions in plan:
        number = gguf.GGMLQuantizationType[kind]
        elements, size = gguf.GGML_QUANT_SIZES[number]
        count = int(np.prod(dimensions))
        out.add_tensor_info(name, dimensions, np.dtype(np.float32), count // elements * size, raw_dtype=number)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_ti_data_to_file()
    rng = np.random.default_rng(seed)
    for _, kind, dimensions in plan:
        # The matrices of all experts are stored as one matrix of all their rows.
        rows = int(np.prod(dimensions[:-1]))
        matrix = len(dimensions) > 1
        out.write_tensor_data(drawn(rng, kind, rows, dimensions[-1]) if matrix else np.ones(dimensions, np.float32))
    out.close()


def hugging_face(name):
    """The name that Mistral's checkpoints have for a tensor."""
    of = {
        "token_embd": "model.embed_tokens", "output": "lm_head", "output_norm": "model.norm", "blk": "model.layers",
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }
    return ".".join(of.get(part, part) for part in name.split("."))


def tokenizer(len_):
    """The same vocabulary as tokenizer.json: Unigram, where a long piece beats its parts."""
    tokens = vocabulary(len_)
    special = [
        dict(id=id, content=token, special=True, normalized=False, lstrip=False, rstrip=False, single_word=False)
        for id, (token, _, _) in enumerate(tokens[:3])
    ]
    metaspace = dict(type="Metaspace", replacement="\u2581", prepend_scheme="always", split=True)
    # Every piece costs 10, and the rarer ones a little more.
    pieces = [[token, -10 + score / len_] for token, score, _ in tokens]
    return dict(
        version="1.0", truncation=None, padding=None, added_tokens=special, normalizer=None, pre_tokenizer=metaspace,
        post_processor=None, decoder=dict(type="Sequence", decoders=[dict(type="ByteFallback"), metaspace]),
        model=dict(type="Unigram", unk_id=0, byte_fallback=True, vocab=pieces))


def write_folder(path, shape, asked, window, seed):
    """Writes config.json, tokenizer.json and model.safetensors, one tensor after another."""
    _, vocabulary_len, width, layers, heads, kv_heads, ffn = shape
    config = dict(
        model_type="mistral", architectures=["MistralForCausalLM"], vocab_size=vocabulary_len, hidden_size=width,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads, intermediate_size=ffn,
        max_position_embeddings=FOLDER_CONTEXT_LEN, sliding_window=window, rms_norm_eps=1e-5, hidden_act="silu",
        tie_word_embeddings=False, rope_theta=10000.0, bos_token_id=1, eos_token_id=2)
    os.makedirs(path, exist_ok=True)
    for name, content in [("config.json", config), ("tokenizer.json", tokenizer(vocabulary_len))]:
        with open(os.path.join(path, name), "w") as file:
            file.write(json.dumps(content, indent=1) + "\n")
    plan = [(hugging_face(name), kind, dimensions) for name, kind, dimensions in tensors(shape, asked)]
    header, end = {}, 0
    for name, kind, dimensions in plan:
        begin, end = end, end + int(np.prod(dimensions)) * FLOATS[kind]
        header[name] = dict(dtype=kind, shape=dimensions, data_offsets=[begin, end])
    said = json.dumps(header).encode()
    said += b" " * (-len(said) % 8)
    rng = np.random.default_rng(seed)
    with open(os.path.join(path, "model.safetensors"), "wb") as file:
        file.write(len(said).to_bytes(8, "little") + said)
        for _, kind, dimensions in plan:
            matrix = len(dimensions) == 2
            file.write((drawn(rng, kind, *dimensions) if matrix else np.ones(dimensions, np.float32)).tobytes())


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("out", help="the file to write, or the folder")
    ask.add_argument("--shape", choices=SHAPES, default="110m", help="default: 110m")
    ask.add_argument("--type", choices=TYPES, default="Q8_0", help="default: Q8_0")
    ask.add_argument("--seed", type=int, default=0, help="default: 0")
    given = ask.parse_args()
    shape, size_of = SHAPES[given.shape], given.out
    if shape[0] == "mistral":
        if given.type not in FLOATS:
            ask.error(f"--shape {given.shape} is a folder of floats: --type {', '.join(FLOATS)}, not {given.type}")
        write_folder(given.out, shape, given.type, WINDOWS.get(given.shape), given.seed)
        size_of = os.path.join(given.out, "model.safetensors")
    else:
        write(given.out, shape, given.type, EXPERTS.get(given.shape), given.seed)
    print(f"{given.out}: {os.path.getsize(size_of) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
