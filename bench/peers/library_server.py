#!/usr/bin/env python3
"""Serves mistral.rs or transformers at `/v1/completions`, so that `bench/peers/same` can send them the same requests as
the other programs.

    PYTHON bench/peers/library_server.py mistralrs|transformers MODEL.gguf --port PORT [--method plain|prompt-lookup]

One request runs at a time, and tokens are streamed as soon as the library returns them. transformers takes the token
ids of the request and computes in floats with the dequantized weights (it has no products of quantized weights);
mistral.rs takes the conversation and its own template. `bench/peers/same` starts this server if a Python has the
packages (mistralrs 0.9.5; torch, transformers 5.23, gguf). Of the sampling parameters only length and temperature are
supported.
"""

import argparse
import json
import os
import queue
import threading
import traceback
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


def of_mistralrs(model, method):
    """A function from a request to its events, and the facts about the model, for mistral.rs."""
    from mistralrs import ChatCompletionRequest, Runner, Which

    if method != "plain":
        raise SystemExit(f"--method: expected plain of mistral.rs, found {method}")
    gguf = Which.GGUF(quantized_model_id=str(model.parent), quantized_filename=model.name)
    runner = Runner(which=gguf, max_seqs=1, token_source="none")

    def events(asked):
        request = ChatCompletionRequest(
            messages=asked["messages"], model="default", stream=True, max_tokens=asked["max_tokens"],
            temperature=asked["temperature"], top_k=1 if asked["temperature"] == 0 else None)
        usage = {}
        for chunk in runner.send_chat_completion_request(request):
            for choice in chunk.choices:
                yield event(choice.delta.content or "", choice.finish_reason)
            if chunk.usage:
                usage = {"prompt_tokens": chunk.usage.prompt_tokens, "completion_tokens": chunk.usage.completion_tokens}
        yield {"choices": [], "usage": usage}

    return events, {"id": model.name}


def of_transformers(model, method):
    """The same for transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    tokenizer = AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
    network = AutoModelForCausalLM.from_pretrained(model.parent, gguf_file=model.name)
    drafting = {"prompt_lookup_num_tokens": 10} if method == "prompt-lookup" else {}
    ends = [network.generation_config.eos_token_id or tokenizer.eos_token_id]

    def events(asked):
        prompt, written, shown = torch.tensor([asked["prompt"]]), [], ""
        warm = {"do_sample": True, "temperature": asked["temperature"], "top_k": 0, "top_p": 1.0}
        how = warm if asked["temperature"] else {"do_sample": False}

        def generate(streamer):
            network.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=asked["max_tokens"],
                             streamer=streamer, eos_token_id=ends, pad_token_id=ends[0], **how, **drafting)

        for ids in pieces(generate):
            written += ids
            text = tokenizer.decode(written, skip_special_tokens=True)
            # An incomplete character waits for its remaining bytes.
            if not text.endswith("\ufffd"):
                yield event(text[len(shown):], None)
                shown = text
        yield event("", "stop" if written and written[-1] in ends else "length")
        yield {"choices": [], "usage": {"prompt_tokens": prompt.shape[1], "completion_tokens": len(written)}}

    return events, {"id": model.name, "meta": {"n_vocab": network.config.vocab_size}}


class Streamer:
    """A streamer that queues the output of `generate`: the prompt first, then tokens."""

    def __init__(self):
        self.said, self.is_prompt = queue.Queue(), True

    def put(self, ids):
        if not self.is_prompt:
            self.said.put(ids.flatten().tolist())
        self.is_prompt = False

    def end(self):
        """Does nothing: `pieces` reports how `generate` ended."""


def pieces(generate):
    """The tokens that `generate` gives a streamer in its own thread; an exception of the thread is raised here."""
    streamer = Streamer()

    def run():
        try:
            generate(streamer)
            streamer.said.put(None)
        except Exception as error:
            streamer.said.put(error)

    threading.Thread(target=run, daemon=True).start()
    while (ids := streamer.said.get()) is not None:
        if isinstance(ids, Exception):
            raise ids
        yield ids


def or_error(events, asked):
    """The events of a request; an error of the library is the last one."""
    try:
        yield from events(asked)
    except Exception as error:
        traceback.print_exc()
        yield {"error": {"message": f"{type(error).__name__}: {error}"}}


def event(text, finish):
    """An event of a stream."""
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}


def serve(port, events, said):
    """Answers requests until the process ends."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            body = {"/health": {"status": "ok"}, "/v1/models": {"data": [said]}}.get(self.path)
            self.send_response(200 if body else 404)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()
            for one in or_error(events, asked):
                self.wfile.write(f"data: {json.dumps(one)}\n\n".encode())

    HTTPServer(("127.0.0.1", port), Handler).serve_forever()


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("package", choices=["mistralrs", "transformers"])
    ask.add_argument("model", type=Path)
    ask.add_argument("--port", type=int, required=True)
    ask.add_argument("--method", choices=["plain", "prompt-lookup"], default="plain")
    ask.add_argument("-t", "--threads", type=int, default=os.cpu_count())
    given = ask.parse_args()
    # Read by the libraries when they are imported.
    os.environ |= {"OMP_NUM_THREADS": str(given.threads), "RAYON_NUM_THREADS": str(given.threads)}
    events, said = {"mistralrs": of_mistralrs, "transformers": of_transformers}[given.package](
        given.model.resolve(), given.method)
    serve(given.port, events, said)


if __name__ == "__main__":
    main()
