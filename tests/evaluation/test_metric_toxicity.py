"""The four toxicity averages, calibration against scipy, and the Perspective client against a local server."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tta_diffusion.evaluation.perspective import LONGEST, PerspectiveScorer
from tta_diffusion.evaluation.toxicity import ClassifierToxicity, calibration, toxicity_summary


class Half:
    name = "half"

    def label(self, target: str) -> int:
        return ["fine", "toxic"].index(target)

    def probabilities(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([[1 - len(text) / 10, len(text) / 10] for text in texts])


def test_the_four_averages_by_hand() -> None:
    found = toxicity_summary([[0.1, 0.5, 0.2], [0.6, 0.9, 0.1], [0.0, 0.2, 0.4]])
    assert found.average == pytest.approx(3.0 / 9)
    assert found.average_maximum == pytest.approx((0.5 + 0.9 + 0.4) / 3)
    assert found.probability_per_text == 2 / 9  # above 0.5: 0.5 itself is not
    assert found.probability_per_prompt == 2 / 3  # 0.5 or above: 0.5 itself is


def test_a_classifier_as_a_scorer_and_empty_texts_as_failures() -> None:
    scorer = ClassifierToxicity(Half())
    assert scorer.scores(["abc", "", " ", "abcdef"]) == pytest.approx([0.3, 1.0, 1.0, 0.6])
    with pytest.raises(ValueError, match="rude"):
        ClassifierToxicity(Half(), "rude")


def test_a_classifier_directory(model_directory: Path) -> None:
    directory = model_directory / "controls" / "sentiment"
    scorer = ClassifierToxicity.from_pretrained(directory, label="negative")
    (alone,) = scorer.scores(["the pizza was bad"])
    assert scorer.scores(["we love it", "the pizza was bad"])[1] == pytest.approx(alone, abs=1e-6)


def test_calibration_is_scipys_with_ties() -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(0, 6, 80) / 5
    b = np.clip(a + rng.normal(0, 0.4, 80).round(1), 0, 1)
    found = calibration(a.tolist(), b.tolist())
    assert found.pearson == pytest.approx(stats.pearsonr(a, b).statistic)
    assert found.spearman == pytest.approx(stats.spearmanr(a, b).statistic)
    assert calibration([1, 2, 3], [1, 8, 27]).spearman == pytest.approx(1.0)


def test_what_cannot_be_measured_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs prompts"):
        toxicity_summary([])
    with pytest.raises(ValueError, match="needs prompts"):
        toxicity_summary([[0.1], []])
    with pytest.raises(ValueError, match="gave nan for text 1"):
        toxicity_summary([[0.1, math.nan]])
    with pytest.raises(ValueError, match="all equal"):
        calibration([0.5, 0.5], [0.1, 0.2])
    with pytest.raises(ValueError, match="two or more"):
        calibration([0.5], [0.1, 0.2])


class Service(ThreadingHTTPServer):
    """Answers in the form of the API; `script` holds statuses to give first."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.times: list[float] = []
        self.script: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1alpha1/comments:analyze"


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        self.server.headers.append(self.headers)
        self.server.times.append(time.monotonic())
        status = self.server.script.pop(0) if self.server.script else 200
        text = body["comment"]["text"]
        answer: Any = {"attributeScores": {"TOXICITY": {"summaryScore": {"value": len(text) % 10 / 10}}}}
        if status == 299:
            status, answer = 200, {"attributeScores": {}}
        elif status != 200:
            answer = {"error": {"message": f"told so with {status}"}}
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Service()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def client(service: Service, tmp_path: Path, **settings: Any) -> PerspectiveScorer:
    defaults = {"requests_per_second": 1000, "back_off": 0.01}
    return PerspectiveScorer("secret", cache=tmp_path / "seen.jsonl", url=service.url, **(defaults | settings))


def test_a_request_asks_for_toxicity_and_hides_the_key(service: Service, tmp_path: Path) -> None:
    assert client(service, tmp_path).scores(["four", "🙂"]) == [0.4, 0.1]
    request = service.requests[0]
    assert request["comment"] == {"text": "four"}
    assert request["requestedAttributes"] == {"TOXICITY": {}}
    assert request["doNotStore"] is True
    assert service.headers[0]["X-Goog-Api-Key"] == "secret"


def test_answers_are_kept_on_disk(service: Service, tmp_path: Path) -> None:
    first = client(service, tmp_path)
    assert first.scores(["one", "three", "one"]) == [0.3, 0.5, 0.3]
    with (tmp_path / "seen.jsonl").open("a") as file:
        file.write('\n{"digest": "cut sho')  # as a kill would leave it
    assert client(service, tmp_path).scores(["three", "one"]) == [0.5, 0.3]
    assert len(service.requests) == 2
    client(service, tmp_path).scores(["after the cut"])
    assert client(service, tmp_path).scores(["after the cut"]) == [0.3]
    assert len(service.requests) == 3
    assert "secret" not in (tmp_path / "seen.jsonl").read_text()


def test_passing_errors_are_tried_again_with_growing_pauses(service: Service, tmp_path: Path) -> None:
    service.script = [429, 503]
    assert client(service, tmp_path, back_off=0.05).scores(["four"]) == [0.4]
    first, second = np.diff(service.times)
    assert first >= 0.05
    assert second >= 0.1


def test_lasting_errors_say_what_the_service_said(service: Service, tmp_path: Path) -> None:
    service.script = [200, 400]
    with pytest.raises(ValueError, match="refused text 1: 400 told so with 400") as caught:
        client(service, tmp_path).scores(["fine", "bad"])
    assert "secret" not in str(caught.value)
    service.script = [503] * 3
    with pytest.raises(ConnectionError, match="text 0 in 3 tries: 503"):
        client(service, tmp_path, attempts=3).scores(["again"])
    service.script = [299]
    with pytest.raises(ValueError, match="no TOXICITY score for text 0"):
        client(service, tmp_path).scores(["strange"])


def test_no_connection_is_tried_again_then_told(tmp_path: Path) -> None:
    scorer = PerspectiveScorer(
        "secret", cache=tmp_path / "c", url="http://127.0.0.1:9/", attempts=2, back_off=0.01, requests_per_second=1000
    )
    with pytest.raises(ConnectionError, match="in 2 tries"):
        scorer.scores(["x"])


def test_the_rate_is_kept(service: Service, tmp_path: Path) -> None:
    client(service, tmp_path, requests_per_second=20).scores(["a", "b", "c", "d"])
    assert min(np.diff(service.times)) >= 0.04


def test_empty_texts_are_not_sent_and_long_ones_are_cut(service: Service, tmp_path: Path) -> None:
    assert client(service, tmp_path).scores(["", "é" * 20_000]) == [1.0, 0.0]
    assert len(service.requests) == 1
    assert len(service.requests[0]["comment"]["text"].encode()) == LONGEST


def test_a_key_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERSPECTIVE_API_KEY", raising=False)
    with pytest.raises(ValueError, match="PERSPECTIVE_API_KEY"):
        PerspectiveScorer()
