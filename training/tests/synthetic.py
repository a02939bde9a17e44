"""A tiny target of random weights as a folder and as a GGUF file, and shards of texts whose hidden states are random,
as `foretoken hidden` would write them. Left out: any sense in them.
"""
import json
import struct
from pathlib import Path

import gguf
import safetensors.torch
import torch

import export
from target import Shape

SHAPE = Shape(width=32, heads=4, kv_heads=2, head_dim=8, ffn=48, layers=5, context=64, rope_theta=10000.0, epsilon=1e-5)
VOCABULARY, SPECIAL = 96, [0, 95]
ABOUT = {"format": "foretoken-hidden/1", "model": "synthetic", "layers": "1,2,3,5", "width": "32", "vocabulary": "96"}


def spelt(token):
    return f"<s{token}>" if token in SPECIAL else chr(ord("!") + token % 94) * (1 + token // 94)


def target_folder(folder, seed=1):
    """Writes a target without layers: its norm, embeddings, output and tokenizer."""
    random = torch.Generator().manual_seed(seed)
    rows = [torch.randn(VOCABULARY, SHAPE.width, generator=random) for _ in range(2)]
    config = export.layer_config(SHAPE, VOCABULARY)
    export.write_folder(folder, config, {"model.norm.weight": torch.ones(SHAPE.width) * 1.5,
                                         "model.embed_tokens.weight": rows[0], "lm_head.weight": rows[1]})
    added = [dict(id=token, content=spelt(token), special=True, single_word=False, lstrip=False, rstrip=False,
                  normalized=False) for token in SPECIAL]
    vocabulary = {spelt(token): token for token in range(VOCABULARY)}
    tokenizer = dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None,
                     pre_tokenizer=None, post_processor=None, decoder=dict(type="Fuse"),
                     model=dict(type="WordLevel", vocab=vocabulary, unk_token=spelt(0)))
    (Path(folder) / "tokenizer.json").write_text(json.dumps(tokenizer))


def target_gguf(path, folder):
    """The same as a GGUF file."""
    with safetensors.safe_open(Path(folder) / "model.safetensors", "pt") as file:
        tensors = {name.removeprefix("model."): file.get_tensor(name) for name in file.keys()}
    writer = export.start(path, "llama", SHAPE, "synthetic")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([spelt(token) for token in range(VOCABULARY)])
    writer.add_token_types([gguf.TokenType.CONTROL if token in SPECIAL else gguf.TokenType.NORMAL
                            for token in range(VOCABULARY)])
    export.add_tensors(writer, tensors, SHAPE)
    export.finish(writer, path)


def texts(count, seed=2):
    """Tokens, the length of the prompt and hidden states of each."""
    random = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        length = int(torch.randint(12, 40, (1,), generator=random))
        tokens = torch.randint(1, 40, (length,), generator=random)
        made.append((tokens, 6, torch.randn(length, 4 * SHAPE.width, generator=random).to(torch.bfloat16)))
    return made


def file_of(made, metadata=ABOUT, **changes):
    """The bytes of a shard."""
    starts = torch.tensor([0] + [len(tokens) for tokens, _, _ in made]).cumsum(0)
    tensors = dict(tokens=torch.cat([tokens for tokens, _, _ in made]).int(), starts=starts,
                   prompt_lens=torch.tensor([prompt for _, prompt, _ in made], dtype=torch.int32),
                   hidden=torch.cat([hidden for _, _, hidden in made]))
    return safetensors.torch.save({**tensors, **changes}, metadata=metadata)


def shards(folder, made, each=50):
    Path(folder).mkdir(parents=True, exist_ok=True)
    for number, at in enumerate(range(0, len(made), each)):
        (Path(folder) / f"{number:05}.safetensors").write_bytes(file_of(made[at:at + each]))


def stream(made):
    """The bytes that a pipe brings."""
    files = [file_of([one]) for one in made]
    return b"".join(struct.pack("<Q", len(file)) + file for file in files)
