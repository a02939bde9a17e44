#!/usr/bin/env python3
"""Compares two programs' servers, and the APIs of one server.

    bench/doors.py OLD NEW MODEL [--count N] [--tokens N]

For each path that both servers have, prints the median of new over old for the time to the first text and for the whole
time. Sampling is greedy, and both get every prompt, in alternating order. Then, for the new server alone, prints the
whole time of each further API over that of a chat with the same messages, in alternating order, too. An untimed chat
comes before both, since drafters learn from texts that were written.
"""

import argparse
import http.client
import json
import re
import statistics
import subprocess
import tempfile
import threading
import time

NOUNS = "river stone lamp green window teacher music winter garden paper".split()
BEGINNINGS = (b'"content":"', b'"text":"', b"text_delta", b"output_text.delta")


class Server:
    """A program that serves a model on a free port, with its own file of costs."""

    def __init__(self, program, model, folder):
        command = [program, "serve", "--port", "0", "-m", model, "-c", "2048", "--costs", f"{folder}/costs.json"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        found = (re.search(r"at http://127\.0\.0\.1:(\d+)", line) for line in self.process.stderr)
        self.port = int(next(match for match in found if match).group(1))
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def ask(self, path, body):
        """Sends a request. Seconds to the first text (None if it was not streamed) and to the end."""
        connection, begun, first = http.client.HTTPConnection("127.0.0.1", self.port), time.perf_counter(), None
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"{path}: expected 200, found {answer.status}: {answer.read().decode()}")
        while piece := answer.read1(1 << 16):
            is_text = any(begin in piece for begin in BEGINNINGS) and b'"content":""' not in piece
            if first is None and body.get("stream") and is_text:
                first = time.perf_counter() - begun
        return first, time.perf_counter() - begun


def message(number):
    return f"Tell me about the {NOUNS[number % 10]} and the {NOUNS[(number * 7 + 3) % 10]}, number {number}."


def requests(number, tokens):
    """The request for each API, OpenAI's chats and completions first."""
    messages = [{"role": "user", "content": message(number)}]
    chat = {"messages": messages, "temperature": 0, "max_tokens": tokens}
    text = {"prompt": message(number), "temperature": 0, "max_tokens": tokens}
    responses = {"input": message(number), "temperature": 0, "max_output_tokens": tokens, "stream": True}
    options = {"temperature": 0, "num_predict": tokens}
    return {
        "chat, streamed": ("/v1/chat/completions", {**chat, "stream": True}),
        "chat, whole": ("/v1/chat/completions", chat),
        "completion, streamed": ("/v1/completions", {**text, "stream": True}),
        "messages": ("/v1/messages", {**chat, "stream": True}),
        "responses": ("/v1/responses", responses),
        "Ollama's chat": ("/api/chat", {"messages": messages, "options": options}),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("model")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    numbers = iter(range(10**6))
    with tempfile.TemporaryDirectory() as old_folder, tempfile.TemporaryDirectory() as new_folder:
        old, new = Server(options.old, options.model, old_folder), Server(options.new, options.model, new_folder)
        try:
            doors = list(requests(0, 1))
            for number, door in ((next(numbers), door) for _ in range(4) for door in doors[:3]):
                for server in (old, new):
                    server.ask(*requests(number, options.tokens)[door])
            for door in doors[:3]:
                firsts, wholes = [], []
                for number in (next(numbers) for _ in range(options.count)):
                    order = (old, new) if number % 2 else (new, old)
                    times = {server: server.ask(*requests(number, options.tokens)[door]) for server in order}
                    wholes.append(times[new][1] / times[old][1])
                    if times[old][0] and times[new][0]:
                        firsts.append(times[new][0] / times[old][0])
                first = f"first text {statistics.median(firsts):.3f}, " if firsts else ""
                print(f"{door}: new over old: {first}whole {statistics.median(wholes):.3f}", flush=True)
            for door in doors[3:]:
                wholes = []
                for number in (next(numbers) for _ in range(options.count)):
                    all_doors = requests(number, options.tokens)
                    new.ask(*all_doors[doors[0]])
                    order = (door, doors[0]) if number % 2 else (doors[0], door)
                    times = {name: new.ask(*all_doors[name])[1] for name in order}
                    wholes.append(times[door] / times[doors[0]])
                print(f"{door}: over a chat of the same server: whole {statistics.median(wholes):.3f}", flush=True)
        finally:
            old.process.terminate()
            new.process.terminate()


if __name__ == "__main__":
    main()
