#!/usr/bin/env python3
"""Grows a Llama checkpoint to the cost of a larger one without changing its outputs.

The residual stream gets more channels, which stay zero; blocks get more heads and more inner columns, whose results are
multiplied by zeros; and added blocks contribute nothing. RMSNorm divides by the mean over all channels, so its weights
shrink by sqrt(old / new) and its epsilon by old / new; this is exact in bf16 if the width grows fourfold, as it does by
default (384 to 1536). Texts and acceptance are those of the small model, while the work per pass becomes that of 1.0 B
parameters. Label every number measured on the result as *inflated*.

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
    """The shapes before and after, and the grown tensors."""

    def __init__(self, old, config, arguments):
        self.old, self.random = old, np.random.default_rng(0)
        self.width_before, self.width = config["hidden_size"], arguments.width
        self.layers_before, self.layers = config["num_hidden_layers"], arguments.layers
        self.ffn = arguments.ffn
        head_dim = config.get("head_dim") or self.width_before // config["num_attention_heads"]
        group = config["num_attention_heads"] // config["num_key_value_heads"]
        self.heads = self.width // head_dim
        self.kv_heads = self.heads // group
        if self.width % head_dim or self.heads % group or self.width < self.width_before:
            expected = f"a multiple of {head_dim * group}, at least {self.width_before}"
            raise SystemExit(f"--width {self.width}: expected {expected}")
        if self.layers < self.layers_before or self.ffn < config["intermediate_size"]:
            raise SystemExit("--layers, --ffn: expected no less than the model has")
        self.query, self.kv = self.heads * head_dim, self.kv_heads * head_dim

    def config(self, config):
        changed = {
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.query // self.heads,
            "intermediate_size": self.ffn,
            "rms_norm_eps": config["rms_norm_eps"] * self.width_before / self.width,
            "dtype": "bfloat16",
        }
        return {**config, **changed}

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

    def tensor(self, name):
        """The old values in the first rows and columns; the others are zero before the residual stream, else noise."""
        shape, old = self.shapes()[name], self.old.get(name)
        if len(shape) == 1:
            grown = np.ones(shape, np.float32)
            if old is not None:
                grown[: len(old)] = old * (self.width_before / self.width) ** 0.5
            return grown
        silent = any(part in name for part in ("embed_tokens", "o_proj", "down_proj"))
        if silent:
            grown = np.zeros(shape, np.float32)
        else:
            grown = self.random.standard_normal(shape, np.float32) / np.float32(shape[1] ** 0.5)
        if old is not None:
            grown[: old.shape[0], : old.shape[1]] = old
        return grown


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--ffn", type=int, default=7168)
    arguments = parser.parse_args()
    config = json.loads((arguments.source / "config.json").read_text())
    growth = Growth(read_safetensors(arguments.source / "model.safetensors"), config, arguments)
    arguments.target.mkdir(parents=True, exist_ok=True)
    for file in arguments.source.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            shutil.copy(file, arguments.target)
    (arguments.target / "config.json").write_text(json.dumps(growth.config(config), indent=2))
    write_safetensors(arguments.target / "model.safetensors", growth.shapes(), growth.tensor)
    parameters = sum(int(np.prod(shape)) for shape in growth.shapes().values())
    print(f"{parameters / 1e6:.0f} M parameters, {growth.heads} heads, {growth.kv_heads} key-value heads")


if __name__ == "__main__":
    main()
