#!/usr/bin/env python3
"""Trains a small encoder-decoder of T5's later form (gated GELU, a head of its own), for measurements.

    python3 train.py DATA TOKENIZER OUT/target --size target --steps 4000
    python3 train.py DATA TOKENIZER OUT/draft --size draft --steps 3000 --teacher OUT/target

DATA is what tasks.py made and TOKENIZER what vocabulary.py made. OUT gets a folder in the format of Hugging Face every
--keep-every steps, and beside it OUT.state.pt, from which the same command continues. Batches have tasks of similar
lengths and about --tokens tokens; they depend on the seed and the step alone, so a resumed run learns the same.

The learning rate rises over 100 steps, stays, and falls linearly over the last --decay of all steps. A run may be
continued with other --steps as long as the fall has not begun. Matrices inside the network are trained with Muon
(momentum whose update is made orthogonal), all else with AdamW. The rows of the head begin as those of the embeddings,
which is how a copied token finds its row early.

With --teacher the loss is the divergence of the draft's distribution from the teacher's at every token of the target
(KL(p || q), at temperature 1): a draft is good if it says what the target says.

Needs torch 2.9 or later and transformers 5. Runs on a CPU with bf16 autocast.
"""
import argparse
import json
import math
import os
import random
import time

import numpy as np
import torch
from torch.nn import functional
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

from folder import save_folder, untie

# Heads have 64 or 32 dimensions; widths can be multiplied (measurements grow a network without changing its outputs).
SIZES = {
    "target": dict(d_model=256, d_kv=64, num_heads=4, d_ff=512, num_layers=4, num_decoder_layers=4),
    "draft": dict(d_model=128, d_kv=32, num_heads=4, d_ff=256, num_layers=2, num_decoder_layers=1),
}
WARM_STEPS, TELL_STEPS, HELD_BATCHES = 100, 50, 12
IGNORED = -100
TOKENS_MAX = 384  # of a source and of a target; longer tasks are left out


def new_network(size, vocabulary):
    """An untrained network; T5's own initialization would suit its own optimizer only."""
    model = T5ForConditionalGeneration(T5Config(
        vocab_size=vocabulary, feed_forward_proj="gated-gelu", tie_word_embeddings=False, dropout_rate=0.0,
        relative_attention_num_buckets=32, relative_attention_max_distance=128, pad_token_id=0, eos_token_id=1,
        decoder_start_token_id=0, **SIZES[size]))
    # Biases by position are learned, for which the fused attention has no fast backward pass on a CPU.
    model.set_attn_implementation("eager")
    untie(model)
    for module in model.modules():
        if hasattr(module, "wi_0"):
            module.act = torch.nn.GELU(approximate="tanh")  # the same in one operation
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "relative_attention_bias" in name:
                weight.zero_()
            elif name == "shared.weight":
                weight.normal_(std=0.5)
            elif weight.dim() == 2:
                outward = name.endswith((".o.weight", ".wo.weight"))
                # Scores are not divided by the root of the head's width, so queries begin smaller.
                smaller = 0.25 if outward else model.config.d_kv ** -0.5 if name.endswith(".q.weight") else 1.0
                weight.normal_(std=smaller * weight.shape[1] ** -0.5)
        model.lm_head.weight.copy_(model.shared.weight * 0.08)
        begin_copying(model)
    return model


def begin_copying(model):
    """Lets a network begin as one that copies, which is the slowest part to find out.

    The first layer of each half writes the tokens before a position into subspaces of its own (heads that look at one
    distance only). Cross attention compares those of the source with the decoder's last token, or with its last two,
    and adds the token that follows there to the output.
    """
    config = model.config
    def directions():
        return torch.nn.init.orthogonal_(torch.empty(config.d_kv, config.d_model))
    token, *before = (directions() for _ in range(3))
    def set_head(attention, at, **weights):
        rows = slice(at * config.d_kv, (at + 1) * config.d_kv)
        for name, weight in weights.items():
            matrix = getattr(attention, name).weight
            (matrix[:, rows] if name == "o" else matrix[rows]).copy_(weight.T if name == "o" else weight)
    for half, distances in [(model.encoder, [1, 2]), (model.decoder, [1])]:
        attention = half.block[0].layer[0].SelfAttention
        for at, distance in enumerate(distances):
            attention.relative_attention_bias.weight[distance, at] = 10.0
            set_head(attention, at, q=torch.zeros_like(token), v=token, o=0.5 * before[distance - 1])
    half_head, sharp = config.d_kv // 2, 25.6 / config.d_kv
    for block in model.decoder.block[-3:-1] or model.decoder.block:
        value = directions()
        set_head(block.layer[1].EncDecAttention, 0, k=before[0], q=sharp * token, v=value, o=1.5 * value)
        value = directions()
        set_head(block.layer[1].EncDecAttention, 1, v=value, o=1.5 * value,
                 k=torch.cat([one[:half_head] for one in before]),
                 q=sharp * torch.cat([token[:half_head], before[0][:half_head]]))


class Tasks:
    """Sources and targets as token ids, in batches of similar lengths."""

    def __init__(self, path, tokenizer):
        cache = f"{path}.{len(tokenizer)}.npz"
        if not os.path.exists(cache):
            with open(path) as lines:
                tasks = [json.loads(line) for line in lines]
            ids = [np.array(one, np.uint16) for first in range(0, len(tasks), 5000)
                   for one in tokenizer([task[side] for task in tasks[first:first + 5000]
                                         for side in ("source", "target")])["input_ids"]]
            np.savez(cache, ids=np.concatenate(ids), ends=np.cumsum([len(one) for one in ids]))
        known = np.load(cache)
        ids = np.split(known["ids"], known["ends"][:-1])
        self.pairs = [pair for pair in zip(ids[::2], ids[1::2]) if max(map(len, pair)) <= TOKENS_MAX]
        self.pass_of, self.batches = None, []

    def batch(self, number, tokens, seed):
        """Batch of a number, which says in which pass over all tasks it is."""
        # Passes have different numbers of batches; a constant one is reached by an estimate from all tokens.
        each = max(1, sum(len(source) + len(target) for source, target in self.pairs) // tokens)
        nth, place = divmod(number, each)
        if self.pass_of != (nth, seed):
            chance = random.Random(f"{seed} {nth}")
            order = list(range(len(self.pairs)))
            chance.shuffle(order)
            self.batches = []
            # Sorted by length in parts of the whole, so that little is padding and a batch still a mixture.
            for first in range(0, len(order), 8192):
                part = sorted(order[first:first + 8192],
                              key=lambda at: (len(self.pairs[at][0]) // 24, len(self.pairs[at][1])))
                self.batches += self.packed(part, tokens)
            chance.shuffle(self.batches)
            self.pass_of = (nth, seed)
        return self.padded(self.batches[place % len(self.batches)])

    def packed(self, order, tokens):
        """Cuts a list of tasks into batches that have at most so many tokens with their padding."""
        batches, mine, longest = [], [], (0, 0)
        for at in order:
            grown = tuple(max(old, len(new)) for old, new in zip(longest, self.pairs[at]))
            if mine and (len(mine) + 1) * sum(grown) > tokens:
                batches.append(mine)
                mine, grown = [], tuple(map(len, self.pairs[at]))
            mine.append(at)
            longest = grown
        return batches + [mine] if mine else batches

    def padded(self, batch):
        """The tensors of a batch: sources, their mask, and labels."""
        def tensor(side, filler):
            longest = max(len(self.pairs[at][side]) for at in batch)
            rows = np.full((len(batch), longest), filler, np.int64)
            for row, at in zip(rows, batch):
                row[:len(self.pairs[at][side])] = self.pairs[at][side]
            return torch.from_numpy(rows)
        sources = tensor(0, 0)
        return {"input_ids": sources, "attention_mask": (sources != 0).long(), "labels": tensor(1, IGNORED)}


def loss_of(model, batch, teacher=None):
    """The mean loss of the tokens of a batch, and how many there are."""
    wanted = batch["labels"] != IGNORED
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        inputs["decoder_input_ids"] = model._shift_right(batch["labels"])
        logits = model(**inputs).logits
        if teacher is not None:
            with torch.no_grad():
                laws = teacher(**inputs).logits[wanted].float().log_softmax(-1)
    logits = logits[wanted].float()
    if teacher is None:
        return functional.cross_entropy(logits, batch["labels"][wanted]), len(logits)
    return functional.kl_div(logits.log_softmax(-1), laws, log_target=True, reduction="batchmean"), len(logits)


def optimizers(model, rate):
    """Muon for the matrices inside the network, AdamW for embeddings, head, norms and biases by position."""
    def inside(name, weight):
        return weight.dim() == 2 and not name.startswith(("shared", "lm_head")) and "relative" not in name
    named = list(model.named_parameters())
    matrices = [weight for name, weight in named if inside(name, weight)]
    others = [weight for name, weight in named if not inside(name, weight)]
    return [torch.optim.Muon(matrices, lr=rate, weight_decay=0.1, ns_steps=4, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)]


def rate_at(step, options):
    """The learning rate's share of its peak."""
    falling = (options.steps - step) / max(1.0, options.decay * options.steps)
    return min(1.0, (step + 1) / WARM_STEPS, max(falling, 0.0))


def keep(out, model, tokenizer, optimizers_, step):
    """Writes the state and the folder, each file whole or not at all."""
    torch.save({"model": model.state_dict(), "optimizers": [one.state_dict() for one in optimizers_], "step": step},
               f"{out}.state.part")
    os.replace(f"{out}.state.part", f"{out}.state.pt")
    save_folder(model, tokenizer, out)


@torch.no_grad()
def held_loss(model, tasks, options, teacher):
    """The mean loss of tokens that are not trained with."""
    each = [loss_of(model, tasks.batch(at, options.tokens, 0), teacher) for at in range(HELD_BATCHES)]
    return sum(loss.item() * count for loss, count in each) / sum(count for _, count in each)


def train(options):
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    tasks, held = (Tasks(f"{options.data}/{name}.jsonl", tokenizer) for name in ("train", "held"))
    teacher = options.teacher and T5ForConditionalGeneration.from_pretrained(options.teacher, dtype=torch.bfloat16)
    model = new_network(options.size, len(tokenizer))
    both, step = optimizers(model, options.rate), 0
    if os.path.exists(f"{options.out}.state.pt"):
        state = torch.load(f"{options.out}.state.pt")
        model.load_state_dict(state["model"])
        for optimizer, known in zip(both, state["optimizers"]):
            optimizer.load_state_dict(known)
        step = state["step"]
    print(f"{sum(weight.numel() for weight in model.parameters()) / 1e6:.2f} M weights, {len(tasks.pairs)} tasks; "
          f"step {step}", flush=True)
    seen, told, since = 0, 0.0, (time.time(), time.process_time())
    while step < options.steps:
        for optimizer in both:
            for group in optimizer.param_groups:
                group["lr"] = options.rate * rate_at(step, options)
        batch = tasks.batch(step, options.tokens, options.seed)
        loss, count = loss_of(model, batch, teacher)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in both:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step, seen, told = step + 1, seen + count + int(batch["attention_mask"].sum()), told + loss.item()
        if math.isnan(told):
            raise SystemExit(f"step {step}: expected a loss, found none; try a lower --rate")
        if step % TELL_STEPS == 0:
            clock, used = time.time() - since[0], time.process_time() - since[1]
            print(f"step {step}: loss {told / TELL_STEPS:.3f}, {seen / clock:.0f} tokens a second, {seen / used:.0f} a "
                  f"second of a core", flush=True)
            seen, told, since = 0, 0.0, (time.time(), time.process_time())
        if step % options.keep_every == 0 or step == options.steps:
            keep(options.out, model, tokenizer, both, step)
            print(f"step {step}: held-out loss {held_loss(model, held, options, teacher):.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("tokenizer")
    parser.add_argument("out")
    parser.add_argument("--size", choices=SIZES, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--decay", type=float, default=0.35)
    parser.add_argument("--tokens", type=int, default=2560, help="tokens of a batch, sources and targets together")
    parser.add_argument("--teacher", help="folder of a network whose distributions are learned")
    parser.add_argument("--keep-every", type=int, default=150)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
