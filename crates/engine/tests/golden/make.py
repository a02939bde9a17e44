#!/usr/bin/env python3
"""Writes demo.json: greedy continuations of the demo models, computed by transformers in f32.

usage: make.py MODELS_FOLDER > demo.json      (needs torch and transformers)
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = [
    "once upon a time, there was a little",
    "<|system|>Services: Restaurants_1<|end|><|user|>I would like to book a table for two people tomorrow evening."
    "<|end|><|assistant|>",
    "<|user|>Anna has 12 apples. She gives 5 of them to Ben and buys 9 more. How many apples does she have?<|end|>"
    "<|assistant|>",
    "<|system|>Services: Weather_1<|end|><|user|>What will the weather be like in Oakland on Sunday?<|end|>"
    "<|assistant|>",
]

goldens = []
for name in ("demo-target", "demo-draft"):
    folder = f"{sys.argv[1]}/{name}"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for prompt in PROMPTS:
        inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        prompt_ids = inputs["input_ids"][0].tolist()
        output = model.generate(**inputs, max_new_tokens=120, do_sample=False, pad_token_id=0)[0].tolist()
        ids = output[len(prompt_ids) :]
        text = tokenizer.decode(ids, skip_special_tokens=True)
        goldens.append({"model": name, "prompt": prompt, "prompt_ids": prompt_ids, "ids": ids, "text": text})
json.dump(goldens, sys.stdout, indent=0, ensure_ascii=False)
