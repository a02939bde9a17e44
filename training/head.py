#!/usr/bin/env python3
"""Trains what drafts for a target on its hidden states: an EAGLE-3 head, or a small draft model.

    foretoken hidden -m TARGET --texts TEXTS.jsonl -o DIR        (the states; see README.md)
    head.py train --hidden DIR --target TARGET --out RUN --minutes 120 [--resume] [--from HEAD]
    head.py export --run RUN --target TARGET --gguf HEAD.gguf --speculators FOLDER
    head.py draft --hidden DIR --target TARGET --out RUN --minutes 60 --write FOLDER_OR_GGUF

Rows of the rolled-out steps are drawn: a row takes part in step k with chance decay^k, which has the gradients of
weights decay^k in the mean, and computes a third fewer rows. The learning rate follows the clock, so a run ends,
decayed, after --minutes on any machine; with --steps it follows the steps, and equal seeds give equal bits on equal
machines, also over --resume. Left out: the texts and their states, which foretoken makes.
"""
import argparse
import math
import os
import pickle
import sys
import time
from pathlib import Path

import torch

import export
from begin import Begun
from measure import DEPTHS, Costs, Held, batch_of, lines, target_logits
from network import Draft, Head
from problem import Problem, expect
from shards import Folder, Stream
from target import Target, excluder

WARM_UP, LEAST_RATE = 60, 0.05


def draft_vocabulary(counts, special, size):
    """The most frequent tokens of the model's own words and all special ones, ascending."""
    size = min(size, len(counts))
    expect(len(special) <= size, "--draft-vocabulary", f"at least the {len(special)} special tokens", size)
    counts = counts.clone()
    counts[torch.tensor(special, dtype=torch.long)] = counts.max() + 1
    return counts.argsort(descending=True, stable=True)[:size].sort().values


class Trainer:
    """A network, its optimizer, and where it is in its texts and its time."""

    def __init__(self, network, target, source, options):
        self.network, self.target, self.source, self.options = network, target, source, options
        self.kind = torch.bfloat16 if options.dtype == "bf16" else torch.float32
        self.rows = target.output[network.ids].to(self.kind)
        self.known = torch.zeros(len(target.output), dtype=torch.bool)
        self.known[network.ids] = True
        matrices = [p for p in network.parameters() if p.dim() > 1]
        vectors = [p for p in network.parameters() if p.dim() == 1]
        self.optimizer = torch.optim.AdamW([dict(params=matrices, weight_decay=options.weight_decay),
                                            dict(params=vectors, weight_decay=0.0)],
                                           lr=options.rate, betas=(0.9, 0.95), fused=True)
        self.step, self.words, self.seconds = 0, 0, 0.0

    def batch(self):
        """The next texts; which rows take part in which steps."""
        texts = self.source.take(self.options.batch)
        batch = batch_of(texts, self.options.rollout)
        rows = torch.arange(len(batch.positions))
        if isinstance(self.network, Draft):
            batch.reach.clamp_(max=1)
            return batch
        steps = torch.arange(self.options.rollout)
        # A guess outside the draft vocabulary cannot be made, so no row goes on behind one.
        said = self.known[batch.tokens[rows[:, None] + 2 + steps]] & (steps < batch.reach[:, None])
        batch.reach = said.long().cumprod(1).sum(1)
        if self.options.rows == "drawn" and self.options.decay < 1:
            drawn = torch.rand(len(rows), generator=torch.Generator().manual_seed(self.options.seed + self.step))
            steps = 1 + (drawn.clamp(min=1e-6).log() / math.log(self.options.decay)).long()
            batch.reach = torch.minimum(batch.reach, steps)
        return batch

    def laws(self, batch):
        """The target's laws over the draft vocabulary where the batch needs them, and where they lie."""
        needed = torch.zeros(len(batch.positions), dtype=torch.bool)
        for step in range(int(batch.reach.max())):
            needed[batch.live(step) + 1 + step] = True
        at = needed.nonzero()[:, 0]
        laws = torch.cat([target_logits(self.target, batch, some, self.rows).softmax(-1)
                          for some in at.split(512)])
        if isinstance(self.network, Draft):
            other = ~self.known[batch.tokens[at + 1]]
            laws = torch.cat([laws.masked_fill(other[:, None], 0.0), other[:, None].to(self.kind)], 1)
        return laws, needed.cumsum(0) - 1

    def train_step(self, fraction):
        rate = self.options.rate * (LEAST_RATE + (1 - LEAST_RATE) * 0.5 * (1 + math.cos(math.pi * fraction)))
        for group in self.optimizer.param_groups:
            group["lr"] = rate * min(1, (self.step + 1) / WARM_UP)
        batch = self.batch()
        if int(batch.reach.max()) == 0:
            self.step += 1
            return None
        weights = [1.0 if self.options.rows == "drawn" else self.options.decay ** k
                   for k in range(self.options.rollout)]
        with torch.autocast("cpu", self.kind, enabled=self.kind != torch.float32):
            with torch.no_grad():
                laws, of = self.laws(batch)
            loss = self.network.loss(batch, weights, laws, of)
        found = float(loss.detach())
        expect(math.isfinite(found), f"--hidden: loss of step {self.step}", "a number (a smaller --rate?)", found)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.words += len(batch.live(0))
        return found

    def save(self, path):
        """The run as a file that is there whole or not at all."""
        kept = {name: getattr(self.options, name) for name in CONSTANT}
        torch.save(dict(network=self.network.state_dict(), optimizer=self.optimizer.state_dict(), step=self.step,
                        words=self.words, seconds=self.seconds, source=self.source.state(), ids=self.network.ids,
                        options=kept, shape=tuple(self.network.shape), about=tuple(self.source.about)),
                   f"{path}.part")
        os.replace(f"{path}.part", path)

    def load(self, saved):
        for name in CONSTANT:
            found, expected = getattr(self.options, name), saved["options"].get(name)
            expect(found == expected, f"--resume: --{name.replace('_', '-')}", expected, found)
        self.network.load_state_dict(saved["network"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.step, self.words, self.seconds = saved["step"], saved["words"], saved["seconds"]
        self.source.go_on(saved["source"])

    def run(self, held, costs):
        """Trains until the time or the steps are over."""
        options, path = self.options, Path(self.options.out) / CHECKPOINT
        began, shown, kept, loss = time.monotonic() - self.seconds, self.seconds, self.seconds, []
        words = self.words
        while not self.over():
            at = self.step / options.steps if options.steps else self.seconds / (60 * options.minutes)
            said = self.train_step(min(at, 1.0))
            loss += [] if said is None else [said]
            self.seconds = time.monotonic() - began
            if self.seconds - kept > 60 * options.keep_every:
                self.save(path)
                kept = self.seconds
            if self.seconds - shown > options.show_every or self.over():
                speed = (self.words - words) / (self.seconds - shown)
                mean = sum(loss) / max(len(loss), 1)
                print(f"{self.seconds / 60:.1f} min, step {self.step}, {self.words / 1e6:.3f} M tokens, "
                      f"{speed:.0f} a second, loss {mean:.3f}", flush=True)
                with torch.autocast("cpu", self.kind, enabled=self.kind != torch.float32):
                    accepted = held.evaluate(self.network)
                print(*lines(accepted, costs), sep="\n", flush=True)
                self.seconds = time.monotonic() - began
                shown, words, loss = self.seconds, self.words, []
        self.save(path)

    def over(self):
        return self.step >= self.options.steps if self.options.steps else self.seconds >= 60 * self.options.minutes


CHECKPOINT = "checkpoint.pt"
TYPES = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "bf16", "f16")


def checkpoint_of(folder, option):
    """What a run has saved."""
    path = Path(folder) / CHECKPOINT
    try:
        return torch.load(path, weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise Problem(f"{option}: expected a run with {path}, found: {str(error).splitlines()[0]}") from error


# What a run that is resumed must be asked for again.
CONSTANT = ("command", "seed", "batch", "rollout", "decay", "rows", "rate", "weight_decay", "dtype", "context", "steps",
            "minutes", "draft_vocabulary")


def source_of(options, target):
    excluded = excluder(options.exclude, target)
    if options.hidden == "-":
        return Stream(sys.stdin.buffer, options.seed, options.context, excluded, options.count_first,
                      options.memory << 30)
    return Folder(options.hidden, options.seed, options.context, excluded)


def network_of(options, target, ids, begun, layers):
    """The network that is asked for, its weights drawn from the seed, or those of the head that it begins as."""
    torch.manual_seed(options.seed)
    shape = {name: getattr(options, name) for name in ("heads", "kv_heads", "head_dim", "ffn", "width", "layers")
             if getattr(options, name, None) is not None}
    if begun:
        for name, asked in shape.items():
            expect(asked == begun.said[name], f"--{name.replace('_', '-')}", f"{begun.said[name]} (--from)", asked)
        network = Head(begun.fit(target.shape, layers), ids, target)
        begun.give(network)
        return network
    shape = target.shape._replace(**{"layers": 1, **shape})
    expect(shape.heads % shape.kv_heads == 0, "--kv-heads", f"a divisor of {shape.heads}", shape.kv_heads)
    expect(shape.head_dim % 2 == 0, "--head-dim", "an even number", shape.head_dim)
    expect(shape.width <= target.shape.width, "--width", f"at most {target.shape.width}, the target's", shape.width)
    return (Draft if options.command == "draft" else Head)(shape, ids, target)


def check(options, target):
    """Options that argparse takes and nothing else would refuse."""
    for name, least, most in (("minutes", 0, 1e6), ("steps", 0, 1e9), ("batch", 1, 1e6), ("context", 8, 1e6),
                              ("rollout", 1, DEPTHS), ("rate", 0, 1), ("threads", 1, 1024), ("held_rows", 1, 1e6)):
        found = getattr(options, name)
        expect(least <= found <= most, f"--{name.replace('_', '-')}", f"{least} to {most:g}", found)
    expect(0 < options.decay <= 1, "--decay", "above 0 and at most 1", options.decay)
    write = Path(getattr(options, "write", None) or "draft")
    fits = write.is_dir() or not write.exists() if target.reader is None else not write.is_dir()
    expect(fits and write.absolute().parent.is_dir(), f"--write {write}",
           "a folder to make" if target.reader is None else "a file to write", "another thing, or no folder for it")


def train(options):
    torch.set_num_threads(options.threads)
    target = Target(options.target)
    check(options, target)
    costs = Costs(options.costs) if options.costs else None
    saved = checkpoint_of(options.out, "--resume") if options.resume else None
    is_new = not (Path(options.out) / CHECKPOINT).exists()
    expect(saved or is_new, f"--out {options.out}", "a folder without a run (or --resume)", CHECKPOINT)
    source = source_of(options, target)
    about, shape = source.about, target.shape
    expect(about.width == shape.width, "--hidden: width", f"{shape.width} (the target's)", about.width)
    expect(about.layers[-1] == shape.layers, "--hidden: last layer", f"{shape.layers}", about.layers[-1])
    expect(about.vocabulary <= len(target.output), "--hidden: vocabulary", len(target.output), about.vocabulary)
    counts = source.counts()
    begun = Begun(options.begin, target) if getattr(options, "begin", None) else None
    ids = saved["ids"] if saved else draft_vocabulary(counts, target.special, options.draft_vocabulary)
    network = network_of(options, target, ids, begun, about.layers[:3])
    trainer = Trainer(network, target, source, options)
    if saved:
        trainer.load(saved)
    held = Held(source.held_out(), target, ids, options.held_rows)
    weights = sum(p.numel() for p in network.parameters())
    print(f"{weights / 1e6:.2f} M weights, {len(ids)} tokens of output that are {counts[ids].sum() / counts.sum():.4f}"
          f" of {int(counts.sum())} words; {source.left_out} texts excluded, {len(held.batch.starts) - 1} held out, "
          f"whose words have probability {held.words_probability():.3f} to the target", flush=True)
    os.makedirs(options.out, exist_ok=True)
    trainer.run(held, costs)
    if options.command == "draft" and options.write:
        export.write_draft(options.write, network, target)


def export_head(options):
    expect(options.gguf or options.speculators, "export", "--gguf, --speculators or both", "neither")
    target, saved = Target(options.target), checkpoint_of(options.run, f"--run {options.run}")
    expect(saved["options"]["command"] == "train", f"--run {options.run}", "a run of a head", "one of a draft model")
    network = Head(type(target.shape)(*saved["shape"]), saved["ids"], target)
    network.load_state_dict(saved["network"])
    about = export.About(options.name or f"{target.name} EAGLE-3 head", options.license or target.license,
                         options.author, target.name, saved["about"][0][:3])
    if options.gguf:
        export.write_gguf(options.gguf, network, target, about, options.type)
    if options.speculators:
        export.write_speculators(options.speculators, network, target, about)


def shared_options():
    """Options of both kinds of training."""
    both = argparse.ArgumentParser(add_help=False)
    both.add_argument("--hidden", required=True, help="shards of foretoken hidden; - is its stream on standard input")
    both.add_argument("--target", required=True, help="the target's folder or GGUF file")
    both.add_argument("--out", required=True, help="folder of the run")
    both.add_argument("--minutes", type=float, default=120)
    both.add_argument("--steps", type=int, default=0, help="batches, in the place of minutes: the same bits each time")
    both.add_argument("--seed", type=int, default=0)
    both.add_argument("--resume", action="store_true")
    both.add_argument("--exclude", nargs="+", default=[], metavar="FILE", help="JSON lines of prompts not to see")
    both.add_argument("--draft-vocabulary", type=int, default=8192, help="tokens of output")
    both.add_argument("--costs", help="JSON of what passes and a step of the head take")
    both.add_argument("--batch", type=int, default=2048, help="words of a batch, at least")
    both.add_argument("--context", type=int, default=1024, help="tokens of a text, at most")
    both.add_argument("--weight-decay", type=float, default=0.01)
    both.add_argument("--dtype", choices=("bf16", "f32"), default="bf16", help="of products; weights are f32")
    both.add_argument("--threads", type=int, default=os.cpu_count())
    both.add_argument("--held-rows", type=int, default=1000, help="words that are evaluated on")
    both.add_argument("--show-every", type=float, default=60, help="seconds")
    both.add_argument("--keep-every", type=float, default=5, help="minutes")
    both.add_argument("--count-first", type=int, default=200000, help="of a stream: words that make the vocabulary")
    both.add_argument("--memory", type=int, default=4, help="of a stream: GiB of texts that are kept")
    for name, what in (("heads", "of queries"), ("kv-heads", "of keys"), ("head-dim", "elements"), ("ffn", "elements")):
        both.add_argument(f"--{name}", type=int, help=f"{what}; default: the target's")
    return both


def parser_of():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    head = commands.add_parser("train", parents=[shared_options()], help="train an EAGLE-3 head")
    head.add_argument("--rate", type=float, default=2e-3, help="largest learning rate")
    head.add_argument("--rollout", type=int, default=5, help="steps that a head is rolled out")
    head.add_argument("--from", dest="begin", metavar="HEAD", help="begin as this head (GGUF, or speculators' folder)")
    head.add_argument("--decay", type=float, default=0.8, help="of the weight of each further step")
    head.add_argument("--rows", choices=("drawn", "all"), default="drawn", help="draw rows by the weight of their step")
    draft = commands.add_parser("draft", parents=[shared_options()], help="distil a small draft model")
    draft.add_argument("--rate", type=float, default=3e-3, help="largest learning rate")
    draft.add_argument("--width", type=int, default=128)
    draft.add_argument("--layers", type=int, default=2)
    draft.add_argument("--write", help="folder (target is a folder) or GGUF file (target is one) to write at the end")
    draft.set_defaults(rollout=1, decay=1.0, rows="all", heads=4, kv_heads=2, head_dim=32, ffn=384)
    out = commands.add_parser("export", help="write a head as GGUF and in the form of speculators")
    out.add_argument("--run", required=True)
    out.add_argument("--target", required=True)
    out.add_argument("--gguf", help="file to write")
    out.add_argument("--type", choices=TYPES, default="q8_0", help="of the matrices in GGUF; default: q8_0")
    out.add_argument("--speculators", help="folder to write")
    for name in ("name", "license", "author"):
        out.add_argument(f"--{name}", help=f"general.{name} of the file")
    return parser


def main(arguments=None):
    options = parser_of().parse_args(arguments)
    try:
        export_head(options) if options.command == "export" else train(options)
    except Problem as problem:
        sys.exit(f"head.py: {problem}")


if __name__ == "__main__":
    main()
