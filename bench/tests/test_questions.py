"""Tests which questions are chosen, the errors for lines that are no questions, and the command lines of `bench/real`.

`FORETOKEN_QUESTIONS` names Spec-Bench's question.jsonl, which one test reads.
"""

import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]
import questions  # noqa: E402
from questions import CATEGORIES, Wrong  # noqa: E402

NAMES = ["writing", "stem", *CATEGORIES[1:]]
# Replaces the program: names its drafters if it gets an unknown one, else prints a row for each method.
PROGRAM = """#!/usr/bin/env python3
import json, sys
words = sys.argv[1:]
if "--version" in words: sys.exit(print("foretoken 0"))
if "which" in words: sys.exit("--spec-type: expected one of none, auto, draft, lookup, suffix, found \\"which\\"")
prompts = open(words[words.index("--prompts") + 1]).readlines()
assert all(json.loads(line)["messages"] for line in prompts)
for method in ["plain", *words[words.index("--spec-type") + 1].split(",")]:
    print(json.dumps(dict(method=method, kind=None, model="m", verify=None if method == "plain" else "exact",
        tokens_per_second=5.0, speedup=1.5, speedup_low=1.2, speedup_high=1.9, tokens_per_pass=2.0, equal=True,
        drafters={}, prompts=len(prompts))))
"""


def line(id, category, **more):
    return json.dumps({"question_id": id, "category": category, "turns": [f"question {id}"]} | more)


class Questions(unittest.TestCase):
    def file(self, *lines):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name) / "question.jsonl"
        path.write_text("\n".join(lines) + "\n")
        return path

    def test_as_many_of_each_category_evenly_spread(self):
        all = questions.read(self.file(*(line(id, NAMES[id // 10]) for id in range(70))))
        six = questions.chosen(all, 6)
        self.assertEqual(Counter(one["category"] for one in six), Counter(CATEGORIES))
        self.assertEqual([one["id"] for one in six], [10, 25, 35, 45, 55, 65])
        self.assertEqual(Counter(one["category"] for one in questions.chosen(all, 8))["chat"], 2)
        self.assertEqual((len(questions.chosen(all, "all")), len(questions.chosen(all, 99))), (70, 70))

    def test_bad_lines_are_named_by_file_and_line(self):
        for bad, expected in [
            ("{", "line 2: expected JSON"),
            ("[]", "line 2: expected an object"),
            (line("x", "qa"), "line 2: question_id: expected a number, found \"x\""),
            (line(2, "poems"), "line 2: category: expected one of chat, .*found \"poems\""),
            (line(2, ["qa"]), r'line 2: category: expected one of chat, .*found \["qa"\]'),
            (line(2, "qa", turns=[]), "line 2: turns: expected a list that begins with a text"),
            (line(1, "qa"), "line 2: question_id: expected another than line 1 has"),
        ]:
            path = self.file(line(1, "qa"), bad)
            with self.assertRaisesRegex(Wrong, f"{path}: {expected}"):
                questions.read(path)
        for path in (self.file(""), "/no/such/file"):
            with self.assertRaisesRegex(Wrong, str(path)):
                questions.read(path)

    def test_a_record_that_is_none_is_named(self):
        for text, expected in [("{", "expected a record, found: Expecting"), ("[]", "found none of cells"),
                               ("{}", "found none of cells")]:
            path = self.file(text)
            with self.assertRaisesRegex(Wrong, f"{path}: .*{expected}"):
                questions.record_at(path, ["cells"])
        with self.assertRaisesRegex(Wrong, "/no/such/file: expected a record, found"):
            questions.record_at("/no/such/file", ["cells"])

    def test_what_differs_is_shown_where_it_does(self):
        same, other = "a" * 50 + "b", "a" * 50 + "c" * 99
        self.assertEqual(questions.apart(same, other), f"…{'a' * 20}b there, …{'a' * 20}{'c' * 40}… here")
        self.assertEqual(questions.apart(None, 8), "null there, 8 here")

    @unittest.skipUnless(os.environ.get("FORETOKEN_QUESTIONS"), "FORETOKEN_QUESTIONS names no question.jsonl")
    def test_spec_bench_has_eighty_of_each_category(self):
        all = questions.read(os.environ["FORETOKEN_QUESTIONS"])
        self.assertEqual(Counter(one["category"] for one in all), Counter({name: 80 for name in CATEGORIES}))

    def test_real_goes_on_behind_the_cells_that_it_has(self):
        path = self.file(*(line(id, NAMES[id // 10]) for id in range(70)))
        program, model, out = (path.with_name(name) for name in ("foretoken", "m.gguf", "out.json"))
        program.write_text(PROGRAM)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        model.write_text("x")
        words = [HERE.parent / "real", "--foretoken", program, "--model", model, "--questions", path, "--out", out,
                 "--questions-count", "6"]
        real = lambda *more: subprocess.run([*words, *more], capture_output=True, text=True)
        done = real()
        self.assertEqual(done.returncode, 0, done.stderr)
        record = json.loads(out.read_text())
        self.assertEqual(len(record["cells"]), 6)
        self.assertEqual(record["settings"]["methods"], ["auto", "lookup", "suffix"])
        self.assertIn("| no option | 1.50 (1.20–1.90) |", done.stdout)
        record["cells"].pop("1 4")
        out.write_text(json.dumps(record))
        done = real()
        self.assertIn("cell 1 of 1: temperature 1, 4 at a time", done.stderr)
        expected = "expected a record of these settings, found another"
        self.assertIn(f"{expected} (tokens: 64 there, 8 here)", real("-n", "8").stderr)
        phrases = path.with_name("phrases")
        phrases.write_text("x")
        options = ["--methods", "auto,lookup,suffix", "--phrases", phrases]
        self.assertIn(f"{expected} (phrases_sha256: null there", real(*options).stderr)
        program.write_text(PROGRAM + "# another build")
        self.assertIn(f"{expected} (foretoken_sha256: ", real().stderr)
        program.write_text(PROGRAM)
        out.write_text(json.dumps(record | {"machine": record["machine"] | {"cpu_model": "cpu family 6"}}))
        self.assertIn(f"{expected} (cpu_model: cpu family 6 there", real().stderr)
        self.assertIn("error: /no/record: expected a record, found", real("--table", "/no/record").stderr)

    def test_a_program_in_this_folder_needs_no_path(self):
        path = self.file(line(1, "qa"))
        program, model = path.with_name("foretoken"), path.with_name("m.gguf")
        program.write_text(PROGRAM)
        model.write_text("x")
        words = [HERE.parent / "real", "--foretoken", "./foretoken", "--model", model, "--questions", path, "--out",
                 path.with_name("out.json"), "--parallel", "1", "--temp", "0"]
        real = lambda: subprocess.run(words, capture_output=True, text=True, cwd=path.parent)
        self.assertIn("expected a program, found a file that cannot be run", real().stderr)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        done = real()
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
