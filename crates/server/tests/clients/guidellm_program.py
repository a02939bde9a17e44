"""The benchmark `guidellm` against a server: SERVER with the key KEY. None of a few requests may fail.

Its measurements are ignored: they include the overhead of guidellm itself.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from plain_http import MODEL, finished_requests

PROMPTS = ["Once upon a time,", "i want to find a restaurant", "The little girl", "A dog"]


class GuideLlm(unittest.TestCase):
    def benchmark(self, path):
        """The report of guidellm for requests to this path."""
        with tempfile.TemporaryDirectory() as folder:
            prompts, report = Path(folder, "prompts.jsonl"), Path(folder, "report.json")
            prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
            where = f"target={os.environ['SERVER']},model={MODEL},api_key={os.environ['KEY']},request_format={path}"
            arguments = [
                *("--backend", "kind=openai_http," + where, "--profile", "kind=concurrent,streams=2"),
                *("--constraint", f"kind=max_requests,count={len(PROMPTS)}", "--disable-console"),
                *("--data", f"kind=json_file,path={prompts}", "--output", f"kind=json,path={report}"),
            ]
            environment = {**os.environ, "HOME": folder, "HF_HUB_OFFLINE": "1"}
            program = subprocess.run(
                [sys.executable, "-m", "guidellm", "run", *arguments], env=environment, stdin=subprocess.DEVNULL,
                timeout=240, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
            self.assertEqual(program.returncode, 0, program.stdout)
            return json.loads(report.read_text())

    def test_a_benchmark(self):
        for path in ("/v1/chat/completions", "/v1/completions"):
            before = finished_requests()
            [report] = self.benchmark(path)["benchmarks"]
            totals = report["metrics"]["request_totals"]
            counts = (totals["successful"], totals["errored"], totals["incomplete"])
            self.assertEqual(counts, (len(PROMPTS), 0, 0))
            self.assertGreaterEqual(finished_requests() - before, len(PROMPTS))
            for request in report["requests"]["successful"]:
                self.assertGreater(request["output_metrics"]["text_tokens"], 0)


if __name__ == "__main__":
    unittest.main()
