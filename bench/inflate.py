#!/usr/bin/env python3
"""Grows a Llama or T5 checkpoint to the cost of a larger one without changing its outputs.

The residual stream gets more channels, which stay zero; blocks get more heads and more inner columns, whose results are
multiplied by zeros; and added blocks contribute nothing. RMSNorm divides by the mean over all channels, so its weights
shrink by sqrt(old / new) and its epsilon by old / new; this is exact in bf16 if the width grows fourfold, as it does by
default (Llama: 384 to 1536; T5: whatever it is). A T5 grows in both halves, to the same number of blocks each; heads
that are added have biases by relative position, too. If its head is tied, its logits are divided by the root of the
width, for which the last norm makes up. Texts and acceptance are those of the small model, while the work per pass
becomes that of 1.0 B parameters (T5 of width 1024: 0.8 B, of which a pass of the decoder reads half). Label every
number measured on the result as *inflated*.

usage: inflate.py IN_DIR OUT_DIR [--width 1536] [--layers 24] [--ffn 7168]      (needs numpy)
"""

import argparse
import json
import shutil
from pathlib import Path

import numpy as np


def read_safetensors(path):
    """Tensors in bf16 or f32, as f32 arrays."""
    data = path.read_bytes()
    header_len = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + header_len])
    body = memoryview(data)[8 + header_len :]
    tensors = {}
    for name, info in header.items():
        if name == "__metadata__":
            continue
        start, end = info["data_offsets"]
        if info["dtype"] == "BF16":
            values = (np.frombuffer(body[start:end], np.uint16).astype(np.uint32) << 16).view(np.float32)
        elif info["dtype"] == "F32":
            values = np.frombuffer(body[start:end], np.float32)
        else:
            raise SystemExit(f"{path}: tensor {name}: expected BF16 or F32, found {info['dtype']}")
        tensors[name] = values.reshape(info["shape"])
    return tensors


def as_bf16(values):
    """Rounds to the nearest bf16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(path, shapes, tensor):
    """Writes tensors with one at a time in memory: `shapes` names them, `tensor(name)` returns each."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name in shapes:
            out.write(as_bf16(tensor(name)).tobytes())


class Growth:
    """The shapes before and after, and the grown tensors; each family says which shapes, and what its fields are."""

    # Sizes that are not given; the width of a family without one grows fourfold.
    WIDTH, LAYERS, FFN = None, 24, None
    # Fields of the configuration: width, heads, inner width, the norm's epsilon.
    FIELDS = ()
    # Parts of the names of matrices whose added rows and columns are zero: those that write the residual stream.
    SILENT = ()

    def __init__(self, old, config, arguments):
        self.old, self.before, self.random = old, config, np.random.default_rng(0)
        self.of_width, self.of_heads, self.of_ffn, self.of_epsilon = self.FIELDS
        self.width_before = config[self.of_width]
        self.width = arguments.width or self.WIDTH or 4 * self.width_before
        self.layers, self.ffn = arguments.layers or self.LAYERS, arguments.ffn or self.FFN
        self.head_dim, group = self.heads_before()
        self.heads = max(self.width // self.head_dim, config[self.of_heads])
        self.kv_heads = self.heads // group
        if self.width % self.head_dim or self.heads % group or self.width < self.width_before:
            expected = f"a multiple of {self.head_dim * group}, at least {self.width_before}"
            raise SystemExit(f"--width {self.width}: expected {expected}")
        if self.layers < self.layers_before() or self.ffn < config[self.of_ffn]:
            raise SystemExit("--layers, --ffn: expected no less than the model has")
        self.query, self.kv = self.heads * self.head_dim, self.kv_heads * self.head_dim

    def config(self):
        changed = {
            self.of_width: self.width,
            self.of_heads: self.heads,
            self.of_ffn: self.ffn,
            self.of_epsilon: self.before[self.of_epsilon] * self.width_before / self.width,
            "dtype": "bfloat16",
        }
        return {**self.before, **changed}

    def norm_factor(self, name):
        return (self.width_before / self.width) ** 0.5

    def tensor(self, name):
        """The old values in the first rows and columns; the others are zero before the residual stream, else noise."""
        shape, old = self.shapes()[name], self.old.get(name)
        if len(shape) == 1:
            grown = np.ones(shape, np.float32)
            if old is not None:
                grown[: len(old)] = old * self.norm_factor(name)
            return grown
        if any(part in name for part in self.SILENT):
            grown = np.zeros(shape, np.float32)
        else:
            grown = self.random.standard_normal(shape, np.float32) / np.float32(shape[1] ** 0.5)
        if old is not None:
            grown[: old.shape[0], : old.shape[1]] = old
        return grown


class Llama(Growth):
    """Llama, with a head of its own or a tied one."""

    WIDTH, FFN = 1536, 7168
    FIELDS = ("hidden_size", "num_attention_heads", "intermediate_size", "rms_norm_eps")
    SILENT = ("embed_tokens", "o_proj", "down_proj")

    def heads_before(self):
        """Elements of a head, and query heads that share a key-value head."""
        heads = self.before["num_attention_heads"]
        dim = self.before.get("head_dim") or self.width_before // heads
        return dim, heads // self.before["num_key_value_heads"]

    def layers_before(self):
        return self.before["num_hidden_layers"]

    def config(self):
        changed = {
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
        }
        return {**super().config(), **changed}

    def shapes(self):
        vocabulary = len(self.old["model.embed_tokens.weight"])
        shapes = {"model.embed_tokens.weight": (vocabulary, self.width), "model.norm.weight": (self.width,)}
        if "lm_head.weight" in self.old:
            shapes["lm_head.weight"] = (vocabulary, self.width)
        for i in range(self.layers):
            block = {
                "input_layernorm": (self.width,),
                "post_attention_layernorm": (self.width,),
                "self_attn.q_proj": (self.query, self.width),
                "self_attn.k_proj": (self.kv, self.width),
                "self_attn.v_proj": (self.kv, self.width),
                "self_attn.o_proj": (self.width, self.query),
                "mlp.gate_proj": (self.ffn, self.width),
                "mlp.up_proj": (self.ffn, self.width),
                "mlp.down_proj": (self.width, self.ffn),
            }
            shapes.update({f"model.layers.{i}.{name}.weight": shape for name, shape in block.items()})
        return shapes


class T5(Growth):
    """T5, T5 1.1, Flan-T5 and mT5: an encoder and a decoder of as many blocks each."""

    FFN = 3328
    FIELDS = ("d_model", "num_heads", "d_ff", "layer_norm_epsilon")
    SILENT = ("shared", "Attention.o", "DenseReluDense.wo")
    OUTPUT_NORM = "decoder.final_layer_norm.weight"
    ATTENTIONS = {"encoder": ["SelfAttention"], "decoder": ["SelfAttention", "EncDecAttention"]}

    def heads_before(self):
        return self.before["d_kv"], 1

    def layers_before(self):
        return max(self.before["num_layers"], self.before.get("num_decoder_layers") or 0)

    def config(self):
        return {**super().config(), "num_layers": self.layers, "num_decoder_layers": self.layers}

    def is_tied(self):
        """Whether the head is the embedding, so that logits are divided by the root of the width."""
        tied = self.before.get("tie_word_embeddings", True)
        return self.before["model_type"] == "t5" and self.before.get("scale_decoder_outputs", tied)

    def norm_factor(self, name):
        return 1.0 if name == self.OUTPUT_NORM and self.is_tied() else super().norm_factor(name)

    def shapes(self):
        vocabulary = len(self.old["shared.weight"])
        shapes = {"shared.weight": (vocabulary, self.width)}
        if not self.is_tied():
            shapes["lm_head.weight"] = (vocabulary, self.width)
        for half, attentions in self.ATTENTIONS.items():
            for i in range(self.layers):
                block = f"{half}.block.{i}.layer"
                for number, attention in enumerate(attentions):
                    shapes.update(self.sublayer(f"{block}.{number}", self.attention(attention)))
                shapes.update(self.sublayer(f"{block}.{len(attentions)}", self.feed_forward()))
            bias = f"{half}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            shapes[bias] = (len(self.old[bias]), self.heads)
            shapes[f"{half}.final_layer_norm.weight"] = (self.width,)
        return shapes

    def sublayer(self, place, matrices):
        named = {"layer_norm": (self.width,), **matrices}
        return {f"{place}.{name}.weight": shape for name, shape in named.items()}

    def attention(self, name):
        inner = {f"{name}.{part}": (self.query, self.width) for part in "qkv"}
        return {**inner, f"{name}.o": (self.width, self.query)}

    def feed_forward(self):
        gated = "encoder.block.0.layer.1.DenseReluDense.wi_0.weight" in self.old
        inner = {f"DenseReluDense.{part}": (self.ffn, self.width) for part in (["wi_0", "wi_1"] if gated else ["wi"])}
        return {**inner, "DenseReluDense.wo": (self.width, self.ffn)}


FAMILIES = {"llama": Llama, "t5": T5, "mt5": T5}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--width", type=int, help="[default: 1536; T5: fourfold]")
    parser.add_argument("--layers", type=int, help="[default: 24; T5: of each half]")
    parser.add_argument("--ffn", type=int, help="[default: 7168; T5: 3328]")
    arguments = parser.parse_args()
    config = json.loads((arguments.source / "config.json").read_text())
    family = FAMILIES.get(config.get("model_type"))
    if not family:
        expected = f"one of {', '.join(FAMILIES)}"
        raise SystemExit(f"{arguments.source / 'config.json'}: model_type: expected {expected}, "
                         f"found {config.get('model_type')}")
    growth = family(read_safetensors(arguments.source / "model.safetensors"), config, arguments)
    if "lm_head.weight" in growth.shapes() and "lm_head.weight" not in growth.old:
        raise SystemExit(f"{arguments.source / 'model.safetensors'}: expected tensor lm_head.weight, found none")
    arguments.target.mkdir(parents=True, exist_ok=True)
    for file in arguments.source.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            shutil.copy(file, arguments.target)
    (arguments.target / "config.json").write_text(json.dumps(growth.config(), indent=2))
    write_safetensors(arguments.target / "model.safetensors", growth.shapes(), growth.tensor)
    parameters = sum(int(np.prod(shape)) for shape in growth.shapes().values())
    print(f"{parameters / 1e6:.0f} M parameters, {growth.heads} heads, {growth.kv_heads} key-value heads")


if __name__ == "__main__":
    main()
