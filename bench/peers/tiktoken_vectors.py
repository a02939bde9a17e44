"""Tiny vocabularies of tiktoken, and what tiktoken makes of texts with them, as vectors for
crates/text/tests/text/tiktoken.rs.

    python bench/peers/tiktoken_vectors.py crates/text/tests/tiktoken
    python bench/peers/tiktoken_vectors.py OUT qwen=QWEN.TIKTOKEN glm4=TOKENIZER.MODEL      (of whole vocabularies)

Writes the folders `qwen` (qwen.tiktoken) and `glm4` (tokenizer.model), as Qwen 1 and the first GLM-4 have them, with
`vectors.jsonl`: lines of a text, its tokens with special tokens inside, and without. What the expressions and the
special tokens are stands in the code of the checkpoints, and is said here again. Needs tiktoken (0.14).
"""

import base64
import collections
import json
import pathlib
import random
import sys
import unicodedata

import regex
import tiktoken

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CLASSES = {
    "qwen": dict(
        file="qwen.tiktoken", name="QWenTokenizer", split=SPLIT % r"\p{N}", nfc=True,
        special=["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + [f"<|extra_{i}|>" for i in range(205)],
    ),
    "glm4": dict(
        file="tokenizer.model", name="ChatGLM4Tokenizer", split=SPLIT % r"\p{N}{1,3}", nfc=False,
        special=["<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>",
                 "<|assistant|>", "<|observation|>", "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>",
                 "<|end_of_video|>"],
    ),
}  # fmt: skip
WORDS = (
    "the a of to and in is it on was for that cat dog house green tree runs jumps over under aaa aaaa Zürich naïve 12 "
    "345 6789 você 你好 世界 это don't I'LL banana ananas"
).split()
TEXTS = [
    "", " ", "  ", "a", " a", "a ", "  a  b   c  ", "the cat runs", "thecat", "The Cat!", "aaaaaaaaaaa",
    "aaa aaaa aaaaa",
    "\n", "a\nb", "a\n\n  b\n", "\ta\t", "a\u00a0b", "é", "e\u0301", "Zu\u0308rich", "你好，世界。", "это кот",
    "👍🏽 👩‍👩‍👧 🇪🇺", "\u0000a", "12 345 678 1234567", "zzzzz qqq", "\r\n\r\n", "I'LL don't it's", "bananananas",
    "<|im_start|>user\nthe cat<|im_end|>\n", "[gMASK]<sop><|user|>\nthe cat<|assistant|>", "<|endoftext|><|extra_7|>",
    "<|im_start", "[gMASK", "a<|endoftext|> a", "fn main() { x[0] += 1; } // ok",
]  # fmt: skip
MERGES = 100


def ranks_of(lines, split):
    """A byte-level BPE that is trained on lines: the tokens with their ranks."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    words = collections.Counter(word.encode() for line in lines for word in regex.findall(split, line))
    parts = {word: [bytes([byte]) for byte in word] for word in words}
    while len(ranks) < 256 + MERGES:
        pairs = collections.Counter()
        for word, count in words.items():
            for pair in zip(parts[word], parts[word][1:]):
                pairs[pair] += count
        (left, right), _ = max(pairs.items(), key=lambda item: (item[1], item[0]))
        ranks[left + right] = len(ranks)
        for word, old in parts.items():
            new = []
            for part in old:
                if new and new[-1] == left and part == right:
                    new[-1] = left + right
                else:
                    new.append(part)
            parts[word] = new
    return ranks


def ranks_in(file):
    """The tokens with their ranks in a file of tiktoken."""
    lines = (line.split() for line in pathlib.Path(file).read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def main(out, *given):
    draw = random.Random(11)
    lines = [" ".join(draw.choices(WORDS, k=12)) for _ in range(400)]
    given = dict(one.split("=") for one in given)
    for folder in given or CLASSES:
        settings = CLASSES[folder]
        path = pathlib.Path(out) / folder
        path.mkdir(parents=True, exist_ok=True)
        ranks = ranks_in(given[folder]) if given else ranks_of(lines, settings["split"])
        special = {text: len(ranks) + i for i, text in enumerate(settings["special"])}
        encoder = tiktoken.Encoding(folder, pat_str=settings["split"], mergeable_ranks=ranks, special_tokens=special)
        written = "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())
        (path / settings["file"]).write_text(written)
        (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": settings["name"]}) + "\n")
        parts = ["a", "aa", " ", "  ", "the", "cat", "é", "\u0301", "你", "👍", "\n", "12", "'s", "<sop>", "anan", "x"]
        cases = []
        for text in TEXTS + ["".join(draw.choices(parts, k=12)) for _ in range(4000 if given else 40)]:
            read = unicodedata.normalize("NFC", text) if settings["nfc"] else text
            both = encoder.encode(read, allowed_special="all"), encoder.encode(read, disallowed_special=())
            cases.append(json.dumps([text, *both], ensure_ascii=False))
        (path / "vectors.jsonl").write_text("\n".join(cases) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
