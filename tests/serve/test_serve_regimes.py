"""Other regimes and molecules through the same application."""

from __future__ import annotations

import sys

import pytest
import torch

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

from fastapi.testclient import TestClient
from serving import BASE, events

from conftest import LENGTH, make_classifier, make_denoiser, tiny_backbone
from tta_diffusion.data.smiles import smiles_tokenizer
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.embedding_model import EmbeddingDenoiser
from tta_diffusion.denoiser.token_model import TokenDenoiser
from tta_diffusion.pipeline import TTAOutput, TTAPipeline
from tta_diffusion.serve.app import create_app
from tta_diffusion.serve.judge import Judge
from tta_diffusion.serve.models import Served
from tta_diffusion.serve.results import finished

MOOD = "sentiment=positive"
SMILES = smiles_tokenizer(["CCO", "c1ccccc1"])


def make(regime, tokenizer, directory):
    torch.manual_seed(0)
    backbone = tiny_backbone(len(tokenizer))
    if regime == "gaussian":
        more = {"schedule": "sqrt", "embedding_width": 8, "self_conditioning": "concat"}
        denoiser = EmbeddingDenoiser(DenoiserConfig(backbone, LENGTH, regime=regime, **more))
    else:
        more = {"schedule": "linear", "mask_token": tokenizer.mask_token_id}
        denoiser = TokenDenoiser(DenoiserConfig(backbone, LENGTH, regime=regime, **more))
    TTAPipeline(denoiser.eval(), tokenizer).save_pretrained(directory / regime)
    make_classifier(len(tokenizer)).save_pretrained(directory / regime / "controls" / "sentiment")
    return TTAPipeline.from_pretrained(directory / regime)


@pytest.fixture(scope="module")
def models(tokenizer, tmp_path_factory):
    directory = tmp_path_factory.mktemp("regimes")
    found = {regime: make(regime, tokenizer, directory) for regime in ("gaussian", "uniform", "masked")}
    found["source"] = TTAPipeline(make_denoiser(len(tokenizer), source=True), tokenizer)
    return found | {"molecules": TTAPipeline(make_denoiser(len(SMILES)), SMILES)}


@pytest.fixture(scope="module")
def client(models):
    app = create_app({name: Served(name, pipeline) for name, pipeline in models.items()})
    with TestClient(app, base_url=BASE) as found:
        yield found


@pytest.mark.parametrize("regime", ["gaussian", "uniform", "masked"])
def test_a_request_chooses_its_model(client, models, regime):
    body = {"model": regime, "prompt": "the pizza", "control": [MOOD], "seed": 3, "steps": 4, "stream": True}
    *drafts, last = events(client.post("/v1/completions", json=body).text)
    wanted = models[regime]("the pizza", control=MOOD, seed=3, steps=4, score_batch=1).texts[0]
    assert last["choices"][0]["full_text"] == wanted
    assert "".join(drafts[-1]["choices"][0]["draft"]["tokens"]) == wanted
    assert set(drafts[0]["choices"][0]["draft"]["p"]) == {MOOD}
    shown = {model["name"]: model for model in client.get("/v1/options").json()["models"]}[regime]
    assert (shown["regime"], shown["molecules"]) == (regime, False)


@pytest.mark.parametrize("installed", [True, False])
def test_molecules_come_with_what_is_known_of_them(client, installed, monkeypatch):
    if installed:
        pytest.importorskip("rdkit")
    else:
        monkeypatch.setitem(sys.modules, "rdkit", None)
    body = {"model": "molecules", "prompt": "c1cc", "steps": 2, "seed": 0}
    choice = client.post("/v1/completions", json=body).json()["choices"][0]
    assert choice["full_text"].startswith("c1cc")
    assert ("molecule" in choice) is installed
    assert {model["name"]: model["molecules"] for model in client.get("/v1/options").json()["models"]}["molecules"]


def test_a_drawing(client):
    pytest.importorskip("rdkit")
    from tta_diffusion.serve.results import molecule

    found = molecule("c1ccccc1")
    assert (found["valid"], found["rings"], "<svg" in found["svg"]) == (True, 1, True)
    assert molecule("c1cc") == {"valid": False}


def test_a_source_is_no_part_of_the_text(client, models):
    asked = {"model": "source", "prompt": "the pizza was good", "seed": 3, "steps": 4, "stream": True, "max_tokens": 5}
    body = client.post("/v1/completions", json=asked | {"stream_options": {"include_usage": True}})
    *drafts, last, counted = events(body.text)
    pipe, choice = models["source"], last["choices"][0]
    whole = pipe("the pizza was good", seed=3, steps=4, max_length=1 + 4 + 1 + 5).texts[0]
    assert choice["text"] == choice["full_text"] == whole
    assert "".join(drafts[-1]["choices"][0]["draft"]["tokens"]) == whole
    assert counted["usage"] == {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9}


def test_a_text_that_begins_as_its_source_does_is_whole(models):
    pipe = models["source"]
    special, source = pipe.special, pipe.library.tokenise("the pizza")
    row = [special.start, *source, special.start, *pipe.library.tokenise("the pizza is good"), special.end]
    ids = torch.tensor([row])
    output = TTAOutput([pipe.decode(ids[0])], ids, ["the pizza"], [0], [2], pipe.defaults)
    (found,) = finished(pipe, output, Judge(pipe, []), False)
    assert (found.behind, found.text) == ("the pizza is good", "the pizza is good")
    assert (found.prompt_tokens, found.tokens, found.ended) == (2, 4, True)
