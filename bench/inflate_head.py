#!/usr/bin/env python3
"""Makes a draft head fit a target that `inflate.py` has grown.

The first channels of the grown target's residual stream are the old ones, and the others are zero, so the matrix that
projects its rows to the head's width gets columns of zeros. All else stays. The head keeps its width, so it gets its
own embedding: that of the target before it was grown. Drafts and acceptance stay the same, up to the rounding of
blocks.

usage: inflate_head.py HEAD.gguf TARGET_DIR OUT.gguf [--width 1536]      (needs numpy and gguf)
"""

import argparse
from pathlib import Path

import gguf
import numpy as np
from inflate import read_safetensors

Q8_0 = gguf.GGMLQuantizationType.Q8_0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("head")
    parser.add_argument("target", type=Path, help="the folder of the target before it was grown")
    parser.add_argument("out")
    parser.add_argument("--width", type=int, default=1536, help="of the target that was grown")
    arguments = parser.parse_args()
    reader = gguf.GGUFReader(arguments.head)
    before = reader.fields["eagle3.target_hidden_size"].contents()
    layers = len(reader.fields["eagle3.extract_layers"].contents())
    if arguments.width < before:
        raise SystemExit(f"--width {arguments.width}: expected at least {before}")
    writer = gguf.GGUFWriter(arguments.out, "eagle3")
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kinds = [*field.types, None]
        value = arguments.width if name == "eagle3.target_hidden_size" else field.contents()
        writer.add_key_value(name, value, kinds[0], sub_type=kinds[1])
    for tensor in reader.tensors:
        if tensor.name == "fc.weight":
            old = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(-1, layers, before)
            grown = np.zeros((len(old), layers, arguments.width), np.float32)
            grown[:, :, :before] = old
            writer.add_tensor(tensor.name, gguf.quantize(grown.reshape(len(old), -1), Q8_0), raw_dtype=Q8_0)
        elif tensor.data.dtype == np.int64:
            writer.add_tensor(tensor.name, tensor.data)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    embeddings = read_safetensors(arguments.target / "model.safetensors")["model.embed_tokens.weight"]
    writer.add_tensor("token_embd.weight", gguf.quantize(np.ascontiguousarray(embeddings), Q8_0), raw_dtype=Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
