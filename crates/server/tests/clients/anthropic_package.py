"""The `anthropic` package against a server: SERVER with the key KEY, and TOOLS, whose template supports tools.

What its users rely on: objects that its types can read, streams and its helper for them, tools, counts, and errors of
the right class that name the field. What needs no package is covered by the server's own tests.
"""

import os
import unittest

import anthropic

MODEL = "demo-target"
QUESTION = [{"role": "user", "content": "i want to find a restaurant in san jose"}]
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
TOOL = {"name": "find", "description": "finds a place", "input_schema": {**SCHEMA, "additionalProperties": False}}


def client(address=None, key=None):
    """A client that does not retry."""
    address = address or os.environ["SERVER"]
    return anthropic.Anthropic(base_url=address, api_key=key or os.environ["KEY"], max_retries=0, timeout=60)


def fields(**more):
    """The fields of a request."""
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": 40, "extra_body": {"seed": 7, "temperature": 0.9}}
    return {**body, **more}


def message(address=None, **more):
    """The message that answers a request."""
    return client(address).messages.create(**fields(**more))


def text(answer):
    """The text of a message."""
    return "".join(block.text for block in answer.content if block.type == "text")


class Messages(unittest.TestCase):
    def test_a_message(self):
        answer = message(system=[{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}])
        self.assertEqual((answer.type, answer.role, answer.model), ("message", "assistant", MODEL))
        self.assertIn(answer.stop_reason, ("end_turn", "max_tokens"))
        self.assertGreater(len(text(answer)), 5)
        self.assertGreater(answer.usage.input_tokens, 0)
        self.assertGreater(answer.usage.output_tokens, 0)
        self.assertEqual(text(message()), text(message()))

    def test_counts(self):
        count = client().messages.count_tokens(model=MODEL, messages=QUESTION, tools=[])
        usage = message().usage
        self.assertEqual(count.input_tokens, usage.input_tokens + usage.cache_read_input_tokens)

    def test_stops(self):
        word = text(message()).split()[2]
        answer = message(stop_sequences=[word])
        self.assertEqual((answer.stop_reason, answer.stop_sequence), ("stop_sequence", word))
        self.assertEqual(message(max_tokens=1).stop_reason, "max_tokens")

    def test_beta(self):
        more = {"betas": ["context-management-2025-06-27"], "context_management": {"edits": []}}
        self.assertEqual(text(client().beta.messages.create(**fields(**more))), text(message()))

    def test_streams(self):
        whole = message()
        with client().messages.stream(**fields()) as stream:
            streamed = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual((streamed, text(final)), (text(whole), text(whole)))
        self.assertEqual((final.stop_reason, final.usage.output_tokens), (whole.stop_reason, whole.usage.output_tokens))
        total = final.usage.input_tokens + final.usage.cache_read_input_tokens
        self.assertEqual(total, whole.usage.input_tokens + whole.usage.cache_read_input_tokens)
        kinds = [event.type for event in message(stream=True)]
        self.assertEqual((kinds[0], kinds[-1]), ("message_start", "message_stop"))


class Tools(unittest.TestCase):
    def test_a_call_and_its_result(self):
        more = {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "find"}, "max_tokens": 100}
        answer = message(os.environ["TOOLS"], **more)
        self.assertEqual(answer.stop_reason, "tool_use")
        (call,) = answer.content
        self.assertEqual((call.type, call.name), ("tool_use", "find"))
        self.assertIn(call.input, ({"city": "Rome"}, {"city": "Oslo"}))
        with client(os.environ["TOOLS"]).messages.stream(**fields(**more)) as stream:
            (streamed,) = stream.get_final_message().content
        self.assertEqual(streamed.input, call.input)
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "it is sunny"}
        history = [*QUESTION, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
        answer = message(os.environ["TOOLS"], messages=history, tools=[TOOL])
        self.assertGreater(answer.usage.cache_read_input_tokens, 0)


class Errors(unittest.TestCase):
    def refused(self, kind, status, ask, field):
        with self.assertRaises(kind) as refused:
            ask()
        error = refused.exception
        self.assertEqual(error.status_code, status)
        self.assertTrue(error.body["error"]["message"].startswith(field + ": "), error.body)

    def test_wrong_fields(self):
        image = {"type": "image", "source": {"type": "url", "url": "x"}}
        for field, more in {
            "top_p": {"extra_body": {"top_p": 2}},
            "stop_sequences": {"stop_sequences": [""]},
            "messages": {"messages": []},
            "messages[0].content[0].type": {"messages": [{"role": "user", "content": [image]}]},
            # The demo model's template does not support tools, so a call cannot be forced.
            "tools": {"tools": [TOOL], "tool_choice": {"type": "any"}},
            "thinking.type": {"thinking": {"type": "some"}},
        }.items():
            with self.subTest(field):
                self.refused(anthropic.BadRequestError, 400, lambda more=more: message(**more), field)

    def test_unknown_models_and_keys(self):
        self.refused(anthropic.NotFoundError, 404, lambda: message(model="claude"), "model")
        wrong = client(key="wrong")
        ask = lambda: wrong.messages.create(**fields())
        self.refused(anthropic.AuthenticationError, 401, ask, "Authorization")


if __name__ == "__main__":
    unittest.main()
