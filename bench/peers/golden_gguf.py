#!/usr/bin/env python3
"""Converts golden networks to GGUF files by llama.cpp's own converter.

The golden folders have no tokenizer, so the converter's step that writes one is skipped: the files are networks alone.
Tests compare their logits with the folder's (FORETOKEN_GOLDEN_GGUF=OUT cargo test -p foretoken-model golden).

    python3 bench/peers/golden_gguf.py LLAMA_CPP crates/model/tests/golden OUT [NAME ...]

Some golden networks have fields that GGUF does not know; `golden.py --gguf FOLDER all` makes such families without
these fields, and tests compare them if FORETOKEN_GOLDEN=FOLDER is set, too.

LLAMA_CPP is llama.cpp's source folder, as in the source package of llama-cpp-python. Needs the packages of the
converter: torch, transformers, and the package `gguf`, which lies in that folder.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path


def converter_of(llama_cpp):
    """The module of the converter in llama.cpp's source folder."""
    sys.path[:0] = [llama_cpp, os.path.join(llama_cpp, "gguf-py")]
    import convert_hf_to_gguf
    from conversion.baichuan import BaichuanModel
    from conversion.base import TextModel
    from conversion.qwen import QwenModel

    # The converter of Baichuan converts W_pack itself, and recurses without end for every other tensor.
    unpack = BaichuanModel.modify_tensors
    BaichuanModel.modify_tensors = lambda self, data, name, bid: (
        unpack if name.endswith("W_pack.weight") else TextModel.modify_tensors)(self, data, name, bid)

    # Of Qwen 1 it writes the epsilon under LayerNorm's key alone, where llama.cpp does not look for it.
    def qwen_parameters(self):
        TextModel.set_gguf_parameters(self)
        self.gguf_writer.add_layer_norm_rms_eps(self.hparams["layer_norm_epsilon"])
    QwenModel.set_gguf_parameters = qwen_parameters
    return convert_hf_to_gguf


def staged(folder, to):
    """A copy of a golden folder as a checkpoint of transformers 4, which the converter expects: its configuration in
    the older spelling, and a tokenizer file with the number of tokens."""
    older = folder / "config.4.json"
    config = json.loads((older if older.exists() else folder / "config.json").read_text())
    config.setdefault("n_ctx", config.get("n_positions", config.get("n_ctx", 512)))
    config.setdefault("layernorm_epsilon", config.get("rms_norm_eps", 1e-5))
    config.setdefault("seq_length", config.get("max_position_embeddings", 512))
    config.setdefault("vocab_size", config.get("padded_vocab_size"))
    if config["model_type"] == "falcon" and config["multi_query"] and not config["new_decoder_architecture"]:
        config["num_kv_heads"] = 1
    (to / "config.json").write_text(json.dumps(config))
    vocabulary = {f"t{token}": token for token in range(config["vocab_size"])}
    (to / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
    shutil.copy(folder / "model.safetensors", to)
    return to


def without_tokenizer(model):
    """Replaces the converter's step that writes a tokenizer; writes the number of tokens."""
    model.gguf_writer.add_tokenizer_model("none")
    if f"{model.gguf_writer.arch}.vocab_size" not in model.gguf_writer.kv_data[0]:
        model.gguf_writer.add_vocab_size(model.hparams["vocab_size"])


def convert(converter, folder, out):
    """Writes `out` from a folder in f32."""
    hparams = converter.ModelBase.load_hparams(folder, False)
    kind = converter.get_model_class(hparams["architectures"][0])
    # Mistral 3 delegates to an inner class.
    for one in (kind, getattr(kind, "Ministral3Model", kind)):
        one.set_vocab = without_tokenizer
    # transformers 5 would read the configuration without its older spelling.
    hparams |= {"rotary_pct": 1.0} | json.loads((folder / "config.json").read_text())
    kind(folder, converter.gguf.LlamaFileType.ALL_F32, out, hparams=hparams).write()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_cpp")
    parser.add_argument("goldens", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    converter = converter_of(arguments.llama_cpp)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for folder in sorted(path for path in arguments.goldens.iterdir() if path.is_dir()):
        if arguments.names and folder.name not in arguments.names:
            continue
        out = arguments.out / f"{folder.name}.gguf"
        try:
            with tempfile.TemporaryDirectory() as stage:
                convert(converter, staged(folder, Path(stage)), out)
            print(f"{folder.name}: {out.stat().st_size} bytes")
        except Exception as error:  # the converter refuses in many ways
            out.unlink(missing_ok=True)
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"{folder.name}: refused: {type(error).__name__}: {str(error)[:160]} ({where.name}:{where.lineno})")


if __name__ == "__main__":
    main()
