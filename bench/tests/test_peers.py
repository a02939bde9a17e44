"""Servers that answer well, wrongly, with another model, not at all, or die midway; and the arithmetic of the table."""

import contextlib
import io
import sys
import tempfile
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "peers"), str(HERE.parent)]
import library_server  # noqa: E402
import table  # noqa: E402
from servers import Failed, Server, methods  # noqa: E402
from stand_ins import PARAMETERS, VOCABULARY  # noqa: E402

MODEL = {"file": ["stand-in.gguf"], "vocabulary": [VOCABULARY], "parameters": [PARAMETERS]}
PROMPT = {"ids": [1, 2, 3], "text": "hello"}


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
