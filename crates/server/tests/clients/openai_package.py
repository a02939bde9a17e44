"""The `openai` package against a server: SERVER with the key KEY, and NARROW, which runs and queues one sequence.

What its users rely on: objects that its types can read, streams, log-probabilities, seeds, several answers, and errors
of the right class that name the field. What needs no package is covered by the server's own tests.
"""

import os
import threading
import time
import unittest

import openai

MODEL = "demo-target"
QUESTION = [{"role": "user", "content": "i want to find a restaurant in san jose"}]
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}


def client(address=None, key=None):
    """A client that does not retry."""
    address = address or os.environ["SERVER"]
    return openai.OpenAI(base_url=address + "/v1", api_key=key or os.environ["KEY"], max_retries=0, timeout=60)


def chat(**more):
    """A chat completion."""
    return client().chat.completions.create(
        **{"model": MODEL, "messages": QUESTION, "max_tokens": 40, "temperature": 0.9, "seed": 7, **more}
    )


def completion(**more):
    """A completion of 24 tokens."""
    body = {"model": MODEL, "prompt": "Once upon a time,", "max_tokens": 24, "temperature": 0.9, "seed": 7, **more}
    body["extra_body"] = {"ignore_eos": True, **more.get("extra_body", {})}
    return client().completions.create(**body)


def text(answer):
    """The text of an answer's first choice."""
    choice = answer.choices[0]
    return choice.text if hasattr(choice, "text") else choice.message.content


class Answers(unittest.TestCase):
    def test_models(self):
        self.assertEqual([model.id for model in client().models.list()], [MODEL])
        self.assertEqual(client().models.retrieve(MODEL).id, MODEL)

    def test_a_chat(self):
        answer = chat()
        self.assertEqual((answer.object, answer.model), ("chat.completion", MODEL))
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertIn(answer.choices[0].finish_reason, ("stop", "length"))
        self.assertGreater(len(text(answer)), 5)
        usage = answer.usage
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)

    def test_a_completion(self):
        answer = completion()
        self.assertEqual((answer.object, answer.choices[0].finish_reason), ("text_completion", "length"))
        self.assertEqual(answer.usage.completion_tokens, 24)

    def test_seeds(self):
        for ask in (chat, completion):
            self.assertEqual(text(ask()), text(ask()))
            self.assertNotEqual(text(ask()), text(ask(seed=8)))

    def test_several_answers(self):
        answer = chat(n=3)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2])
        self.assertEqual(len({choice.message.content for choice in answer.choices}), 3)
        self.assertEqual(text(answer), text(chat()))
        several = completion(prompt=["Once upon a time,", "The end"], n=2)
        self.assertEqual(len(several.choices), 4)

    def test_log_probabilities(self):
        answer = chat(logprobs=True, top_logprobs=3)
        logprobs = answer.choices[0].logprobs.content
        self.assertEqual("".join(token.token for token in logprobs), text(answer))
        for token in logprobs:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertLessEqual(token.logprob, 0)
            self.assertEqual(bytes(token.bytes).decode(errors="replace"), token.token)
        older = completion(logprobs=2).choices[0].logprobs
        self.assertEqual(len(older.tokens), 24)
        self.assertEqual(len(older.token_logprobs), 24)

    def test_extra_fields(self):
        plain = completion(extra_body={"speculative": {"n_max": 0}})
        self.assertEqual(plain.timings["draft_n"], 0)
        for more in ({"speculative.type": "draft", "speculative.n_max": 4}, {"top_k": 50, "min_p": 0.0}):
            self.assertEqual(text(completion(extra_body=more)), text(plain))
        provenance = completion(extra_body={"return_provenance": True}).choices[0].provenance
        self.assertEqual("".join(token["text"] for token in provenance), text(plain))

    def test_predictions(self):
        expected = text(chat())
        answer = chat(prediction={"type": "content", "content": expected})
        self.assertEqual(text(answer), expected)
        details = answer.usage.completion_tokens_details
        self.assertGreaterEqual(details.accepted_prediction_tokens, 0)
        self.assertGreaterEqual(details.rejected_prediction_tokens, 0)
        drafted = details.accepted_prediction_tokens + details.rejected_prediction_tokens
        self.assertGreater(drafted, 0)

    def test_tools(self):
        # The demo model's template does not support tools: a warning says so, and forced calls are refused.
        self.assertEqual(text(chat(tools=[TOOL], tool_choice="none")), text(chat()))
        with self.assertRaises(openai.BadRequestError) as refused:
            chat(tools=[TOOL], tool_choice="required")
        self.assertEqual(text(chat(tools=[TOOL])), text(chat()))
        self.assertTrue(chat(tools=[TOOL]).warnings[0].startswith("tools: left out"))
        self.assertEqual(refused.exception.param, "tools")


class Streams(unittest.TestCase):
    def test_chunks_are_the_text(self):
        pieces, usage, ends = [], None, []
        plain = {"speculative.n_max": 0}  # one chunk per token
        for chunk in chat(stream=True, stream_options={"include_usage": True}, extra_body=plain):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                pieces.append(choice.delta.content or "")
                ends += [choice.finish_reason] if choice.finish_reason else []
        whole = chat()
        self.assertEqual("".join(pieces), text(whole))
        self.assertEqual(ends, [whole.choices[0].finish_reason])
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)
        self.assertGreater(len(pieces), usage.completion_tokens - 3)
        self.assertEqual("".join(chunk.choices[0].text for chunk in completion(stream=True)), text(completion()))

    def test_log_probabilities(self):
        logprobs = []
        for chunk in chat(stream=True, logprobs=True, top_logprobs=2):
            if chunk.choices[0].logprobs:
                logprobs += [(token.token, token.logprob) for token in chunk.choices[0].logprobs.content]
        whole = chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content
        self.assertEqual(logprobs, [(token.token, token.logprob) for token in whole])

    def test_the_stream_helper(self):
        body = {"model": MODEL, "messages": QUESTION, "max_tokens": 40, "temperature": 0.9, "seed": 7}
        with client().chat.completions.stream(**body) as it:
            streamed = "".join(event.delta for event in it if event.type == "content.delta")
            self.assertEqual(it.get_final_completion().choices[0].message.content, text(chat()))
        self.assertEqual(streamed, text(chat()))

    def test_a_stream_can_be_closed_early(self):
        stream = completion(stream=True, max_tokens=900)
        next(iter(stream))
        stream.close()
        self.assertEqual(completion(max_tokens=1).usage.completion_tokens, 1)


class Errors(unittest.TestCase):
    def refused(self, kind, status, ask, param=None):
        with self.assertRaises(kind) as refused:
            ask()
        self.assertEqual((refused.exception.status_code, refused.exception.param), (status, param))
        return refused.exception

    def test_wrong_fields(self):
        for param, more in {
            "temperature": {"temperature": -1},
            "top_p": {"top_p": 2},
            "n": {"n": 0},
            "stop": {"stop": [""]},
            "response_format.type": {"response_format": {"type": "jsonish"}},
            "tools": {"tools": [TOOL], "tool_choice": "required"},  # which this model's template does not support
            "tool_choice": {"tool_choice": "required"},
            "messages": {"messages": []},
            "top_logprobs": {"logprobs": True, "top_logprobs": 30},
            "speculative.type": {"extra_body": {"speculative": {"type": "magic"}}},
        }.items():
            with self.subTest(param):
                error = self.refused(openai.BadRequestError, 400, lambda more=more: chat(**more), param)
                self.assertIn("expected", error.message)

    def test_unknown_models_and_paths(self):
        self.refused(openai.NotFoundError, 404, lambda: chat(model="gpt-9"), "model")
        self.refused(openai.NotFoundError, 404, lambda: client().models.retrieve("gpt-9"), "model")
        self.refused(openai.BadRequestError, 400, lambda: client().embeddings.create(model=MODEL, input="a"), "path")

    def test_keys(self):
        self.refused(openai.AuthenticationError, 401, lambda: client(key="wrong").models.list())

    def test_a_full_queue(self):
        narrow = client(os.environ["NARROW"], "none")
        body = {"model": MODEL, "prompt": "Once", "max_tokens": 1000, "extra_body": {"ignore_eos": True}}
        first = narrow.completions.create(stream=True, **body)
        next(iter(first))
        second = threading.Thread(target=lambda: narrow.completions.create(**{**body, "max_tokens": 2}))
        second.start()
        health = client(os.environ["NARROW"], "none")
        for _ in range(200):
            if health.get("/health", cast_to=dict)["waiting"] == 1:
                break
            time.sleep(0.01)
        error = self.refused(openai.RateLimitError, 429, lambda: narrow.completions.create(**body))
        self.assertGreaterEqual(int(error.response.headers["retry-after"]), 1)
        first.close()
        second.join()


if __name__ == "__main__":
    unittest.main()
