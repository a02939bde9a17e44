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
    kinds = [None]
    if "--by-kind" in words: kinds += [json.loads(line)["kind"] for line in open(value("--prompts"))]
    budgets = value("--budget").split(",") if "--budget" in words else ["auto"]
    variants = [("plain", None), *(("draft", budget) for budget in budgets)]
    for batch in (value("--parallel").split(",") if "--parallel" in words else [1]):
        for method, budget in variants:
            for kind in kinds:
                print(json.dumps(dict(method=method, temperature=0.5, speedup=2.0, acceptance_rate=None,
                                      tokens_per_pass=1.5 * int(batch), kind=kind, tokens_per_second=50.0,
                                      speedup_with_prompt=1.5, seconds_to_first_token=0.25, budget=budget,
                                      parallel=int(batch))))
    sys.exit()
if words[:2] == ["bench", "pass"]:
    rows = {number: 2.0 * int(number) for number in value("--rows").split(",")}
    source = dict(tokens_per_second=1000.0, gop_s=300.0, ratio_to_roofline=1.25) if "--source" in words else None
    sys.exit(print(json.dumps([dict(ms_per_pass=rows, ratio_to_roofline=rows, gop_s={"512": 400.0}, source=source)])))
if words[0] == "analyze":
    count = len(open(value("--prompts")).read().splitlines())
    gammas = [int(gamma) for gamma in value("--gamma").split(",")]
    drafters = [dict(drafter=drafter, temperature=temperature, alpha=0.5, c=count / 10,
                     best_predicted=dict(gamma=gammas[-1]))
                for drafter in value("--spec-type").split(",") for temperature in (0, 1)]
    figures = dict(tokens_per_pass=1.5, predicted=1.25, predicted_with_widths=1.2)
    rows = [dict(drafter, gamma=gamma, speedup=gamma + 0.1, **figures)
            for drafter in drafters for gamma in gammas]
    sys.exit(print(json.dumps(dict(drafters=drafters, rows=rows))))
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
        environment = os.environ | {"FORETOKEN": str(self.program), "PYTHONPATH": str(self.folder)}
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

    def test_batches_and_budgets_of_one_run_have_their_cells(self):
        options = ["--prompts", self.records, "--batches", "1,4", "--dtype", "q8_0"]
        rows = self.rows("alipay-figure4", *options, "--decoding-lengths", "16,8", "--branch-lengths", "4,12")
        self.assertEqual((len(rows), rows[0]), (14, ["layout", "decoding length", "branches of 4", "branches of 12"]))
        self.assertEqual((rows[1], rows[8]), (["one", "8", "2.00 (1.50)", "2.00 (1.50)"],
                                              ["one", "8", "2.00 (6.00)", "2.00 (6.00)"]))
        rows = self.rows("alipay-table8", *options)
        self.assertEqual([row[:3] for row in rows[1:]],
                         [["1", "llma", "3.16"], ["1", "par", "5.03"], ["1", "hier", "5.36"],
                          ["4", "llma", "2.43"], ["4", "par", "3.30"], ["4", "hier", "3.40"]])
        self.assertEqual(rows[-1][3:], ["50.0", "50.0", "2.00", "6.00"])

    def sources(self):
        """Three sources of each of two tasks, as lines and as objects."""
        lines, objects = self.folder / "sources-copy.txt", self.folder / "sources-edit.jsonl"
        lines.write_text("copy: a\n\ncopy: b\ncopy: c\n")
        objects.write_text("".join(json.dumps({"prompt": f"edit: {i}", "category": "x"}) + "\n" for i in range(3)))
        return ["-m", "target", "-md", "draft", "--sources", lines, objects, "--each", "2"]

    def test_tasks_of_an_encoder_decoder_have_their_rows(self):
        rows = self.rows("leviathan-table2", *self.sources(), "--gamma", "3,5")[5:]
        self.assertEqual([row[:4] for row in rows],
                         [[task, "draft", temperature, "5"] for task in ("copy", "edit") for temperature in "01"])
        # Two sources were read, and the measurement is that of the best gamma.
        self.assertEqual(rows[0][4:], ["0.500", "0.200", "1.250", "1.200", "5.100"])
        rows = self.rows("leviathan-table3", *self.sources(), "--gamma", "3,5")
        self.assertEqual(rows[2], ["bigram", "0.20", "0.19", "0.23", "0.16"])
        self.assertEqual([row[1] for row in rows[5:13:2]], ["unigram", "bigram", "lookup", "draft"])
        self.assertEqual((len(rows), rows[-1][5:]), (21, ["3", "1.500", "1.250", "3.100"]))

    def test_both_halves_of_an_encoder_decoder_are_compared_with_limits(self):
        rows = self.rows("encoder-decoder", *self.sources(), "--like", "decoder")
        self.assertEqual(rows[1], ["1", "2.000", "2.000"])
        self.assertEqual(rows[6:9], [["encoder, source of 512", "1000.000", "300.000", "1.250"],
                                     ["prompt of 512, decoder", "500.000", "400.000", "1024.000"],
                                     ["encoder over prompt", "2.000", "0.750", ""]])
        self.assertEqual([row[0] for row in rows[10:]], 2 * ["all", "copy", "copy", "edit", "edit"])
        self.assertEqual(rows[10][3:], ["50.0", "2.000", "1.500", "1.500", "250"])

    def test_errors_are_one_line(self):
        (self.folder / "matplotlib.py").write_text("raise ImportError('it is not there')\n")
        for words, expected in [
            (["alipay-table5", "nowhere.json"], "nowhere.json: cannot be read"),
            (["alipay-repeats", self.folder / "none.json"], "none.json: expected records, found"),
            (["assisted", "--foretoken", self.folder / "none"], "no such file (cargo build --release"),
            (["alipay-table8", "--report", self.folder / "charts"], "--report: expected matplotlib"),
            (["encoder-decoder", "-m", "m", "-md", "d", "--sources", self.folder / "no"], "no: expected sources,"),
        ]:
            done = self.run_figures(*words)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
            self.assertIn(expected, done.stderr)


if __name__ == "__main__":
    unittest.main()
