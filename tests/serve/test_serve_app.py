"""The application: shapes, texts, drafts, errors, limits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

import torch
from serving import events, serving

from conftest import LENGTH, tiny_backbone
from tta_diffusion.control.parse import parse_controls
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.token_model import TokenDenoiser
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.serve.limits import Limits
from tta_diffusion.serve.models import Served

MOOD = "sentiment=positive"


@pytest.fixture(scope="module")
def client(pipeline):
    with serving(pipeline, limits=Limits(seconds=60)) as found:
        yield found


def write(client, path="/v1/completions", **body):
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_completion_is_the_pipelines_text(client, pipeline):
    found = write(client, prompt="the pizza", control=[MOOD], n=2, seed=7, steps=4)
    wanted = pipeline("the pizza", control=MOOD, num_samples=2, seed=7, steps=4)
    choices = found["choices"]
    assert [choice["full_text"] for choice in choices] == wanted.texts
    assert [choice["text"] for choice in choices] == [text.removeprefix("the pizza") for text in wanted.texts]
    assert [choice["seed"] for choice in choices] == [7, 8]
    assert [choice["index"] for choice in choices] == [0, 1]
    assert (found["object"], found["model"]) == ("text_completion", "tiny")
    usage = found["usage"]
    assert usage["prompt_tokens"] == 4
    assert usage["completion_tokens"] == sum(len(choice["pieces"]) - 2 for choice in choices)
    assert all("".join(choice["pieces"]) == choice["full_text"] for choice in choices)


def test_a_control_given_twice_pushes_twice_as_in_the_pipeline(client, pipeline):
    once, twice = (
        write(client, prompt="the pizza", control=[MOOD] * times, seed=7, steps=4, strength=20)["choices"][0]
        for times in (1, 2)
    )
    assert twice["full_text"] == pipeline("the pizza", control=[MOOD, MOOD], seed=7, steps=4, strength=20).texts[0]
    assert twice["full_text"] != once["full_text"]
    assert twice["p"].keys() == once["p"].keys() == {MOOD}


def test_a_weight_of_one_is_told_to_a_control_that_brings_another(model_directory, tmp_path):
    directory = Path(shutil.copytree(model_directory, tmp_path / "model"))
    words = {"words": {"negative": ["hate", "bad"], "positive": ["love", "great"]}}
    (directory / "controls" / "sentiment" / "words.json").write_text(json.dumps(words))
    served = Served("tiny", TTAPipeline.from_pretrained(directory))
    library = served.pipeline.library
    for weight in ("", "@1", "@1.0", "@0.1234567", "@-2"):
        ((_, ours),) = parse_controls(served.control(f"sentiment=Positive{weight}"), library)
        ((_, wanted),) = parse_controls(f"sentiment=positive{weight}", library)
        assert ours == wanted
    assert served.control("sentiment=positive@1") == served.control("sentiment=positive@1.0")


def test_several_prompts_share_the_seed(client, pipeline):
    found = write(client, prompt=["the lake", "we"], n=2, seed=3, steps=3)
    assert [one["full_text"] for one in found["choices"]] == pipeline(
        ["the lake", "we"], num_samples=2, seed=3, steps=3
    ).texts


def test_a_seed_is_drawn_and_told(client):
    first = write(client, prompt="we", steps=3)["choices"][0]
    again = write(client, prompt="we", steps=3, seed=first["seed"])["choices"][0]
    assert again["full_text"] == first["full_text"]


def test_variety_and_candidates(client, pipeline):
    for more in ({"variety": 2.0}, {"candidates": 3, "control": [MOOD]}):
        found = write(client, prompt="we", n=3, seed=1, steps=4, **more)
        assert [one["full_text"] for one in found["choices"]] == pipeline(
            "we", num_samples=3, seed=1, steps=4, **more
        ).texts


def test_max_tokens_stop_and_echo(client):
    asked = {"prompt": "the pizza", "seed": 7, "steps": 3}
    short = write(client, **asked, max_tokens=4)
    assert short["usage"]["completion_tokens"] <= 4
    assert short["choices"][0]["finish_reason"] == "length"
    text = short["choices"][0]["text"]
    assert write(client, **asked, max_tokens=4, echo=True)["choices"][0]["text"] == "the pizza" + text
    word = text.split()[1]
    cut = write(client, **asked, max_tokens=4, stop=[word])["choices"][0]
    assert (cut["text"], cut["finish_reason"]) == (text[: text.index(word)], "stop")


def test_a_long_text_is_that_of_the_pipeline_with_drafts_of_the_whole(client, pipeline):
    asked = {"prompt": "the pizza", "seed": 7, "steps": 3}
    whole = pipeline("the pizza", seed=7, steps=3, max_length=1 + 2 + 30).texts[0]
    assert write(client, **asked, max_tokens=30)["choices"][0]["full_text"] == whole
    found = write(client, **asked, control="length=29")["choices"][0]
    assert found["full_text"] == pipeline("the pizza", "length=29", seed=7, steps=3).texts[0]
    assert len(found["full_text"].split()) == 29
    answer = client.post("/v1/completions", json=asked | {"max_tokens": 30, "stream": True})
    drafts = [one["draft"] for event in events(answer.text) for one in event["choices"] if "draft" in one]
    assert len({draft["steps"] for draft in drafts}) == 1
    assert drafts[-1]["step"] == drafts[-1]["steps"]
    assert "".join(drafts[-1]["tokens"]) == whole
    for more in ({"max_tokens": 2000}, {"control": "length=1500"}):
        refused = client.post("/v1/completions", json=asked | more)
        assert refused.status_code == 400
        assert "the tokens of a text, prompt included, must be at most 1024" in refused.text
    refused = client.post("/v1/completions", json=asked | {"max_tokens": 1000, "n": 16, "steps": 100})
    assert "texts times candidates times steps (of every block of a long text) must be at most 50000" in refused.text


def test_a_stream_has_the_draft_of_every_step(client, pipeline):
    asked = {"prompt": "the pizza", "control": [MOOD], "seed": 7, "steps": 6}
    answer = client.post("/v1/completions", json=asked | {"stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = events(answer.text)
    output = pipeline("the pizza", control=MOOD, seed=7, steps=6, return_trace=True)
    trace = output.traces[0]
    drafts = [choice["draft"] for event in found for choice in event["choices"] if "draft" in choice]
    assert [draft["step"] for draft in drafts] == list(range(1, len(trace.u) + 1))
    assert [draft["u"] for draft in drafts] == [round(u, 4) for u in trace.u.tolist()]
    assert [draft["p"][MOOD] for draft in drafts] == pytest.approx(trace.probability["sentiment"]["after"], abs=1e-3)
    for step, draft in enumerate(drafts):
        count = len(draft["tokens"])
        assert draft["given"] == [0, 1]
        assert draft["times"] == pytest.approx(trace.times[step, 1 : 1 + count].tolist(), abs=1e-3)
        top = sorted((trace.importance[step] * ~trace.pinned).argsort(kind="stable")[-5:].tolist())
        assert set(draft["keys"]) <= {place - 1 for place in top}
    assert "".join(drafts[-1]["tokens"]) == output.texts[0]
    # Whoever joins the texts of the chunks has the completion.
    joined = "".join(choice["text"] for event in found for choice in event["choices"])
    assert "the pizza" + joined == output.texts[0]


def test_a_stream_of_several_texts(client, pipeline):
    asked = {"prompt": ["we", "the lake"], "n": 5, "seed": 2, "steps": 3}  # more than a batch of 8
    answer = client.post("/v1/completions", json=asked | {"stream": True, "stream_options": {"include_usage": True}})
    *drafts, texts, usage = events(answer.text)
    assert {choice["index"] for event in drafts for choice in event["choices"]} == set(range(10))
    wanted = pipeline(asked["prompt"], num_samples=5, seed=2, steps=3).texts
    assert [choice["full_text"] for choice in texts["choices"]] == wanted
    for event in drafts:
        for choice in event["choices"]:
            if choice["draft"]["step"] == 3:
                assert "".join(choice["draft"]["tokens"]) == wanted[choice["index"]]
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] > 0


@pytest.mark.parametrize("keep", [["pizza"], [[4, 9]], [[5, 6]]])
def test_a_rewriting_keeps_what_it_should(client, pipeline, keep):
    body = {"text": "the pizza was bad", "time": 0.9, "seed": 5, "steps": 4, "control": [MOOD], "n": 2}
    found = write(client, "/v1/rewrite", **body, keep=keep)
    wanted = pipeline.rewrite("the pizza was bad", [0.9, 0, 0.9, 0.9], control=MOOD, num_samples=2, seed=5, steps=4)
    assert [choice["full_text"] for choice in found["choices"]] == wanted.texts
    assert all(choice["text"].split()[1] == "pizza" for choice in found["choices"])


def test_a_long_text_is_rewritten(client, pipeline):
    text = "the pizza was bad . i hate this place and " * 3
    body = {"text": text.strip(), "time": 0.6, "seed": 5, "steps": 4, "keep": ["pizza"]}
    found = write(client, "/v1/rewrite", **body)["choices"][0]["full_text"]
    times = [0.0 if word == "pizza" else 0.6 for word in text.split()]
    assert found == pipeline.rewrite(text.strip(), times, seed=5, steps=4).texts[0]
    for more, said in (
        ({"text": "we " * 1024, "keep": []}, "the tokens of a text, prompt included, must be at most 1024"),
        ({"text": "we " * 900, "keep": [], "n": 16, "steps": 100}, "(of every block of a long text) must be at most"),
    ):
        refused = client.post("/v1/rewrite", json=body | more)
        assert (refused.status_code, said in refused.text) == (400, True), refused.text


def test_null_is_a_field_left_out(client):
    nothing = dict.fromkeys(("control", "n", "stream", "echo", "stop", "max_tokens", "temperature", "stream_options"))
    asked = {"prompt": "the pizza", "seed": 7, "steps": 2}
    assert write(client, **asked, **nothing)["choices"] == write(client, **asked)["choices"]
    answer = client.post("/v1/rewrite", json={"text": None})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "'text': Field required")


def test_infilling(client, pipeline):
    found = write(client, "/v1/infill", template="the pizza [3] but [2].", seed=5, steps=4)
    assert (
        found["choices"][0]["text"] == pipeline("", control="infill=the pizza [3] but [2].", seed=5, steps=4).texts[0]
    )
    words = write(client, "/v1/infill", template="the pizza [20] but [2].", seed=5, steps=2)["choices"][0][
        "text"
    ].split()
    assert (len(words), words[:2], words[22], words[-1]) == (26, ["the", "pizza"], "but", "."), "beyond the window"


def test_what_openai_clients_send_and_we_ignore(client):
    write(client, prompt="we", steps=2, user="me", best_of=1, presence_penalty=0, logprobs=None, model="tiny")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"promt": "we"}, "Unknown field 'promt'. Did you mean 'prompt'?"),
        ({"prompt": 3}, "'prompt'"),
        ({"prompt": []}, "no prompt"),
        ({"prompt": [1, 2]}, "'prompt'"),
        ({"prompt": "the " * 20}, "the prompt has 20 tokens, but the text at most 15"),
        ({"n": 0}, "'n'"),
        ({"n": True}, "'n'"),
        ({"seed": 2**63}, "'seed'"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"temperature": -1}, "temperature must be at least 0"),
        ({"allocation": "adaptve"}, "Unknown allocation policy 'adaptve'. Did you mean 'adaptive'?"),
        ({"allocation": "top-k:inf"}, "out of range"),
        ({"grid": "log"}, "Unknown time grid"),
        ({"feedback": "none"}, "feedback must be guided, plain or a share"),
        ({"compute": "settled:-1"}, "a probability is above 0 and at most 1"),
        ({"control": "sentiment"}, "is not a control"),
        ({"control": "mood=good"}, "Unknown control 'mood'"),
        ({"control": "sentiment=positve"}, "no label 'positve'. Did you mean 'positive'?"),
        ({"control": "sentiment=positive@much"}, "must be a number"),
        ({"candidates": 2}, "no control judges the texts"),
        ({"best_of": 3}, "'best_of' is not supported"),
        ([], "JSON object"),
    ],
)
def test_what_is_wrong_is_said(client, body, message):
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (["lake"], "do not stand in the text"),
        ([[3, 99]], "within the text's 9 characters"),
        ([[3]], "write words"),
        ([[0, 9]], "everything is kept"),
    ],
)
def test_wrong_keeps(client, keep, message):
    answer = client.post("/v1/rewrite", json={"text": "the pizza", "keep": keep})
    assert (answer.status_code, message in answer.text) == (400, True)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"n": 17}, "n must be at most 16, got 17"),
        ({"n": 16, "prompt": ["we"] * 5}, "number of texts (n times prompts) must be at most 64, got 80"),
        ({"prompt": ["we"] * 33}, "number of prompts must be at most 32"),
        ({"prompt": "a" * 4001}, "characters of a prompt or text must be at most 4000"),
        ({"steps": 1001}, "steps must be at most 1000"),
        ({"steps": 100_000}, "steps must be at most 1000"),
        ({"candidates": 9, "control": MOOD}, "candidates must be at most 8"),
        ({"iterations": 11, "control": MOOD}, "iterations must be at most 10"),
        ({"steps": 1000, "n": 16, "candidates": 8, "control": MOOD}, "texts times candidates times steps"),
        ({"control": ["length=3"] * 9}, "number of controls must be at most 8"),
        ({"control": "keywords=" + "a" * 500}, "characters of a control must be at most 500"),
    ],
)
def test_limits(client, body, message):
    answer = client.post("/v1/completions", json=body)
    assert (answer.status_code, message in answer.text) == (400, True), answer.text


def test_bodies_that_are_too_large(client):
    large = json.dumps({"prompt": "a" * 70_000}).encode()
    headers = {"Content-Type": "application/json"}
    assert client.post("/v1/completions", content=large, headers=headers).status_code == 413
    parts = (large[i : i + 1000] for i in range(0, len(large), 1000))  # without a length
    assert client.post("/v1/completions", content=parts, headers=headers).status_code == 413


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", {"prompt": "\ud800"}),
        ("completions", {"prompt": "\ud800", "max_tokens": 3}),
        ("completions", {"control": "keywords=\ud800"}),
        ("infill", {"template": "\ud800 [3]"}),
        ("rewrite", {"text": "\ud800"}),
        ("rewrite", {"text": "the \ud800", "keep": ["the"]}),
    ],
)
def test_texts_that_are_none(client, path, body):
    answer = client.post(f"/v1/{path}", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert "is not valid UTF-8" in answer.json()["error"]["message"]


def test_bodies_that_are_no_json(client):
    for raw in (b"", b"{", b"\xff", b"[" * 50_000, b'{"seed": ' + b"9" * 5000 + b"}", b'{"\\ud800": 1}', b'"\\ud800"'):
        answer = client.post("/v1/completions", content=raw, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"]
    # A page of another site can send a form without asking first, but not JSON.
    plain = client.post("/v1/completions", content=b'{"prompt": "we"}', headers={"Content-Type": "text/plain"})
    assert plain.status_code == 400
    assert "send Content-Type: application/json" in plain.json()["error"]["message"]
    empty = client.post("/v1/completions", headers={"Content-Type": "application/json"})
    assert "the body is empty" in empty.json()["error"]["message"]


def test_an_empty_template(client):
    answer = client.post("/v1/infill", json={"template": " "})
    assert (answer.status_code, "the template is empty" in answer.text) == (400, True)


def test_what_is_not_served_names_what_is(client):
    answer = client.post("/v1/chat/completions", json={})
    assert answer.status_code == 404
    assert "there are /v1/completions, /v1/rewrite, /v1/infill" in answer.json()["error"]["message"]


def test_models(client):
    assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["tiny"]
    assert client.get("/v1/models/tiny").json()["id"] == "tiny"
    for answer in (client.get("/v1/models/gpt"), client.post("/v1/completions", json={"model": "gpt"})):
        assert answer.status_code == 404
        assert "Unknown model 'gpt'" in answer.json()["error"]["message"]


def test_options_health_and_metrics(client):
    found = client.get("/v1/options").json()
    assert found["models"][0]["controls"] == {"sentiment": ["negative", "positive"]}
    assert {"adaptive", "constant"} <= {policy["name"] for policy in found["policies"]}
    assert found["limits"]["n"] == 16
    assert client.get("/healthz").json() == {"status": "ok"}
    write(client, prompt="we", steps=2)
    counters = client.get("/metrics").text
    assert 'tta_requests_total{route="/v1/completions",status="200"}' in counters
    assert "tta_texts_total" in counters
    assert "tta_waiting 0.0" in counters


def test_the_page_needs_nobody_else(client):
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for name in ("style.css", "main.js", "panel.js"):
        found = client.get(f"/page/{name}")
        assert found.status_code == 200
        assert "http://" not in found.text.replace("http://www.w3.org/", "")
        assert "https://" not in found.text
    assert client.get("/page/nothing.js").status_code == 404


def test_too_slow_is_said_and_stops(pipeline):
    with serving(pipeline, limits=Limits(seconds=0.4)) as client:
        body = {"prompt": "we", "steps": 1000, "n": 16, "temperature": 5}
        for stream in (False, True):
            answer = client.post("/v1/completions", json=body | {"stream": stream})
            assert answer.status_code == (200 if stream else 504)
            assert "not finished within 0.4 seconds" in answer.text
            assert "[DONE]" not in answer.text
        assert client.post("/v1/completions", json={"prompt": "we", "steps": 1}).status_code == 200


def test_a_label_that_only_the_network_knows_steers_and_is_not_judged(tokenizer):
    torch.manual_seed(0)
    own = {"regime": "uniform", "schedule": "linear", "time_conditioning": "token", "mask_token": 4}
    config = DenoiserConfig(tiny_backbone(len(tokenizer)), LENGTH, labels={"mood": ["low", "high"]}, **own)
    pipe = TTAPipeline(TokenDenoiser(config).eval(), tokenizer)
    with serving(pipe) as client:
        assert client.get("/v1/options").json()["models"][0]["controls"] == {"mood": ["low", "high"]}
        asked = {"prompt": "the pizza", "control": ["mood=High"], "seed": 7, "steps": 4}
        choice = write(client, **asked)["choices"][0]
        assert choice["full_text"] == pipe(asked["prompt"], control="mood=high", seed=7, steps=4).texts[0]
        assert choice["p"] == {}
        for more, message in (
            ({"candidates": 2}, "no control judges the texts"),
            ({"control": ["mood=middling"]}, "has no label 'middling'"),
        ):
            answer = client.post("/v1/completions", json=asked | more)
            assert answer.status_code == 400
            assert message in answer.json()["error"]["message"]
