#!/usr/bin/env python3
"""Makes the tasks that the small encoder-decoders learn: pairs of a source and the text to write for it.

    python3 tasks.py --news NEWS.jsonl.xz --texts WIKI.jsonl.xz STORIES.jsonl.xz --dialogues DIALOGUE.jsonl.xz \\
        --translations deu.txt --out DATA

Documents are JSON lines with "text" (a news article begins with its title and an empty line); translations are lines of
English, a tab and German. DATA gets train.jsonl and held.jsonl with "task", "source" and "target". A document, or an
English sentence, that is held out occurs in held.jsonl only (by a hash of its text), and the same files and seed give
the same tasks.

The tasks, each with a prefix as T5 has it:
  copy        the same text
  edit        the text after one change: a word replaced, removed, inserted or repeated by mistake, a sentence removed
  summarize   the first sentence, and the later one that shares most words with the whole text
  translate   English to German, one to four short sentences

All is single lines: white space is collapsed. The learned texts are what the rules here give; nothing was written by
another model.
"""
import argparse
import collections
import hashlib
import json
import lzma
import os
import random
import re

HELD_PERCENT = 2
CHARACTERS_MAX = 900

SHARES = {"copy": 0.2, "edit": 0.4, "summarize": 0.1, "translate": 0.3}
TRANSLATION_CHARACTERS_MAX = 40
SENTENCE_END = re.compile(r'(?<=[.!?])["”\')]*\s+(?=["“\'(]*\w)')
WORD = re.compile(r"[^\W\d_][\w'’-]*")


def is_held(text):
    """Whether a document is kept for measurements."""
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % 100 < HELD_PERCENT


def one_line(text):
    return " ".join(text.split())


def sentences(text):
    return [part for part in SENTENCE_END.split(text) if part]


def documents(path):
    """The texts of a file of JSON lines, compressed with xz or not."""
    opened = lzma.open(path, "rt") if path.endswith(".xz") else open(path)
    with opened as lines:
        for line in lines:
            yield json.loads(line)["text"]


def utterances(text):
    """What user and assistant say in a dialogue, without service calls."""
    said = re.findall(r"<\|(?:user|assistant)\|>(.*?)<\|end\|>", text, re.S)
    return [one_line(part) for part in said]


def passages(parts, chance):
    """Consecutive sentences in pieces of one to eight, of at most CHARACTERS_MAX characters."""
    at = 0
    while at < len(parts):
        piece = []
        for part in parts[at:at + chance.choice([1, 1, 2, 3, 4, 5, 6, 8])]:
            if sum(map(len, piece)) + len(part) > CHARACTERS_MAX:
                break
            piece.append(part)
        at += max(len(piece), 1)
        if piece and len(" ".join(piece)) >= 20:
            yield piece


def read(options, chance):
    """The raw material of training and of what is held out: passages (lists of sentences), articles, translations."""
    material = {held: {"passages": [], "articles": [], "pairs": []} for held in (False, True)}
    for path in options.news:
        for text in documents(path):
            parts = sentences(one_line(text.partition("\n\n")[2]))
            mine = material[is_held(text)]
            if len(parts) >= 3:
                mine["articles"].append(parts)
            mine["passages"] += passages(parts[:40], chance)
    for path in options.texts:
        for text in documents(path):
            parts = sentences(one_line(text.partition("\n\n")[2] if "\n\n" in text[:100] else text))
            material[is_held(text)]["passages"] += passages(parts[:40], chance)
    for path in options.dialogues:
        for text in documents(path):
            material[is_held(text)]["passages"] += passages(utterances(text), chance)
    for path in options.translations:
        seen = set()
        with open(path) as lines:
            for line in lines:
                english, german = line.rstrip("\n").split("\t")[:2]
                if english not in seen and max(len(english), len(german)) <= TRANSLATION_CHARACTERS_MAX:
                    material[is_held(english)]["pairs"].append((one_line(english), one_line(german)))
                seen.add(english)
    return material


def replaced(text, word, other):
    return re.sub(rf"(?<![\w'’-]){re.escape(word)}(?![\w'’-])", lambda _: other, text)


def edit(parts, words, chance):
    """A source and its target for one of the changes, or None if the passage is unsuitable."""
    text = " ".join(parts)
    own = [word for word in WORD.findall(text) if len(word) > 1]
    if len(own) < 4:
        return None
    word = chance.choice(own)
    kind = chance.choice(["replace", "replace", "replace", "remove", "insert", "repeated", "sentence"])
    if kind == "replace":
        other = chance.choice(words)
        return f"edit: replace {word} by {other}: {text}", replaced(text, word, other)
    if kind == "remove":
        return f"edit: remove {word}: {text}", one_line(replaced(text, word, ""))
    if kind == "insert":
        other = chance.choice(words)
        return f"edit: insert {other} after {word}: {text}", replaced(text, word, f"{word} {other}")
    if kind == "repeated":
        split = text.split(" ")
        if any(one == two for one, two in zip(split, split[1:])):
            return None
        twice = set(chance.sample(range(len(split)), min(len(split), chance.choice([1, 2, 3]))))
        written = [part for at, part in enumerate(split) for part in [part] * (2 if at in twice else 1)]
        return f"edit: remove repeated words: {' '.join(written)}", text
    if len(parts) < 2:
        return None
    which, kept = chance.choice([("first", parts[1:]), ("last", parts[:-1])])
    return f"edit: remove the {which} sentence: {text}", " ".join(kept)


def summary(parts):
    """The first sentence, and the later one that shares the largest part of its words with the whole text."""
    def words(text):
        return [word.lower() for word in WORD.findall(text) if len(word) > 3]
    count = collections.Counter(words(" ".join(parts)))
    def central(part):
        own = set(words(part))
        return sum(count[word] - 1 for word in own) / (len(own) + 4)
    return f"{parts[0]} {max(parts[1:], key=central)}"


def begun(parts, characters):
    """The first sentences of an article, as many as fit."""
    kept = []
    for part in parts:
        if sum(map(len, kept)) + len(part) > characters:
            break
        kept.append(part)
    return kept


def example(task, material, words, chance):
    """A source and its target, or None if what was drawn does not suit the task."""
    if task == "translate":
        pairs = [chance.choice(material["pairs"]) for _ in range(chance.choice([1, 1, 2, 2, 3, 4]))]
        english, german = (" ".join(side) for side in zip(*pairs))
        return f"translate English to German: {english}", german
    if task == "summarize":
        parts = begun(chance.choice(material["articles"]), chance.choice([400, 600, CHARACTERS_MAX]))
        return (f"summarize: {' '.join(parts)}", summary(parts)) if len(parts) >= 3 else None
    parts = chance.choice(material["passages"])
    if task == "copy":
        return f"copy: {' '.join(parts)}", " ".join(parts)
    return edit(parts, words, chance)


def write(path, material, words, count, seed):
    """Writes so many tasks, in the proportions of SHARES and a random order."""
    chance = random.Random(seed)
    with open(path + ".part", "w") as out:
        for _ in range(count):
            task = chance.choices(list(SHARES), SHARES.values())[0]
            while not (made := example(task, material, words, chance)) or not made[1]:
                pass
            out.write(json.dumps({"task": task, "source": made[0], "target": made[1]}, ensure_ascii=False) + "\n")
    os.replace(path + ".part", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("news", "texts", "dialogues", "translations"):
        parser.add_argument(f"--{name}", nargs="+", default=[], required=name in ("news", "translations"))
    parser.add_argument("--out", required=True)
    parser.add_argument("--count", type=int, default=120_000, help="tasks to train with")
    parser.add_argument("--held", type=int, default=2_000, help="tasks to measure with")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    material = read(options, random.Random(options.seed))
    # Words to insert: those of the passages as often as they occur there, so that most are known and some are rare.
    chance = random.Random(options.seed + 1)
    sample = chance.sample(material[False]["passages"], min(20_000, len(material[False]["passages"])))
    words = [word for parts in sample for word in WORD.findall(" ".join(parts)) if len(word) > 2]
    words += sorted(set(words)) * 2
    for held, mine in material.items():
        print("held out:" if held else "training:", {name: len(part) for name, part in mine.items()})
    write(f"{options.out}/train.jsonl", material[False], words, options.count, options.seed + 2)
    write(f"{options.out}/held.jsonl", material[True], words, options.held, options.seed + 3)


if __name__ == "__main__":
    main()
