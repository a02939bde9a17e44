"""The program and package `llm` with a model from `extra-openai-models.yaml`: SERVER with the key KEY.

What its users rely on: a prompt streamed and not, a conversation, and structured outputs. Tools are not tested, since
they are sent in the same fields as those of `openai`.
"""

import json
import os
import tempfile
import unittest
from pathlib import Path

folder = tempfile.TemporaryDirectory()
os.environ["LLM_USER_PATH"] = folder.name  # read when the package is imported

import click.testing
import llm
import llm.cli
import openai

from plain_http import MODEL, PROMPT, QUESTION, SAMPLED, chat_text

SCHEMA = {
    "type": "object",
    "properties": {"sea": {"type": "boolean"}, "depth": {"enum": [10, 200]}},
    "required": ["sea", "depth"],
    "additionalProperties": False,
}


def setUpModule():
    model = {"model_id": "here", "model_name": MODEL, "supports_schema": True}
    model |= {"api_base": os.environ["SERVER"] + "/v1", "api_key_name": "here"}
    # JSON is valid YAML.
    Path(folder.name, "extra-openai-models.yaml").write_text(json.dumps([model]))
    Path(folder.name, "keys.json").write_text(json.dumps({"here": os.environ["KEY"]}))


def tearDownModule():
    folder.cleanup()


def program(*arguments):
    """What the program prints."""
    result = click.testing.CliRunner().invoke(llm.cli.cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.strip()


class Llm(unittest.TestCase):
    def test_the_program(self):
        options = [word for name, value in SAMPLED.items() for word in ("-o", name, str(value))]
        self.assertEqual(program("-m", "here", *options, PROMPT), chat_text().strip())
        self.assertEqual(json.loads(program("logs", "--json"))[0]["response"], chat_text())

    def test_a_prompt(self):
        answer = llm.get_model("here").prompt(PROMPT, stream=False, **SAMPLED)
        self.assertEqual(answer.text(), chat_text())
        self.assertGreater(answer.usage().output, 0)

    def test_a_prompt_is_streamed(self):
        pieces = list(llm.get_model("here").prompt(PROMPT, **SAMPLED))
        self.assertEqual("".join(pieces), chat_text())
        self.assertGreater(len(pieces), 1)

    def test_a_conversation(self):
        conversation = llm.get_model("here").conversation()
        first = conversation.prompt(PROMPT, **SAMPLED).text()
        second = conversation.prompt("in the north", **SAMPLED).text()
        history = [*QUESTION, {"role": "assistant", "content": first}, {"role": "user", "content": "in the north"}]
        self.assertEqual((first, second), (chat_text(), chat_text(history)))
        self.assertNotEqual(second, chat_text(history[2:]))

    def test_schemas(self):
        for stream in (False, True):
            answer = json.loads(llm.get_model("here").prompt(PROMPT, stream=stream, schema=SCHEMA, **SAMPLED).text())
            self.assertEqual((set(answer), answer["depth"] in (10, 200)), ({"sea", "depth"}, True))

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as refused:
            llm.get_model("here").prompt(PROMPT, stop="", stream=False).text()
        self.assertIn("stop: expected", str(refused.exception))


if __name__ == "__main__":
    unittest.main()
