#!/usr/bin/env python3
"""What the draft head of the demo target says, computed without foretoken: probabilities of a text's tokens.

    foretoken generate -m models/demo-target PROMPT -n 120 -s 5 --temp 1 --top-k 0 --top-p 1 --min-p 0 \\
        --spec-type none --json > text.json
    python3 bench/peers/demo_head.py text.json > crates/cli/tests/golden/demo-head.json

The target is run by transformers, whose `hidden_states[i]` is the residual stream that enters layer i; the head's file
is read by `training/begin.py` and run by `training/network.py`, both in f32. So this says which layers a head reads,
and of which position, by other programs than ours. Written are the tokens and for each of the model's own, from the
second on, the head's probability for it behind the text before. Left out: guesses behind guesses, which golden heads
have.
"""
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "training"))

from begin import Begun  # noqa: E402
from measure import batch_of  # noqa: E402
from network import Head  # noqa: E402
from shards import Text  # noqa: E402
from target import Target  # noqa: E402


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        text = json.load(file)
    folder = ROOT / "models" / "demo-target"
    target = Target(folder)
    begun = Begun(ROOT / "models" / "demo-head.gguf", target)
    head = Head(begun.fit(target.shape, begun.layers), begun.ids, target)
    begun.give(head)
    tokens, prompt_len = text["prompt_ids"] + text["ids"], len(text["prompt_ids"])
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        states = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        hidden = torch.cat([states[layer][0] for layer in begun.layers], -1)
        batch = batch_of([Text(torch.tensor(tokens), 0, hidden)], 1)
        rows, logits = next(head.said(batch))
        law = torch.zeros(len(tokens), len(target.output))
        # Row f says what follows token f + 1.
        law[rows + 2] = torch.zeros(len(rows), len(target.output)).index_copy(1, begun.ids, logits.softmax(-1))
    said = {"prompt_ids": text["prompt_ids"], "ids": text["ids"],
            "q": [round(float(law[at, tokens[at]]), 5) for at in range(prompt_len + 1, len(tokens))]}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
