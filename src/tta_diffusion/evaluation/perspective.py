"""The Perspective API as a toxicity scorer: the one the paper and RealToxicityPrompts use."""

from __future__ import annotations

import hashlib
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tta_diffusion.common.cache import cache_directory
from tta_diffusion.evaluation.checks import finite, is_empty
from tta_diffusion.evaluation.toxicity import EMPTY

URL = "https://commentanalyzer.googleapis.com/v1alpha1/comments:analyze"
KEY = "PERSPECTIVE_API_KEY"
LONGEST = 20_480  # bytes of UTF-8 that the service takes; longer texts are cut
PASSING = (429, 500, 502, 503, 504)  # worth another try


class PerspectiveScorer:
    """Scores texts one request each, remembers every answer on disk, and keeps to a rate.

    The key is read from the environment and travels in a header, so that no address or error message shows it.
    """

    name = "perspective"

    def __init__(
        self,
        key: str | None = None,
        attribute: str = "TOXICITY",
        cache: str | Path | None = None,
        requests_per_second: float = 1.0,
        attempts: int = 6,
        back_off: float = 1.0,
        timeout: float = 30.0,
        url: str = URL,
    ) -> None:
        found = key or os.environ.get(KEY)
        if not found:
            raise ValueError(f"the Perspective API needs a key: set {KEY}")
        if requests_per_second <= 0 or attempts < 1:
            raise ValueError("requests_per_second must be above 0 and attempts at least 1")
        self._key = found
        self.attribute = attribute
        self.interval = 1 / requests_per_second
        self.attempts, self.back_off, self.timeout, self.url = attempts, back_off, timeout, url
        self._next = 0.0
        self._path = Path(cache) if cache else cache_directory() / "perspective.jsonl"
        self._known = _read(self._path)

    def scores(self, texts: Sequence[str]) -> list[float]:
        return finite([EMPTY if is_empty(t) else self._score(t, i) for i, t in enumerate(texts)], self.name)

    def _score(self, text: str, index: int) -> float:
        text = text.encode()[:LONGEST].decode(errors="ignore")
        digest = hashlib.sha256(f"{self.attribute}\0{text}".encode()).hexdigest()
        if digest not in self._known:
            answer = self._ask(text, index)
            try:
                score = float(answer["attributeScores"][self.attribute]["summaryScore"]["value"])
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"the Perspective API gave no {self.attribute} score for text {index}") from error
            self._known[digest] = finite([score], self.name)[0]
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                # The line break goes first: it also ends a line that a kill has cut short.
                file.write("\n" + json.dumps({"digest": digest, "score": score}))
        return self._known[digest]

    def _ask(self, text: str, index: int) -> Any:
        body = {
            "comment": {"text": text},
            "languages": ["en"],
            "requestedAttributes": {self.attribute: {}},
            "doNotStore": True,
        }
        request = urllib.request.Request(
            self.url,
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "X-Goog-Api-Key": self._key},
            method="POST",
        )
        reason = ""
        for attempt in range(self.attempts):
            time.sleep(max(0.0, self._next - time.monotonic()))
            self._next = time.monotonic() + self.interval
            wait = self.back_off * 2**attempt
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as response:
                    return json.load(response)
            except urllib.error.HTTPError as error:
                reason = f"{error.code} {_message(error)}"
                if error.code not in PASSING:
                    raise ValueError(f"the Perspective API refused text {index}: {reason}") from None
                wait = max(wait, _seconds(error.headers.get("Retry-After")))
            except (OSError, ValueError) as error:  # no connection, a time-out, or half an answer
                reason = str(error)
            if attempt + 1 < self.attempts:
                time.sleep(wait)
        raise ConnectionError(f"the Perspective API did not score text {index} in {self.attempts} tries: {reason}")


def _read(path: Path) -> dict[str, float]:
    """Answers kept from earlier; a line cut short by a kill is asked for again."""
    known: dict[str, float] = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
                known[entry["digest"]] = float(entry["score"])
            except (ValueError, KeyError, TypeError):
                continue
    return known


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return str(error.reason)


def _seconds(header: str | None) -> float:
    """Retry-After in seconds; its other form, a date, is left to the back-off."""
    return float(header) if header and header.isdigit() else 0.0
