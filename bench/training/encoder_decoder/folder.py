"""Folders in the format of Hugging Face, with a head of their own."""
import json
import os

import torch
from transformers import T5ForConditionalGeneration


def untie(model):
    """Gives a network a head of its own: transformers 5 ties every T5 but those that are read with another head."""
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())


def save_folder(model, tokenizer, out):
    """Writes a network in bf16 and its tokenizer as published files of T5 1.1 are, each file whole or not at all."""
    part = f"{out}.part"
    copy = T5ForConditionalGeneration(model.config)
    untie(copy)
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16).save_pretrained(part)
    tokenizer.save_pretrained(part)
    with open(f"{part}/config.json") as text:
        config = json.load(text)
    # transformers 5 would write that the head is tied.
    config["tie_word_embeddings"] = False
    config.pop("scale_decoder_outputs", None)
    with open(f"{part}/config.json", "w") as text:
        text.write(json.dumps(config, indent=2, sort_keys=True) + "\n")
    os.makedirs(out, exist_ok=True)
    for name in os.listdir(part):
        os.replace(f"{part}/{name}", f"{out}/{name}")
    os.rmdir(part)
