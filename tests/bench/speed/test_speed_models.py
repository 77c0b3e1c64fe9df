"""`tta bench speed --model`: a model directory of any regime beside its own bare networks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from conftest import LENGTH, make_classifier, make_tokenizer, tiny_backbone
from tta_diffusion.bench.speed import models
from tta_diffusion.bench.speed.arguments import main
from tta_diffusion.bench.speed.case import FLOOR, OURS, Case, Request
from tta_diffusion.bench.speed.floor import bare_step
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.embedding_model import EmbeddingDenoiser
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.denoiser.token_model import TokenDenoiser
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.sampling.sampler import Sampler
from tta_diffusion.tokens.canvas import Canvas

TOKENIZER = make_tokenizer()
V, BATCH, STEPS = len(TOKENIZER), 2, 3
KINDS = {
    "simplex": (SimplexDenoiser, {"schedule": "cosine"}),
    "gaussian": (EmbeddingDenoiser, {"schedule": "sqrt", "embedding_width": 8}),
    "uniform": (TokenDenoiser, {"schedule": "linear", "labels": {"mood": ["bad", "good"]}}),
    "masked": (TokenDenoiser, {"schedule": "linear", "mask_token": TOKENIZER.mask_token_id}),
}
CLASSIFIED = {"attribute": "sentiment=positive", "control": True}


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for regime, (kind, own) in KINDS.items():
        torch.manual_seed(0)
        found[regime] = tmp_path_factory.mktemp(regime)
        conditioning = {} if regime == "simplex" else {"self_conditioning": "none"}
        config = DenoiserConfig(tiny_backbone(V), LENGTH, regime=regime, **own, **conditioning)
        TTAPipeline(kind(config).eval(), TOKENIZER).save_pretrained(found[regime])
        make_classifier(V).save_pretrained(found[regime] / "controls" / "sentiment")
        TOKENIZER.save_pretrained(found[regime] / "controls" / "sentiment")
    return found


def prepared(directory: Path, control: bool = False, **more: object) -> tuple[Sampler, Canvas]:
    return models.prepare(Case(BATCH, LENGTH, V, control, model=str(directory), **more), STEPS)


def rows_read(sampler: Sampler, run) -> tuple[int, int]:
    """How many texts went through the denoiser and through the classifier."""
    counts = {"denoiser": 0, "classifier": 0}

    def note(who):
        def count(module, args, kwargs):
            counts[who] += len(args[0] if args else kwargs["inputs_embeds"])

        return count

    watched = {"denoiser": sampler.denoiser.backbone.model.base_model}
    for objective, _ in sampler.guidance.judging if sampler.guidance else []:
        if isinstance(model := getattr(objective, "model", None), torch.nn.Module):
            watched["classifier"] = model
    hooks = [model.register_forward_pre_hook(note(who), with_kwargs=True) for who, model in watched.items()]
    run()
    for hook in hooks:
        hook.remove()
    return counts["denoiser"], counts["classifier"]


@pytest.mark.parametrize(
    ("regime", "asked", "passes"),
    [
        *((regime, {}, 0) for regime in KINDS),
        ("simplex", CLASSIFIED, 3),
        ("gaussian", CLASSIFIED, 3),
        ("uniform", CLASSIFIED, 1),
        ("masked", CLASSIFIED, 1),
        ("masked", CLASSIFIED | {"settings": {"guidance_form": "soft", "iterations": 2}}, 2),
        ("uniform", {"attribute": "mood=good", "control": True}, 0),
    ],
)
def test_the_floor_runs_the_networks_as_often_as_a_step(directories, regime, asked, passes):
    if regime == "uniform" and asked is CLASSIFIED:
        asked = asked | {"settings": {"guidance_form": "first-order"}}
    sampler, canvas = prepared(directories[regime], **asked)
    step, embeds = bare_step(sampler, canvas)
    floor = rows_read(sampler, lambda: step(*embeds))
    ours = rows_read(sampler, lambda: sampler.sample(canvas, Randomness.from_seeds([0, 1])))
    twice = 2 if asked.get("attribute") == "mood=good" else 1
    assert floor == (twice * BATCH, passes * BATCH)
    assert ours == (STEPS * floor[0], STEPS * floor[1])
    (logits, *gradients), _ = step(*embeds)
    assert logits.shape == (twice * BATCH, LENGTH, V)
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


@pytest.mark.parametrize("regime", ["uniform", "masked"])
def test_first_order_guidance_adds_one_product_with_the_vocabulary(directories, regime):
    """That of the gradient with the classifier's table; all else are the products of the networks."""
    form = {"settings": {"guidance_form": "first-order"}}
    sampler, canvas = prepared(directories[regime], **CLASSIFIED, **form)
    step, embeds = bare_step(sampler, canvas)
    with FlopCounterMode(display=False) as floor:
        step(*embeds)
    with FlopCounterMode(display=False) as ours:
        sampler.sample(canvas, Randomness.from_seeds([0, 1]))
    ((objective, _),) = sampler.guidance.judging
    product = 2 * BATCH * LENGTH * V * objective.table.shape[1]
    time = 2 * BATCH * LENGTH * sampler.denoiser.backbone.table.embedding_dim
    assert ours.get_total_flops() <= STEPS * (floor.get_total_flops() + product + time)


def test_it_is_timed_and_told(directories, tmp_path, capsys):
    words = [
        "--model",
        str(directories["uniform"]),
        "--attribute",
        "sentiment=positive",
        "--set",
        "guidance_form=first-order",
    ]
    main([*words, "--batch", "2", "--measured", "2", "--no-isolate", "--out", str(tmp_path)])
    results = json.loads((tmp_path / "speed.json").read_text())
    assert results["settings"]["regime"] == "uniform"
    assert results["settings"]["model"] == directories["uniform"].name
    assert [row["case"]["control"] for row in results["rows"]] == [False, True]
    assert all(row[who]["seconds"] > 0 for row in results["rows"] for who in (OURS, FLOOR))
    told = capsys.readouterr().out
    assert "regime `uniform`; guidance_form=first-order." in told
    assert f"| batch 2, length {LENGTH}, V {V}, sentiment=positive |" in told
    assert "published" not in told


def test_a_process_of_its_own_reads_the_model(directories, tmp_path):
    main(["--model", str(directories["masked"]), "--batch", "1", "--measured", "1", "--out", str(tmp_path)])
    (row,) = json.loads((tmp_path / "speed.json").read_text())["rows"]
    assert 0 < row[OURS]["before"] <= row[OURS]["megabytes"]


def test_wrong_requests_are_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="beside a model only ours and floor"):
        Request(model="here", control=(False,), contenders=("ours", "published"))
    with pytest.raises(ValueError, match="needs its name and label: add --attribute"):
        Request(model="here", control=(True,), contenders=("ours",))
    with pytest.raises(ValueError, match="belong to a model"):
        Request(attribute="qed=high")
    with pytest.raises(SystemExit, match=r"^error: no model at"):
        main(["--model", str(tmp_path / "nowhere")])
