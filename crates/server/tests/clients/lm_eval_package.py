"""The evaluation harness `lm_eval` against a server: SERVER with the key KEY.

What its users rely on: figures of choices, of whole texts and of written answers over `local-completions`, with the
server's tokenizer, which it finds by itself (`/tokenizer_info`). They have to be those that the server's own
log-probabilities give. Left out: the tasks that come with it, whose data are in the network.
"""

import json
import math
import os
import tempfile
import unittest
from pathlib import Path

folder = tempfile.TemporaryDirectory()
os.environ |= {"HF_HOME": folder.name, "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
os.environ["OPENAI_API_KEY"] = os.environ["KEY"]

import lm_eval
from lm_eval.tasks import TaskManager

from plain import MODEL, post

ROWS = [
    {"question": "Once upon a time, there was a little", "choices": [" girl", " elephant", " of"], "gold": 0},
    {"question": "i want to find a", "choices": [" cheap restaurant", " red"], "gold": 0},
    {"question": "Über den Wolken 雲", "choices": [" 🌩️", " the"], "gold": 1},
]


COMPLETIONS = {"model": "local-completions", "path": "/v1/completions", "auth_token": os.environ["KEY"]}
CHAT = {"model": "local-chat-completions", "path": "/v1/chat/completions"}


def evaluate(name, metric, api=COMPLETIONS, **settings):
    """The figure of a task over the rows, and what was asked and answered for each row."""
    data = Path(folder.name, "rows.jsonl")
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    task = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}}
    task |= {"test_split": "test", "doc_to_text": "{{question}}", "target_delimiter": "", **settings}
    task["metric_list"] = [{"metric": metric}]
    arguments = {"base_url": os.environ["SERVER"] + api["path"], "model": MODEL, "max_length": 1024, "max_retries": 1}
    told = lm_eval.simple_evaluate(
        model=api["model"],
        model_args=arguments | {key: value for key, value in api.items() if key == "auth_token"},
        tasks=[task],
        task_manager=TaskManager(include_defaults=False),
        apply_chat_template=api is CHAT,
        log_samples=True,
        bootstrap_iters=0,
        verbosity="ERROR",
    )
    samples = sorted(told["samples"][name], key=lambda sample: sample["doc_id"])
    return told["results"][name][metric + ",none"], samples


def tokens(text):
    """The tokens of a text, without those that only begin one."""
    return post("/tokenize", prompt=text, add_special_tokens=False)["tokens"]


def score(context, text):
    """The log-probability of text behind a context, both tokens, and whether it is what a greedy text would be."""
    body = {"prompt": context + text, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
    told = post("/v1/completions", **body)["choices"][0]["logprobs"]
    own = slice(len(context), len(context + text))
    values, best = told["token_logprobs"][own], told["top_logprobs"][own]
    return sum(values), all(value == max(top.values()) for value, top in zip(values, best))


def continued(context, text):
    """The same for texts: tokens of the text are those that the whole has behind the context's."""
    context, whole = tokens(context), tokens(context + text)
    return score(context, whole[len(context) :])


class Harness(unittest.TestCase):
    def test_choices(self):
        settings = {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}", "doc_to_target": "gold"}
        accuracy, samples = evaluate("choices", "acc", **settings)
        right, greedy = 0, 0
        for row, sample in zip(ROWS, samples, strict=True):
            expected = [continued(row["question"], choice) for choice in row["choices"]]
            found = [(float(value), is_greedy in (True, "True")) for value, is_greedy in sample["filtered_resps"]]
            self.assertEqual([is_greedy for _, is_greedy in found], [is_greedy for _, is_greedy in expected])
            for (value, _), (own, _) in zip(found, expected, strict=True):
                self.assertAlmostEqual(value, own, places=5)
            values = [value for value, _ in expected]
            right += values.index(max(values)) == row["gold"]
            greedy += sum(is_greedy for _, is_greedy in expected)
        self.assertAlmostEqual(accuracy, right / len(ROWS))
        # Or nothing would have been compared.
        self.assertTrue(0 < right < len(ROWS) and greedy > 0, (right, greedy))

    def test_whole_texts(self):
        settings = {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{question}}"}
        perplexity, _ = evaluate("texts", "byte_perplexity", **settings)
        [begin] = tokens("<|endoftext|>")
        total = sum(score([begin], tokens(row["question"]))[0] for row in ROWS)
        size = sum(len(row["question"].encode()) for row in ROWS)
        self.assertAlmostEqual(perplexity, math.exp(-total / size), places=5)

    def test_written_answers(self):
        kwargs = {"until": ["."], "max_gen_toks": 12, "temperature": 0}
        settings = {"output_type": "generate_until", "doc_to_target": "", "generation_kwargs": kwargs}
        _, samples = evaluate("answers", "exact_match", **settings)
        for row, sample in zip(ROWS, samples, strict=True):
            answer = post("/v1/completions", prompt=row["question"], max_tokens=12, temperature=0, stop=["."])
            self.assertEqual(sample["resps"], [[answer["choices"][0]["text"]]])
        _, samples = evaluate("answers", "exact_match", CHAT, **settings)
        for row, sample in zip(ROWS, samples, strict=True):
            turn = [{"role": "user", "content": row["question"]}]
            answer = post("/v1/chat/completions", messages=turn, max_tokens=12, temperature=0, stop=["."])
            self.assertEqual(sample["resps"], [[answer["choices"][0]["message"]["content"]]])


if __name__ == "__main__":
    unittest.main()
