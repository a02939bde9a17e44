#!/usr/bin/env python3
"""Computes the probabilities that the draft head of the demo target gives the tokens of a text, without foretoken.

    foretoken generate -m models/demo-target PROMPT -n 120 -s 5 --temp 1 --top-k 0 --top-p 1 --min-p 0 \\
        --spec-type none --json > text.json
    python3 bench/peers/demo_head.py text.json > crates/cli/tests/golden/demo-head.json

transformers runs the target; its `hidden_states[i]` is the residual stream that enters layer i. `training/begin.py`
reads the head's file and `training/network.py` runs the head, both in f32. So programs other than ours define which
layers a head reads, and at which position. The output has the tokens, and for each generated token from the second on
the head's probability for it after the text before. Drafted tokens after drafted tokens are not computed; golden heads
have them.
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
        # Row f predicts the token after token f + 1.
        law[rows + 2] = torch.zeros(len(rows), len(target.output)).index_copy(1, begun.ids, logits.softmax(-1))
    said = {"prompt_ids": text["prompt_ids"], "ids": text["ids"],
            "q": [round(float(law[at, tokens[at]]), 5) for at in range(prompt_len + 1, len(tokens))]}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
