"""Writes sampling.txt: what transformers makes of a row of logits under various settings.

Run with transformers and torch installed: python sampling.py > sampling.txt
Each line: the settings, then `|`, then the tokens left with their probabilities.
"""

import torch
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

ROW = [1.5, -0.5, 3.25, 0.0, 2.0, 2.0, -3.0, 0.75, 2.875, -1.25, 1.0, 0.5]
WRITTEN = [2, 4, 4, 6, 0, 2]  # the first three are the prompt

CASES = [
    "temperature=1",
    "temperature=0.7",
    "temperature=1.3 top_k=3",
    "temperature=1 top_k=4",  # a tie at the boundary: five tokens are left
    "temperature=1 top_p=0.5",
    "temperature=1 top_p=0.8",
    "temperature=0.5 top_p=0.95",
    "temperature=1 min_p=0.1",
    "temperature=2 min_p=0.3",
    "temperature=1 typical_p=0.2",
    "temperature=1 typical_p=0.5",
    "temperature=1 typical_p=0.9",
    "temperature=1 repetition_penalty=1.3",
    "temperature=0.8 repetition_penalty=0.7",
    "temperature=1 logit_bias=3:2.5",
    "temperature=1 logit_bias=2:-4 repetition_penalty=1.5",  # the bias makes it negative, then it is multiplied
    "temperature=1 tokens_min=4 end_tokens=2",  # three were generated: still banned
    "temperature=1 tokens_min=3 end_tokens=2",
    "temperature=1 banned_tokens=8",
    "temperature=0.8 top_k=6 top_p=0.9",
    "temperature=0.8 top_k=6 top_p=0.9 min_p=0.2",
    "temperature=0.9 top_k=8 top_p=0.95 min_p=0.05 typical_p=0.8 repetition_penalty=1.1 logit_bias=1:1.5",
]


def law(settings):
    config = {"do_sample": True, "top_k": 0}
    for setting in settings.split():
        name, value = setting.split("=")
        if name == "logit_bias":
            token, bias = value.split(":")
            config["sequence_bias"] = [[[int(token)], float(bias)]]
        elif name == "tokens_min":
            config["min_new_tokens"] = int(value)
        elif name == "end_tokens":
            config["eos_token_id"] = int(value)
        elif name == "banned_tokens":
            config["bad_words_ids"] = [[int(value)]]
        elif name == "top_k":
            config[name] = int(value)
        else:
            config[name] = float(value)
    config = GenerationConfig(**config)
    end = config.eos_token_id
    config._eos_token_tensor = None if end is None else torch.tensor([end])
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(ROW), n_embd=4, n_layer=1, n_head=1, n_positions=8))
    processors = model._get_logits_processor(
        generation_config=config,
        input_ids_seq_length=3,
        encoder_input_ids=torch.tensor([WRITTEN[:3]]),
        prefix_allowed_tokens_fn=None,
        logits_processor=[],
        device="cpu",
        model_kwargs={},
    )
    scores = processors(torch.tensor([WRITTEN]), torch.tensor([ROW], dtype=torch.float32))
    return scores.double().softmax(-1)[0].tolist()


for case in CASES:
    left = " ".join(f"{token}:{p:.9f}" for token, p in enumerate(law(case)) if p > 0)
    print(case, "|", left)
