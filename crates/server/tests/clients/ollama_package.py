"""Ollama's own Python package against a server: SERVER with the key KEY, and TOOLS, whose template supports tools.

What its users rely on: models that are listed and described, chats and prompts streamed and not, structured outputs,
tool calls and their results, thinking, and errors with a status. What needs no package is covered by the server's own
tests.
"""

import asyncio
import functools
import json
import os
import unittest

import ollama

MODEL = "demo-target"
QUESTION = [{"role": "user", "content": "i want to find a restaurant in san jose"}]
OPTIONS = {"num_predict": 40, "temperature": 0.9, "seed": 7}
SCHEMA = {
    "type": "object",
    "properties": {"sea": {"type": "boolean"}, "depth": {"enum": [10, 200]}},
    "required": ["sea", "depth"],
    "additionalProperties": False,
}


@functools.cache
def client(address=None, kind=ollama.Client):
    """A client with the server's key."""
    address = address or os.environ["SERVER"]
    return kind(host=address, headers={"Authorization": "Bearer " + os.environ["KEY"]}, timeout=60)


def chat(**more):
    """A chat completion."""
    return client().chat(**{"model": MODEL, "messages": QUESTION, "options": OPTIONS, **more})


def generate(**more):
    """A completion of a prompt."""
    return client().generate(**{"model": MODEL, "prompt": QUESTION[0]["content"], "options": OPTIONS, **more})


def find(city: str) -> str:
    """Find a place.

    Args:
      city: where
    """
    return city


class Models(unittest.TestCase):
    def test_they_are_listed(self):
        [model] = client().list().models
        self.assertEqual((model.model, model.details.family), (MODEL + ":latest", "llama"))
        self.assertEqual(len(model.digest), 64)
        self.assertGreater(model.size, 1 << 20)
        self.assertGreater(model.modified_at.year, 2000)
        [running] = client().ps().models
        self.assertEqual((running.digest, running.context_length), (model.digest, 1024))
        self.assertGreater(running.expires_at, model.modified_at)

    def test_they_are_described(self):
        for name in (MODEL, client().list().models[0].model):
            shown = client().show(name)
            self.assertEqual(shown.modelinfo["general.architecture"], "llama")
            self.assertEqual(shown.capabilities, ["completion"])
            self.assertIn("messages", shown.template)
        self.assertEqual(client(os.environ["TOOLS"]).show(MODEL).capabilities, ["completion", "tools", "thinking"])


class Answers(unittest.TestCase):
    def test_a_chat(self):
        answer = chat()
        self.assertEqual((answer.model, answer.message.role, answer.done), (MODEL, "assistant", True))
        self.assertIn(answer.done_reason, ("stop", "length"))
        self.assertGreater(len(answer.message.content), 5)
        self.assertGreater(answer.eval_count / answer.eval_duration, 0)
        self.assertEqual(chat().message.content, answer.message.content)
        self.assertNotEqual(chat(options={**OPTIONS, "seed": 8}).message.content, answer.message.content)

    def test_a_chat_is_streamed(self):
        whole = chat()
        parts = list(chat(stream=True, options={**OPTIONS, "draft_num_predict": 0}))  # one line per token
        self.assertEqual("".join(part.message.content for part in parts), whole.message.content)
        self.assertEqual([part.done for part in parts], [False] * (len(parts) - 1) + [True])
        self.assertEqual((parts[-1].done_reason, parts[-1].eval_count), (whole.done_reason, whole.eval_count))
        self.assertGreater(len(parts), whole.eval_count - 3)

    def test_a_prompt(self):
        answer = generate()
        self.assertEqual(answer.response, chat().message.content)
        self.assertEqual("".join(part.response for part in generate(stream=True)), answer.response)
        self.assertNotEqual(generate(raw=True).response, answer.response)
        self.assertEqual(generate(prompt="").done_reason, "load")

    def test_options_as_an_object(self):
        options = ollama.Options(num_predict=3, temperature=0, num_ctx=512, num_gpu=0, stop=["<"])
        self.assertLessEqual(chat(options=options).eval_count, 3)

    def test_log_probabilities(self):
        answer = chat(logprobs=True, top_logprobs=2)
        self.assertEqual("".join(token.token for token in answer.logprobs), answer.message.content)
        self.assertTrue(all(len(token.top_logprobs) == 2 for token in answer.logprobs))

    def test_structured_outputs(self):
        answer = json.loads(chat(format=SCHEMA).message.content)
        self.assertIn((answer["sea"], answer["depth"]), [(sea, depth) for sea in (True, False) for depth in (10, 200)])
        self.assertEqual(generate(format="json", options={**OPTIONS, "num_predict": 4}).response[0], "{")

    def test_concurrent_requests(self):
        async def ask():
            one = client(kind=ollama.AsyncClient)
            requests = [one.chat(model=MODEL, messages=QUESTION, options=OPTIONS) for _ in range(3)]
            return await asyncio.gather(*requests)

        self.assertEqual({answer.message.content for answer in asyncio.run(ask())}, {chat().message.content})

    def test_a_stream_can_be_closed_early(self):
        stream = chat(stream=True, options={**OPTIONS, "num_predict": 900, "ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.assertEqual(chat(options={**OPTIONS, "num_predict": 1}).eval_count, 1)


class Tools(unittest.TestCase):
    def ask(self, messages, **more):
        options = {**OPTIONS, "num_predict": 100, **more}
        return client(os.environ["TOOLS"]).chat(model=MODEL, messages=messages, tools=[find], options=options)

    def test_calls(self):
        # The package has no argument for `tool_choice`, but its options are passed on.
        called = self.ask(QUESTION, tool_choice="required", parallel_tool_calls=False)
        [call] = called.message.tool_calls
        self.assertEqual((call.function.name, called.done_reason), ("find", "stop"))
        self.assertIsInstance(call.function.arguments["city"], str)
        result = {"role": "tool", "tool_name": "find", "content": find(call.function.arguments["city"])}
        answer = self.ask([*QUESTION, called.message, result])
        self.assertGreater(answer.prompt_eval_count, called.prompt_eval_count)
        self.assertGreater(len(answer.message.content), 0)

    def test_thinking(self):
        regex = {"regex": "<think>[a-c]{3,9}</think>(yes|no)"}
        ask = {"model": MODEL, "messages": QUESTION, "think": False, "options": {**OPTIONS, **regex}}
        answer = client(os.environ["TOOLS"]).chat(**ask)
        self.assertIn(answer.message.content, ("yes", "no"))
        self.assertRegex(answer.message.thinking, "^[a-c]{3,9}$")
        parts = list(client(os.environ["TOOLS"]).chat(stream=True, **ask))
        self.assertEqual("".join(part.message.thinking or "" for part in parts), answer.message.thinking)


class Errors(unittest.TestCase):
    def refused(self, status, ask, begin):
        with self.assertRaises(ollama.ResponseError) as refused:
            ask()
        self.assertEqual(refused.exception.status_code, status)
        self.assertTrue(refused.exception.error.startswith(begin), refused.exception.error)

    def test_wrong_fields(self):
        for begin, more in {
            "options.temperature: expected": {"options": {"temperature": -1}},
            "options.mirostat: expected none": {"options": {"mirostat": 2}},
            "think: expected false": {"think": True},
            "messages[0].images: expected none": {"messages": [{"role": "user", "content": "", "images": [b"x"]}]},
        }.items():
            with self.subTest(begin):
                self.refused(400, lambda more=more: chat(**more), begin)
        self.refused(400, lambda: list(chat(stream=True, options={"top_p": 2})), "options.top_p: expected")

    def test_unknown_models_and_paths(self):
        self.refused(404, lambda: chat(model="llama3"), "model 'llama3' not found")
        self.refused(404, lambda: client().show("llama3"), "model 'llama3' not found")
        for ask in (
            lambda: client().embed(model=MODEL, input="a"),
            lambda: client().pull(MODEL),
            lambda: client().delete(MODEL),
            lambda: client().copy(MODEL, "other"),
            lambda: client().create("other", from_=MODEL),
        ):
            self.refused(400, ask, "path: expected /api/chat")

    def test_keys(self):
        with ollama.Client(host=os.environ["SERVER"]) as nobody:
            self.refused(401, nobody.list, "Authorization: expected")


if __name__ == "__main__":
    unittest.main()
