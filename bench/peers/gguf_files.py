#!/usr/bin/env python3
"""Compares the GGUF files that foretoken writes with those of llama.cpp's converter.

    python3 bench/peers/gguf_files.py FORETOKEN crates/model/tests/golden CONVERTED [NAME ...]

FORETOKEN is the built program, CONVERTED a folder of `golden_gguf.py`. `foretoken quantize --type f32` writes each
golden network, which is compared with CONVERTED/NAME.gguf: keys by their values, tensors by names, shapes and elements
(within 1e-6 of the largest). A key that only foretoken writes is no difference: it writes the keys of all architectures
into every file.

Needs the package `gguf` and numpy.
"""
import argparse
import os
import subprocess
import tempfile
from pathlib import Path

import numpy
from gguf import GGUFReader

# Keys of files and their vocabularies, not of networks.
LEFT_OUT = ("GGUF.", "general.", "tokenizer.")


def keys(reader):
    return {key: field.contents() for key, field in reader.fields.items() if not key.startswith(LEFT_OUT)}


def tensors(reader):
    return {tensor.name: numpy.array(tensor.data, dtype=numpy.float32) for tensor in reader.tensors}


def same(ours, theirs):
    if isinstance(ours, float) and isinstance(theirs, float):
        return abs(ours - theirs) <= 1e-6 * max(abs(ours), abs(theirs))
    return ours == theirs


def differences(ours, theirs):
    """A line for each difference; `ours` and `theirs` are opened files."""
    left, right = keys(ours), keys(theirs)
    for key in sorted(right):
        if key not in left:
            yield f"{key}: only the converter writes it, as {right[key]}"
        elif not same(left[key], right[key]):
            yield f"{key}: {left[key]}, by the converter {right[key]}"
    left, right = tensors(ours), tensors(theirs)
    for name in sorted(left.keys() ^ right.keys()):
        yield f"{name}: only {'foretoken' if name in left else 'the converter'} writes it"
    for name in sorted(left.keys() & right.keys()):
        if left[name].shape != right[name].shape:
            yield f"{name}: {left[name].shape}, by the converter {right[name].shape}"
        elif (off := numpy.abs(left[name] - right[name]).max()) > 1e-6 * numpy.abs(right[name]).max():
            yield f"{name}: elements differ by up to {off}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("foretoken")
    parser.add_argument("goldens", type=Path)
    parser.add_argument("converted", type=Path)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    for folder in sorted(path for path in arguments.goldens.iterdir() if path.is_dir()):
        converted = arguments.converted / f"{folder.name}.gguf"
        if arguments.names and folder.name not in arguments.names or not converted.exists():
            continue
        with tempfile.TemporaryDirectory() as place:
            out = os.path.join(place, "ours.gguf")
            line = [arguments.foretoken, "quantize", str(folder), out, "--type", "f32"]
            run = subprocess.run(line, capture_output=True, text=True)
            if run.returncode != 0:
                print(f"{folder.name}: refused: {run.stderr.strip().split('config.json: ')[-1]}")
                continue
            found = list(differences(GGUFReader(out), GGUFReader(converted)))
        print(f"{folder.name}: {'; '.join(found) or 'the same'}")


if __name__ == "__main__":
    main()
