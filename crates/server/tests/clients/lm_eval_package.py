"""The evaluation harness `lm_eval` against a server: SERVER with the key KEY.

What its users rely on: metrics of multiple choice, perplexity and generation over `local-completions`, with the
server's tokenizer, which it finds by itself (`/tokenizer_info`). They must equal those computed from the server's own
log-probabilities. Its own tasks are not tested, since their data would be downloaded.
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

from plain_http import MODEL, post

ROWS = [
    {"question": "Once upon a time, there was a little", "choices": [" girl", " elephant", " of"], "gold": 0},
    {"question": "i want to find a", "choices": [" cheap restaurant", " red"], "gold": 0},
    {"question": "Über den Wolken 雲", "choices": [" 🌩️", " the"], "gold": 1},
]


COMPLETIONS = {"model": "local-completions", "path": "/v1/completions", "auth_token": os.environ["KEY"]}
CHAT = {"model": "local-chat-completions", "path": "/v1/chat/completions"}


def evaluate(name, metric, api=COMPLETIONS, **settings):
    """The metric of a task over the rows, and the sample of each row."""
    data = Path(folder.name, "rows.jsonl")
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    task = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}}
    task |= {"test_split": "test", "doc_to_text": "{{question}}", "target_delimiter": "", **settings}
    task["metric_list"] = [{"metric": metric}]
    arguments = {"base_url": os.environ["SERVER"] + api["path"], "model": MODEL, "max_length": 1024, "max_retries": 1}
    report = lm_eval.simple_evaluate(
        model=api["model"],
        model_args=arguments | {key: value for key, value in api.items() if key == "auth_token"},
        tasks=[task],
        task_manager=TaskManager(include_defaults=False),
        apply_chat_template=api is CHAT,
        log_samples=True,
        bootstrap_iters=0,
        verbosity="ERROR",
    )
    samples = sorted(report["samples"][name], key=lambda sample: sample["doc_id"])
    return report["results"][name][metric + ",none"], samples


def tokens(text):
    """The tokens of a text, without a BOS token."""
    return post("/tokenize", prompt=text, add_special_tokens=False)["tokens"]


def score(context, text):
    """The log-probability of a text after a context, both given as tokens, and whether it is the greedy text."""
    body = {"prompt": context + text, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
    logprobs = post("/v1/completions", **body)["choices"][0]["logprobs"]
    own = slice(len(context), len(context + text))
    values, best = logprobs["token_logprobs"][own], logprobs["top_logprobs"][own]
    return sum(values), all(value == max(top.values()) for value, top in zip(values, best))


def continued(context, text):
    """As `score`, for texts: the tokens of the text are those of the concatenation after the context's."""
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
        # Otherwise nothing would have been compared.
        self.assertTrue(0 < right < len(ROWS) and greedy > 0, (right, greedy))

    def test_perplexity(self):
        settings = {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{question}}"}
        perplexity, _ = evaluate("texts", "byte_perplexity", **settings)
        [begin] = tokens("<|endoftext|>")
        total = sum(score([begin], tokens(row["question"]))[0] for row in ROWS)
        size = sum(len(row["question"].encode()) for row in ROWS)
        self.assertAlmostEqual(perplexity, math.exp(-total / size), places=5)

    def test_generation(self):
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
