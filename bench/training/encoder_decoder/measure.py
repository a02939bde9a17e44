#!/usr/bin/env python3
"""Measures a trained encoder-decoder on held-out tasks, and how often a draft is right about it.

    python3 measure.py DATA/held.jsonl TARGET [--draft DRAFT] --count 100

For each task it prints how many greedy texts equal the wanted ones, the mean similarity of their words (twice the
longest common subsequence over the sum of lengths), how many tokens of the wanted texts are the most probable ones
behind those before and, for translations, BLEU of all together. With a draft, over the target's own texts: agreement
is the share of positions of the greedy texts at which both have the same most probable token, and acceptance the mean
of the sum of min(p, q) over positions of texts drawn at temperature 1.
"""
import argparse
import collections
import json

import torch
from transformers import AutoTokenizer, T5ForConditionalGeneration

from scores import bleu, similarity


@torch.no_grad()
def answers(model, tokenizer, sources, drawn, tokens_max=384, rows=64):
    """What a network writes for sources: the token ids of each text, ended by the token that ends it."""
    ids = tokenizer(sources)["input_ids"]
    order = sorted(range(len(ids)), key=lambda at: len(ids[at]))
    found = [None] * len(ids)
    for first in range(0, len(order), rows):
        part = order[first:first + rows]
        batch = tokenizer.pad({"input_ids": [ids[at] for at in part]}, return_tensors="pt")
        law = dict(do_sample=True, top_k=0, top_p=1.0, temperature=1.0) if drawn else dict(do_sample=False)
        texts = model.generate(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"],
                               max_new_tokens=tokens_max, **law)
        for at, text in zip(part, texts[:, 1:].tolist()):
            found[at] = text[:text.index(1) + 1] if 1 in text else text
    return found


@torch.no_grad()
def laws(model, source, text):
    """The distributions of a network at each token of a text."""
    return model(input_ids=torch.tensor([source]), labels=torch.tensor([text])).logits[0].softmax(-1)


def right_given(model, sources, wanted):
    """The share of tokens of wanted texts that a network has right, given those before."""
    right = [laws(model, source, text).argmax(-1) == torch.tensor(text) for source, text in zip(sources, wanted)]
    return torch.cat(right).float().mean().item()


def right(target, draft, sources, texts):
    """Of each text, the positions and the sums of agreement and of min(p, q)."""
    for source, text in zip(sources, texts):
        p, q = (laws(model, source, text) for model in (target, draft))
        yield len(text), (p.argmax(-1) == q.argmax(-1)).sum().item(), torch.minimum(p, q).sum().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks")
    parser.add_argument("target")
    parser.add_argument("--draft")
    parser.add_argument("--count", type=int, default=100, help="tasks of each kind")
    parser.add_argument("--show", type=int, default=0, help="texts of each kind to print")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    target, draft = (path and T5ForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
                     for path in (options.target, options.draft))
    by_task = collections.defaultdict(list)
    with open(options.tasks) as lines:
        for line in lines:
            task = json.loads(line)
            by_task[task["task"]].append(task)
    for name, tasks in sorted(by_task.items()):
        tasks = tasks[:options.count]
        sources = [task["source"] for task in tasks]
        greedy = answers(target, tokenizer, sources, drawn=False)
        texts = [tokenizer.decode(text, skip_special_tokens=True) for text in greedy]
        pairs = [(text, task["target"]) for text, task in zip(texts, tasks)]
        said = [f"{name}: {len(tasks)} tasks", f"equal {sum(a == b for a, b in pairs) / len(pairs):.2f}",
                f"similarity {sum(similarity(*pair) for pair in pairs) / len(pairs):.3f}"]
        ids, wanted = (tokenizer([task[side] for task in tasks])["input_ids"] for side in ("source", "target"))
        said.append(f"tokens {right_given(target, ids, wanted):.3f}")
        if name == "translate":
            said.append(f"BLEU {bleu(pairs):.1f}")
        if draft:
            drawn = answers(target, tokenizer, sources, drawn=True)
            for what, of, column in [("agreement", greedy, 1), ("acceptance", drawn, 2)]:
                each = list(right(target, draft, ids, of))
                said.append(f"{what} {sum(row[column] for row in each) / sum(row[0] for row in each):.3f}")
        print(", ".join(said), flush=True)
        for task, text in list(zip(tasks, texts))[:options.show]:
            print(f"  {task['source']}\n  = {text}\n  ~ {task['target']}")


if __name__ == "__main__":
    main()
