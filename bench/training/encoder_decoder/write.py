#!/usr/bin/env python3
"""Lets a trained encoder-decoder write the targets of tasks, which a draft then learns to predict.

    python3 write.py DATA/train.jsonl MODEL OUT.jsonl --count 6000

OUT gets a line for each task with what MODEL wrote for its source, half of them the most probable text and half drawn
at temperature 1, since a draft is asked for both. Tasks are taken from the end of the file.
"""
import argparse
import json
import os

import torch
from transformers import AutoTokenizer, T5ForConditionalGeneration


@torch.no_grad()
def answers(model, tokenizer, sources, drawn, tokens_max=384, rows=64):
    """What a network writes for sources: the token ids of each text, ended by the token that ends it."""
    ids = tokenizer(sources)["input_ids"]
    order = sorted(range(len(ids)), key=lambda at: len(ids[at]))
    found = [None] * len(ids)
    for first in range(0, len(order), rows):
        part = order[first:first + rows]
        batch = tokenizer.pad({"input_ids": [ids[at] for at in part]}, return_tensors="pt")
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=rows > 1):
            texts = model.generate(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"],
                                   do_sample=drawn, top_k=0, top_p=1.0, temperature=1.0, max_new_tokens=tokens_max)
        for at, text in zip(part, texts[:, 1:].tolist()):
            found[at] = text[:text.index(1) + 1] if 1 in text else text
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks")
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--count", type=int, default=6000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = T5ForConditionalGeneration.from_pretrained(options.model, dtype=torch.float32)
    with open(options.tasks) as lines:
        tasks = [json.loads(line) for line in lines][-options.count:]
    # In parts, so that a stopped run keeps what it has; a later run goes on behind it.
    done = sum(1 for _ in open(options.out)) if os.path.exists(options.out) else 0
    for first in range(done, len(tasks), 500):
        part = tasks[first:first + 500]
        texts = answers(model, tokenizer, [task["source"] for task in part], drawn=first // 500 % 2 == 1)
        lines = [json.dumps({**task, "target": tokenizer.decode(text, skip_special_tokens=True)}, ensure_ascii=False)
                 for task, text in zip(part, texts)]
        with open(options.out, "a") as out:
            out.write("\n".join(lines) + "\n")
        print(f"{first + len(part)} of {len(tasks)}", flush=True)


if __name__ == "__main__":
    main()
