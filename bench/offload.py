#!/usr/bin/env python3
"""Measures layers that are read from a disk for every pass (`--offload`), in a control group with little memory.

reads FILE            a large file, as of packed layers, layer by layer past the system's cache (O_DIRECT) and through a
                      mapping (MADV_SEQUENTIAL, and MADV_WILLNEED for the next layer), in turn: bytes and CPU seconds
passes MODEL DRAFT    in a quarter of the memory that the weights take, in turn: plain passes a second beside what `dd`
                      reads of the same file, and tokens a second with the draft beside what its tokens a pass allow
endurance MODEL       a server to which requests trickle: memory, threads and open files every ten seconds, in a file

Each prints a table in Markdown. Needs `target/release/foretoken`, and root, which alone may make control groups (of
version 1 or 2). The disk's rate changes within minutes: only ratios of one round are worth something.
"""

import argparse
import http.client
import json
import mmap
import os
import resource
import socket
import statistics
import subprocess
import time
import urllib.request
from pathlib import Path

from runs import table

PROGRAM = Path(__file__).parent.parent / "target/release/foretoken"
CHUNK = 8 << 20  # as the program reads
LAYER = 80_216_064  # bytes of a layer of the inflated demo target in BF16


class Group:
    """A control group with a limit on memory, which this process or children can join."""

    def __init__(self, limit):
        version_1 = Path("/sys/fs/cgroup/memory")
        self.folder = (version_1 if version_1.is_dir() else Path("/sys/fs/cgroup")) / f"offload-{os.getpid()}"
        self.folder.mkdir()
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if version_1.is_dir() else ("memory.max",
                                                                                               "memory.current")
        self.usage = self.folder / names[1]
        (self.folder / names[0]).write_text(str(int(limit)))

    def join(self):
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self):
        self.folder.rmdir()


def rounded(rows):
    """The rows of a table with numbers of three digits."""
    return [[cell if isinstance(cell, str) else f"{cell:.0f}" if cell >= 100 else f"{cell:.3g}" for cell in row]
            for row in rows]


def read_direct(path, size):
    """Reads a file past the cache; a sum of one byte of each page shows that it is there."""
    file, buffer = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, LAYER)
    view, total = memoryview(buffer), 0
    for start in range(0, size, LAYER):
        layer = min(LAYER, size - start)
        for at in range(0, layer, CHUNK):
            os.preadv(file, [view[at : min(at + CHUNK, layer)]], start + at)
        total += sum(view[:layer:4096])
    os.close(file)
    return total


def read_mapped(path, size):
    """Reads a file through a mapping, of which the next layer is asked for before one is touched."""
    file = os.open(path, os.O_RDONLY)
    mapping, total = mmap.mmap(file, size, prot=mmap.PROT_READ), 0
    mapping.madvise(mmap.MADV_SEQUENTIAL)
    view = memoryview(mapping)
    for start in range(0, size, LAYER):
        ahead = start + LAYER
        if ahead < size:
            mapping.madvise(mmap.MADV_WILLNEED, ahead, min(LAYER, size - ahead))
        total += sum(view[start : min(ahead, size) : 4096])
    view.release()
    mapping.close()
    os.close(file)
    return total


def reads(arguments):
    path = arguments.file
    size = os.path.getsize(path) // 4096 * 4096
    group, rows = Group(arguments.memory * 1e6), []
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        group.remove()
        raise SystemExit(os.waitstatus_to_exitcode(status))
    group.join()
    for _ in range(arguments.rounds):
        sums = []
        for name, read in [("O_DIRECT", read_direct), ("mapping", read_mapped)]:
            with open(path, "rb") as file:  # what other processes left in the cache
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            before, started = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
            sums.append(read(path, size))
            seconds, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_SELF)
            user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
            rows.append([name, size / seconds / 1e9, user / size * 1e9, system / size * 1e9])
        assert sums[0] == sums[1], "both ways read the same bytes"
    table(["way", "GB/s", "user CPU s/GB", "system CPU s/GB"], rounded(rows))
    os._exit(0)


def generate(arguments, weights, room, group=None, draft=None, tokens=None):
    """Runs the program; its answer, and how many bytes it read from disks."""
    line = [PROGRAM, "generate", "Once upon a time", "-m", arguments.model, "-n", str(tokens or arguments.tokens), "-s",
            "1", "--temp", str(arguments.temp), "--ctx-size", "256", "--ignore-eos", "--json", "--dtype", weights,
            "--offload", str(int(room))]
    line += ["-md", draft, "--spec-type", "draft"] if draft else ["--spec-type", "none"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock
    run = subprocess.run(line, capture_output=True, text=True, preexec_fn=group and group.join)
    if run.returncode:
        raise SystemExit(run.stderr)
    read = 512 * (resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock - before)
    return json.loads(run.stdout.splitlines()[0]), read


def speed(answer):
    """Tokens a second and tokens a pass, after the first pass."""
    passes = answer["passes"]
    later = sum(number != passes[0] for number in passes)
    return answer["timings"]["predicted_per_second"], later / (passes[-1] - passes[0])


def passes(arguments):
    cache = Path(os.environ.get("XDG_CACHE_HOME", "/tmp/offload-cache"))
    inspected = subprocess.run([PROGRAM, "inspect", arguments.model, "--json"], capture_output=True, check=True)
    all_bytes, rows = json.loads(inspected.stdout)["memory"]["weights_bytes"], []
    for weights, part in [("bf16", 1.0), ("q8_0", 34 / 64)]:
        limit = all_bytes * part / 4
        room = limit - arguments.rest * 1e6
        os.environ["XDG_CACHE_HOME"] = str(cache / weights)  # so that its folder has one file of layers
        generate(arguments, weights, room, draft=arguments.draft, tokens=2)  # packs the layers, measures costs
        packed, = (cache / weights / "foretoken/layers").iterdir()
        group = Group(limit)
        (short, few), (long, many) = [generate(arguments, weights, room, group, tokens=tokens) for tokens in (2, 12)]
        each = (many - few) / (long["passes"][-1] - short["passes"][-1])
        for _ in range(arguments.rounds):
            plain, _ = speed(generate(arguments, weights, room, group)[0])
            started = time.monotonic()
            dd = ["dd", f"if={packed}", "of=/dev/null", "iflag=direct", "bs=8M"]
            subprocess.run(dd, check=True, capture_output=True, preexec_fn=group.join)
            rate = packed.stat().st_size / (time.monotonic() - started)
            drafted, a_pass = speed(generate(arguments, weights, room, group, draft=arguments.draft)[0])
            again, _ = speed(generate(arguments, weights, room, group)[0])
            around = (plain + again) / 2
            rows.append([weights, limit / 1e6, each / 1e6, rate / 1e9, plain, plain * each / rate, drafted, a_pass,
                         drafted / around, drafted / around / a_pass])
        group.remove()
    table(["type", "memory MB", "MB a pass", "dd GB/s", "plain passes/s", "of dd", "draft tokens/s", "tokens a pass",
           "gain", "of tokens a pass"], rounded(rows))
    for weights in ("bf16", "q8_0"):
        ratios = [(row[5], row[9]) for row in rows if row[0] == weights]
        of_dd, of_tokens = (statistics.median(column) for column in zip(*ratios))
        print(f"\n{weights}, medians: {of_dd:.2f} of dd, {of_tokens:.2f} of what tokens a pass allow")


def ask(port):
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 8}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body,
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return len(json.load(answer)["choices"]) == 1


def endurance(arguments):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = Group(arguments.memory * 1e6)
    line = [PROGRAM, "serve", "-m", arguments.model, "--port", str(port), "--ctx-size", "256", "--parallel", "2",
            "--offload", f"{arguments.memory - arguments.rest}MB"]
    line += ["-md", arguments.draft] if arguments.draft else []
    said = open(f"{arguments.out}.log", "w")
    server = subprocess.Popen(line, stderr=said, stdout=said, preexec_fn=group.join)
    try:
        samples = sample(arguments, server, port, group)
        is_alive = server.poll() is None
    finally:
        server.terminate()
        server.wait()
        group.remove()
    if not is_alive or not samples:
        raise SystemExit(f"the server ended by itself, or never answered: {Path(said.name).read_text()}")
    head = ["", "seconds", "RSS MB", "group MB", "threads", "open files", "answers", "failures"]
    tenth = len(samples) // 10
    rows = [["after a tenth", *samples[tenth]], ["last", *samples[-1]], ["most", *map(max, zip(*samples))]]
    table(head, rounded(rows))


def sample(arguments, server, port, group):
    """Asks again and again; what the server takes every ten seconds, which is also written to the file."""
    process, samples = Path(f"/proc/{server.pid}"), []
    started, answered, failed, sampled = time.monotonic(), 0, 0, 0.0
    out = open(arguments.out, "w")
    while (now := time.monotonic() - started) < arguments.seconds and server.poll() is None:
        try:
            answered += ask(port)
        except (OSError, http.client.HTTPException):
            failed += answered > 0  # before the first answer it loads
        if answered and now >= sampled:
            status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
            files = len(list((process / "fd").iterdir()))
            samples.append([now, int(status["VmRSS"].split()[0]) / 1e3, int(group.usage.read_text()) / 1e6,
                            int(status["Threads"]), files, answered, failed])
            print(*(f"{number:.1f}" for number in samples[-1]), file=out, flush=True)
            sampled = now + 10
        time.sleep(arguments.pause)
    return samples


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("reads")
    command.add_argument("file")
    command.add_argument("--memory", type=float, default=480, help="MB of the group")
    command.add_argument("--rounds", type=int, default=5)
    command.set_defaults(run=reads)
    command = commands.add_parser("passes")
    command.add_argument("model")
    command.add_argument("draft")
    command.add_argument("--tokens", type=int, default=24)
    command.add_argument("--temp", type=float, default=0)
    command.add_argument("--rounds", type=int, default=5)
    command.add_argument("--rest", type=float, default=150, help="MB of the group that are not for layers")
    command.set_defaults(run=passes)
    command = commands.add_parser("endurance")
    command.add_argument("model")
    command.add_argument("--memory", type=int, default=480, help="MB of the group")
    command.add_argument("--rest", type=int, default=150, help="MB of the group that are not for layers")
    command.add_argument("--draft")
    command.add_argument("--seconds", type=float, default=3600)
    command.add_argument("--pause", type=float, default=1, help="seconds between two requests")
    command.add_argument("--out", default="offload-endurance.txt")
    command.set_defaults(run=endurance)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
