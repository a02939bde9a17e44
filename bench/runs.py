"""What the subcommands of `bench/figures` share: running the program, tables in Markdown, and charts."""

import json
import subprocess
from pathlib import Path

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


def charts(given):
    """The folder for charts, if any are wanted; that they can be drawn is known before anything is measured."""
    if not given.report:
        return None
    try:
        import matplotlib
    except ImportError as error:
        raise Wrong(f"--report: expected matplotlib (pip install matplotlib), found: {error}") from None
    matplotlib.use("agg")
    folder = Path(given.report)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def chart(folder, name, x_label, y_label, categories, lines):
    """Draws lines, by name their values at each category, as PNG and SVG; lines of one kind differ by their marks."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    kinds = {}
    for line, values in lines.items():
        of_kind = kinds.setdefault(line.split(",")[0], [])
        of_kind.append(line)
        axes.plot(categories, values, label=line, color=f"C{list(kinds).index(line.split(',')[0])}",
                  marker="osD^v"[(len(of_kind) - 1) % 5], linewidth=1.2)
    axes.axhline(1, color="grey", linewidth=0.8, linestyle=":")
    most = max(1, *(value for values in lines.values() for value in values))
    axes.set(xlabel=x_label, ylabel=y_label, ylim=(0, 1.08 * most))
    axes.grid(axis="y", linewidth=0.4)
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    for kind in ("png", "svg"):
        figure.savefig(folder / f"{name}.{kind}", dpi=160)
    pyplot.close(figure)
