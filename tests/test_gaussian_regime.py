"""Diffusion-LM from corpus to text: trained, saved, loaded, and everything the pipeline offers."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from conftest import make_classifier, tiny_backbone
from train_helpers import WORDS, losses, make_config, make_tokenizer, train, write_corpus
from tta_diffusion.control.constraints import CallableObjective
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.embedding_model import EmbeddingDenoiser
from tta_diffusion.pipeline import TTAPipeline

FEW = WORDS[:6]
MODEL = {"regime": "gaussian", "schedule": "sqrt", "embedding_width": 8, "self_conditioning": "concat"}
STEPS = 20


def monotonous(count: int, seed: int = 0) -> list[str]:
    """Texts of one word each, so that a prompt says what follows."""
    rng = random.Random(seed)
    return [" ".join([rng.choice(FEW)] * rng.randint(6, 9)) for _ in range(count)]


def followed(pipeline: TTAPipeline, **settings: object) -> float:
    """The share of words that are those of their prompts."""
    output = pipeline(FEW, steps=STEPS, seed=0, min_length=6, **settings)
    hits = total = 0
    for word, text in zip(FEW, output.texts, strict=True):
        assert text.startswith(word)
        hits, total = hits + text.split().count(word), total + len(text.split())
    return hits / total


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("gaussian")
    corpus = write_corpus(root / "corpus", monotonous(300), monotonous(16, seed=1))
    optim = {"steps": 140, "batch": 24, "micro_batch": 24, "lr": 0.007, "warmup": 20, "ema": 0.95, "weight_decay": 0.0}
    run = {"save_every": 1000, "eval_every": 1000, "samples": 1, "sample_steps": 3, "log_every": 10}
    model = {"backbone": make_config(corpus, root / "out").model.backbone, **MODEL}
    train(make_config(corpus, root / "out", model=model, optim=optim, time={"sampler": "uniform"}, run=run))
    tokenizer = make_tokenizer()
    make_classifier(len(tokenizer)).save_pretrained(root / "out/model/controls/sentiment")
    return root / "out"


@pytest.fixture(scope="module")
def pipeline(run_directory: Path) -> TTAPipeline:
    return TTAPipeline.from_pretrained(run_directory / "model")


def test_the_loss_falls(run_directory: Path) -> None:
    found = [loss for _, loss, _, _ in losses(run_directory)]
    assert sum(found[-5:]) / 5 < 0.4 * found[0]
    assert "Gaussian diffusion denoiser" in (run_directory / "model" / "README.md").read_text()


def test_the_directory_names_its_regime_and_brings_its_settings(run_directory: Path, pipeline: TTAPipeline) -> None:
    raw = json.loads((run_directory / "model" / "denoiser.json").read_text())
    assert (raw["regime"], raw["embedding_width"], raw["schedule"]) == ("gaussian", 8, "sqrt")
    assert isinstance(pipeline.denoiser, EmbeddingDenoiser)
    assert (pipeline.defaults.steps, pipeline.defaults.temperature, pipeline.defaults.strength) == (200, 0.0, 0.1)


@pytest.mark.parametrize("settings", [{}, {"eta": 0.0}, {"clamp": False}, {"allocation": "linear"}], ids=str)
def test_a_prompt_is_followed(pipeline: TTAPipeline, settings: dict[str, object]) -> None:
    assert followed(pipeline, **settings) > 0.8


def test_controls_allocation_and_traces(pipeline: TTAPipeline) -> None:
    word = pipeline.tokenizer.convert_tokens_to_ids(FEW[2])
    wish = CallableObjective(lambda text: text.probs[..., word].clamp_min(1e-6).log().sum(-1), name="wish")
    settings = {"steps": STEPS, "num_samples": 6, "seed": 3, "allocation": "adaptive:0.6"}
    plain = pipeline("", **settings)
    guided = pipeline("", control=[wish], return_trace=True, **settings)
    assert (guided.sequences == word).sum() > 2 * (plain.sequences == word).sum() + 5
    assert guided.traces is not None
    trace = guided.traces[0]
    assert set(trace.probability) == {"wish"}
    assert trace.importance.max() == 1.0
    times = trace.times[:, ~trace.pinned]
    assert (times <= trace.u[:, None] + 1e-9).all()
    assert times.std(1).max() > 0.01
    assert trace.ids[-1].tolist() == guided.sequences[0].tolist()


def test_a_finished_text_is_revised(pipeline: TTAPipeline) -> None:
    settings = {"steps": STEPS, "num_samples": 4, "seed": 3, "early_exit": False}
    plain = pipeline("", **settings)
    same, other = (pipeline("", revise=STEPS // 2, doubt=doubt, **settings) for doubt in (0.0, 1e9))
    assert same.steps == other.steps == [STEPS] * 4
    assert not torch.equal(other.sequences, same.sequences)
    assert torch.equal(pipeline("", revise=0, doubt=1e9, **settings).sequences, plain.sequences)


def test_a_classifier_beside_the_model_guides(pipeline: TTAPipeline) -> None:
    """Twice the rate, no pull: what the classifier thinks of the texts rises."""
    settings = {"steps": 12, "num_samples": 8, "seed": 0, "return_trace": True, "control": "sentiment=positive"}
    means = []
    for strength in (0.0, 0.3):
        traces = pipeline("", strength=strength, fluency=0.001, **settings).traces
        assert traces is not None
        means.append(sum(float(trace.probability["sentiment"]["after"][-1]) for trace in traces) / len(traces))
    assert means[1] > means[0]


def test_rewriting_starts_from_the_text(pipeline: TTAPipeline) -> None:
    text = " ".join([FEW[1]] * 6)
    near = pipeline.rewrite(text, time=0.05, seed=0, steps=40, num_samples=4)
    assert near.texts == [text] * 4
    far = pipeline.rewrite(text, time=1.0, seed=0, steps=40, num_samples=4)
    assert any(one != text for one in far.texts)
    kept = pipeline.rewrite(text, time=[0.0, *[1.0] * 5], seed=0, steps=40, num_samples=4)
    assert all(one.startswith(FEW[1]) for one in kept.texts)


def test_gaps_are_filled(pipeline: TTAPipeline) -> None:
    output = pipeline("", control=f"infill={FEW[0]} [3] {FEW[0]} [2] {FEW[0]}", steps=STEPS, seed=0)
    assert [output.texts[0].split()[i] for i in (0, 4, 7)] == [FEW[0]] * 3


def test_a_long_text_goes_on_as_it_began(pipeline: TTAPipeline) -> None:
    """Each block stands behind the words before it: mostly one word throughout, of six that might stand there."""
    words = 4 * pipeline.denoiser.max_length
    output = pipeline(FEW, steps=STEPS, seed=0, max_length=words, min_length=words)
    written = [text.split() for text in output.texts]
    assert [len(text) for text in written] == [words - 1] * len(FEW)
    hits = sum(text.count(word) for word, text in zip(FEW, written, strict=True))
    assert hits > 0.5 * words * len(FEW)


def test_seeds_and_batches(pipeline: TTAPipeline) -> None:
    settings = {"steps": 6, "allocation": "adaptive:0.6", "control": "sentiment=negative"}
    whole = pipeline([FEW[0], ""], num_samples=3, seed=4, **settings)
    assert pipeline([FEW[0], ""], num_samples=3, seed=4, **settings).texts == whole.texts
    assert pipeline([FEW[0], ""], num_samples=3, seed=4, batch_size=2, **settings).texts == whole.texts
    assert pipeline("", seed=5, **settings).texts == whole.texts[4:5]
    assert pipeline([FEW[0], ""], num_samples=3, seed=14, **settings).texts != whole.texts


def test_it_goes_on_from_its_own_weights(run_directory: Path, tmp_path: Path) -> None:
    model = {"start": str(run_directory / "model"), "backbone": None, **MODEL}
    optim = {"steps": 2, "batch": 32, "micro_batch": 32, "warmup": 1, "lr": 1e-4}
    again = train(make_config(run_directory.parent / "corpus", tmp_path / "more", model=model, optim=optim))
    (_, first, *_), *_ = losses(run_directory)
    assert losses(again.out)[0][1] < 0.5 * first


def test_settings_of_other_regimes_are_refused(pipeline: TTAPipeline) -> None:
    with pytest.raises(ValueError, match="eta=0 is its DDIM"):
        pipeline("", step_rule="ddim")
    for form in ("exact", "soft"):  # this model answers with points
        with pytest.raises(ValueError, match="Langevin's: leave guidance_form out"):
            pipeline("", control="sentiment=positive", guidance_form=form)


def test_half_precision(run_directory: Path) -> None:
    pipe = TTAPipeline.from_pretrained(run_directory / "model", dtype=torch.bfloat16)
    assert pipe(FEW[0], steps=STEPS, seed=0, min_length=6).texts[0].split().count(FEW[0]) > 4


def denoiser(model_type: str, **settings: object) -> EmbeddingDenoiser:
    torch.manual_seed(0)
    own = {"regime": "gaussian", "embedding_width": 4, "self_conditioning": "none", **settings}
    return EmbeddingDenoiser(DenoiserConfig(backbone=tiny_backbone(20, model_type), length=12, **own)).eval()  # type: ignore[arg-type]


@pytest.mark.parametrize("model_type", ["bert", "llama", "modernbert", "roberta"])
def test_the_backbone_keeps_no_words(model_type: str, tmp_path: Path) -> None:
    """All tokens are seen, each time is told, and what is saved is what is loaded."""
    model = denoiser(model_type)
    assert [name for name, p in model.named_parameters() if 20 in p.shape] == ["embeddings.weight"]
    x, times, ids = torch.randn(1, 12, 4), torch.rand(1, 12), torch.zeros(1, 12, dtype=torch.int64)
    pinned = torch.zeros(1, 12, dtype=torch.bool)
    pinned[0, 0] = True
    found = model(x, times, ids, pinned)
    assert found.shape == (1, 12, 4)
    later = times.clone()
    later[0, -1] += 0.01
    assert bool((model(x, later, ids, pinned) != found).all()), "the last token's time reaches all"
    given = x.clone()
    given[0, 0] = 9.0
    assert torch.equal(model(given, times, ids, pinned), found), "given tokens are not noised"
    model.save_pretrained(tmp_path)
    assert torch.equal(EmbeddingDenoiser.from_pretrained(tmp_path)(x, times, ids, pinned), found)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"self_conditioning": "mean"}, "none or concat"), ({"embedding_width": None}, "embedding_width")],
)
def test_what_it_cannot_be_is_said(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        denoiser("bert", **settings)
