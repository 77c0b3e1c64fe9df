"""The command as a process: real HTTP, many at once, clients that leave, signals, nonsense, OpenAI's own client."""

from __future__ import annotations

import http.client
import json
import random
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from serve_load import Process, fuzzed, requests

from tta_diffusion.cli.main import main

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(model_directory):
    with Process("--model", str(model_directory), OMP_NUM_THREADS="1") as found:
        yield found


def counter(server, name):
    found = re.search(rf"^{name} ([\d.]+)$", server.send("GET", "/metrics")[1].decode(), re.M)
    return float(found[1])


def until(true, seconds=20.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_many_at_once_get_their_own_texts(server, pipeline):
    asked = requests(20, steps=5)
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda body: server.write(**body), asked))
    assert [one["choices"][0]["full_text"] for one in answers] == [pipeline(**body).texts[0] for body in asked]
    assert counter(server, "tta_texts_total") >= 20


def test_the_command_line_writes_the_same(server, model_directory):
    words = ["generate", "the pizza", "--control", "sentiment=negative", "--seed", "7", "--steps", "5"]
    command = [sys.executable, "-m", "tta_diffusion.cli.main", *words, "--model", str(model_directory)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    body = {"prompt": "the pizza", "control": ["sentiment=negative"], "seed": 7, "steps": 5}
    assert server.write(**body)["choices"][0]["full_text"] == told


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_cancels_its_work(server, stream):
    left = counter(server, "tta_left_total")
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    body = json.dumps({"prompt": "we", "steps": 1000, "n": 16, "stream": stream, "temperature": 5})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    if stream:
        answer = connection.getresponse()
        assert json.loads(answer.readline().removeprefix(b"data: "))["choices"][0]["draft"]["step"] == 1
    else:
        time.sleep(0.3)
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
    until(lambda: counter(server, "tta_left_total") == left + 1)
    assert server.write(prompt="we", steps=2)  # the worker is free again


def test_nonsense_breaks_nothing(server):
    source = random.Random(1)
    answers = [(asked := fuzzed(source), server.send(*asked)) for _ in range(250)]
    assert [(asked, status) for asked, (status, _) in answers if not 200 <= status < 500] == []
    assert sum(status == 200 for _, (status, _) in answers) > 20
    assert server.write(prompt="we", steps=2)


def test_openais_client_understands_us(server):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    asked = {"model": client.models.list().data[0].id, "prompt": "the pizza", "seed": 7, "max_tokens": 8}
    more = {"control": ["sentiment=positive"], "steps": 4}
    whole = client.completions.create(**asked, n=2, extra_body=more)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert whole.choices[0].text
    assert 0 < whole.usage.completion_tokens <= 16
    parts = list(client.completions.create(**asked, stream=True, extra_body=more))
    assert "".join(choice.text for part in parts for choice in part.choices) == whole.choices[0].text
    with pytest.raises(openai.BadRequestError, match="Unknown control"):
        client.completions.create(**asked, extra_body={"control": "mood=good"})


def test_a_signal_under_load_finishes_or_refuses(model_directory):
    token = "only in the environment"
    environment = {"TTA_SERVE_TOKEN": token, "OMP_NUM_THREADS": "1"}
    with Process("--model", str(model_directory), **environment) as server:

        def send(body, **more):
            return server.send("POST", "/v1/completions", body, Authorization=f"Bearer {token}")

        assert server.send("POST", "/v1/completions", {"prompt": "we", "steps": 2})[0] == 401
        bodies = [body | {"stream": i % 2 == 1} for i, body in enumerate(requests(40, steps=120))]
        with ThreadPoolExecutor(40) as pool:
            found = [pool.submit(send, body) for body in bodies]
            time.sleep(1)
            server.process.send_signal(signal.SIGTERM)
            until(lambda: server.send("GET", "/healthz")[0] in (503, 0))
            late = send({"prompt": "we", "steps": 2})
            answers = [one.result() for one in found]
        assert server.process.wait(60) == 0
    assert late[0] in (503, 0)
    finished = [raw for status, raw in answers if status == 200]
    assert all(raw.endswith(b"data: [DONE]\n\n") or json.loads(raw)["choices"] for raw in finished)
    assert {status for status, _ in answers} <= {200, 503}
    assert finished
    assert len(finished) < len(answers)


def test_wrong_starts_are_one_sentence(model_directory, server, capsys):
    for words, message in (
        (["--model", str(model_directory), "--port", str(server.port)], "Choose another --port"),
        (["--token", ""], "the token is empty"),
        (["--model", "/no/such/model", "--port", "0"], "no model at '/no/such/model'"),
    ):
        assert main(["serve", *words]) == 2
        assert message in capsys.readouterr().err
