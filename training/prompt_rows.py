"""How much of a prompt a head has to know: what it is worth where its own text begins a few tokens before the answer.

usage: prompt_rows.py --hidden DIR --target TARGET --run RUN [--rows 1,4,16,64,256] [--prompt-min 200]

A prompt whose beginning others have computed is not computed again for a head: only its last rows are. Held-out texts
with prompts of at least so many tokens are cut to so many of the prompt's, and the head begins there. Printed are
acceptance by depth and tokens a pass, as in training; the last line is of whole prompts. Left out: what rows cost.
"""
import argparse
import sys

import torch

from head import checkpoint_of
from measure import Held, lines
from network import Head
from problem import Problem, expect
from shards import Folder
from target import Target


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--run", required=True, help="the folder of a run of head.py train")
    numbers = lambda text: [int(word) for word in text.split(",")]
    parser.add_argument("--rows", type=numbers, default=[1, 4, 16, 64, 256])
    parser.add_argument("--prompt-min", type=int, default=200)
    options = parser.parse_args()
    target, saved = Target(options.target), checkpoint_of(options.run, f"--run {options.run}")
    expect(saved["options"]["command"] == "train", f"--run {options.run}", "a run of a head", "one of a draft model")
    head = Head(type(target.shape)(*saved["shape"]), saved["ids"], target)
    head.load_state_dict(saved["network"])
    folder = Folder(options.hidden, 0, saved["options"]["context"], lambda _tokens: False)
    texts = [text for text in folder.held_out() if text.prompt_len >= options.prompt_min]
    expect(texts, f"--prompt-min {options.prompt_min}", "held-out texts with such prompts", "none")
    for rows in [*options.rows, None]:
        firsts = [0 if rows is None else max(0, text.prompt_len - rows) for text in texts]
        cut = [text._replace(tokens=text.tokens[first:], prompt_len=text.prompt_len - first, hidden=text.hidden[first:])
               for text, first in zip(texts, firsts)]
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            accepted = Held(iter(cut), target, saved["ids"], 1500).evaluate(head)
        print(f"{'all' if rows is None else rows} rows of {len(texts)} prompts", *lines(accepted, None), sep="\n",
              flush=True)


if __name__ == "__main__":
    try:
        main()
    except Problem as problem:
        sys.exit(f"prompt_rows.py: {problem}")
