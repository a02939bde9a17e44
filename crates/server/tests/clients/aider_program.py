"""`aider` against a server: SERVER with the key KEY. One edit is requested and must be in the file afterwards.

The demo model would write nonsense, so `choices` constrains its answer to a file in aider's edit format.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from plain_http import MODEL, finished_requests

BEFORE, AFTER = 'print("hello")\n', 'print("hello")\nprint("hello")\n'
ARGUMENTS = [
    *("--no-git", "--yes-always", "--no-check-update", "--no-show-release-notes", "--analytics-disable"),
    *("--no-show-model-warnings", "--no-pretty", "--no-detect-urls", "--no-suggest-shell-commands"),
    *("--edit-format", "whole", "--model", "openai/" + MODEL),
    *("--model-settings-file", "settings.yml", "--model-metadata-file", "metadata.json"),
]


class Aider(unittest.TestCase):
    def test_an_edit(self):
        name, before = "openai/" + MODEL, finished_requests()
        parameters = {"max_tokens": 100, "extra_body": {"choices": ["hello.py\n```\n" + AFTER + "```\n"]}}
        # Its prompts are long for a small model, so reminders are off.
        settings = {"name": name, "weak_model_name": name, "reminder": "none", "extra_params": parameters}
        # Without these it would download them.
        sizes = {"max_input_tokens": 1024, "max_output_tokens": 1024, "litellm_provider": "openai", "mode": "chat"}
        with tempfile.TemporaryDirectory() as folder:
            # JSON is valid YAML.
            Path(folder, "settings.yml").write_text(json.dumps([settings]))
            Path(folder, "metadata.json").write_text(json.dumps({name: sizes}))
            file = Path(folder, "hello.py")
            file.write_text(BEFORE)
            where = {"OPENAI_API_BASE": os.environ["SERVER"] + "/v1", "OPENAI_API_KEY": os.environ["KEY"]}
            more = {"HOME": folder, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
            program = subprocess.run(
                [sys.executable, "-m", "aider", *ARGUMENTS, "--message", "say hello twice", file.name], cwd=folder,
                env={**os.environ, **where, **more}, stdin=subprocess.DEVNULL, timeout=180, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
            self.assertEqual((program.returncode, file.read_text()), (0, AFTER), program.stdout)
        for bad in ("Traceback", "Exception", "Error", "token limit"):
            self.assertNotIn(bad, program.stdout)
        self.assertIn("Applied edit to hello.py", program.stdout)
        self.assertGreater(finished_requests(), before)


if __name__ == "__main__":
    unittest.main()
