"""A gaussian model that answers in tokens, from a simplex model to guided texts."""

from __future__ import annotations

import pytest

from conftest import make_classifier
from test_gaussian_regime import FEW, STEPS, followed, monotonous
from train_helpers import make_config, make_tokenizer, train, write_corpus
from tta_diffusion.denoiser.likelihood_model import LikelihoodDenoiser
from tta_diffusion.pipeline import TTAPipeline

MODEL = {"backbone": None, "regime": "gaussian", "reading": "likelihood", "embedding_width": 8}
MODEL["sampling"] = {"clamp": False, "temperature": 1.0, "guidance_stop": 0.0}


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> TTAPipeline:
    """Sixty steps of the simplex, and sixty from there."""
    root = tmp_path_factory.mktemp("likelihood")
    corpus = write_corpus(root / "corpus", monotonous(300), monotonous(16, seed=1))
    optim = {"steps": 60, "batch": 24, "micro_batch": 24, "lr": 0.007, "warmup": 10, "ema": 0.9, "weight_decay": 0.0}
    same = {"optim": optim, "run": {"save_every": 1000, "eval_every": 1000, "samples": 1, "sample_steps": 3}}
    train(make_config(corpus, root / "simplex", **same))
    train(make_config(corpus, root / "out", model={"start": str(root / "simplex/model"), **MODEL}, **same))
    make_classifier(len(make_tokenizer())).save_pretrained(root / "out/model/controls/sentiment")
    return TTAPipeline.from_pretrained(root / "out/model")


def test_the_directory_says_what_it_is(pipeline: TTAPipeline) -> None:
    assert isinstance(pipeline.denoiser, LikelihoodDenoiser)
    assert (pipeline.defaults.steps, pipeline.defaults.clamp) == (200, False)


@pytest.mark.parametrize("settings", [{}, {"eta": 0.0}, {"clamp": True}, {"allocation": "settle"}], ids=str)
def test_a_prompt_is_followed(pipeline: TTAPipeline, settings: dict[str, object]) -> None:
    assert followed(pipeline, **settings) > 0.8


@pytest.mark.parametrize("form", [{}, {"guidance_form": "soft"}], ids=str)
def test_both_forms_of_guidance_are_followed_and_traced(pipeline: TTAPipeline, form: dict[str, str]) -> None:
    settings = {"steps": 12, "num_samples": 8, "seed": 0, "return_trace": True, "control": "sentiment=positive"}
    means = []
    for strength in (0.0, 50.0 if form else 0.3):
        output = pipeline("", strength=strength, allocation="adaptive:0.6", fluency=0.001, **settings, **form)
        assert output.traces is not None
        found = [float(trace.probability["sentiment"]["after"][-1]) for trace in output.traces]
        means.append(sum(found) / len(found))
    assert means[1] > means[0]
    times = output.traces[0].times[:, ~output.traces[0].pinned]
    assert times.std(1).max() > 0.01


def test_a_text_does_not_depend_on_its_batch(pipeline: TTAPipeline) -> None:
    settings = {"steps": 6, "allocation": "adaptive:0.6", "control": "sentiment=negative", "guidance_form": "soft"}
    whole = pipeline([FEW[0], ""], num_samples=3, seed=4, strength=50.0, **settings)
    assert pipeline([FEW[0], ""], num_samples=3, seed=4, strength=50.0, batch_size=2, **settings).texts == whole.texts


def test_a_finished_text_is_revised(pipeline: TTAPipeline) -> None:
    settings = {"steps": STEPS, "num_samples": 4, "seed": 3, "early_exit": False}
    same, other = (pipeline("", revise=STEPS // 2, doubt=doubt, **settings) for doubt in (0.0, 1e9))
    assert same.steps == other.steps == [STEPS] * 4
