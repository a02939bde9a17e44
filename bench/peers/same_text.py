#!/usr/bin/env python3
"""Compares the texts that foretoken and llama.cpp write from the same GGUF file and prompt at temperature 0, token for
token.

    foretoken quantize models/demo-target /tmp/demo-q8_0.gguf --type q8_0
    /tmp/gguf/bin/python bench/peers/same_text.py /tmp/demo-q8_0.gguf -n 60

Prints a line for each file: whether foretoken writes the same from the text of the prompt as from llama.cpp's tokens of
it, and how many tokens of its answer llama.cpp would have written, too. Where they diverge, it prints llama.cpp's
logits for its own token and for ours: a near tie there is rounding (each program has its own order of additions, and
both round activations for quantized weights), a wide margin is a bug. Needs llama-cpp-python (README.md). Exit code 1
if a prompt is tokenized differently, or texts diverge at a margin above --margin.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import numpy
from llama_cpp import Llama

ROOT = Path(__file__).resolve().parent.parent.parent


def ours(program, model, words):
    """Token ids that `foretoken generate` writes."""
    command = [program, "generate", "-m", model, "--temp", "0", "-s", "0", "--spec-type", "none", "--ignore-eos",
               "--output-ids", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{model}: {done.stderr.strip()}")
    return [int(word) for word in done.stdout.replace(",", " ").split()]


def greedy(llama, tokens, count, expected):
    """How many of `expected` llama.cpp writes after `tokens`, too, and its logits where it writes another token."""
    llama.reset()
    llama.eval(tokens)
    for place, token in enumerate(expected[:count]):
        row = numpy.array(llama.scores[llama.n_tokens - 1])
        best = int(row.argmax())
        if best != token:
            return place, (row[best], row[token])
        llama.eval([token])
    return len(expected), None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL.gguf")
    parser.add_argument("-p", "--prompt", default="once upon a time, there was a little")
    parser.add_argument("-n", type=int, default=60, help="tokens to write")
    parser.add_argument("--margin", type=float, default=0.1, help="largest difference of logits that is a near tie")
    parser.add_argument("--foretoken", default=ROOT / "target/release/foretoken", help="the program")
    options = parser.parse_args()
    wrong = False
    for model in options.models:
        llama = Llama(model, n_ctx=1024, n_threads=2, logits_all=True, verbose=False)
        # foretoken does not print the tokens of a prompt; other tokens lead to another text sooner or later.
        theirs = llama.tokenize(options.prompt.encode(), add_bos=True, special=True)
        text = ours(options.foretoken, model, ["-n", str(options.n), "-p", options.prompt])
        by_tokens = ours(options.foretoken, model, ["-n", str(options.n), "--prompt-ids", ",".join(map(str, theirs))])
        same_prompt = text == by_tokens
        agreed, parted = greedy(llama, theirs, options.n, by_tokens)
        prompt = "alike" if same_prompt else "CUT OTHERWISE"
        line = f"{model}: prompt {prompt}, {agreed} of {len(by_tokens)} tokens agree"
        if parted:
            margin = parted[0] - parted[1]
            verdict = "a near tie" if margin <= options.margin else "NO TIE"
            line += f"; then {parted[0]:.3f} against {parted[1]:.3f}, {verdict}"
            wrong |= bool(margin > options.margin)
        wrong |= not same_prompt
        print(line, flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
