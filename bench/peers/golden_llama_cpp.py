#!/usr/bin/env python3
"""Compares the logits of llama.cpp with those of transformers, for the GGUF files that foretoken writes of golden
networks.

    python3 bench/peers/golden_llama_cpp.py FORETOKEN crates/model/tests/golden [NAME ...]

FORETOKEN is the built program. Prints for each network the largest difference of logits as a part of the largest, or
the program that refused it and its reason. llama.cpp requires a vocabulary, so the files get the key that declares that
there is none.

Networks whose rotary frequencies depend on the context agree if the golden network was made for a context on the same
side of the threshold as llama.cpp's, which is a multiple of 256.

Needs llama-cpp-python, gguf, numpy and safetensors.
"""
import argparse
import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

import llama_cpp
import numpy
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from safetensors.numpy import load_file

ERROR, F32, CONTEXT = 4, 0, 256
errors = []


@llama_cpp.llama_log_callback
def keep_errors(level, text, _):
    if level >= ERROR:
        errors.append(text.decode(errors="replace").strip())


def without_vocabulary(source, target):
    """Copies a file, with the key that declares that there is no vocabulary."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")):
            kind = field.types[0]
            inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), kind, sub_type=inner)
    writer.add_tokenizer_model("none")
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, numpy.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(path, tokens):
    """Logits after each token, or None if llama.cpp refuses the file."""
    parameters = llama_cpp.llama_model_default_params()
    parameters.use_mmap = False
    parameters.use_extra_bufts = False  # files are compared, not repacked blocks, on which some builds crash
    model = llama_cpp.llama_model_load_from_file(path.encode(), parameters)
    if not model:
        return None
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = CONTEXT
    parameters.n_threads = parameters.n_threads_batch = 1
    parameters.type_k = parameters.type_v = F32
    parameters.flash_attn_type = 0
    context = llama_cpp.llama_init_from_model(model, parameters)
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), i, 1, 1
        batch.seq_id[i][0] = 0
    assert llama_cpp.llama_decode(context, batch) == 0
    width = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    rows = [llama_cpp.llama_get_logits_ith(context, i) for i in range(len(tokens))]
    found = numpy.stack([numpy.ctypeslib.as_array(row, shape=(width,)).copy() for row in rows])
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return found


def compare(foretoken, folder):
    """A line about one golden network."""
    with tempfile.TemporaryDirectory() as place:
        written, file = os.path.join(place, "written.gguf"), os.path.join(place, "file.gguf")
        line = [foretoken, "quantize", str(folder), written, "--type", "f32"]
        run = subprocess.run(line, capture_output=True, text=True)
        if run.returncode != 0:
            return f"refused: {run.stderr.strip().split('config.json: ')[-1]}"
        without_vocabulary(written, file)
        golden = load_file(folder / "golden.safetensors")
        errors.clear()
        found = logits(file, golden["tokens"])
        if found is None:
            return f"refused by llama.cpp: {'; '.join(errors)}"
    expected = golden["logits"].reshape(found.shape)
    return f"{numpy.abs(found - expected).max() / numpy.abs(expected).max():.1e}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("foretoken")
    parser.add_argument("goldens", type=Path)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    llama_cpp.llama_log_set(keep_errors, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    for folder in sorted(path for path in arguments.goldens.iterdir() if path.is_dir()):
        if (folder / "golden.safetensors").exists() and (not arguments.names or folder.name in arguments.names):
            print(f"{folder.name}: {compare(arguments.foretoken, folder)}", flush=True)


if __name__ == "__main__":
    main()
