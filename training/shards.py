"""Texts with the target's hidden states, as `foretoken hidden` writes them: a folder of shards, or a stream.

A folder is walked in epochs, each in an order of its own that follows from the seed, so that a run which is resumed
goes on with the next text. A stream is trained on as it comes; the last texts are kept in memory, and when it ends they
are walked in epochs as a folder is. Two texts in a hundred, by a hash of their prompts, are held out: a prompt is on
one side whatever else is there. Left out: what is in the rows.
"""
import hashlib
import io
import json
import struct
from collections import deque
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from problem import Problem, expect

FORMAT = "foretoken-hidden/1"
TENSORS = {"tokens": torch.int32, "starts": torch.int64, "prompt_lens": torch.int32, "hidden": None}
HELD_OUT = 0.02


class Text(NamedTuple):
    """Tokens of a text, how many of them are the prompt, and hidden states [tokens, layers * width]."""
    tokens: torch.Tensor
    prompt_len: int
    hidden: torch.Tensor

    def words(self):
        """How many tokens are the model's own."""
        return len(self.tokens) - self.prompt_len


class About(NamedTuple):
    """What all texts of a run have in common."""
    layers: tuple
    width: int
    vocabulary: int


def about(metadata, name):
    """The metadata of a file, checked."""
    metadata = metadata or {}
    expect(metadata.get("format") == FORMAT, f"{name}: format", FORMAT, metadata.get("format"))
    try:
        layers = tuple(int(layer) for layer in metadata["layers"].split(","))
        found = About(layers, int(metadata["width"]), int(metadata["vocabulary"]))
    except (KeyError, ValueError) as error:
        raise Problem(f"{name}: expected the metadata layers, width and vocabulary, found {metadata}") from error
    expect(len(layers) == 4, f"{name}: layers", "three layers that a head reads and the number of layers", layers)
    return found


def check(name, tensors, of):
    """That the columns of a file fit each other."""
    tokens, starts, prompt_lens = (tensors[key] for key in ("tokens", "starts", "prompt_lens"))
    rises = len(starts) >= 1 and starts[0] == 0 and bool((starts.diff() > 0).all())
    expect(rises and starts[-1] == len(tokens), f"{name}: starts", f"0 rising to {len(tokens)}", starts.tolist()[:8])
    expect(len(prompt_lens) == len(starts) - 1, f"{name}: prompt_lens", f"{len(starts) - 1}", len(prompt_lens))
    fit = bool(((prompt_lens >= 0) & (prompt_lens <= starts.diff())).all())
    expect(fit, f"{name}: prompt_lens", "none longer than its text", prompt_lens.tolist()[:8])
    known = len(tokens) == 0 or 0 <= int(tokens.min()) <= int(tokens.max()) < of.vocabulary
    expect(known, f"{name}: tokens", f"ids below {of.vocabulary}", tokens.tolist()[:8])


def check_rows(name, shape, some, tokens, of):
    """That there are as many rows as tokens, and that some of them are floats."""
    expected = [tokens, len(of.layers) * of.width]
    expect(list(shape) == expected, f"{name}: hidden", expected, list(shape))
    expect(some.is_floating_point(), f"{name}: hidden", "floats", some.dtype)


def place(tokens):
    """A number from 0 to 1 that a prompt always has."""
    digest = hashlib.sha256(tokens.to(torch.int32).numpy().tobytes()).digest()
    return int.from_bytes(digest[:8], "little") / 2**64


def prompt_of(text_tokens, prompt_len):
    return text_tokens[:prompt_len] if prompt_len else text_tokens


class Folder:
    """A folder of shards. `excluded` says of the tokens of a prompt whether the text must not be seen at all."""

    def __init__(self, folder, seed, context, excluded):
        self.seed, self.context, self.epoch, self.at = seed, context, 0, 0
        self.files, self.index, self.about = [], [], None
        names = sorted(Path(folder).glob("*.safetensors")) if Path(folder).is_dir() else []
        expect(names, f"--hidden {folder}", "a folder with shards that foretoken hidden wrote", "none")
        places, self.left_out = [], 0
        for number, name in enumerate(names):
            tokens, starts, prompt_lens = self.open(name)
            for start, end, prompt_len in zip(starts[:-1].tolist(), starts[1:].tolist(), prompt_lens.tolist()):
                prompt = prompt_of(tokens[start:end], prompt_len)
                if excluded(prompt):
                    self.left_out += 1
                elif min(end - start, context) - prompt_len >= 2:
                    self.index.append((number, start, end, prompt_len))
                    places.append(place(prompt))
        expect(len(set(places)) >= 2, f"--hidden {folder}", "two texts of two words or more", len(self.index))
        border = min(1 - HELD_OUT, max(places))
        self.held = [i for i, at in enumerate(places) if at >= border]
        self.own = [i for i, at in enumerate(places) if at < border]

    def open(self, name):
        """Opens a shard; its columns but the rows."""
        try:
            file = safe_open(name, "pt")
            tensors = {key: file.get_tensor(key) for key in TENSORS if key != "hidden"}
            hidden = file.get_slice("hidden")
        except (SafetensorError, OSError) as error:
            raise Problem(f"{name}: expected a shard of foretoken hidden, found: {error}") from error
        found = about(file.metadata(), name)
        self.about = self.about or found
        expect(found == self.about, f"{name}: metadata", self.about, found)
        check(name, tensors, found)
        check_rows(name, hidden.get_shape(), hidden[:1], len(tensors["tokens"]), found)
        self.files.append((hidden, tensors["tokens"]))
        return tensors["tokens"], tensors["starts"], tensors["prompt_lens"]

    def text(self, i):
        number, start, end, prompt_len = self.index[i]
        end = min(end, start + self.context)
        hidden, tokens = self.files[number]
        return Text(tokens[start:end].long(), prompt_len, hidden[start:end])

    def held_out(self):
        return (self.text(i) for i in self.held)

    def counts(self):
        """How often each token is one of the model's own words."""
        counts = torch.zeros(self.about.vocabulary, dtype=torch.long)
        for number, start, end, prompt_len in (self.index[i] for i in self.own):
            words = self.files[number][1][start + prompt_len:min(end, start + self.context)]
            counts += torch.bincount(words, minlength=len(counts))
        return counts

    def take(self, words):
        """The next texts, with at least so many words in all."""
        taken = []
        while sum(text.words() for text in taken) < words:
            order = torch.randperm(len(self.own), generator=torch.Generator().manual_seed(self.seed + self.epoch))
            taken.append(self.text(self.own[order[self.at]]))
            self.at += 1
            if self.at == len(order):
                self.epoch, self.at = self.epoch + 1, 0
        return taken

    def state(self):
        return {"epoch": self.epoch, "at": self.at}

    def go_on(self, state):
        self.epoch, self.at = state["epoch"], state["at"]


class Stream:
    """Texts from a pipe. The first `count_first` words are read before anything is trained, for the draft vocabulary;
    of those that were trained on the last `bytes_max` bytes are kept."""

    def __init__(self, file, seed, context, excluded, count_first, bytes_max):
        self.file, self.context, self.excluded, self.about = file, context, excluded, None
        self.random, self.bytes_max = torch.Generator().manual_seed(seed), bytes_max
        self.waiting, self.kept, self.held, self.left_out, self.texts, self.ended = deque(), deque(), [], 0, 0, False
        while not self.ended and sum(text.words() for text in self.waiting) < count_first:
            self.read()
        if not self.held and self.waiting:
            self.held.append(self.waiting.popleft())
        expect(self.waiting, "--hidden -", "two texts of two words or more", f"{self.texts}")

    def read(self):
        """The next text goes where it belongs."""
        length = self.file.read(8)
        self.ended = not length
        if self.ended:
            return
        name, self.texts = f"--hidden -: text {self.texts}", self.texts + 1
        expect(len(length) == 8, name, "a length of 8 bytes", f"{len(length)} bytes")
        size = struct.unpack("<Q", length)[0]
        data = self.file.read(size)
        expect(len(data) == size, name, f"{size} bytes", f"{len(data)}")
        try:
            tensors = safetensors.torch.load(data)
            header = json.load(io.BytesIO(data[8:8 + struct.unpack("<Q", data[:8])[0]]))
        except (SafetensorError, ValueError, struct.error) as error:
            raise Problem(f"{name}: expected a safetensors file, found: {error}") from error
        expect(TENSORS.keys() <= tensors.keys(), name, sorted(TENSORS), sorted(tensors))
        found = about(header.get("__metadata__"), name)
        self.about = self.about or found
        expect(found == self.about, f"{name}: metadata", self.about, found)
        check(name, tensors, found)
        check_rows(name, tensors["hidden"].shape, tensors["hidden"], len(tensors["tokens"]), found)
        expect(len(tensors["prompt_lens"]) == 1, f"{name}: prompt_lens", "one text", len(tensors["prompt_lens"]))
        self.sort(tensors["tokens"][:self.context].long(), int(tensors["prompt_lens"][0]), tensors["hidden"])

    def sort(self, tokens, prompt_len, hidden):
        prompt = prompt_of(tokens, prompt_len)
        text = Text(tokens, prompt_len, hidden[:self.context])
        if self.excluded(prompt):
            self.left_out += 1
        elif text.words() >= 2:
            (self.held if place(prompt) >= 1 - HELD_OUT else self.waiting).append(text)

    def held_out(self):
        return iter(self.held)

    def counts(self):
        words = torch.cat([text.tokens[text.prompt_len:] for text in self.waiting])
        return torch.bincount(words, minlength=self.about.vocabulary)

    def take(self, words):
        taken = []
        while sum(text.words() for text in taken) < words:
            while not self.waiting and not self.ended:
                self.read()
            if not self.waiting:  # the next epoch
                kept = list(self.kept)
                self.waiting.extend(kept[i] for i in torch.randperm(len(kept), generator=self.random).tolist())
                self.kept.clear()
            text = self.waiting.popleft()
            taken.append(text)
            self.kept.append(text)
            while len(self.kept) > 1 and sum(kept.hidden.nbytes for kept in self.kept) > self.bytes_max:
                self.kept.popleft()
        return taken

    def state(self):
        return {}

    def go_on(self, state):
        """A stream goes on with what comes: what was read before is its writer's business."""
