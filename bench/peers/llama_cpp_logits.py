#!/usr/bin/env python3
"""Compares the logits of three programs for the golden networks: llama.cpp with transformers, and foretoken with
llama.cpp, for the same GGUF files.

    python3 bench/peers/golden_gguf.py LLAMA_CPP crates/model/tests/golden /tmp/gguf
    python3 bench/peers/llama_cpp_logits.py /tmp/gguf crates/model/tests/golden      (--json FILE: a record)

Prints a line for each network: its architecture, the largest difference as a part of the largest logit (llama.cpp from
transformers, foretoken from llama.cpp, and foretoken from transformers), and how many of the 48 greedy tokens of
llama.cpp's text transformers and foretoken would have written. A file that does not describe all of a network
(golden_gguf.py) shows by both programs differing alike from transformers; the networks of `golden.py --gguf` have no
such files. For golden networks that llama.cpp made itself (remote_code.py) the first difference is 0.

llama.cpp runs with an f32 cache, without flash attention, on one thread, and without repacked weights. It rounds the
context up to a multiple of 256; where frequencies depend on the context, the trained context in the file is raised by
the same amount, so that both are on the same side of the threshold. Exit code 1 if foretoken and llama.cpp differ by
more than --bound.

Needs llama-cpp-python and safetensors (README.md), and a built `foretoken`.
"""

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import llama_cpp
import numpy
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parent.parent.parent
F32, NO_FLASH_ATTENTION, INTEGER = 0, 0, 0
CONTEXT_STEP = 256
LOG_ERROR = 4
complaints = []
LOG = llama_cpp.llama_log_callback(
    lambda level, text, data: complaints.append(text.decode().strip()) if level == LOG_ERROR else None)


class Network:
    """A GGUF file in llama.cpp."""

    def __init__(self, path, positions, trained=None):
        """`positions`: the longest text. `trained`: the architecture, and the context that replaces its trained one."""
        llama_cpp.llama_log_set(LOG, ctypes.c_void_p(0))
        complaints.clear()
        llama_cpp.llama_backend_init()
        settings = llama_cpp.llama_model_default_params()
        settings.n_gpu_layers, settings.use_extra_bufts = 0, False
        if trained:
            overrides = (llama_cpp.llama_model_kv_override * 2)()
            overrides[0].key = f"{trained[0]}.rope.scaling.original_context_length".encode()
            overrides[0].tag, overrides[0].value.val_i64 = INTEGER, trained[1]
            settings.kv_overrides = self.overrides = overrides
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), settings)
        if not self.model:
            raise ValueError(f"llama.cpp does not load it: {complaints[0]}")
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = positions
        settings.n_threads = settings.n_threads_batch = 1
        settings.type_k = settings.type_v = F32
        settings.flash_attn_type = NO_FLASH_ATTENTION
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        if not self.context:
            raise ValueError(f"llama.cpp finds no room for {positions} positions")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(positions, 0, 1)

    def close(self):
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)

    def logits(self, tokens):
        """Logits [tokens, vocabulary] of a text in one pass."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.batch.n_tokens = len(tokens)
        for place, token in enumerate(tokens):
            self.batch.token[place], self.batch.pos[place] = int(token), place
            self.batch.n_seq_id[place], self.batch.seq_id[place][0] = 1, 0
            self.batch.logits[place] = 1
        result = llama_cpp.llama_decode(self.context, self.batch)
        if result != 0:
            raise ValueError(f"llama_decode of {len(tokens)} tokens returned {result}")
        rows = llama_cpp.llama_get_logits(self.context)
        return numpy.ctypeslib.as_array(rows, (len(tokens), self.vocabulary)).copy()

    def greedy(self, prompt, length):
        """The greedy text of so many tokens that begins with a prompt."""
        text = list(prompt)
        while len(text) < length:
            text.append(int(self.logits(text)[-1].argmax()))
        return text


def ours(program, path, tokens, context):
    """Logits of `foretoken logits`."""
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as out:
        command = [program, "logits", "-m", path, "--tokens", ",".join(map(str, tokens)), "-o", out.name, "--force",
                   "-t", 1, "--cache-type-k", "f32", "--cache-type-v", "f32", *(["-c", context] if context else [])]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            raise ValueError(done.stderr.strip())
        return load_file(out.name)["logits"]


def difference(found, expected):
    """The largest difference, as a part of the largest expected logit."""
    return float(numpy.abs(found - expected).max() / numpy.abs(expected).max())


def metadata(path):
    """The architecture of a file, and the context that its frequencies were trained with, if the file has it."""
    from gguf import GGUFReader
    fields = GGUFReader(path).fields
    architecture = fields["general.architecture"].contents()
    trained = fields.get(f"{architecture}.rope.scaling.original_context_length")
    return architecture, trained and trained.contents()


def compare(program, path, golden):
    """Compares the three programs on one network."""
    architecture, trained = metadata(path)
    tokens, expected, greedy = golden["tokens"], golden["logits"], golden["greedy"]
    context = int(golden["context"][0]) if "context" in golden else None
    rounded = -(-(context or len(tokens)) // CONTEXT_STEP) * CONTEXT_STEP
    within = context is not None and trained is not None and context <= trained < rounded
    network = Network(path, rounded, (architecture, rounded) if within else None)
    try:
        theirs = network.logits(tokens)
        prompt = int(len(greedy) - 48)
        text = network.greedy(greedy[:prompt], len(greedy))
    finally:
        network.close()
    found = ours(program, path, tokens, context)
    next_tokens = ours(program, path, text[:-1], context).argmax(1)[prompt - 1:]
    agreed = lambda one, other: int(numpy.logical_and.accumulate(numpy.equal(one, other)).sum())
    return {
        "architecture": architecture,
        "theirs_from_transformers": difference(theirs, expected),
        "ours_from_theirs": difference(found, theirs),
        "ours_from_transformers": difference(found, expected),
        "greedy_of_transformers": agreed(text[prompt:], greedy[prompt:]),
        "greedy_of_ours": agreed(text[prompt:], next_tokens),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, help="the folder of NAME.gguf")
    parser.add_argument("goldens", type=Path, help="the folder of NAME/golden.safetensors")
    parser.add_argument("names", nargs="*", help="only these networks")
    parser.add_argument("--foretoken", default=ROOT / "target/debug/foretoken", help="the program")
    parser.add_argument("--bound", type=float, default=3e-3, help="largest difference of ours from llama.cpp's")
    parser.add_argument("--json", type=Path, help="write a record to this file")
    arguments = parser.parse_args()
    record, wrong = {}, False
    print("{:24}{:14}{:>13}{:>16}{:>10}  greedy: HF, ours".format(
        "network", "architecture", "llama.cpp-HF", "ours-llama.cpp", "ours-HF"))
    for path in sorted(arguments.files.glob("*.gguf")):
        name, golden = path.stem, arguments.goldens / path.stem / "golden.safetensors"
        if not golden.exists() or (arguments.names and name not in arguments.names):
            continue
        try:
            one = record[name] = compare(arguments.foretoken, path, load_file(golden))
        except ValueError as error:
            record[name] = {"error": str(error)}
            print(f"{name:24}{error}", flush=True)
            continue
        numbers = [one[key] for key in ("theirs_from_transformers", "ours_from_theirs", "ours_from_transformers")]
        print("{:24}{:14}{:13.1e}{:16.1e}{:10.1e}  {}, {}".format(
            name, one["architecture"], *numbers, one["greedy_of_transformers"], one["greedy_of_ours"]), flush=True)
        wrong |= not one["ours_from_theirs"] <= arguments.bound
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
