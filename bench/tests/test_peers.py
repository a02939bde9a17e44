"""Tests servers that answer well, wrongly, with another model, not at all, or die midway; the arithmetic of the table;
and which records `same` continues.
"""

import argparse
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import sys
import tempfile
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "peers"), str(HERE.parent)]
import library_server  # noqa: E402
import table  # noqa: E402
from questions import Wrong  # noqa: E402
from servers import Failed, Server, methods  # noqa: E402
from stand_ins import PARAMETERS, VOCABULARY  # noqa: E402

MODEL = {"file": ["stand-in.gguf"], "vocabulary": [VOCABULARY], "parameters": [PARAMETERS]}
PROMPT = {"ids": [1, 2, 3], "text": "hello"}
loader = importlib.machinery.SourceFileLoader("same", str(HERE.parent / "peers" / "same"))
same = importlib.util.module_from_spec(importlib.util.spec_from_loader("same", loader))
sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
loader.exec_module(same)
sys.dont_write_bytecode = before


class Servers(unittest.TestCase):
    def server(self, how):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        server = Server("foretoken", how, [sys.executable, HERE / "stand_ins.py", "server", how, "{port}"])
        self.addCleanup(server.stop)
        server.start(folder.name)
        return server

    def ready(self, how):
        server = self.server(how)
        server.wait(20)
        return server

    def refused(self, expected, act, *words):
        with self.assertRaisesRegex(Failed, expected):
            act(*words)

    def test_a_good_one_is_timed_and_counted(self):
        server = self.ready("well")
        server.check(MODEL)
        answer = server.answer(PROMPT, {"max_tokens": 5})
        self.assertEqual(answer["text"].split(), [f"word{number}" for number in range(5)])
        self.assertEqual((answer["told"], answer["finish"]), ({"prompt": 3, "written": 5}, "length"))
        self.assertTrue(0 < answer["first"] <= answer["end"])

    def test_one_that_rests_takes_no_time(self):
        server = self.ready("well")
        before = server.busy()
        time.sleep(0.2)
        if before is None:
            self.skipTest("the system tells no processor time")
        self.assertLessEqual(server.busy() - before, 0.05)

    def test_another_model_is_named(self):
        self.refused("another model: parameters: expected 1000, found 7", self.ready("other").check, MODEL)

    def test_no_word_of_its_model_is_an_error(self):
        self.refused("expected its model's file, vocabulary or parameters", self.ready("bare").check, MODEL)

    def test_one_that_does_not_answer_is_named(self):
        self.refused("expected an answer of /health within 0.5 s", self.server("silent").wait, 0.5)

    def test_one_that_dies_midway_is_named(self):
        self.refused("/v1/completions: ", self.ready("dies").answer, PROMPT, {"max_tokens": 5})

    def test_one_that_tells_an_error_is_named(self):
        self.refused("/v1/completions: .*no memory", self.ready("fails").answer, PROMPT, {"max_tokens": 5})

    def test_words_on_a_model_that_are_no_object_are_named(self):
        self.refused(r"/v1/models: expected an object that tells of a model, found \[", self.ready("list").check, MODEL)

    def test_a_text_without_an_end_is_an_error(self):
        self.refused("expected the end of a text", self.ready("cut").answer, PROMPT, {"max_tokens": 5})

    def test_one_that_cannot_start_is_named(self):
        self.refused("expected a program, found", Server("x", "y", ["/no/such/program"]).start, tempfile.gettempdir())
        self.refused("expected a program with --help", methods, "/no/such/program")
        server = Server("x", "y", [sys.executable, "-c", "raise SystemExit('no model')"])
        server.start(tempfile.gettempdir())
        self.refused("exit code 1: no model", server.wait, 20)


class Library(unittest.TestCase):
    def test_tokens_come_until_it_ends(self):
        class Ids(list):
            flatten = tolist = lambda self: self

        def generate(streamer):
            for ids in ([1, 2, 3], [4], [5]):
                streamer.put(Ids(ids))
            streamer.end()

        self.assertEqual(list(library_server.pieces(generate)), [[4], [5]])

    def test_what_goes_wrong_in_its_thread_is_an_error(self):
        def generate(_):
            raise RuntimeError("no memory")

        with contextlib.redirect_stderr(io.StringIO()):
            told = list(library_server.or_error(lambda _: library_server.pieces(generate), {}))
        self.assertEqual(told, [{"error": {"message": "RuntimeError: no memory"}}])


class Record(unittest.TestCase):
    """Which records in a folder `same` continues."""

    ABOUT = {"tokens": 64}
    HERE = {"cpu": "one", "cores": 2}
    VERSIONS = {"foretoken": "foretoken 0", "foretoken_sha256": "f0", "llama.cpp_sha256": "a0"}
    COMMANDS = {"foretoken plain": ["foretoken", "serve"], "llama.cpp plain": ["llama-server", "-ub", "31"]}

    def record(self):
        one = same.merged({}, self.ABOUT, self.HERE, self.VERSIONS, self.COMMANDS)
        return one | {"failed": {"llama.cpp plain": "died"}, "parted": [{"peer": "llama.cpp plain"}]}

    def test_another_setting_machine_program_or_command_is_refused(self):
        now = {"about": self.ABOUT, "here": self.HERE, "versions": self.VERSIONS, "commands": self.COMMANDS}
        same.goes_on("x", self.record(), **now)
        for what, other, expected in [
            ("about", {"tokens": 8}, "tokens: 64 there, 8 here"),
            ("here", {"cpu": "two"}, "cpu: one there, two here"),
            ("versions", {"llama.cpp_sha256": "b1"}, "version of llama.cpp_sha256: a0 there, b1 here"),
            ("commands", {"llama.cpp plain": ["llama-server"]}, "of llama.cpp plain: llama-server -ub 31 there"),
        ]:
            with self.assertRaisesRegex(Wrong, f"x: .*{expected}"):
                same.goes_on("x", self.record(), **now | {what: now[what] | other})

    def test_other_peers_stay_beside_those_of_now(self):
        versions = self.VERSIONS | {"ik_llama.cpp_sha256": "c0"}
        commands = {"foretoken plain": self.COMMANDS["foretoken plain"], "ik_llama.cpp plain": ["llama-server"]}
        same.goes_on("x", self.record(), self.ABOUT, self.HERE, versions, commands)
        both = same.merged(self.record(), self.ABOUT, self.HERE, versions, commands)
        self.assertEqual(both["peers"], ["foretoken plain", "llama.cpp plain", "ik_llama.cpp plain"])
        self.assertEqual(list(both["commands"]), both["peers"])
        self.assertEqual((both["failed"], both["parted"]), ({"llama.cpp plain": "died"}, [{"peer": "llama.cpp plain"}]))
        self.assertEqual(both["versions"]["ik_llama.cpp_sha256"], "c0")

    def test_commands_are_without_folders(self):
        command = ["/a/llama-server", "-m", "/b/m.gguf", "-ub", "31", "/c/library_server.py"]
        self.assertEqual(same.bare(command, Path("/b/m.gguf")),
                         ["llama-server", "-m", "m.gguf", "-ub", "31", "library_server.py"])

    def test_a_last_answer_that_was_cut_is_left_out(self):
        path = Path(self.enterContext(tempfile.TemporaryDirectory())) / "answers.jsonl"
        whole = json.dumps(answer("a", 1, 11, 2)) + "\n"
        path.write_text(whole + whole[:20])
        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            self.assertEqual(len(same.answers_of(path)), 1)
            self.assertEqual(len(same.answers_of(path, remove_cut=True)), 1)
        self.assertIn("left out the last line, which was cut", told.getvalue())
        self.assertEqual(path.read_text(), whole)
        for bad in ("{", "[]", "{}"):
            path.write_text(f"{whole}{bad}\n")
            with self.assertRaisesRegex(Wrong, f"{path}: line 2: expected"):
                same.answers_of(path)

    def test_who_counts_is_not_another_peers_failure(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        counter, other = (Server(name, "plain", ["/no/such/program"]) for name in ("foretoken", "other"))
        # No server listens on that port.
        counter.port = other.port = 1
        run = same.Run(argparse.Namespace(out=folder), MODEL, [counter, other])
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaisesRegex(Wrong, "foretoken plain, which counts"):
            run.tokens("a text")
        self.assertEqual(list(run.failed), ["foretoken plain"])
        with contextlib.redirect_stderr(io.StringIO()):
            run.fail(other, "died")


def answer(peer, id, tokens, seconds, text="a", category="qa", round=0):
    return {"peer": peer, "id": id, "category": category, "round": round, "tokens": tokens, "first": 1.0,
            "end": 1.0 + seconds, "text": text, "told": {"prompt": 3, "written": tokens}}


class Table(unittest.TestCase):
    def test_rates_count_what_is_behind_the_first_token(self):
        rows = table.rated([answer("a", 1, 11, 2), answer("a", 1, 11, 4, round=1), answer("a", 1, 11, 3, round=2)])["a"]
        self.assertAlmostEqual(table.rate(rows.values()), 10 / 3)
        self.assertIsNone(table.rate(table.rated([answer("a", 1, 1, 0)])["a"].values()))

    def test_ratios_have_intervals_that_hold_them(self):
        answers = [answer("a", id, 11, 1 + id % 3) for id in range(20)]
        answers += [answer("b", id, 11, 2 * (1 + id % 3)) for id in range(20)]
        rows = table.rated(answers)
        self.assertEqual(table.ratio(rows["a"], rows["b"]), (2.0, 2.0, 2.0))
        rows = table.rated(answers + [answer("c", id, 11, 3) for id in range(20)])
        middle, low, high = table.ratio(rows["a"], rows["c"])
        self.assertTrue(low < middle < high)
        self.assertIsNone(table.ratio(rows["a"], {}))

    def test_who_failed_has_an_empty_row(self):
        answers = [answer("our plain", 1, 11, 2), answer("our fast", 1, 11, 1), answer("their plain", 1, 11, 4)]
        peers = ["our plain", "our fast", "their plain"]
        lines = table.markdown(answers, peers, {"their plain": "died"}, "our fast", ("qa", "chat")).splitlines()
        self.assertEqual(lines[2], "| our plain | 5 | 5 | 2.00 | 1000 | 3.0 | 11 | 11 | 1 of 1 |")
        self.assertEqual(lines[4].replace(" ", ""), "|theirplain" + "|" * 9)

    def test_texts_part_at_their_first_difference(self):
        pairs = ([1, 2], [1, 3]), ([1], [1, 2]), ([1], [1])
        self.assertEqual([table.parted(*pair) for pair in pairs], [1, 1, None])

    def test_rounding_is_two_near_tokens_in_both(self):
        close, far = {"a": -0.70, "b": -0.71, "c": -9}, {"a": -0.1, "b": -3.0, "c": -9}
        swapped, other = {"b": -0.70, "a": -0.72, "c": -9}, {"c": -0.1, "b": -3}
        verdict = lambda *tops: table.judged(*tops, "a", "b", 0.5)["rounding"]
        self.assertEqual([verdict(close, swapped), verdict(close, close), verdict(far, swapped), verdict(close, other)],
                         [True, True, False, False])


if __name__ == "__main__":
    unittest.main()
