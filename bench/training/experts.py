#!/usr/bin/env python3
"""Trains the small network of experts for measurements: 32 experts in each layer, of which a token uses 4.

    python3 bench/training/experts.py train models/demo-target DATA OUT --minutes 82
    python3 bench/training/experts.py inflate OUT INFLATED --layers 24 --width 512

DATA has docs.jsonl and held.jsonl, an object with "text" a line. OUT gets a Mixtral in the format of Hugging Face with
the tokenizer of the network that training starts from, so that the demo draft can draft for it. OUT/state.pt is the
checkpoint from which the same command continues a run; it is removed at the end. The learning rate follows the training
time, so it has decayed at the end whatever the machine's speed.

A trained dense network is split into experts: the hidden units of each feed-forward half are clustered by their gates
into 32 equal parts, each router is initialized to the mean of a part's gates, and then all weights are trained
(MoEfication, Zhang et al. 2022). So an hour is enough on two cores.

Inflating copies a network and makes its passes more expensive without changing its outputs: experts get further hidden
units whose outputs are multiplied by zero, and further layers are copies whose outputs are multiplied by zero. Their
routers are trained ones and read the residual stream, so their rows choose experts as those of trained layers do.

Needs torch, transformers 5 and numpy.
"""
import argparse
import json
import math
import os
import time

import numpy as np
import torch
from transformers import AutoTokenizer, AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM

EXPERTS, CHOSEN = 32, 4
SAVE_SECONDS, TELL_SECONDS, HELD_BATCHES = 180, 60, 8


def read_tokens(tokenizer, folder, name):
    """The tokens of all texts, each ended by token 0; cached next to the data."""
    cache = f"{folder}/{name}.u16.npy"
    if not os.path.exists(cache):
        with open(f"{folder}/{name}.jsonl") as lines:
            texts = [json.loads(line)["text"] for line in lines]
        parts = []
        for first in range(0, len(texts), 2000):
            for tokens in tokenizer(texts[first:first + 2000], add_special_tokens=False)["input_ids"]:
                parts.append(np.array(tokens + [0], np.uint16))
        np.save(cache, np.concatenate(parts))
    return np.load(cache)


def clustered(gates):
    """The hidden units of a feed-forward half in parts of equal size, clustered by similar gates."""
    units = torch.nn.functional.normalize(gates, dim=1)
    part = len(units) // EXPERTS
    centres = units[torch.linspace(0, len(units) - 1, EXPERTS).long()].clone()
    for _ in range(20):
        near = units @ centres.T
        parts, free = [[] for _ in range(EXPERTS)], set(range(len(units)))
        for pair in near.reshape(-1).argsort(descending=True).tolist():
            unit, centre = divmod(pair, EXPERTS)
            if unit in free and len(parts[centre]) < part:
                parts[centre].append(unit)
                free.remove(unit)
        centres = torch.stack([torch.nn.functional.normalize(units[own].mean(0), dim=0) for own in parts])
    return torch.tensor(parts)


def cut(dense):
    """Splits a dense network into experts, of which a token reads an eighth."""
    known = dense.config
    model = MixtralForCausalLM(MixtralConfig(
        vocab_size=known.vocab_size, hidden_size=known.hidden_size, num_hidden_layers=known.num_hidden_layers,
        num_attention_heads=known.num_attention_heads, num_key_value_heads=known.num_key_value_heads,
        num_local_experts=EXPERTS, num_experts_per_tok=CHOSEN, intermediate_size=known.intermediate_size // EXPERTS,
        router_aux_loss_coef=0.01, output_router_logits=True, max_position_embeddings=known.max_position_embeddings,
        tie_word_embeddings=True, rope_theta=10000.0, rms_norm_eps=known.rms_norm_eps, bos_token_id=0, eos_token_id=0,
        pad_token_id=None, sliding_window=None))
    model.load_state_dict(dense.state_dict(), strict=False)
    with torch.no_grad():
        for layer, source in zip(model.model.layers, dense.model.layers):
            gate, up, down = (part.weight for part in (source.mlp.gate_proj, source.mlp.up_proj, source.mlp.down_proj))
            parts = clustered(gate)
            layer.mlp.gate.weight.copy_(torch.stack([gate[own].mean(0) for own in parts]))
            layer.mlp.experts.gate_up_proj.copy_(torch.stack([torch.cat([gate[own], up[own]]) for own in parts]))
            # The weights of a token's experts have the sum 1, while the dense half was the sum of all parts.
            layer.mlp.experts.down_proj.copy_(torch.stack([down[:, own] for own in parts]) * 1.5 * CHOSEN)
    return model


def ask_experts(self, rows, chosen, shares):
    """All experts in two products: rows are arranged by expert and padded to the number of the most chosen one."""
    experts, count = self.num_experts, chosen.numel()
    order = torch.argsort(chosen.reshape(-1), stable=True)
    wanted = torch.bincount(chosen.reshape(-1), minlength=experts)
    expert = chosen.reshape(-1)[order]
    place = torch.arange(count) - (wanted.cumsum(0) - wanted)[expert] + expert * wanted.max()
    row = order // chosen.shape[1]
    laid = rows.new_zeros(experts * wanted.max(), rows.shape[1]).index_copy(0, place, rows[row])
    gate, up = torch.bmm(laid.view(experts, -1, rows.shape[1]), self.gate_up_proj.transpose(1, 2)).chunk(2, dim=-1)
    said = torch.bmm(self.act_fn(gate) * up, self.down_proj.transpose(1, 2)).reshape(-1, rows.shape[1])
    shares = shares.reshape(-1)[order].unsqueeze(1)
    return torch.zeros_like(rows).index_add(0, row, (said[place] * shares).to(rows.dtype))


def train(options):
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.dense)
    data, held = (read_tokens(tokenizer, options.data, name) for name in ("docs", "held"))
    model = cut(AutoModelForCausalLM.from_pretrained(options.dense, dtype=torch.float32))
    for layer in model.model.layers:
        layer.mlp.experts.forward = ask_experts.__get__(layer.mlp.experts)
    matrices = [weights for weights in model.parameters() if weights.dim() > 1]
    vectors = [weights for weights in model.parameters() if weights.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=options.rate, betas=(0.9, 0.95))
    os.makedirs(options.out, exist_ok=True)
    state = f"{options.out}/state.pt"
    step, seen, before = 0, 0, 0.0
    if os.path.exists(state):
        kept = torch.load(state)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        step, seen, before = kept["step"], kept["seen"], kept["seconds"]

    def batch(tokens, random, size):
        starts = random.integers(0, len(tokens) - options.context - 1, size)
        return torch.from_numpy(np.stack([tokens[at:at + options.context].astype(np.int64) for at in starts]))

    def held_loss():
        random = np.random.default_rng(1)
        model.eval()
        with torch.no_grad():
            texts = [batch(held, random, 8) for _ in range(HELD_BATCHES)]
            losses = [model(input_ids=text, labels=text, output_router_logits=False).loss.item() for text in texts]
        model.train()
        return sum(losses) / len(losses)

    start, total, told, saved = time.time() - before, options.minutes * 60, 0.0, before
    while (seconds := time.time() - start) < total:
        done = seconds / total
        rate = options.rate * min(1, (step + 1) / 100) * (0.05 + 0.475 * (1 + math.cos(math.pi * done)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        text = batch(data, np.random.default_rng((options.seed, step)), options.batch)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=text, labels=text).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step, seen = step + 1, seen + text.numel()
        if seconds - told > TELL_SECONDS:
            told = seconds
            print(f"{seconds:.0f} s, step {step}, {seen / 1e6:.2f} M tokens, loss {loss.item():.3f}", flush=True)
        if seconds - saved > SAVE_SECONDS:
            saved = seconds
            kept = dict(model=model.state_dict(), optimizer=optimizer.state_dict(), step=step, seen=seen,
                        seconds=seconds)
            torch.save(kept, f"{state}.new")
            os.replace(f"{state}.new", state)
    size = sum(weights.numel() for weights in model.parameters())
    print(f"{size / 1e6:.2f} M weights, {seen / 1e6:.1f} M tokens, held-out loss {held_loss():.3f}", flush=True)
    model.config.output_router_logits = False
    model.to(torch.bfloat16).save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    if os.path.exists(state):
        os.remove(state)


def inflate(options):
    model = MixtralForCausalLM.from_pretrained(options.network, dtype=torch.float32)
    trained, narrow = model.config.num_hidden_layers, model.config.intermediate_size
    if options.layers < trained or options.width < narrow:
        raise SystemExit(f"expected at least {trained} layers and a width of {narrow}")
    fields = dict(model.config.to_dict(), num_hidden_layers=options.layers, intermediate_size=options.width)
    fields.pop("layer_types", None)
    large = MixtralForCausalLM(MixtralConfig.from_dict(fields))
    source, target = model.state_dict(), large.state_dict()
    for name, tensor in target.items():
        number = name.split(".")[2] if name.startswith("model.layers.") else ""
        layer = int(number) if number else 0
        own = source[name.replace(f"layers.{number}.", f"layers.{layer % trained}.", 1)]
        adds = name.endswith(("o_proj.weight", "down_proj"))
        if layer >= trained and adds:
            tensor.zero_()
        elif name.endswith("experts.gate_up_proj"):
            for half, kept in zip(tensor.chunk(2, dim=1), own.chunk(2, dim=1)):
                half.copy_(kept.repeat(1, -(-options.width // narrow), 1)[:, :options.width])
        elif name.endswith("experts.down_proj"):
            tensor.zero_()[:, :, :narrow] = own
        else:
            tensor.copy_(own)
    large.load_state_dict(target)
    large.to(torch.bfloat16).save_pretrained(options.out)
    AutoTokenizer.from_pretrained(options.network).save_pretrained(options.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("train")
    for name in ("dense", "data", "out"):
        command.add_argument(name)
    command.add_argument("--minutes", type=float, default=60)
    command.add_argument("--context", type=int, default=512)
    command.add_argument("--batch", type=int, default=8)
    command.add_argument("--rate", type=float, default=8e-4)
    command.add_argument("--threads", type=int, default=2)
    command.add_argument("--seed", type=int, default=0)
    command.set_defaults(run=train)
    command = commands.add_parser("inflate")
    command.add_argument("network")
    command.add_argument("out")
    command.add_argument("--layers", type=int, default=24)
    command.add_argument("--width", type=int, default=512)
    command.set_defaults(run=inflate)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
