"""Tests the tasks that `bench/training/encoder_decoder` makes, and the measures by which its networks are judged."""

import json
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "training" / "encoder_decoder"
sys.path[:0] = [str(FOLDER)]
import scores  # noqa: E402
import tasks  # noqa: E402

SENTENCES = ["The mayor opened a bridge on Monday.", "It crosses the river near the old mill.",
             "The bridge cost the city two million.", "Nobody crossed the old bridge."]


class Tasks(unittest.TestCase):
    def test_edits_do_what_their_prefix_says(self):
        seen = set()
        for seed in range(300):
            made = tasks.edit(SENTENCES, ["castle"], random.Random(seed))
            prefix, wanted = made[0].split(": ", 2)[1], made[1]
            text = " ".join(SENTENCES)
            verb, *words = prefix.split()
            seen.add(verb + words[-1] if words[-1] in ("words", "sentence") else verb)
            if verb == "replace":
                self.assertEqual(wanted, tasks.replaced(text, words[0], "castle"))
                self.assertNotRegex(wanted, rf"\b{words[0]}\b")
            elif verb == "insert":
                self.assertEqual(wanted.count("castle"), tasks.WORD.findall(text).count(words[-1]))
            elif words[-1] == "words":
                self.assertEqual(wanted, text)
                self.assertGreater(len(made[0].split()), len(text.split()) + 4)
            elif words[-1] == "sentence":
                self.assertEqual(wanted, " ".join(SENTENCES[1:] if words[1] == "first" else SENTENCES[:-1]))
            else:
                self.assertEqual(wanted, tasks.one_line(tasks.replaced(text, words[0], "")))
        self.assertEqual(seen, {"replace", "insert", "remove", "removewords", "removesentence"})

    def test_a_word_is_no_part_of_another(self):
        found = tasks.replaced("cat, concat, cat's cat-like cat", "cat", "dog")
        self.assertEqual(found, "dog, concat, cat's cat-like dog")

    def test_a_summary_is_the_lead_and_the_most_central_sentence(self):
        self.assertEqual(tasks.summary(SENTENCES), f"{SENTENCES[0]} {SENTENCES[3]}")

    def test_the_same_files_give_the_same_tasks_and_nothing_held_out_is_trained_with(self):
        with tempfile.TemporaryDirectory() as folder:
            def file(name, lines):
                Path(folder, name).write_text("".join(line + "\n" for line in lines))
                return str(Path(folder, name))
            articles = [f"Title {n}\n\n" + " ".join(f"Sentence {n} number {k} has words." for k in range(6))
                        for n in range(400)]
            pairs = [f"I see {n} trees.\tIch sehe {n} Bäume." for n in range(400)] + ["I see 1 trees.\tAnders."]
            command = [sys.executable, str(FOLDER / "tasks.py"), "--count", "300", "--held", "60",
                       "--news", file("news.jsonl", [json.dumps({"text": text}) for text in articles]),
                       "--translations", file("pairs.txt", pairs), "--out"]
            for out in ("one", "two"):
                subprocess.run([*command, str(Path(folder, out))], check=True, stdout=subprocess.DEVNULL)
            written = {}
            for name in ("train.jsonl", "held.jsonl"):
                one, two = (Path(folder, out, name).read_text() for out in ("one", "two"))
                self.assertEqual(one, two)
                written[name] = [json.loads(line) for line in one.splitlines()]
            self.assertEqual([len(rows) for rows in written.values()], [300, 60])
            self.assertEqual({row["task"] for row in written["train.jsonl"]}, set(tasks.SHARES))
            numbers = [{row["source"].split("see ")[-1].split()[0] for row in rows if row["task"] == "translate"}
                       for rows in written.values()]
            held = {str(n) for n in range(400) if tasks.is_held(f"I see {n} trees.")}
            self.assertTrue(numbers[1] and numbers[1] <= held and not numbers[0] & held)


class Scores(unittest.TestCase):
    def test_similarity_is_one_for_equal_texts_only(self):
        self.assertEqual(scores.similarity("a b c", "a b c"), 1.0)
        self.assertEqual(scores.similarity("a x c", "a b c"), 2 * 2 / 6)
        self.assertEqual(scores.similarity("", "a"), 0.0)

    def test_bleu(self):
        self.assertAlmostEqual(scores.bleu([("a b c d e", "a b c d e")]), 100.0)
        # 4 of 5 words, 3 of 4 pairs, 2 of 3 triples, 1 of 2 fours.
        self.assertAlmostEqual(scores.bleu([("a b c d x", "a b c d e")]), 100 * (4 / 5 * 3 / 4 * 2 / 3 / 2) ** 0.25)
        # All is right but half is missing: the penalty is exp(1 - 2).
        self.assertAlmostEqual(scores.bleu([("a b c d", "a b c d e f g h")]), 100 / 2.718281828, places=5)
        self.assertEqual(scores.bleu([("x", "a")]), 0.0)


class Files(unittest.TestCase):
    def test_the_committed_pair_is_small_and_carries_its_attributions(self):
        models = FOLDER.parents[2] / "models"
        files = [models / f"encoder-decoder-{which}.gguf" for which in ("target", "draft")]
        self.assertLess(sum(file.stat().st_size for file in files), 12e6)
        readme = (models / "README.md").read_text()
        for file in files:
            head = file.read_bytes()[:4096]
            self.assertEqual(head[:4], b"GGUF")
            for text in ("Wikinews", "Wikipedia", "TinyStories", "Schema-Guided Dialogue", "Tatoeba", "CC BY 2.0 FR"):
                self.assertIn(text.encode(), head)
                self.assertIn(text, readme)


if __name__ == "__main__":
    unittest.main()
