"""The `litellm` package against a server: SERVER with the key KEY, and TOOLS, whose template supports tools.

What its users rely on: a model behind `openai/` and an `api_base`, streamed and not, tool calls, and errors of the
right class that name the field. Its proxy is not tested: it uses the same functions.
"""

import json
import os
import unittest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise it downloads prices

import litellm

from plain_http import MODEL, PROMPT, QUESTION, SAMPLED, chat_text, post

litellm.suppress_debug_info = True
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "find", "parameters": SCHEMA}}


def connection(server="SERVER", key=None):
    """The address and the key of a server."""
    return {"api_base": os.environ[server] + "/v1", "api_key": key or os.environ["KEY"], "num_retries": 0}


def completion(server="SERVER", key=None, **more):
    """A chat completion."""
    body = {"model": "openai/" + MODEL, "messages": QUESTION, **SAMPLED}
    return litellm.completion(**{**connection(server, key), **body, **more})


class Answers(unittest.TestCase):
    def test_a_chat(self):
        answer = completion()
        self.assertEqual((answer.choices[0].message.content, answer.model), (chat_text(), MODEL))
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)

    def test_a_chat_is_streamed(self):
        chunks = list(completion(stream=True, stream_options={"include_usage": True}))
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        self.assertEqual("".join(pieces), chat_text())
        self.assertEqual(chunks[-1].usage.completion_tokens, completion().usage.completion_tokens)

    def test_a_prompt(self):
        model = "text-completion-openai/" + MODEL
        answer = litellm.text_completion(model=model, prompt=PROMPT, **SAMPLED, **connection())
        plain = post("/v1/completions", prompt=PROMPT, **SAMPLED)
        self.assertEqual(answer.choices[0].text, plain["choices"][0]["text"])

    def test_tools(self):
        more = {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "find"}}, "max_tokens": 100}
        answer = completion("TOOLS", **more).choices[0]
        self.assertEqual((answer.finish_reason, answer.message.content), ("tool_calls", None))
        [call] = answer.message.tool_calls
        self.assertEqual(call.function.name, "find")
        self.assertIn(json.loads(call.function.arguments)["city"], ("Rome", "Oslo"))
        chunks = list(completion("TOOLS", stream=True, **more))
        whole = litellm.stream_chunk_builder(chunks).choices[0].message
        self.assertEqual([one.function for one in whole.tool_calls], [call.function])
        self.assertFalse(whole.content)


class Errors(unittest.TestCase):
    def refused(self, kind, status, start, **more):
        with self.assertRaises(kind) as refused:
            completion(**more)
        self.assertEqual(refused.exception.status_code, status)
        self.assertIn(start, refused.exception.message)

    def test_they_name_the_field(self):
        self.refused(litellm.BadRequestError, 400, "top_p: expected", top_p=2)
        response_format = {"type": "jsonish"}
        self.refused(litellm.BadRequestError, 400, "response_format.type: expected", response_format=response_format)

    def test_unknown_models_and_keys(self):
        self.refused(litellm.NotFoundError, 404, "model", model="openai/gpt-9")
        self.refused(litellm.AuthenticationError, 401, "Authorization", key="wrong")


if __name__ == "__main__":
    unittest.main()
