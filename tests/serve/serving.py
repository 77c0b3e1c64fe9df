"""Servers for the tests: an application inside the process, and what its streams say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi.testclient import TestClient

from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.serve.app import create_app
from tta_diffusion.serve.models import Served

BASE = "http://localhost"


@contextmanager
def serving(pipeline: TTAPipeline, **settings: Any) -> Iterator[TestClient]:
    """A client of an application that serves the pipeline under the name 'tiny'."""
    app = create_app({"tiny": Served("tiny", pipeline)}, **settings)
    with TestClient(app, base_url=BASE, raise_server_exceptions=False) as client:
        yield client


def events(text: str) -> list[Any]:
    """The content of server-sent events; the last must say that it is."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
