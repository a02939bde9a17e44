"""Evaluates the answers of several programs to the same questions: rates, intervals, and the places where texts
diverge.

An answer is a dictionary with `peer`, `id`, `category`, `tokens` (by one tokenizer for all), `first`, `end`, `text`.
The decoding speed excludes the prompt: it is the number of tokens less one, over the time from the first text to the
end. The median time of several rounds of one question counts. The interval of a ratio is a bootstrap over questions,
which draws the same ones for both programs. Requests are sent in `servers.py`.
"""

import random
import statistics

DRAWS = 2000


def rated(answers):
    """peer -> question -> (category, tokens after the first, seconds after it, seconds to it, seconds in all)."""
    groups = {}
    for one in answers:
        groups.setdefault(one["peer"], {}).setdefault(one["id"], []).append(one)
    median = lambda rounds, get: statistics.median(map(get, rounds))
    return {
        peer: {
            id: (rounds[0]["category"], median(rounds, lambda one: max(one["tokens"] - 1, 0)),
                 median(rounds, lambda one: one["end"] - one["first"]), median(rounds, lambda one: one["first"]),
                 median(rounds, lambda one: one["end"]))
            for id, rounds in by_id.items()
        }
        for peer, by_id in groups.items()
    }


def rate(rows):
    """Tokens a second after the prompt of several questions, None if no answer has two tokens."""
    rows = [row for row in rows if row[1] > 0 and row[2] > 0]
    return sum(row[1] for row in rows) / sum(row[2] for row in rows) if rows else None


def ratio(ours, theirs, get=rate):
    """`get` of ours over theirs on the questions that both answered, with the ends of its 95 % interval."""
    ids = sorted(set(ours) & set(theirs))
    both = lambda drawn: [get([of[id] for id in drawn]) for of in (ours, theirs)]
    top, bottom = both(ids) if ids else (None, None)
    if not top or not bottom:
        return None
    if len(ids) == 1:
        return top / bottom, None, None
    chance, found = random.Random(1), []
    for _ in range(DRAWS):
        one, other = both(chance.choices(ids, k=len(ids)))
        if one and other:
            found.append(one / other)
    found.sort()
    return top / bottom, found[int(0.025 * len(found))], found[int(0.975 * len(found))]


def equal_texts(answers, peer, reference):
    """How many of the peer's texts equal the reference's, and how many questions both answered."""
    of = lambda name: {(one["id"], one["round"]): one["text"] for one in answers if one["peer"] == name}
    mine, other = of(peer), of(reference)
    both = mine.keys() & other.keys()
    return sum(mine[key] == other[key] for key in both), len(both)


def markdown(answers, peers, failed, default, categories):
    """The table: a row for each peer, in their order; those that failed have empty cells."""
    all = rated([one for one in answers if one["peer"] not in failed])
    kinds = [kind for kind in categories if any(one["category"] == kind for one in answers)]
    head = ["tokens/s behind the prompt", "all", *kinds, f"{default} over it", "first text, ms", "whole time, s",
            "tokens", "told", "as its plain"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for peer in peers:
        rows = all.get(peer)
        if not rows:
            lines.append("| " + " | ".join([peer, *[""] * (len(head) - 1)]) + " |")
            continue
        number = lambda value: "-" if value is None else f"{value:.0f}"
        rates = [rate(rows.values())] + [rate([row for row in rows.values() if row[0] == kind]) for kind in kinds]
        own = [one for one in answers if one["peer"] == peer]
        rounds = len({one["round"] for one in own})
        over = ratio(all[default], rows) if default in all and peer != default else None
        told = [one["told"]["written"] for one in own]
        equal, of = equal_texts(answers, peer, peer.split(" ")[0] + " plain")
        lines.append("| " + " | ".join([
            peer, *map(number, rates), interval(over), number(1e3 * statistics.median(row[3] for row in rows.values())),
            f"{sum(row[4] for row in rows.values()):.1f}", f"{sum(one['tokens'] for one in own) / rounds:.0f}",
            f"{sum(told) / rounds:.0f}" if None not in told else "-", f"{equal} of {of}" if of else "-"]) + " |")
    return "\n".join(lines)


def interval(found):
    """A ratio with its interval, in words."""
    if not found:
        return "-"
    middle, low, high = found
    return f"{middle:.2f}" + ("" if low is None else f" ({low:.2f}–{high:.2f})")


def parted(ours, theirs):
    """How many first tokens two texts share, None if they are equal."""
    shared = next((i for i, (one, other) in enumerate(zip(ours, theirs)) if one != other), min(len(ours), len(theirs)))
    return None if shared == len(ours) == len(theirs) else shared


def judged(top_ours, top_theirs, ours, theirs, tie):
    """Judges two programs whose texts diverged with the tokens `ours` and `theirs`: each one's lead over the other.

    Each `top` is text -> log-probability of the likeliest tokens. Only rounding differs if both programs have both
    tokens among these, less than `tie` apart; a lead is None if a token is not among them. A new request may favour the
    other token, because rows of a prompt are rounded differently from single rows."""
    lead = lambda top, one, other: top[one] - top[other] if one in top and other in top else None
    leads = lead(top_ours, ours, theirs), lead(top_theirs, theirs, ours)
    near = all(one is not None and abs(one) < tie for one in leads)
    return {"ours": ours, "theirs": theirs, "our_lead": leads[0], "their_lead": leads[1], "rounding": near}
