"""What `bench/figures` asks the program, which records it has learned before, and what its tables say."""

import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

FIGURES = Path(__file__).resolve().parent.parent / "figures"
# Stands in for the program: says how many records are played and learned in the numbers of its results.
PROGRAM = """#!/usr/bin/env python3
import json, sys
words = sys.argv[1:]
value = lambda name: words[words.index(name) + 1]
if "nowhere.json" in words: sys.exit("nowhere.json: cannot be read")
if words[:2] == ["bench", "replay"]: sys.exit(print(json.dumps({"drafters": [{"tokens_per_pass": 1.25}]})))
if words[:2] == ["bench", "generate"]:
    for method in ("plain", "draft"):
        print(json.dumps(dict(method=method, temperature=0.5, speedup=2.0, acceptance_rate=None, tokens_per_pass=1.5)))
    sys.exit()
played = len(json.load(open(words[2])))
learned = len(json.load(open(value("--warm-up")))) if "--warm-up" in words else 0
row = dict(tokens_per_pass=float(played), rows_per_pass=float(learned), bytes=2**20)
names = ["without prompt", "without output", "without pruning", "without eliminating", "all"]
halved = {"without output": played / 2, "without prompt": played * 0.9}
print(json.dumps({
    "lengths": [dict(row, layout=layout, decoding_length=int(length), branch_length=int(branch))
                for layout in ("hier", "par", "one") for length in value("--decoding-length").split(",")
                for branch in value("--branch-length").split(",")],
    "procedures": [dict(row, procedure=name, tokens_per_pass=halved.get(name, float(played))) for name in names],
    "capacities": [dict(row, capacity=2**power) for power in range(8)]}))
"""


class Figures(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.program = self.folder / "foretoken"
        self.program.write_text(PROGRAM)
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)
        self.records = self.folder / "records.json"
        self.records.write_text(json.dumps([{"prompt": [number], "output": [number]} for number in range(8)]))

    def run_figures(self, *words):
        environment = os.environ | {"FORETOKEN": str(self.program)}
        command = [sys.executable, str(FIGURES), *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    def rows(self, *words):
        """The cells of all lines of all tables, without the lines under heads."""
        done = self.run_figures(*words)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        lines = [line for line in done.stdout.splitlines() if line.startswith("|") and "---" not in line]
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]

    def test_procedures_are_compared_with_all_of_them(self):
        rows = self.rows("alipay-table5", self.records)
        self.assertEqual(rows[1][1:3], ["-16.5 %", "-28.1 %"])
        self.assertEqual(rows[2], ["frequency", "7.200", "4.000", "8.000", "8.000", "8.000"])
        self.assertEqual(rows[3][1:3], ["-10.0 %", "-50.0 %"])

    def test_half_of_the_records_are_played_after_the_others_and_a_part_of_them(self):
        seen = self.folder / "seen"
        keep = f"open({str(seen)!r}, 'a').write(f'{{played}} {{learned}}\\n')\nrow ="
        self.program.write_text(PROGRAM.replace("row =", keep, 1))
        rows = self.rows("alipay-repeats", self.records, "--parts", "0,0.5,1")
        # Four of eight, after the other four and none, two or all of the four; each under two rules.
        self.assertEqual(seen.read_text().split("\n")[:-1], ["4 4", "4 4", "4 6", "4 6", "4 8", "4 8"])
        self.assertEqual([row[0] for row in rows[1:]], ["paper", "0%", "0%", "50%", "50%", "100%", "100%"])

    def test_layouts_and_lengths_have_their_cells(self):
        rows = self.rows("alipay-figure5", self.records, "--decoding-lengths", "8", "--branch-lengths", "4,12",
                         "--warm-up", self.records)
        self.assertEqual(rows[0], ["layout", "decoding length", "branches of 4", "branches of 12"])
        self.assertEqual(rows[1], ["one", "8", "8.00 (8.0)", "8.00 (8.0)"])
        self.assertEqual([row[0] for row in self.rows("alipay-table4", self.records)[1:]],
                         ["LLMA", "one", "par", "hier", "one", "par", "hier"])
        self.assertEqual(self.rows("alipay-table6", self.records)[1], ["1", "-9.4 %", "8.000", "1.00", "8.000", "1.00"])

    def test_what_was_not_drafted_has_no_rate(self):
        self.assertEqual(self.rows("assisted")[1:], [["0.500", "2.00", "", "1.50"]])

    def test_errors_are_one_line(self):
        for words, expected in [
            (["alipay-table5", "nowhere.json"], "nowhere.json: cannot be read"),
            (["alipay-repeats", self.folder / "none.json"], "none.json: expected records, found"),
            (["assisted", "--foretoken", self.folder / "none"], "no such file (cargo build --release"),
        ]:
            done = self.run_figures(*words)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
            self.assertIn(expected, done.stderr)


if __name__ == "__main__":
    unittest.main()
