"""What the subcommands of `bench/figures` share: running the program, and tables in Markdown."""

import json
import subprocess

from questions import Wrong

# No filters, so that a temperature is the model's own law.
UNFILTERED = ["--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "1"]


def run(given, *words):
    """What the program prints; its own words if it fails."""
    command = [str(given.foretoken), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Wrong(f"{' '.join(command)}: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
    return done


def table(heads, rows):
    """A table in Markdown; numbers have three digits behind the point."""
    cell = lambda value: f"{value:.3f}" if isinstance(value, float) else "" if value is None else str(value)
    lines = [heads, ["---"] * len(heads), *rows]
    print("\n".join("| " + " | ".join(cell(value) for value in line) + " |" for line in lines), flush=True)


def percent(part):
    """A part in per cent, if there is one: nothing was drafted otherwise."""
    return "" if part is None else f"{part:.0%}"


def change(value, whole):
    """By how many per cent a value differs from the whole."""
    return f"{100 * (value / whole - 1):+.1f} %"


def generate(given, *words):
    """The rows of bench generate."""
    words = ["bench", "generate", "--json", "--repeat", given.repeat, "-n", given.tokens, *words]
    return [json.loads(line) for line in run(given, *words).stdout.splitlines()]


def pair(given):
    """The options of target and prompts."""
    if not given.prompts:
        raise Wrong("--prompts: expected a file of prompts")
    return ["-m", given.model, "--prompts", given.prompts, *(["--chat"] if given.chat else []), *dtype(given)]


def dtype(given):
    """The option of the type to which weights are converted, if any."""
    return ["--dtype", given.dtype] if given.dtype else []
