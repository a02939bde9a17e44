#!/usr/bin/env python3
"""Times passes of foretoken and of llama.cpp, and prints one table of ratios for each model and context.

    cargo build --release
    python3 bench/peers/synthetic.py /tmp/1b-Q8_0.gguf --shape 1b --type Q8_0
    python3 bench/peers/compare.py /tmp/1b-Q8_0.gguf --rows 1,8,64 --context 64,2048 --json /tmp/record.json

On a shared machine the speed of memory drifts within minutes, so the processes of both programs alternate, and the
order changes with each round; the median over the rounds is taken for each program. Both have the same threads,
context, rows and rows with logits. Only ratios of one run are meaningful.

The first use creates a virtual environment and compiles llama.cpp into it (package llama-cpp-python, about ten minutes
on two cores); --venv names an existing one. Nothing else may compute meanwhile: the threads of llama.cpp wait for each
other at every operation, so other load slows llama.cpp most. Generation is not timed.
"""

import argparse
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
REQUIREMENTS = ["llama-cpp-python==0.3.36", "numpy==2.4.6", "gguf==0.19.0"]


def environment(folder):
    """The Python of a virtual environment with llama.cpp, which is created if it does not exist."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"making {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    if subprocess.run([python, "-c", "import llama_cpp"], capture_output=True).returncode != 0:
        print("compiling llama.cpp, about ten minutes on two cores", file=sys.stderr)
        native = os.environ | {"CMAKE_ARGS": "-DGGML_NATIVE=ON " + os.environ.get("CMAKE_ARGS", "")}
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], env=native, check=True)
    return python


def output(command):
    """Standard output of a command; if it fails, the last line of its standard error is the error."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        complaint = (done.stderr.strip().splitlines() or ["(it says nothing)"])[-1]
        raise RuntimeError(f"{Path(str(command[0])).name}: {complaint.removeprefix('error: ')}")
    return done.stdout


def by_context(objects):
    """Objects of one process by their context."""
    return {one["context"]: one for one in objects}


def rounds_of(commands, rounds):
    """Alternates between both commands; for each program a list of rounds."""
    all = {name: [] for name in commands}
    for number in range(rounds):
        order = list(commands) if number % 2 == 0 else list(reversed(commands))
        for name in order:
            progress(f"round {number + 1} of {rounds}: {name}")
            all[name].append(by_context(json.loads(output(commands[name]))))
    progress("")
    return all


def progress(text):
    """Shows the progress in one line that is written over, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r{text:<40}\r", end="", file=sys.stderr, flush=True)


def median_over(rounds, context, get):
    """Median over the rounds of each number of an object from rows."""
    objects = [get(one[context]) for one in rounds]
    return {rows: round(statistics.median(each[rows] for each in objects), 4) for rows in sorted(objects[0], key=int)}


def summary(model, context, rounds):
    """The results of one model and context: medians, and the ratios of the table."""
    ours, theirs = rounds["foretoken"], rounds["llama.cpp"]
    passes = lambda one: one["ms_per_pass"]
    ms = {"foretoken": median_over(ours, context, passes), "llama.cpp": median_over(theirs, context, passes)}
    rows = list(ms["foretoken"])
    # Each round is compared with the ceilings that it measured itself.
    to_roofline = median_over(ours, context, lambda one: one["ratio_to_roofline"])
    ratio = lambda one, other: round(one / other, 4)
    to_one = {name: {n: ratio(ms[name][n], ms[name]["1"]) for n in rows} if "1" in rows else None for name in ms}
    rates = ["bandwidth_gb_s", "fma_gflop_s", "int8_gop_s", "bf16_gflop_s"]
    # A rate that is null in one round is null in all.
    measured = {name: [one[context]["roofline"][name] for one in ours] for name in rates}
    return {
        "model": model.name,
        "model_bytes": model.stat().st_size,
        "context": context,
        "threads": ours[0][context]["threads"],
        "isa": ours[0][context]["isa"],
        "cache_types": ours[0][context]["cache_types"],
        "logits": ours[0][context]["logits"],
        "products": ours[0][context]["products"],
        "ms_per_pass": ms,
        "ms_per_pass_of_rounds": {name: [passes(one[context]) for one in rounds[name]] for name in ms},
        "ours_over_theirs": {n: ratio(ms["foretoken"][n], ms["llama.cpp"][n]) for n in rows},
        "ratio_to_one": to_one,
        "ratio_to_roofline": to_roofline,
        "ceilings": {name: None if None in all else round(statistics.median(all), 4) for name, all in measured.items()},
    }


def table(one):
    """The lines of one summary."""
    ours, theirs = one["ms_per_pass"]["foretoken"], one["ms_per_pass"]["llama.cpp"]
    rates = one["ceilings"]
    lines = [
        f"{one['model']}, context {one['context']}: {one['threads']} threads, {one['isa']}, "
        f"memory {rates['bandwidth_gb_s']:.1f} GB/s, int8 dots {rates['int8_gop_s']:.0f} GOP/s, "
        f"f32 {rates['fma_gflop_s']:.0f} GFLOP/s",
        " rows    ours, ms    llama.cpp, ms    ours / theirs    t/t(1): ours   theirs    ours / roofline",
    ]
    for n in ours:
        to_one = [one["ratio_to_one"][name] for name in ["foretoken", "llama.cpp"]]
        to_one = [f"{ratios[n]:.2f}" if ratios else "-" for ratios in to_one]
        lines.append(
            f"{n:>5}  {ours[n]:10.2f}  {theirs[n]:15.2f}  {one['ours_over_theirs'][n]:15.2f}  {to_one[0]:>14}  "
            f"{to_one[1]:>7}  {one['ratio_to_roofline'][n]:17.2f}"
        )
    return "\n".join(lines)


def machine():
    """The processor's name and model, cores and memory."""
    fields = [[word.strip() for word in line.split(":", 1)] for line in lines_of("/proc/cpuinfo") if ":" in line]
    # The first processor's, where the system has them.
    of_cpu = dict(reversed(fields))
    memory = [int(line.split()[1]) for line in lines_of("/proc/meminfo") if line.startswith("MemTotal")]
    return {
        "cpu": of_cpu.get("model name") or platform.processor(),
        # Virtual machines may report one name for several generations of processors.
        "cpu_model": " ".join(f"{name} {of_cpu[name]}" for name in ("cpu family", "model") if name in of_cpu) or None,
        "cores": os.cpu_count(),
        "memory_gib": round(memory[0] / 2**20, 1) if memory else None,
        "system": f"{platform.system()} {platform.release()}",
    }


def lines_of(path):
    """Lines of a file of the system; none if there is no such file."""
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def commit():
    """The repository's commit, with a + if files differ from it."""
    git = ["git", "-C", str(ROOT)]
    try:
        changed = output([*git, "status", "--porcelain", "--untracked-files=no"]).strip()
        return output([*git, "rev-parse", "--short=12", "HEAD"]).strip() + ("+" if changed else "")
    except (OSError, RuntimeError):
        return None


def spelt(command, program, model):
    """A command as a reader would type it, without the folders of this machine."""
    words = [model.name if str(word) == str(model) else str(word) for word in command]
    return shlex.join([program, *words])


def options():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("models", nargs="+", type=Path, help="GGUF files")
    ask.add_argument("--foretoken", type=Path, default=ROOT / "target/release/foretoken", help="our program")
    ask.add_argument("--ours", type=shlex.split, default=[], metavar="OPTIONS", help="more of ours: --ours='-ctk f32'")
    ask.add_argument("--venv", type=Path, default=ROOT / "target/peers", help="virtual environment of llama.cpp")
    ask.add_argument("-t", "--threads", type=int, default=os.cpu_count(), help="default: one a core")
    ask.add_argument("--rows", default="1,2,4,8,16,64,512", help="default: 1,2,4,8,16,64,512")
    ask.add_argument("--context", default="64", help="tokens in the cache; default: 64")
    ask.add_argument("--repeat", type=int, default=5, help="timed passes a process; default: 5")
    ask.add_argument("--rounds", type=int, default=3, help="processes of each program; default: 3")
    ask.add_argument("--flash-attention", default="auto", choices=["auto", "off", "on"], help="default: llama.cpp's")
    ask.add_argument("--json", type=Path, metavar="FILE", help="write a record (bench/record/README.md)")
    return ask.parse_args()


def main():
    given = options()
    try:
        python = environment(given.venv)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: --venv {given.venv}: {error}")
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"note: load {load:.1f}: if others compute, times are not to be believed", file=sys.stderr)
    settings = ["-t", given.threads, "--rows", given.rows, "--context", given.context, "--repeat", given.repeat]
    results, commands, failed, theirs = [], [], False, {}
    for model in given.models:
        ours_words = ["bench", "pass", "-m", model, *settings, *given.ours, "--json"]
        their_words = [model, *settings, "--flash-attention", given.flash_attention]
        try:
            rounds = rounds_of({
                "foretoken": [given.foretoken, *ours_words],
                "llama.cpp": [python, HERE / "llama_cpp_pass.py", *their_words],
            }, given.rounds)
        except (OSError, RuntimeError) as error:
            progress("")
            print(f"error: {model.name}: {error}", file=sys.stderr)
            failed = True
            continue
        commands.append(spelt(ours_words, "foretoken", model))
        commands.append(spelt(their_words, "bench/peers/llama_cpp_pass.py", model))
        for context, one in rounds["llama.cpp"][0].items():
            theirs = {name: one[name] for name in ["version", "system", "flash_attention"]}
            results.append(summary(model, context, rounds))
            print(table(results[-1]) + "\n", flush=True)
    if given.json and results:
        record = {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "machine": machine() | {"load_before": round(load, 2)},
            "versions": {
                "foretoken": output([given.foretoken, "--version"]).strip(),
                "commit": commit(),
                "llama-cpp-python": theirs,
                "python": platform.python_version(),
            },
            "rounds": given.rounds,
            "commands": commands,
            "results": results,
        }
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
