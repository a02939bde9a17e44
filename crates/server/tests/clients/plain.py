"""Requests without a package, for tests of packages: what a client shows is compared with what the server says.

Left out: streams and errors, which the packages are there for.
"""

import json
import os
import urllib.request

MODEL = "demo-target"
PROMPT = "i want to find a restaurant in san jose"
QUESTION = [{"role": "user", "content": PROMPT}]
SAMPLED = {"max_tokens": 40, "temperature": 0.9, "seed": 7}


def request(path, body=None, server="SERVER"):
    """The bytes that are answered under `path` by the server whose address the variable `server` has."""
    headers = {"Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(os.environ[server] + path, data, headers)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return answer.read()


def post(path, **body):
    """The JSON that is answered to `body`."""
    return json.loads(request(path, {"model": MODEL, **body}))


def said(messages=None):
    """The text of a turn that is sampled as the tests of packages have theirs sampled."""
    answer = post("/v1/chat/completions", messages=messages or QUESTION, **SAMPLED)
    return answer["choices"][0]["message"]["content"]


def finished():
    """How many texts the server has written to their end."""
    lines = request("/metrics").decode().splitlines()
    counts = (line for line in lines if line.startswith("foretoken:request_success_total{"))
    return sum(float(line.rsplit(" ", 1)[1]) for line in counts)
