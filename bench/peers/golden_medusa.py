#!/usr/bin/env python3
"""Makes the golden Medusa heads of crates/model/tests/golden/medusa-authors: tiny random heads for the golden Llama,
with the outputs of the authors' own module for the target's hidden states.

    python3 bench/peers/golden_medusa.py MEDUSA crates/model/tests/golden

MEDUSA is a checkout of FasterDecoding/Medusa. Its `medusa/model/medusa_model.py` can no longer be imported under
transformers 5, so the script takes its class of residual blocks unchanged, and assembles heads as the lines after it
do, where all blocks of a head are one module. transformers runs the target. The script writes config.json and
model.safetensors with the authors' names, and golden.safetensors: `hidden` [7, width], the residual stream after the
target's last layer, and `logits` [heads, 7, vocabulary] of the rows after its last norm. Needs torch, transformers and
safetensors.
"""
import ast
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModelForCausalLM

HEADS, LAYERS, ROWS, SEED = 3, 2, 7, 11


def block_of(checkout):
    """The authors' class ResBlock."""
    source = (Path(checkout) / "medusa" / "model" / "medusa_model.py").read_text()
    found = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "ResBlock")
    names = {"nn": nn, "torch": torch}
    exec(compile(ast.Module([found], []), "medusa_model.py", "exec"), names)
    return names["ResBlock"]


@torch.no_grad()
def main():
    checkout, golden = sys.argv[1], Path(sys.argv[2])
    block, folder = block_of(checkout), golden / "medusa-authors"
    target = AutoModelForCausalLM.from_pretrained(golden / "llama", dtype=torch.float32)
    width, vocabulary = target.config.hidden_size, target.config.vocab_size
    torch.manual_seed(SEED)
    heads = nn.ModuleList(nn.Sequential(*([block(width)] * LAYERS), nn.Linear(width, vocabulary, bias=False))
                          for _ in range(HEADS))
    for parameter in heads.parameters():
        parameter.copy_(torch.randn_like(parameter) * (1.6 / width ** 0.5 if parameter.dim() == 2 else 0.3))
    behind = []
    hook = target.model.layers[-1].register_forward_hook(
        lambda _module, _input, output: behind.append(output[0] if isinstance(output, tuple) else output))
    normed = target.model(torch.randint(1, vocabulary, (1, ROWS))).last_hidden_state
    hook.remove()
    logits = torch.stack([head(normed[0]) for head in heads])
    folder.mkdir(exist_ok=True)
    config = {"medusa_num_heads": HEADS, "medusa_num_layers": LAYERS, "base_model_name_or_path": "llama"}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file({name: tensor.clone() for name, tensor in heads.state_dict().items()}, folder / "model.safetensors")
    save_file({"hidden": behind[0].reshape(ROWS, width).clone(), "logits": logits}, folder / "golden.safetensors")
    print(f"logits {float(logits.min()):.2f} to {float(logits.max()):.2f}")


if __name__ == "__main__":
    main()
