"""What a head or a draft model is worth, on texts that it was not trained on.

At temperature 0 a guess is right where its likeliest token is the target's; depth k counts behind texts where all
guesses before were right and are what the text says, so that the target's law there is known. At temperature 1 the
chance of acceptance is the sum of min(p, q) over tokens; depth k is weighted by the chance that the tokens before were
accepted, which is exact for texts that were drawn at temperature 1. From both follow tokens a pass for chains of 1 to 8
guesses, and with the costs of a machine what such a chain gains. Left out: trees, and budgets that stop early.
"""
import json

import torch

from network import Batch
from problem import Problem, expect

DEPTHS = 8
# Rows are taken from up to so many times as many words.
SPREAD = 8


def reach_of(batch, prompt_lens, steps):
    """In how many steps each row can take part: its text says what follows, and this is the model's own."""
    lens = batch.starts.diff()
    lens, prompts = (of.repeat_interleave(lens) for of in (lens, prompt_lens))
    reach = (lens - 2 - batch.positions).clamp(0, steps)
    return torch.where(batch.positions + 1 >= prompts, reach, 0)


def batch_of(texts, steps):
    """A batch of texts all of whose words take part."""
    batch = Batch(texts, None)
    batch.reach = reach_of(batch, torch.tensor([text.prompt_len for text in texts]), steps)
    return batch


def target_logits(target, batch, at, rows):
    """The target's logits at these rows of a batch, of these rows of its output matrix."""
    width = target.shape.width
    hidden = batch.hidden[at, -width:].float()
    normed = torch.nn.functional.rms_norm(hidden, (width,), target.norm, target.shape.epsilon)
    return normed.to(rows.dtype) @ rows.T


class Held:
    """Blocks of about so many rows of held-out texts, and the target's laws there: `p` over the draft vocabulary, `top`
    its likeliest tokens."""

    def __init__(self, texts, target, ids, rows):
        taken = []
        for text in texts:
            taken.append(text)
            if sum(text.words() for text in taken) >= SPREAD * rows:
                break
        self.batch, self.ids = batch_of(taken, DEPTHS), ids
        # Neighbours share the laws of what follows them, so a block is as cheap as half as many single rows.
        every = max(1, min(SPREAD, round(int((self.batch.reach > 0).sum()) / rows)))
        self.batch.reach[self.batch.positions // DEPTHS % every > 0] = 0
        needed = torch.zeros(len(self.batch.positions), dtype=torch.bool)
        for step in range(DEPTHS):
            needed[self.batch.live(step) + 1 + step] = True
        self.of = needed.cumsum(0) - 1
        p, top, own = [], [], []
        for at in needed.nonzero()[:, 0].split(128):
            law = target_logits(target, self.batch, at, target.output).softmax(-1)
            p.append(law[:, ids])
            top.append(law.argmax(-1))
            own.append(law.gather(1, self.batch.tokens[at + 1, None])[:, 0])
        self.p, self.top, self.own = torch.cat(p), torch.cat(top), torch.cat(own)
        self.place = torch.full((len(target.output),), -1)
        self.place[ids] = torch.arange(len(ids))

    def words_probability(self):
        """How probable the texts' own words are to the target; small if the rows are not the target's."""
        return float(self.own.mean())

    @torch.no_grad()
    def evaluate(self, network):
        """Chances of acceptance by depth, each given that all guesses before were accepted: at temperature 0 and 1."""
        batch, said = self.batch, ([], [])
        alive = torch.ones(len(batch.positions), dtype=torch.bool)
        weight = torch.ones(len(batch.positions))
        for step, (live, logits) in enumerate(network.said(batch)):
            q = logits.float().softmax(-1)[:, :len(self.ids)]
            label, follows = self.of[live + 1 + step], batch.tokens[live + 2 + step]
            p, top, place = self.p[label], self.top[label], self.place[follows]
            right = self.ids[q.argmax(-1)] == top
            said[0].append(mean(right.float(), alive[live].float()))
            said[1].append(mean(torch.minimum(p, q).sum(-1), weight[live]))
            alive[live] &= right & (follows == top)
            drawn = torch.arange(len(live)), place.clamp(min=0)
            chance = (q[drawn] / p[drawn].clamp(min=1e-30)).clamp(max=1.0)
            weight[live] *= torch.where(place >= 0, chance, 0.0)
        return said


def mean(values, weights):
    total = float(weights.sum())
    return float((values * weights).sum()) / total if total > 0 else 0.0


def tokens_a_pass(accepted):
    """Of chains of 1, 2, ... guesses, from the chances of acceptance by depth."""
    tokens, chance, said = 1.0, 1.0, []
    for rate in accepted:
        chance *= rate
        tokens += chance
        said.append(tokens)
    return said


class Costs:
    """Seconds of a target's passes by rows, 1 to 9, and of a step of the head: {"passes": {"1": ..}, "head": ..}."""

    def __init__(self, path):
        try:
            with open(path, encoding="utf-8") as file:
                said = json.load(file)
            self.passes = [float(said["passes"][str(rows)]) for rows in range(1, DEPTHS + 2)]
            self.head = float(said["head"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Problem(f"--costs {path}: expected passes of 1 to {DEPTHS + 1} rows and head, found: "
                          f"{type(error).__name__} {error}") from error
        expect(min(self.passes) > 0 and self.head >= 0, f"--costs {path}", "seconds", [*self.passes, self.head])

    def gains(self, tokens):
        """Tokens a second over those without drafts, by the length of the chain."""
        return [said * self.passes[0] / (self.passes[guesses] + guesses * self.head)
                for guesses, said in enumerate(tokens, 1)]


def lines(said, costs):
    """The evaluation as lines of a report."""
    for temperature, accepted in enumerate(said):
        tokens = tokens_a_pass(accepted)
        shown = " ".join(f"{rate:.3f}" for rate in accepted)
        yield f"  T {temperature}: accepted by depth {shown}; tokens a pass " + " ".join(f"{n:.2f}" for n in tokens)
        if costs is not None:
            gains = costs.gains(tokens)
            best = max(range(len(gains)), key=gains.__getitem__)
            yield (f"  T {temperature}: speed-up of chains " + " ".join(f"{gain:.2f}" for gain in gains)
                   + f"; best {gains[best]:.2f} with {best + 1}")
