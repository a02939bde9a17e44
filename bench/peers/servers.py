"""Runs servers of several programs on one model file at the same time, and sends them the same requests over HTTP.

Every program is a process on a port of the loopback device. It gets requests to `/v1/completions` with the same token
ids (so no template or tokenizer of its own matters) and the same settings, and streams its answer; the client takes the
times of the first text and of the end. Before the first request a peer must report the expected model (`/v1/models`,
`/props`), and must not compute without requests. Every failure is a `Failed`, which names the peer. Times are evaluated
in `table.py`.
"""

import http.client
import json
import os
import re
import socket
import subprocess
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SERVERS = ("llama.cpp", "ik_llama.cpp")
# Drafters of llama.cpp and its relatives that need no second model.
MODEL_FREE = re.compile(r"\b(ngram-[a-z0-9]+(?:-[a-z0-9]+)?|suffix)\b")


class Failed(Exception):
    """A failure of a peer, in a line."""


class Server:
    """A serving program with one drafting method; `version` is known for packages only."""

    def __init__(self, program, method, command, version=None):
        self.program, self.method, self.command = program, method, [str(word) for word in command]
        self.version = version
        self.name = f"{program} {method}"
        self.process, self.port, self.log = None, None, None

    def start(self, folder):
        """Starts it on a free port; its log is a file in the folder."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = Path(folder) / (re.sub(r"[^\w.-]+", "-", self.name) + ".log")
        words = [word.replace("{port}", str(self.port)) for word in self.command]
        try:
            with open(self.log, "wb") as log:
                self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        except OSError as error:
            raise Failed(f"expected a program, found: {error}") from None

    def wait(self, seconds):
        """Waits until it is ready."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise Failed(f"expected a server, found exit code {self.process.returncode}: {self.last_words()}")
            try:
                if self.get("/health", 2)[0] == 200:
                    return
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(0.1)
        raise Failed(f"expected an answer of /health within {seconds} s, found none: {self.last_words()}")

    def last_words(self):
        """The last line of its log."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip()[:200] if lines else "(it says nothing)"

    def get(self, path, seconds=30):
        """Status and body of a GET."""
        wire = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            wire.request("GET", path)
            answer = wire.getresponse()
            return answer.status, answer.read()
        finally:
            wire.close()

    def post(self, path, body, seconds=600):
        """The JSON that answers a POST."""
        try:
            wire, answer = self.ask(path, body, seconds)
            with wire:
                return json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Failed(f"{path}: expected JSON, found: {error or type(error).__name__}") from None

    def ask(self, path, body, seconds):
        """Sends a POST; the connection and the answer, whose status is 200."""
        wire = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        wire.connect()
        wire.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = wire.getresponse()
        if answer.status != 200:
            raise Failed(f"{path}: expected status 200, found {answer.status}: {answer.read()[:200]}")
        return wire.sock or answer, answer

    def check(self, model):
        """Checks that it serves this model: the file, vocabulary and parameters that it reports must be the model's."""
        told = {}
        for path in ("/v1/models", "/props"):
            try:
                status, body = self.get(path)
                fields = json.loads(body) if status == 200 else {}
            except (OSError, http.client.HTTPException, ValueError):
                continue
            try:
                if path == "/props":
                    named = fields.get("model_path")
                else:
                    fields = (fields.get("data") or [{}])[0]
                    named = fields.get("id")
                    meta = fields.get("meta") or {}
                    told |= {"vocabulary": meta.get("n_vocab"), "parameters": meta.get("n_params")}
                # A name that is no file name, such as an alias, proves nothing.
                if named and (named.endswith(".gguf") or f"{named}.gguf" in model["file"]):
                    told["file"] = Path(named).name.removesuffix(".gguf") + ".gguf"
            except (AttributeError, KeyError, TypeError):
                found = body.decode(errors="replace")[:200]
                raise Failed(f"{path}: expected an object that tells of a model, found {found}") from None
        told = {name: value for name, value in told.items() if value is not None}
        if not told:
            raise Failed("/v1/models and /props: expected its model's file, vocabulary or parameters, found none")
        for name, value in told.items():
            if value not in model[name]:
                expected = " or ".join(map(str, model[name]))
                raise Failed(f"serves another model: {name}: expected {expected}, found {value}")

    def answer(self, prompt, settings, seconds=600):
        """One streamed answer to `prompt` (`ids`, `text`): text, counts, and times in seconds since the request."""
        body = settings | {"prompt": prompt["ids"], "stream": True, "stream_options": {"include_usage": True}}
        if self.program not in ("foretoken", *SERVERS):
            body["messages"] = [{"role": "user", "content": prompt["text"]}]
        said, first, ended, finish, usage, timings = [], None, None, None, {}, {}
        start = time.perf_counter()
        try:
            wire, answer = self.ask("/v1/completions", body, seconds)
            with wire:
                for line in answer:
                    if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                        continue
                    now, event = time.perf_counter() - start, json.loads(line[5:])
                    if "error" in event:
                        raise Failed(f"/v1/completions: {json.dumps(event['error'])[:200]}")
                    usage, timings = event.get("usage") or usage, event.get("timings") or timings
                    for choice in event.get("choices") or []:
                        if choice.get("text"):
                            said.append(choice["text"])
                            first = first or now
                        if choice.get("finish_reason"):
                            finish, ended = choice["finish_reason"], now
        except (OSError, http.client.HTTPException, ValueError, AttributeError, TypeError) as error:
            raise Failed(f"/v1/completions: {type(error).__name__}: {error}; {self.last_words()}") from None
        if ended is None:
            raise Failed(f"/v1/completions: expected the end of a text, found that of the stream; {self.last_words()}")
        told = {"prompt": usage.get("prompt_tokens"), "written": usage.get("completion_tokens")}
        return {"text": "".join(said), "first": first or ended, "end": ended, "finish": finish, "told": told,
                "timings": {name: timings[name] for name in ("prompt_ms", "predicted_ms", "predicted_n", "draft_n",
                                                             "draft_n_accepted") if name in timings}}

    def busy(self):
        """Seconds of processor time so far, None if the system does not report them."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            return None
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        """Ends it."""
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def methods(program):
    """The drafting methods without a model in the help of a llama-server, and whether it has --cache-ram."""
    try:
        said = subprocess.run([program, "--help"], capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{program}: expected a program with --help, found: {error}") from None
    # The words on --spec-type continue until the next option.
    about = re.search(r"--spec-type\b(.*?)(?:\n\s*-|\Z)", said.stdout + said.stderr, re.DOTALL)
    names = dict.fromkeys(MODEL_FREE.findall(about[1])) if about else {}
    return list(names), "--cache-ram" in said.stdout + said.stderr


def llama_servers(name, program, more, model, threads, context):
    """llama.cpp's server or a relative's, plain and with each drafting method, with `more` options."""
    drafting, has_cache = methods(program)
    common = [program, "-m", model, "--host", "127.0.0.1", "--port", "{port}", "-t", threads, "-c", context, "-np", 1]
    # --cache-ram 0: otherwise each of many servers would keep a copy of the KV cache of every finished text.
    common += [*(["--cache-ram", 0] if has_cache else []), *more]
    return [Server(name, "plain", common)] + [Server(name, way, [*common, "--spec-type", way]) for way in drafting]


def our_servers(program, model, threads, context, ways):
    """foretoken with each of its drafting methods; auto is its default."""
    common = [program, "serve", "-m", model, "--port", "{port}", "-t", threads, "-c", context, "-np", 1, "--no-page"]
    named = {"none": "plain", "auto": "no option"}
    option = lambda way: [] if way == "auto" else ["--spec-type", way]
    return [Server("foretoken", named.get(way, way), [*common, *option(way)]) for way in ways]


def library_servers(python, model, threads):
    """Servers of Python packages that the named Python has, and the names of the packages that it lacks."""
    servers, missing = [], []
    for package, name, ways in (("mistralrs", "mistral.rs", ["plain"]), ("transformers", "transformers",
                                                                         ["plain", "prompt-lookup"])):
        more = ", torch, gguf" if package == "transformers" else ""
        tells = f"import {package}{more}; from importlib import metadata; print(metadata.version('{package}'))"
        there = subprocess.run([python, "-c", tells], capture_output=True, text=True)
        if there.returncode:
            missing.append(name)
            continue
        words = [python, HERE / "library_server.py", package, model, "--port", "{port}", "-t", threads]
        version = there.stdout.strip()
        servers += [Server(name, way, [*words, "--method", way], version) for way in ways]
    return servers, missing
