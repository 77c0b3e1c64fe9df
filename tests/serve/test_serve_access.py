"""Who gets in, and what a request can reach: with a token nobody without it, and never a path that it names."""

from __future__ import annotations

import logging
import sys

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

from serving import serving

from tta_diffusion.serve.auth import Access
from tta_diffusion.serve.logs import JsonLines

TOKEN = "s3cret-ü"


@pytest.fixture(scope="module")
def locked(pipeline):
    with serving(pipeline, access=Access(TOKEN)) as found:
        yield found


def bearer(token):
    return {"Authorization": f"Bearer {token}".encode()}


def routes(client):
    found = [(route.path, sorted(route.methods)[-1]) for route in client.app.routes]
    assert len(found) > 10
    return found


def test_nobody_without_the_token_gets_in(locked):
    for path, method in routes(locked):
        for headers in ({}, bearer("wrong"), bearer(""), bearer(TOKEN[:-1]), {"Authorization": TOKEN.encode()}):
            answer = locked.request(method, path, headers=headers)
            public = path in ("/", "/healthz") or path.startswith("/page/")
            assert (answer.status_code != 401) == public, path
    assert locked.get("/nothing").status_code == 401
    assert locked.get("/v1/models").headers["www-authenticate"] == "Bearer"


def test_the_token_opens(locked):
    assert locked.get("/v1/models", headers=bearer(TOKEN)).status_code == 200
    body = {"prompt": "we", "steps": 2}
    assert locked.post("/v1/completions", json=body, headers=bearer(TOKEN)).status_code == 200


def test_without_a_token_only_this_machine_is_a_host(pipeline):
    with serving(pipeline) as client:
        for host, status in (("localhost:8000", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("evil.example", 403)):
            assert client.get("/v1/models", headers={"Host": host}).status_code == status
    with serving(pipeline, access=Access(local=False)) as client:
        assert client.get("/v1/models", headers={"Host": "evil.example"}).status_code == 200


OPENED: list[str] = []
WATCHING = False


def watch(event, arguments):
    if WATCHING and event in ("open", "os.listdir", "os.scandir", "os.remove", "os.rename", "os.mkdir"):
        OPENED.append(str(arguments[0]))


def test_no_path_that_a_request_names_is_touched(pipeline, model_directory, tmp_path, monkeypatch):
    global WATCHING
    secret = tmp_path / "secret"
    (secret / "controls").mkdir(parents=True)
    (secret / "config.json").write_text("{}")
    classifier = model_directory / "controls" / "sentiment"
    monkeypatch.chdir(tmp_path)
    sys.addaudithook(watch)
    named = [str(secret), "secret", "./secret", str(classifier), f"file://{secret}", "../../etc/passwd", "org/model"]
    with serving(pipeline) as client:
        client.post("/v1/completions", json={"prompt": "we", "steps": 2, "control": "sentiment=positive"})
        WATCHING = True
        try:
            for name in named:
                for body in (
                    {"control": f"{name}=positive"},
                    {"control": [f"sentiment={name}"]},
                    {"model": name},
                    {"allocation": name},
                    {"grid": name},
                    {"feedback": name},
                ):
                    assert client.post("/v1/completions", json=body).status_code in (400, 404)
                assert client.post("/v1/completions", json={"prompt": name, "steps": 1}).status_code in (200, 400)
                for path in (f"/page/{name}", f"/page/..%2f..{name}", f"/{name}", f"/v1/models/{name}"):
                    assert client.get(path).status_code == 404
        finally:
            WATCHING = False
    assert not [path for path in OPENED if "secret" in path or "passwd" in path or "controls" in path]


def test_a_log_line_is_json_without_the_text(pipeline, caplog):
    import json

    caplog.set_level(logging.INFO, logger="tta_diffusion.serve")
    logging.getLogger("tta_diffusion.serve").propagate = True
    with serving(pipeline) as client:
        found = client.post("/v1/completions", json={"prompt": "we love pizza", "steps": 2, "n": 2})
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records]
    (line,) = [line for line in lines if line["event"] == "request"]
    assert line["id"] == found.headers["x-request-id"]
    assert (line["route"], line["status"], line["texts"], line["model"]) == ("/v1/completions", 200, 2, "tiny")
    assert "pizza" not in json.dumps(lines)


@pytest.mark.parametrize("host", ["not a host", "a..b", "203.0.113.7"])
def test_a_host_that_is_not_ours_is_not_blamed_on_the_port(host: str) -> None:
    server = pytest.importorskip("tta_diffusion.serve.server")
    with pytest.raises(ValueError, match=f"cannot listen on '{host}'.*Choose another --host"):
        server.bind(host, 0)
