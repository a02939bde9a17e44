"""The tables of Leviathan et al. 2023, which `bench/figures` makes: draft models and n-grams on several tasks.

The paper's target and drafts are encoder-decoders (T5), so a task is a file of sources, which the program reads as
prompts. alpha, c, Theorem 3.8 and its measurement are those of `foretoken analyze`, behind the encoder;
`encoder_decoder` adds the speed with the encoder, and compares passes with the machine's limits.
"""

import json
import tempfile
from contextlib import contextmanager
from pathlib import Path

from questions import Wrong, positive
from runs import UNFILTERED, dtype, generate, pair, run, table

# The paper's Table 2, T5-small for T5-XXL: gamma, alpha and speed-up by task and temperature.
TABLE2 = {("English to German", 0): (7, 0.75, 3.4), ("English to German", 1): (7, 0.62, 2.6),
          ("summaries (CNN/DM)", 0): (5, 0.65, 3.1), ("summaries (CNN/DM)", 1): (5, 0.53, 2.3)}
# Its Table 3: alpha for T5-XXL, English to German and CNN/DM, at temperature 0 and 1.
TABLE3 = {"unigram": ("0.08", "0.07", "0.13", "0.08"), "bigram": ("0.20", "0.19", "0.23", "0.16"),
          "draft (T5-small)": ("0.75", "0.62", "0.65", "0.53")}


def ngrams(given):
    """Unigrams and bigrams: alpha (the paper: 0.2 for bigrams) and the speed-up with three drafted tokens (1.25)."""
    words = ["analyze", *pair(given), "--spec-type", "unigram,bigram", "--gamma", "3", "--temp", "0,1", "--json",
             "--repeat", given.repeat, "-n", given.tokens, *UNFILTERED]
    words += ["--lookup-cache-static", given.texts] if given.texts else []
    found = json.loads(run(given, *words).stdout)
    speeds = {(row["drafter"], row["temperature"]): row for row in found["rows"]}
    rows = []
    for drafter in found["drafters"]:
        row = speeds[drafter["drafter"], drafter["temperature"]]
        rows.append([drafter["drafter"], drafter["temperature"], drafter["alpha"], drafter["with_law"],
                     row["tokens_per_pass"], row["predicted"], row["speedup"]])
    table(["drafter", "temperature", "alpha", "with law", "tokens a pass", "Theorem 3.8", "speed-up"], rows)


# Tasks of an encoder-decoder


def sources(given):
    """The files of sources by the names of their tasks."""
    files = given.sources or sorted(Path(__file__).resolve().parent.glob("sources-*"))
    if not files:
        raise Wrong("--sources: expected files of sources, one or several, found none")
    return {Path(file).stem.removeprefix("sources-"): Path(file) for file in files}


def lines(file, count):
    """The first sources of a file: objects of a .jsonl file, or lines."""
    try:
        found = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()][:count]
    except (OSError, UnicodeDecodeError) as error:
        raise Wrong(f"{file}: expected sources, found: {error}") from None
    if file.suffix != ".jsonl":
        return [{"prompt": line} for line in found]
    try:
        return [json.loads(line) for line in found]
    except ValueError as error:
        raise Wrong(f"{file}: expected a JSON object a line, found: {error}") from None


@contextmanager
def prompts(given, tasks):
    """A file of the first sources of each task, with the task as their kind."""
    with tempfile.TemporaryDirectory() as folder:
        listed = [{**source, "kind": task} for task, file in tasks.items() for source in lines(file, given.each)]
        for source in listed:
            source.pop("category", None)
        path = Path(folder, "sources.jsonl")
        path.write_text("".join(json.dumps(source) + "\n" for source in listed))
        yield path


def analyzed(given, task, drafters, gammas, draft):
    """The object of analyze for one task."""
    words = ["analyze", "-m", given.model, "-md", draft, "--spec-type", ",".join(drafters), "--gamma", ",".join(gammas),
             "--temp", "0,1", "--json", "--repeat", given.repeat, "-n", given.tokens, *dtype(given), *UNFILTERED]
    words += ["--lookup-cache-static", given.texts] if given.texts else []
    with prompts(given, task) as path:
        return json.loads(run(given, *words, "--prompts", path).stdout)


def table2(given):
    """Table 2: the speed-up by draft models on each task, at the best gamma by Theorem 3.8."""
    rows = [[f"paper: {task}", "T5-small", temperature, gamma, f"{alpha:.2f}", "", "", "", f"{speed:.1f}"]
            for (task, temperature), (gamma, alpha, speed) in TABLE2.items()]
    for task, file in sources(given).items():
        for draft in given.model_draft:
            found = analyzed(given, {task: file}, ["draft"], given.gamma, draft)
            for drafter in found["drafters"]:
                best = drafter["best_predicted"]["gamma"]
                at = lambda row: (row["temperature"], row["gamma"])
                row = next(row for row in found["rows"] if at(row) == (drafter["temperature"], best))
                rows.append([task, Path(draft).name, drafter["temperature"], best, drafter["alpha"], drafter["c"],
                             row["predicted"], row["predicted_with_widths"], row["speedup"]])
    table(["task", "draft", "temperature", "gamma", "alpha", "c", "Theorem 3.8", "with widths", "measured"], rows)


def table3(given):
    """Table 3: alpha of the draft model, unigram, bigram and copies from the source on each task, and the speed-up."""
    papers = ["English to German, 0", "English to German, 1", "CNN/DM, 0", "CNN/DM, 1"]
    table(["paper: alpha", *papers], [[name, *alphas] for name, alphas in TABLE3.items()])
    print()
    rows, gamma = [], given.gamma[0]
    for task, file in sources(given).items():
        drafters = ["unigram", "bigram", "lookup", "draft"]
        found = analyzed(given, {task: file}, drafters, [gamma], given.model_draft[0])
        speeds = {(row["drafter"], row["temperature"]): row for row in found["rows"]}
        for drafter in found["drafters"]:
            row = speeds[drafter["drafter"], drafter["temperature"]]
            rows.append([task, drafter["drafter"], drafter["temperature"], drafter["alpha"], drafter["c"], gamma,
                         row["tokens_per_pass"], row["predicted"], row["speedup"]])
    table(["task", "drafter", "temperature", "alpha", "c", "gamma", "tokens a pass", "Theorem 3.8", "measured"], rows)


# The machine's limits


def passes(given, model, *words):
    """The first object of bench pass."""
    words = ["bench", "pass", "--json", "-m", model, *dtype(given), *words]
    return json.loads(run(given, *words).stdout)[0]


def encoder_decoder(given):
    """Passes of both halves beside the machine's limits, and speed-ups by drafts and copies, with the encoder, too."""
    rows_of_pass = ["1", "2", "4", "8"]
    found = passes(given, given.model, "--source", "512", "--rows", ",".join(rows_of_pass))
    table(["rows of the decoder, behind a source of 512", "ms", "over its roofline"],
          [[rows, found["ms_per_pass"][rows], found["ratio_to_roofline"][rows]] for rows in rows_of_pass])
    source = found["source"]
    rows = [["encoder, source of 512", source["tokens_per_second"], source["gop_s"], source["ratio_to_roofline"]]]
    if given.like:
        prompt = passes(given, given.like, "--rows", "512", "--context", "0")
        speed = 512e3 / prompt["ms_per_pass"]["512"]
        rows.append([f"prompt of 512, {Path(given.like).name}", speed, prompt["gop_s"]["512"],
                     prompt["ratio_to_roofline"]["512"]])
        rows.append(["encoder over prompt", source["tokens_per_second"] / speed, source["gop_s"] / rows[1][2], None])
    print()
    table(["", "tokens/s", "GOP/s", "over its roofline"], rows)
    with prompts(given, sources(given)) as path:
        words = ["-m", given.model, "-md", given.model_draft[0], *dtype(given), "--prompts", path, "--by-kind",
                 "--temp", "0,1", "--spec-type", "draft,lookup,auto", "--verify", given.verify, *UNFILTERED]
        measured = generate(given, *words)
    print()
    table(["task", "temperature", "method", "tokens/s", "behind the encoder", "with it", "tokens a pass", "first, ms"],
          [[row["kind"] or "all", row["temperature"], row["method"], f"{row['tokens_per_second']:.1f}", row["speedup"],
            row["speedup_with_prompt"], row["tokens_per_pass"], f"{1e3 * row['seconds_to_first_token']:.0f}"]
           for row in measured])


def of_sources(one):
    """Options of the subcommands for encoder-decoders."""
    gammas = lambda word: [str(positive(number)) for number in word.split(",")]
    one.add_argument("-m", "--model", required=True, help="the target, an encoder-decoder")
    one.add_argument("-md", "--model-draft", nargs="+", required=True, metavar="MODEL")
    one.add_argument("--sources", nargs="+", type=Path, metavar="FILE",
                     help="files of sources, one for each task [default: bench/sources-*]")
    one.add_argument("--each", type=positive, default=6, help="sources of each task [default: 6]")
    one.add_argument("--dtype", help="type to which the weights of floats are converted")
    one.add_argument("--gamma", type=gammas, default="3,5,7", metavar="N,..",
                     help="draft lengths; leviathan-table3 takes the first [default: 3,5,7]")
    one.add_argument("--texts", metavar="FILE", help="what lookup build wrote, the corpus that n-grams count")
    one.add_argument("--like", metavar="MODEL", help="encoder-decoder: a decoder of the same size, for its prompts")
    one.add_argument("--verify", choices=("exact", "rejection", "block"), default="rejection")
    one.add_argument("--repeat", type=positive, default=1)
    one.add_argument("-n", "--tokens", type=positive, default=48, help="most tokens of an output [default: 48]")
