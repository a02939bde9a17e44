#!/usr/bin/env python3
"""Compares foretoken with llama.cpp for encoder-decoders: greedy texts, logits and tokens of the same GGUF files.

    python3 bench/peers/t5_llama_cpp.py FORETOKEN FILE.gguf... [--texts FILE] [--tokens N]

llama.cpp reads each source with `llama_encode` and writes N tokens (default 48) one by one, each the one of the largest
logit; end tokens do not end the text. Both programs run in f32 but for the weights. Sources are some random tokens,
and with --texts the lines of a file, for which llama.cpp's tokens are compared with foretoken's as well. A line for
each file: texts that are equal, the largest difference of logits as a part of the largest logit (of T5 with a tied head
after llama.cpp's logits were scaled as T5's are), and tokens that differ. Where texts differ, a further line has the
lead of llama.cpp's choice. Exit code 1 if a text, or tokens of one, differ.

Needs numpy, safetensors, gguf, and cyllama, which has llama.cpp compiled (0.2.18).
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import cyllama.llama.llama_cpp as llama
import numpy
from gguf import GGUFReader
from safetensors.numpy import load_file

F32, NO_FLASH_ATTENTION, POSITIONS = 0, 0, 512


class Model(llama.LlamaModel):
    """The package's model, with the property that its contexts (of 0.2.18) ask for and it lacks."""

    n_vocab = property(lambda self: self.get_vocab().n_vocab)


class Network:
    """A GGUF file in llama.cpp."""

    def __init__(self, path):
        settings = llama.LlamaModelParams()
        settings.n_gpu_layers, settings.use_extra_bufts = 0, False
        self.model = Model(str(path), settings, verbose=False)
        self.settings = llama.LlamaContextParams()
        self.settings.n_ctx = self.settings.n_batch = self.settings.n_ubatch = POSITIONS
        self.settings.n_threads = self.settings.n_threads_batch = 1
        self.settings.type_k = self.settings.type_v = F32
        self.settings.flash_attn_type = NO_FLASH_ATTENTION
        self.vocabulary = self.model.get_vocab()

    def tokens(self, text):
        """The tokens of a source, with the end token."""
        return list(self.vocabulary.tokenize(text, True, False))

    def greedy(self, source, length):
        """The greedy text of so many tokens, and the logits before each."""
        context = llama.LlamaContext(self.model, self.settings, verbose=False)
        batch = llama.LlamaBatch(n_tokens=POSITIONS, embd=0, n_seq_max=1, verbose=False)
        batch.set_batch(source, 0, True)
        context.encode(batch)
        text, rows = [self.model.decoder_start_token()], []
        while len(text) <= length:
            batch.set_batch(text[-1:], len(text) - 1, True)
            context.decode(batch)
            rows.append(numpy.array(context.get_logits(), dtype=numpy.float32))
            text.append(int(rows[-1].argmax()))
        context.close()
        return text, numpy.array(rows)


def foretoken(program, *words):
    done = subprocess.run([str(word) for word in (program, *words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise ValueError(done.stderr.strip())
    return done.stdout


def joined(tokens):
    return ",".join(map(str, tokens))


def logits(program, path, source, text):
    """foretoken's logits of a text that continues a source."""
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as out:
        foretoken(program, "logits", "-m", path, "--source-ids", joined(source), "--tokens", joined(text),
                  "-o", out.name, "--force", "-t", 1, "--cache-type-k", "f32", "--cache-type-v", "f32")
        return load_file(out.name)["logits"]


def fixed(path, length):
    """The options of generate that both programs have in common."""
    return ("generate", "-m", path, "--temp", 0, "-n", length, "--ignore-eos", "--spec-type", "none", "-t", 1,
            "--cache-type-k", "f32", "--cache-type-v", "f32")


def scale_of(reader):
    """What T5 multiplies the logits of a tied head with, and llama.cpp does not."""
    is_tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    return reader.fields["t5.embedding_length"].contents() ** -0.5 if is_tied else 1.0


def compare(program, path, texts, length):
    """Prints the line of a file; whether everything is equal."""
    reader, network = GGUFReader(path), Network(path)
    count = network.vocabulary.n_vocab
    draw = random.Random(7)
    sources = [[draw.randrange(3, count) for _ in range(size)] + [1] for size in (1, 7, 40, 200)]
    other_tokens, equal, worst, lines = [], 0, 0.0, []
    for text in texts:
        theirs = network.tokens(text)
        answer = json.loads(foretoken(program, *fixed(path, 1), "--json", "--source", text))
        if answer["source_ids"] != theirs:
            other_tokens.append(f"  {text!r}: {answer['source_ids']}, by llama.cpp {theirs}")
        sources.append(theirs)
    for source in sources:
        text, rows = network.greedy(source, length)
        rows *= scale_of(reader)
        found = logits(program, path, source, text[:-1])
        worst = max(worst, float(numpy.abs(found - rows).max() / numpy.abs(rows).max()))
        ours = foretoken(program, *fixed(path, length), "--source-ids", joined(source), "--output-ids").strip()
        if ours == joined(text[1:]):
            equal += 1
            continue
        at = next(at for at, token in enumerate(ours.split(",")) if token != str(text[at + 1]))
        best = numpy.sort(rows[at])[-2:]
        lead = best[1] - best[0]
        lines.append(f"  source of {len(source)}: texts differ from token {at}; llama.cpp's leads by {lead:.2e}")
    print(f"{Path(path).name}: {equal} of {len(sources)} texts, logits within {worst:.1e}, "
          f"{len(other_tokens)} of {len(texts)} texts have other tokens", flush=True)
    print("\n".join(lines + other_tokens), end="\n" if lines + other_tokens else "")
    return equal == len(sources) and not other_tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("foretoken")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--tokens", type=int, default=48)
    arguments = parser.parse_args()
    # llama.cpp tells every tensor on standard error, and Python's own errors are wanted.
    sys.stderr = os.fdopen(os.dup(2), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    llama.llama_backend_init()
    texts = [line for line in arguments.texts.read_text().splitlines() if line] if arguments.texts else []
    results = [compare(arguments.foretoken, path, texts, arguments.tokens) for path in arguments.files]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
