"""`tta serve` under load: a real process, real HTTP.

    python benchmarks/serve_load.py                          # the shipped model
    python benchmarks/serve_load.py --model DIR --steps 20

1. Many requests at once, of several prompts and manners: every answer must be the text that the pipeline writes alone
   for the same prompt, seed and settings.
2. SIGTERM under load: every request is answered whole, or refused; none is cut off.
3. Requests of nonsense: no answer of 500 or above, and memory that does not grow.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tta_diffusion.serve.schema import Completion, Infill, Rewrite

OPENINGS = ("The pizza", "The lake", "The movie", "Once upon a time", "The city", "The book", "We", "")
HEADERS = {"Content-Type": "application/json"}


class Process:
    """A server of its own; `with Process("--model", DIR) as server`."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        command = [sys.executable, "-m", "tta_diffusion.cli.main", "serve", "--port", "0", *arguments]
        self.process = subprocess.Popen(
            command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("Open "):
            raise RuntimeError(f"the server did not start: {' '.join(command)}")
        self.url = line.removeprefix("Open ").strip()
        self.port = int(self.url.rpartition(":")[2])

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *args: object) -> None:
        if self.process.poll() is None:
            self.stop()

    def stop(self, seconds: float = 120.0) -> int:
        """Told to end; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=seconds)

    def send(
        self, method: str, path: str, body: Any = None, timeout: float = 3600.0, **headers: str
    ) -> tuple[int, bytes]:
        """Status and body; 0 where nobody listens any more. A body that is cut off is an error."""
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, raw, (HEADERS if raw is not None else {}) | headers)
        except ConnectionRefusedError:
            return 0, b""
        try:
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def write(self, path: str = "/v1/completions", **body: Any) -> dict[str, Any]:
        status, answer = self.send("POST", path, body)
        if status != 200:
            raise RuntimeError(f"{status}: {answer.decode()}")
        return dict(json.loads(answer))

    @property
    def memory(self) -> float:
        """Resident, in MB."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("the process has ended")


def requests(count: int, steps: int, control: str = "sentiment=negative") -> list[dict[str, Any]]:
    """Prompts, seeds and manners in turns; no two alike."""
    return [
        {
            "prompt": OPENINGS[i % len(OPENINGS)],
            "seed": i,
            "steps": steps,
            **({"control": [control]} if i % 4 == 0 else {}),
            **({"allocation": "linear"} if i % 4 == 1 else {}),
        }
        for i in range(count)
    ]


ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        -1,
        1,
        3,
        10**30,
        -(2**70),
        0.5,
        -0.0,
        1e308,
        "",
        "x",
        "the",
        "\x00",
        "\ud800",
        "é" * 50,
        "a" * 5000,
    ),
    *([], {}, ["the"], [[]], [["the", 1]], [[0, 2]], [5, 5], {"a": {"b": []}}, "guided", "information", "a" * 5000),
    *("top-k:inf", "random:nan", "adaptive:0.6", "matched(matched(linear))", "sentiment=negative", "length=3", "a=b@c"),
    *("../../etc/passwd=0", "/etc=passwd", "keywords=,", "infill=[1]", "infill=[999999999999]", "the [2] .", "</s>"),
    *("sentiment=positive@nan", "sentiment=positive@1e9", "<pad><s></s>"),
)
FIELDS = sorted(
    {*Completion.model_fields, *Rewrite.model_fields, *Infill.model_fields, "user", "best_of", "promt", "__class__"}
)
PATHS = ("/v1/completions", "/v1/rewrite", "/v1/infill")
ODD_PATHS = ("/v1/models", "/v1/models/../../etc/passwd", "/page/../../../etc/passwd", "/page/%2e%2e/a", "/v1", "/x")
METHODS = ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")


def fuzzed(source: random.Random) -> tuple[str, str, bytes]:
    """A request of nonsense, or nearly right: method, path and body."""
    path = source.choice(PATHS if source.random() < 0.9 else ODD_PATHS)
    method = "POST" if source.random() < 0.95 else source.choice(METHODS)
    right = {"/v1/rewrite": {"text": "the pizza was good"}, "/v1/infill": {"template": "the [2] ."}}
    body: Any = {"steps": 2, "seed": 1} | right.get(path, {})
    body |= {name: source.choice(ODD) for name in source.sample(FIELDS, source.randint(0, 3))}
    raw = json.dumps(body if source.random() < 0.95 else source.choice(ODD)).encode()
    if source.random() < 0.1:  # cut, or torn
        place = source.randrange(len(raw) + 1)
        raw = raw[:place] + source.choice([b"", b"\xff\xfe", b"NaN", b"[" * 2000, b"9" * 5000])
    return method, path, raw


def texts_match(server: Process, count: int, steps: int, model: str | None) -> None:
    from tta_diffusion.pipeline import TTAPipeline

    asked = requests(count, steps)
    began = time.monotonic()
    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(lambda body: server.write(**body), asked))
    took = time.monotonic() - began
    pipeline = TTAPipeline.from_pretrained(model)
    wanted = [pipeline(**body).texts[0] for body in asked]
    found = [answer["choices"][0]["full_text"] for answer in answers]
    for body, text, own in zip(asked, found, wanted, strict=True):
        if text != own:
            print(f"{body}\n  server:   {text}\n  pipeline: {own}", file=sys.stderr)
    same = sum(text == own for text, own in zip(found, wanted, strict=True))
    print(
        f"| {count} requests at once | {len(answers)} answered in {took:.0f} s, {same} with the pipeline's own text |"
    )


def stops_whole(server: Process, count: int, steps: int) -> None:
    with ThreadPoolExecutor(count) as pool:
        found = [pool.submit(server.send, "POST", "/v1/completions", body) for body in requests(count, steps)]
        time.sleep(3)
        code = server.stop(3600)
        answers = [one.result() for one in found]
    whole = sum(status == 200 and len(json.loads(raw)["choices"]) == 1 for status, raw in answers)
    refused = sum(status in (0, 503) for status, _ in answers)
    print(
        f"| SIGTERM, {count} requests open | {whole} finished, {refused} refused, {count - whole - refused} cut off |"
    )
    print(f"| exit status | {code} |")


def survives(server: Process, count: int) -> None:
    source = random.Random(0)
    for _ in range(500):  # classifiers are loaded, caches filled
        server.send(*fuzzed(source))
    before, statuses = server.memory, Counter[int]()
    for _ in range(count):
        statuses[server.send(*fuzzed(source))[0]] += 1
    print(f"| {count} fuzzed requests | {', '.join(f'{n} x {status}' for status, n in sorted(statuses.items()))} |")
    print(f"| memory | {before:.0f} MB before, {server.memory:.0f} MB after |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default=None)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--fuzz", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    arguments = ["--timeout", "3600", *(["--model", given.model] if given.model else [])]
    print("| what | found |\n|---|---|")
    with Process(*arguments) as server:
        texts_match(server, given.requests, given.steps, given.model)
        survives(server, given.fuzz)
        stops_whole(server, 60, 10 * given.steps)


if __name__ == "__main__":
    main()
