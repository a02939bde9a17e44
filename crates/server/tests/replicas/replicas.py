"""Three replicas behind a router: affinity, kills, restarts. usage: replicas.py BINARY SKIPPED ROUTER...

The idea: the same requests with the same seeds are answered by one replica alone first, so that every later answer can
be compared to the byte, whichever replica writes it. Clients are threads with plain HTTP connections. What may be lost
is an answer of which a part had arrived when its replica was killed; all else is repeated by the router unseen.
"""

import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

PACKAGING = Path(__file__).resolve().parents[4] / "packaging" / "replicas"
CLIENTS = 64
SECONDS = float(os.environ.get("FORETOKEN_SECONDS", "7"))
KILL_INTERVAL = 10 if SECONDS > 60 else 3
DRAIN_DELAY = 2
# Requests that wait in turn longer than this one are not worth a test's time.
TIMEOUT = 120
# What vLLM's router answers if a connection breaks on which it had sent a request: the others send such a one again.
NOT_REPEATED = "Request failed: error sending request"
# What says that requests belong together; a header's name begins with X-. Without any it is the beginning of the body.
KEYS = {"haproxy": ("prompt_cache_key", "user", None), "nginx": ("prompt_cache_key", "user", None),
        "vllm": ("X-Session-ID",)}


def free_ports(number):
    """Ports that nobody listens on."""
    all_of_them = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [one.getsockname()[1] for one in all_of_them]
    for one in all_of_them:
        one.close()
    return ports


def wait_for(holds, what, seconds=60):
    """Waits until a condition holds."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            sys.exit(f"replicas: {what}: expected within {seconds} s, found nothing")
        time.sleep(0.02)


def get(port, path):
    """The status and the text of a path; nothing if nobody answers."""
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except OSError:
        return 0, ""


class Replica:
    """One server, which can be killed and started again."""

    def __init__(self, binary, port, folder):
        self.port = port
        self.command = [binary, "serve", "--port", str(port), "--ctx-size", "1024", "--parallel", "4", "--quiet",
                        "--drain-delay", str(DRAIN_DELAY), "--shutdown-timeout", "60", "--metrics-prefix", "vllm",
                        "--costs", str(folder / f"costs-{port}.json"), "--threads", "1"]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stderr=subprocess.DEVNULL)

    def is_ready(self):
        return get(self.port, "/ready")[0] == 200

    def kill(self):
        self.process.kill()
        self.process.wait()

    def metric(self, name):
        """The sum of a metric's series."""
        found = re.findall(rf"^vllm:{name}{{.*}} (\S+)$", get(self.port, "/metrics")[1], re.MULTILINE)
        return sum(map(float, found))


def routers(folder, port, ports):
    """The commands of the routers, with the packaged configurations at these ports."""
    def configured(name):
        text = (PACKAGING / name).read_text()
        for old, new in zip((8000, 8081, 8082, 8083), (port, *ports)):
            if f"127.0.0.1:{old}" not in text:
                sys.exit(f"replicas: {name}: expected the address 127.0.0.1:{old}")
            text = text.replace(f"127.0.0.1:{old}", f"127.0.0.1:{new}")
        (folder / name).write_text(text)
        return folder / name

    shutil.copy(PACKAGING / "affinity.js", folder)
    urls = [f"http://127.0.0.1:{one}" for one in ports]
    return {
        "haproxy": ["haproxy", "-f", str(configured("haproxy.cfg"))],
        "nginx": ["nginx", "-c", str(configured("nginx.conf")), "-p", str(folder)],
        "vllm": [sys.executable, "-m", "vllm_router.launch_router", "--host", "127.0.0.1", "--port", str(port),
                 "--worker-urls", *urls, "--policy", "consistent_hash", "--health-check-endpoint", "/ready",
                 "--health-check-interval-secs", "1", "--health-failure-threshold", "1",
                 "--health-success-threshold", "1", "--disable-circuit-breaker",
                 "--prometheus-port", str(free_ports(1)[0])],
    }


def request(number, stream):
    """A seeded request."""
    return {"prompt": f"Once upon a time, {number % 7}", "max_tokens": 24 + number % 3 * 16, "temperature": 0.8,
            "seed": number, "ignore_eos": True, "stream": stream}


class Lost(Exception):
    """An answer of which a part had arrived."""


class Wrong(Exception):
    """An answer that should have been another."""


def ask(port, body, headers={}):
    """The text of an answer.

    Raises Lost if the answer broke after a part of it had arrived, Wrong for every other failure.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise Wrong(f"before the answer began: {error!r}") from None
    try:
        text = answer.read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise Lost(repr(error)) from None
    finally:
        connection.close()
    if NOT_REPEATED in text:
        raise Lost(text)
    if answer.status != 200:
        raise Wrong(f"status {answer.status}: {text[:200]}")
    if not body["stream"]:
        return json.loads(text)["choices"][0]["text"]
    if not text.endswith("data: [DONE]\n\n"):
        raise Lost(f"it ends with {text[-100:]!r}")
    events = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    if any("error" in event for event in events):
        raise Wrong(f"an error within: {text[-300:]}")
    return "".join(choice["text"] for event in events for choice in event["choices"])


def under_load(port, expected, seconds, disturb):
    """Clients that ask in turn while the replicas are disturbed: what became of their requests."""
    counts, wrong, end = Counter(), [], threading.Event()

    def client(number):
        chance = random.Random(number)
        while not end.is_set():
            seed = chance.choice(list(expected))
            body = request(seed, chance.random() < 0.5)
            try:
                same = ask(port, body) == expected[seed]
                counts["same" if same else "different"] += 1
            except Lost:
                counts["lost"] += 1
                # Who asks again gets the same bytes.
            except Wrong as error:
                counts["wrong"] += 1
                wrong.append(str(error))

    clients = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for one in clients:
        one.start()
    disturb(time.monotonic() + seconds)
    end.set()
    for one in clients:
        one.join()
    return counts, wrong


def passed(what, holds, found):
    """Counts a check, or ends the program."""
    if not holds:
        sys.exit(f"replicas: {what}: found {found}")
    print(f"{what}: {found}", flush=True)
    passed.count += 1


passed.count = 0


def conversations(port, key, salt):
    """Conversations that grow turn by turn, whose requests take turns; each has a beginning of its own."""
    chance = random.Random(f"{key}{salt}")
    texts = {number: f"{salt} {number}: " + " ".join(chance.choice(["a", "dog", "the", "house", "ran", "blue"])
                                                    for _ in range(60)) for number in range(12)}
    turns = [number for number in texts for _ in range(5)]
    chance.shuffle(turns)
    for number in turns:
        texts[number] += " And then, one day," + f" {chance.random():.3f}"
        name = {key: f"{salt}-{number}"} if key else {}
        is_header = bool(key) and key.startswith("X-")
        fields = {"prompt": texts[number], "max_tokens": 2, "temperature": 0, "stream": False}
        ask(port, fields if is_header else {**fields, **name}, name if is_header else {})


def hits(replicas, port, key, salt):
    """Tokens of prompts that were found in the replicas' caches while these conversations were held."""
    before = sum(one.metric("prefix_cache_hits_total") for one in replicas)
    conversations(port, key, salt)
    return sum(one.metric("prefix_cache_hits_total") for one in replicas) - before


def affinity(name, replicas, port):
    """Conversations stay with their replicas, by each of the router's keys."""
    for key in KEYS[name]:
        salt = f"{name} {key}"
        alone = hits(replicas[:1], replicas[0].port, key, "alone " + salt)
        routed = hits(replicas, port, key, "routed " + salt)
        by = key or "the beginning"
        passed(f"{name}: prefix hits by {by}, of one replica's", routed >= 0.9 * alone, f"{routed / alone:.2f}")


def killed(name, replicas, port, expected):
    """Every few seconds a replica is killed and started again."""
    def disturb(end):
        number = 0
        while time.monotonic() + KILL_INTERVAL < end:
            time.sleep(KILL_INTERVAL)
            one = replicas[number % len(replicas)]
            one.kill()
            one.start()
            wait_for(one.is_ready, "a replica that starts again")
            number += 1
        disturb.kills = number

    counts, wrong = under_load(port, expected, SECONDS, disturb)
    # A replica writes four texts at a time; vLLM's router loses those that wait for it, too.
    most = disturb.kills * (CLIENTS if name == "vllm" else 4)
    good = counts["same"] > 100 and counts["lost"] <= most and not counts["different"] + counts["wrong"]
    passed(f"{name}: {CLIENTS} clients, {disturb.kills} kills", good, f"{dict(counts)} {wrong[:3]}")


def restarted(name, replicas, port, expected):
    """All replicas are restarted in turn by SIGTERM."""
    def disturb(_):
        for one in replicas:
            time.sleep(0.3)
            one.process.send_signal(signal.SIGTERM)
            one.process.wait()
            one.start()
            wait_for(one.is_ready, "a replica that starts again")

    counts, wrong = under_load(port, expected, 0, disturb)
    good = counts["same"] > 100 and counts.total() == counts["same"]
    passed(f"{name}: all replicas restarted in turn", good, f"{dict(counts)} {wrong[:3]}")


def metrics(replica):
    """The page of metrics as vLLM's production stack reads it."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        return
    found = {}
    for family in text_string_to_metric_families(get(replica.port, "/metrics")[1]):
        found |= {sample.name: sample for sample in family.samples}
    names = ["num_requests_running", "num_requests_waiting", "gpu_prefix_cache_hit_rate", "gpu_prefix_cache_hits_total",
             "gpu_prefix_cache_queries_total", "gpu_cache_usage_perc", "kv_cache_usage_perc", "cache_config_info"]
    missing = [name for name in names if f"vllm:{name}" not in found]
    passed("names of vLLM's metrics that are missing", not missing, missing)
    labelled = all(found[f"vllm:{name}"].labels["model_name"] == "demo-target" for name in names)
    passed("metrics with the model's name", labelled and found["vllm:gpu_prefix_cache_queries_total"].value > 0, "all")


def main():
    binary, skipped, *names = sys.argv[1:]
    folder = Path(tempfile.mkdtemp())
    port, *ports = free_ports(4)
    replicas, router = [], None
    try:
        replicas += [Replica(binary, one, folder) for one in ports]
        wait_for(lambda: all(one.is_ready() for one in replicas), "three replicas")
        expected = {seed: ask(ports[0], request(seed, False)) for seed in range(40)}
        metrics(replicas[0])
        for name in names:
            log = (folder / f"{name}.log").open("w")
            router = subprocess.Popen(routers(folder, port, ports)[name], stdout=log, stderr=log)
            wait_for(lambda: get(port, "/health")[0] == 200, f"{name}: {(folder / f'{name}.log').read_text()[-500:]}")
            affinity(name, replicas, port)
            restarted(name, replicas, port, expected)
            killed(name, replicas, port, expected)
            router.terminate()
            router.wait()
        print(f"{passed.count} checks passed, {skipped} skipped")
    finally:
        for one in [*(replica.process for replica in replicas), *([router] if router else [])]:
            one.kill()
            one.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
