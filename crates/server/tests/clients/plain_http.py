"""HTTP requests without a package: tests of packages compare their results with these.
"""

import json
import os
import urllib.request

MODEL = "demo-target"
PROMPT = "i want to find a restaurant in san jose"
QUESTION = [{"role": "user", "content": PROMPT}]
SAMPLED = {"max_tokens": 40, "temperature": 0.9, "seed": 7}


def request(path, body=None, server="SERVER"):
    """The bytes of the response for `path`, from the server whose address is in the environment variable `server`."""
    headers = {"Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(os.environ[server] + path, data, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def post(path, **body):
    """The JSON of the response to `body`."""
    return json.loads(request(path, {"model": MODEL, **body}))


def chat_text(messages=None):
    """The text of a chat completion with the sampling settings of the tests of packages."""
    answer = post("/v1/chat/completions", messages=messages or QUESTION, **SAMPLED)
    return answer["choices"][0]["message"]["content"]


def finished_requests():
    """How many requests the server has finished."""
    lines = request("/metrics").decode().splitlines()
    counts = (line for line in lines if line.startswith("foretoken:request_success_total{"))
    return sum(float(line.rsplit(" ", 1)[1]) for line in counts)
