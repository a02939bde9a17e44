"""The packages `langchain-openai` and `langchain-ollama` against a server: SERVER and TOOLS, with the key KEY.

What their users rely on: a model that is invoked and streamed, token counts, structured outputs, tool calls and their
results. Chains and agents are made of these.
"""

import os
import unittest
from typing import Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI, OpenAI
from langchain_openai.chat_models.base import OpenAIInvalidRequestError
from pydantic import BaseModel

from plain_http import MODEL, PROMPT, SAMPLED, chat_text, post


class Place(BaseModel):
    """A place at the sea or not."""

    sea: bool
    depth: Literal[10, 200]


def find(city: Literal["Rome", "Oslo"]) -> str:
    """Find a place."""
    return "it is sunny in " + city


def connection(server):
    """The address and the key of a server."""
    return {"model": MODEL, "base_url": os.environ[server] + "/v1", "api_key": os.environ["KEY"], "max_retries": 0}


def chat(server="SERVER", **more):
    """A chat model over OpenAI's API."""
    return ChatOpenAI(**{**connection(server), **SAMPLED, **more})


def ollama(server="SERVER"):
    """The same over Ollama's API."""
    key = {"headers": {"Authorization": "Bearer " + os.environ["KEY"]}}
    sampled = {"num_predict": SAMPLED["max_tokens"], "temperature": SAMPLED["temperature"], "seed": SAMPLED["seed"]}
    return ChatOllama(model=MODEL, base_url=os.environ[server], client_kwargs=key, **sampled)


class Answers(unittest.TestCase):
    def test_a_chat(self):
        answer = chat().invoke(PROMPT)
        self.assertEqual((answer.text, answer.response_metadata["model_name"]), (chat_text(), MODEL))
        usage = answer.usage_metadata
        self.assertEqual(usage["total_tokens"], usage["input_tokens"] + usage["output_tokens"])

    def test_a_chat_is_streamed(self):
        chunks = list(chat(stream_usage=True).stream(PROMPT))
        self.assertEqual("".join(chunk.text for chunk in chunks), chat_text())
        [usage] = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
        self.assertEqual(usage["output_tokens"], chat().invoke(PROMPT).usage_metadata["output_tokens"])
        self.assertGreater(sum(bool(chunk.text) for chunk in chunks), 1)

    def test_a_prompt(self):
        answer = OpenAI(**connection("SERVER"), **SAMPLED).invoke(PROMPT)
        self.assertEqual(answer, post("/v1/completions", prompt=PROMPT, **SAMPLED)["choices"][0]["text"])

    def test_structured_outputs(self):
        for model in (chat(max_tokens=100), ollama()):
            place = model.with_structured_output(Place, method="json_schema").invoke(PROMPT)
            self.assertIsInstance(place, Place)

    def test_errors(self):
        with self.assertRaises(OpenAIInvalidRequestError) as refused:
            chat(top_p=2).invoke(PROMPT)
        self.assertIn("top_p: expected", str(refused.exception))

    def test_ollama(self):
        self.assertEqual(ollama().invoke(PROMPT).text, chat_text())
        self.assertEqual("".join(chunk.text for chunk in ollama().stream(PROMPT)), chat_text())


class Tools(unittest.TestCase):
    def test_a_forced_call_and_its_result(self):
        model = chat("TOOLS", max_tokens=100)
        forced = model.bind_tools([find], tool_choice="find", parallel_tool_calls=False, strict=True)
        answer = forced.invoke(PROMPT)
        [call] = answer.tool_calls
        self.assertEqual((call["name"], answer.text, answer.invalid_tool_calls), ("find", "", []))
        self.assertIn(call["args"]["city"], ("Rome", "Oslo"))
        first, *others = forced.stream(PROMPT)
        streamed = sum(others, first)
        self.assertEqual([one["args"] for one in streamed.tool_calls], [call["args"]])
        self.assertEqual(streamed.text, "")
        result = ToolMessage(find(**call["args"]), tool_call_id=call["id"])
        followup = model.bind_tools([find]).invoke([HumanMessage(PROMPT), answer, result])
        self.assertGreater(followup.usage_metadata["input_tokens"], answer.usage_metadata["input_tokens"])


if __name__ == "__main__":
    unittest.main()
