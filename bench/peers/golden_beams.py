#!/usr/bin/env python3
"""Makes the golden beam searches of crates/foretoken/tests/golden/beams: what transformers' `generate` finds with the
golden networks of crates/model/tests/golden.

    python3 bench/peers/golden_beams.py crates/model/tests/golden crates/foretoken/tests/golden/beams \\
        llama gemma3 gpt_oss t5 mt5

OUT/NAME.json has one case a line: the prompt (of an encoder-decoder the source, and the token that begins), the
settings with transformers' names, and `found`, all hypotheses with their new tokens, the score, and the sum of their
log-probabilities, which is computed anew by one pass over each (null where processors change log-probabilities). Cases
differ in beams (2, 3, 4), length penalty, and `early_stopping`; the end token is one that hypotheses of the prompt
have, or none; some cases have a repetition penalty and a least length. Prompt and end token are, of some random ones,
those for which `early_stopping` matters most often.

transformers 5.24 cannot search with a T5 whose halves differ in their layers (t5-v1_1).

Near ties would be decided by the last bits of the logits. So a case is left out if its search finds other tokens when
each log-probability is disturbed at random, four times, by a normal deviation of 1e-3, about a thousand times what
implementations differ by. Networks run in f32 with eager attention. Needs torch and transformers 5.24.
"""
import itertools
import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import (AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, LogitsProcessor,
                          LogitsProcessorList)

NEW, TRIALS, DISTURBED, DEVIATION = 20, 16, 4, 1e-3
BEAMS, PENALTIES, STOPPINGS = (2, 3, 4), (-1.0, 0.0, 1.0, 2.0), (True, False, "never")
CASES_MAX = 24


class Disturb(LogitsProcessor):
    """Adds noise to log-probabilities."""

    def __init__(self, seed):
        self.noise = torch.Generator().manual_seed(seed)

    def __call__(self, _, scores):
        return scores + DEVIATION * torch.randn(scores.shape, generator=self.noise)


def before(model, prompt):
    """The tokens before the new ones: the prompt, or what an encoder-decoder, whose encoder reads it, begins with."""
    return [model.config.decoder_start_token_id] if model.config.is_encoder_decoder else prompt


@torch.no_grad()
def search(model, prompt, settings, disturbance=None):
    """The new tokens of all hypotheses, best first, and their scores."""
    end = settings["end_tokens"]
    options = {name: value for name, value in settings.items() if name != "end_tokens"}
    processors = LogitsProcessorList([] if disturbance is None else [Disturb(disturbance)])
    output = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), do_sample=False,
        num_return_sequences=settings["num_beams"], eos_token_id=end or None, pad_token_id=0,
        return_dict_in_generate=True, output_scores=True, logits_processor=processors, **options)
    found = []
    for sequence, score in zip(output.sequences.tolist(), output.sequences_scores.tolist()):
        new = sequence[len(before(model, prompt)):]
        ends = [at for at, token in enumerate(new) if token in end]
        found.append((new[:ends[0] + 1] if ends else new[:NEW], score))
    return found


@torch.no_grad()
def log_probability(model, prompt, new):
    """The sum of the log-probabilities of new tokens, by one pass."""
    begun = before(model, prompt)
    rows = torch.tensor([begun + new])
    is_both = model.config.is_encoder_decoder
    output = model(torch.tensor([prompt]), decoder_input_ids=rows) if is_both else model(rows)
    laws = output.logits[0].float().log_softmax(-1)
    return sum(float(laws[len(begun) - 1 + at, token]) for at, token in enumerate(new))


def tokens(found):
    return [new for new, _ in found]


def grid(end):
    """The settings of all cases with this end token."""
    for beams, penalty, stopping in itertools.product(BEAMS, PENALTIES, STOPPINGS):
        yield dict(num_beams=beams, length_penalty=penalty, early_stopping=stopping, max_new_tokens=NEW, end_tokens=end)


def subject(model, vocabulary):
    """The prompt and the end token for which the ways of stopping differ most often."""
    best = (-1, None, None)
    for trial in range(TRIALS):
        torch.manual_seed(trial)
        prompt = torch.randint(3, vocabulary, (20 + trial,)).tolist()
        free = search(model, prompt, next(s for s in grid([]) if s["num_beams"] == 4))
        count = [token for new in tokens(free) for token in new[2:12]]
        for end in sorted(set(count), key=count.count)[-2:]:
            by_stopping = {}
            for settings in grid([end]):
                key = (settings["num_beams"], settings["length_penalty"])
                by_stopping.setdefault(key, []).append(str(tokens(search(model, prompt, settings))))
            different = sum(len(set(found)) for found in by_stopping.values())
            if different > best[0]:
                best = (different, prompt, end)
    return best[1], best[2]


def cases(model, vocabulary):
    prompt, end = subject(model, vocabulary)
    # The ways of stopping where they differ most, further penalties, and cases without an end token.
    by_key = {}
    for settings in grid([end]):
        key = (settings["num_beams"], settings["length_penalty"])
        by_key.setdefault(key, []).append((settings, search(model, prompt, settings)))
    groups = sorted(by_key.values(), key=lambda group: -len({str(tokens(found)) for _, found in group}))
    wanted = [settings for group in groups for settings, _ in group][:CASES_MAX - 8]
    wanted += [by_key[3, 0.0][1][0], by_key[4, -1.0][1][0]]
    wanted += [dict(settings, end_tokens=[]) for settings in itertools.islice(grid([]), 0, 36, 9)]
    further = dict(length_penalty=1.0, early_stopping=False, max_new_tokens=NEW, end_tokens=[end])
    wanted += [dict(further, num_beams=beams, repetition_penalty=1.3, min_new_tokens=9) for beams in (2, 4)]
    for settings in wanted:
        found = search(model, prompt, settings)
        if any(tokens(search(model, prompt, settings, seed)) != tokens(found) for seed in range(DISTURBED)):
            continue
        has_processors = "repetition_penalty" in settings
        sums = [None if has_processors else round(log_probability(model, prompt, new), 6) for new, _ in found]
        found = [dict(ids=new, score=round(score, 6), log_probability=sum_)
                 for (new, score), sum_ in zip(found, sums)]
        source = dict(source=prompt) if model.config.is_encoder_decoder else {}
        yield dict(source, prompt=before(model, prompt), **settings, found=found)


def main():
    golden, out, names = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        is_both = AutoConfig.from_pretrained(golden / name).is_encoder_decoder
        kind = AutoModelForSeq2SeqLM if is_both else AutoModelForCausalLM
        model = kind.from_pretrained(golden / name, dtype=torch.float32, attn_implementation="eager")
        model.eval()
        all_cases = list(cases(model, model.config.vocab_size))
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in all_cases)
        (out / f"{name}.json").write_text(f"[\n{lines}\n]\n")
        lengths = [len(hypothesis["ids"]) for case in all_cases for hypothesis in case["found"]]
        ended = sum(length < NEW for length in lengths)
        print(f"{name}: {len(all_cases)} cases, {ended} of {len(lengths)} hypotheses end early", flush=True)


if __name__ == "__main__":
    main()
