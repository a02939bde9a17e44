"""The Responses API of the `openai` package: SERVER with the key KEY, and TOOLS, whose template supports tools.

What its users rely on: objects that its types can read, streams and its helper for them, tools, structured outputs,
and errors of the right class that name the field. What needs no package is covered by the server's own tests.
"""

import json
import os
import unittest

import openai

MODEL = "demo-target"
QUESTION = "i want to find a restaurant in san jose"
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
SCHEMA["additionalProperties"] = False
TOOL = {"type": "function", "name": "find", "parameters": SCHEMA, "strict": True}


def client(address=None):
    """A client that does not retry."""
    address = address or os.environ["SERVER"]
    return openai.OpenAI(base_url=address + "/v1", api_key=os.environ["KEY"], max_retries=0, timeout=60)


def fields(**more):
    """The fields of a request."""
    body = {"model": MODEL, "input": QUESTION, "max_output_tokens": 40, "temperature": 0.9, "extra_body": {"seed": 7}}
    return {**body, **more}


def response(address=None, **more):
    """The response to a request."""
    return client(address).responses.create(**fields(**more))


class Responses(unittest.TestCase):
    def test_a_response(self):
        answer = response(instructions="be brief", metadata={"a": "b"})
        self.assertEqual((answer.object, answer.model, answer.metadata), ("response", MODEL, {"a": "b"}))
        self.assertIn(answer.status, ("completed", "incomplete"))
        self.assertGreater(len(answer.output_text), 5)
        self.assertEqual(answer.output[0].type, "message")
        usage = answer.usage
        self.assertEqual(usage.total_tokens, usage.input_tokens + usage.output_tokens)
        self.assertEqual(usage.output_tokens_details.reasoning_tokens, 0)
        self.assertGreaterEqual(usage.input_tokens_details.cached_tokens, 0)

    def test_texts_equal_those_of_chat_completions(self):
        messages = [{"role": "user", "content": QUESTION}]
        more = {"max_tokens": 40, "temperature": 0.9, "seed": 7}
        chat = client().chat.completions.create(model=MODEL, messages=messages, **more)
        self.assertEqual(response().output_text, chat.choices[0].message.content)
        # Output items are sent back unchanged.
        first = response()
        history = [{"role": "user", "content": QUESTION}, *first.output, {"role": "user", "content": "in the west"}]
        messages += [{"role": "assistant", "content": first.output_text}, {"role": "user", "content": "in the west"}]
        chat = client().chat.completions.create(model=MODEL, messages=messages, **more)
        self.assertEqual(response(input=history).output_text, chat.choices[0].message.content)

    def test_a_truncated_response(self):
        answer = response(max_output_tokens=1)
        self.assertEqual((answer.status, answer.incomplete_details.reason), ("incomplete", "max_output_tokens"))

    def test_streams(self):
        whole = response()
        with client().responses.stream(**fields()) as stream:
            streamed = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            final = stream.get_final_response()
        self.assertEqual((streamed, final.output_text), (whole.output_text, whole.output_text))
        events = list(response(stream=True))
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        self.assertEqual((events[0].type, events[-1].type), ("response.created", "response.completed"))

    def test_structured_outputs(self):
        text_format = {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True}
        answer = response(text={"format": text_format})
        self.assertIn(json.loads(answer.output_text), ({"city": "Rome"}, {"city": "Oslo"}))

    def test_tools(self):
        more = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 100}
        (call,) = response(os.environ["TOOLS"], **more).output
        self.assertEqual((call.type, call.name), ("function_call", "find"))
        self.assertIn(json.loads(call.arguments), ({"city": "Rome"}, {"city": "Oslo"}))
        with client(os.environ["TOOLS"]).responses.stream(**fields(**more)) as stream:
            (streamed,) = stream.get_final_response().output
        self.assertEqual(streamed.arguments, call.arguments)
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "it is sunny"}
        history = [{"role": "user", "content": QUESTION}, call, result]
        answer = response(os.environ["TOOLS"], input=history, tools=[TOOL])
        self.assertGreater(answer.usage.input_tokens_details.cached_tokens, 0)

    def test_wrong_fields(self):
        for param, more in {
            "input": {"input": []},
            "previous_response_id": {"previous_response_id": "resp_1"},
            "tools[0].type": {"tools": [{"type": "web_search"}]},
            "text.format.type": {"text": {"format": {"type": "xml"}}},
            "input[0].content[0].type": {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        }.items():
            with self.subTest(param), self.assertRaises(openai.BadRequestError) as refused:
                response(**more)
            self.assertEqual(refused.exception.param, param)


if __name__ == "__main__":
    unittest.main()
