"""What training reads of a target's own files: the final norm and the output matrix, from which its laws are recomputed
behind the last layer; the embeddings that a head lends; the shape of its layers; its special tokens, and its tokens as
text, to recognise prompts that must not be trained on.

A folder of Hugging Face, or a GGUF file, whose blocks the package `gguf` turns into floats. Left out: families whose
logits are not an RMS norm and a matrix (a list below), and running the target, which `foretoken hidden` does.
"""
import json
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from problem import Problem, expect

# Families whose logits are `output @ rms_norm(hidden)`, without soft caps, scales or biases.
PLAIN = {"llama", "mistral", "mistral3", "qwen2", "qwen3", "smollm3", "olmo2", "phi3", "arcee", "seed_oss"}
NAMES = {"norm": ("model.norm.weight", "output_norm.weight"),
         "embeddings": ("model.embed_tokens.weight", "token_embd.weight"),
         "output": ("lm_head.weight", "output.weight")}


class Shape(NamedTuple):
    """The shape of a target's layers."""
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    layers: int
    context: int
    rope_theta: float
    epsilon: float


class Target:
    """The parts of a target. `reader` is of a GGUF file and None for a folder."""

    def __init__(self, path):
        self.path = Path(path)
        self.reader, self.license = None, None
        if self.path.is_dir():
            self.read_folder()
        else:
            self.read_gguf()
        if self.output is None:
            self.output = self.embeddings
        width = self.shape.width
        for name in ("embeddings", "output"):
            found = getattr(self, name).shape
            expect(found[1:] == (width,), f"{self.path}: {NAMES[name]}", f"rows of {width}", list(found))

    def read_folder(self):
        try:
            config = json.loads((self.path / "config.json").read_text())
            self.tokenizer = json.loads((self.path / "tokenizer.json").read_text())
        except (OSError, ValueError) as error:
            raise Problem(f"--target {self.path}: expected config.json and tokenizer.json, found: {error}") from error
        self.family(config.get("model_type"))
        rope = config.get("rope_parameters") or {}
        try:
            width, heads = config["hidden_size"], config["num_attention_heads"]
            self.shape = Shape(
                width, heads, config.get("num_key_value_heads") or heads, config.get("head_dim") or width // heads,
                config["intermediate_size"], config["num_hidden_layers"], config["max_position_embeddings"],
                rope.get("rope_theta") or config.get("rope_theta") or 10000.0, config["rms_norm_eps"])
        except KeyError as error:
            raise Problem(f"{self.path}/config.json: expected the field {error}, found none") from error
        self.name = self.path.resolve().name
        parts = {}
        for file in sorted(self.path.glob("*.safetensors")):
            try:
                with safe_open(file, "pt") as tensors:
                    parts |= {part: tensors.get_tensor(name[0]).float() for part, name in NAMES.items()
                              if name[0] in tensors.keys()}
            except (SafetensorError, OSError) as error:
                raise Problem(f"{file}: expected a safetensors file, found: {error}") from error
        self.parts(parts, 0)
        self.special = [token["id"] for token in self.tokenizer.get("added_tokens", []) if token.get("special")]

    def read_gguf(self):
        from gguf import GGUFReader, TokenType, dequantize
        try:
            self.reader = GGUFReader(self.path)
        except (OSError, ValueError) as error:
            raise Problem(f"--target {self.path}: expected a folder or a GGUF file, found: {error}") from error
        architecture = self.key("general.architecture")
        self.family(architecture)
        width = self.key(f"{architecture}.embedding_length")
        heads = self.key(f"{architecture}.attention.head_count")
        self.shape = Shape(
            width, heads, self.key(f"{architecture}.attention.head_count_kv", heads),
            self.key(f"{architecture}.attention.key_length", width // heads),
            self.key(f"{architecture}.feed_forward_length"), self.key(f"{architecture}.block_count"),
            self.key(f"{architecture}.context_length"), self.key(f"{architecture}.rope.freq_base", 10000.0),
            self.key(f"{architecture}.attention.layer_norm_rms_epsilon"))
        self.name = self.key("general.name", self.path.stem)
        self.license = self.key("general.license", "") or None
        of = {tensor.name: tensor for tensor in self.reader.tensors}
        self.parts({part: torch.from_numpy(dequantize(of[name[1]].data, of[name[1]].tensor_type).copy()).float()
                    for part, name in NAMES.items() if name[1] in of}, 1)
        kinds = self.key("tokenizer.ggml.token_type", [])
        self.special = [token for token, kind in enumerate(kinds) if kind == TokenType.CONTROL]

    def key(self, name, default=None):
        field = self.reader.fields.get(name)
        expect(field is not None or default is not None, f"{self.path}: {name}", "the key", "none")
        return default if field is None else field.contents()

    def family(self, family):
        expect(family in PLAIN, f"--target {self.path}: family", f"one of {', '.join(sorted(PLAIN))}", family)

    def parts(self, parts, form):
        missing = {"norm", "embeddings"} - parts.keys()
        expect(not missing, f"--target {self.path}", f"the tensors {[NAMES[part][form] for part in sorted(missing)]}",
               "none")
        self.norm, self.embeddings, self.output = parts["norm"], parts["embeddings"], parts.get("output")

    def decoder(self):
        """A function from tokens to their text, special ones included."""
        if self.reader is None:
            from tokenizers import Tokenizer
            decode = Tokenizer.from_file(str(self.path / "tokenizer.json")).decode
            return lambda tokens: decode(tokens.tolist(), skip_special_tokens=False)
        spelt, byte_of = self.key("tokenizer.ggml.tokens"), bytes_of_characters()
        if self.key("tokenizer.ggml.model") == "gpt2":
            special = set(self.special)

            def spell(token):
                text = spelt[token]
                if token in special:
                    return text.encode()
                return b"".join(bytes([byte_of[c]]) if c in byte_of else c.encode() for c in text)
        else:
            def spell(token):
                text = spelt[token]
                is_byte = len(text) == 6 and text.startswith("<0x")
                return bytes([int(text[3:5], 16)]) if is_byte else text.replace("\u2581", " ").encode()
        return lambda tokens: b"".join(map(spell, tokens.tolist())).decode(errors="replace")


def bytes_of_characters():
    """What bytes the characters of byte-level vocabularies stand for (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


def normalised(text):
    return " ".join(text.casefold().split())


def excluder(files, target):
    """A function that says of the tokens of a prompt whether it holds one of the prompts of these files of JSON lines
    (fields `prompt`, `text`, `question`, or messages and turns), letters and white space aside."""
    prompts = set()
    for name in files:
        try:
            with open(name, encoding="utf-8") as lines:
                for number, line in enumerate(filter(str.strip, lines), 1):
                    prompts |= set(map(normalised, texts_of(json.loads(line), f"{name}, line {number}")))
        except (OSError, ValueError) as error:
            raise Problem(f"--exclude {name}: expected lines of JSON, found: {error}") from error
    if not prompts:
        return lambda _tokens: False
    decode = target.decoder()

    def excluded(tokens):
        text = normalised(decode(tokens))
        return any(prompt in text for prompt in prompts)
    return excluded


def texts_of(record, name):
    """The texts of a record that make its prompt."""
    for field in ("prompt", "text", "question", "turns", "messages"):
        value = record.get(field) if isinstance(record, dict) else None
        if isinstance(value, str):
            value = [value]
        if isinstance(value, list):
            value = [one.get("content") if isinstance(one, dict) and one.get("role") == "user" else one
                     for one in value]
            found = [one for one in value if isinstance(one, str) and one.strip()]
            if found:
                return found
    raise Problem(f"--exclude {name}: expected a prompt, text, question, turns or messages, found {str(record)[:80]}")
