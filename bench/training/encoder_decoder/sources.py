#!/usr/bin/env python3
"""Writes files of sources for benchmarks out of held-out tasks: FOLDER/sources-TASK.txt, a source a line.

    python3 sources.py DATA/held.jsonl bench --count 24

Taken are the first tasks of each kind whose source and target both have at least --characters, so that an answer is
long enough to be measured. None of their documents was trained with.
"""
import argparse
import collections
import json


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks")
    parser.add_argument("folder")
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--characters", type=int, default=60)
    parser.add_argument("--tasks", nargs="+", default=["copy", "edit", "summarize", "translate"], dest="kinds")
    options = parser.parse_args()
    chosen = collections.defaultdict(list)
    with open(options.tasks) as lines:
        for line in lines:
            task = json.loads(line)
            long_enough = min(len(task["source"]), len(task["target"])) >= options.characters
            if task["task"] in options.kinds and long_enough and len(chosen[task["task"]]) < options.count:
                chosen[task["task"]].append(task["source"])
    for name, sources in chosen.items():
        with open(f"{options.folder}/sources-{name}.txt", "w") as out:
            out.write("".join(source + "\n" for source in sources))


if __name__ == "__main__":
    main()
