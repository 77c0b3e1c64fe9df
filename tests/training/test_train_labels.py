"""Training with labels: the network learns what they say, and to do without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from train_helpers import LENGTH, make_config, make_tokenizer, sentences, train, write_corpus
from tta_diffusion.common.configuration import build, load_yaml
from tta_diffusion.data.config import load_config
from tta_diffusion.data.prepare import prepare
from tta_diffusion.data.store import TokenStore
from tta_diffusion.denoiser.token_model import TokenDenoiser
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.training.batches import make_micro_batch
from tta_diffusion.training.config import TrainConfig
from tta_diffusion.training.regimes import TRAINING
from tta_diffusion.training.times import TimeSampler

ROOT = Path(__file__).parents[2]
LOW, HIGH = ["ba", "da", "ga"], ["ka", "la", "ma"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half of the texts have low words and a low score, the others high ones."""
    directory = tmp_path_factory.mktemp("labelled")
    make_tokenizer().save_pretrained(directory / "words")
    texts = [(text, 0.1) for text in sentences(150, 0, LOW)] + [(text, 0.9) for text in sentences(150, 1, HIGH)]
    lines = (json.dumps({"text": text, "score": score}) + "\n" for text, score in texts)
    (directory / "texts.jsonl").write_text("".join(lines))
    (directory / "corpus.yaml").write_text(f"""
sources:
  - name: toy
    path: texts.jsonl
    label: {{name: mood, column: score, above: 0.5, labels: [low, high]}}
tokenizer: {directory / "words"}
length: {LENGTH}
partial: 0.0
min_tokens: 1
deduplicate: false
validation_fraction: 0.1
""")
    prepare(load_config(directory / "corpus.yaml"), directory, directory / "corpus")
    return directory / "corpus"


def groups(regime: str, **model: object) -> dict[str, dict[str, object]]:
    return {
        "model": {"regime": regime, "schedule": "linear", "labels": True, **model},
        "optim": {"steps": 60, "batch": 32, "micro_batch": 32, "lr": 0.01},
        "time": {"sampler": "uniform"},
        "condition": {"prefix": [1, 1], "prefix_share": 0.0, "self_condition": 0.0, "label_dropout": 0.2},
        "run": {"save_every": 100, "eval_every": 100},
    }


@pytest.mark.parametrize("regime", ["uniform", "masked"])
def test_the_right_label_tells_the_text(regime: str, corpus: Path, tmp_path: Path) -> None:
    config = make_config(corpus, tmp_path / "out", **groups(regime))
    train(config)
    pipe = TTAPipeline.from_pretrained(tmp_path / "out" / "model")
    assert pipe.denoiser.config.labels == {"mood": ["low", "high"]}
    store = TokenStore.open(corpus)
    rows = range(store.count("validation"))
    ids = torch.from_numpy(store.batch(rows, "validation"))
    labels = torch.from_numpy(store.label_arrays["validation"][0][:, 0].astype("int64"))
    pinned = ids == store.special_ids["bos"]

    @torch.no_grad()
    def loss(told: Tensor | None, denoiser: TokenDenoiser = pipe.denoiser) -> float:
        objective = TRAINING.get(regime).objective(denoiser)
        torch.manual_seed(0)
        times = torch.full(ids.shape, 0.8)
        return float(objective(ids, pinned, times[:, 0], times, times, "plain", told).mean())

    assert loss(labels) < 0.8 * loss(labels, TRAINING.get(regime).build(config, store))
    right, nothing, wrong = loss(labels), loss(None), loss(3 - labels)
    assert right < 0.97 * nothing < nothing < wrong
    settings = {"num_samples": 12, "seed": 0, "steps": 12}
    for label, words in (("low", LOW), ("high", HIGH)):
        written = " ".join(pipe("", control=f"mood={label}", **settings).texts).split()
        assert sum(word in words for word in written) > 0.85 * len(written)


def test_labels_are_dropped_as_often_as_asked(corpus: Path, tmp_path: Path) -> None:
    config = make_config(corpus, tmp_path, **groups("uniform"))
    ids, labels = torch.zeros(4000, LENGTH, dtype=torch.int64), torch.full((4000,), 2)
    given = (ids, config, TimeSampler(config.time), True, 7, "plain")
    batch = make_micro_batch(*given, labels)
    assert batch.labels is not None
    assert set(batch.labels.tolist()) == {0, 2}
    assert float((batch.labels == 0).double().mean()) == pytest.approx(0.2, abs=0.02)
    assert torch.equal(batch.to(torch.device("cpu")).told["labels"], batch.labels)
    plain = make_micro_batch(*given)
    assert plain.told == {}
    assert torch.equal(plain.times, batch.times)  # runs without labels are what they were


def test_errors_are_one_sentence(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.labels needs one of the regimes uniform, masked"):
        make_config(corpus, tmp_path, model={"labels": True})
    bare = write_corpus(tmp_path / "bare", sentences(20))
    with pytest.raises(ValueError, match="has none: give a source a 'label' rule"):
        train(make_config(bare, tmp_path / "out", **groups("uniform")))
    short = groups("uniform", labels=False) | {"optim": {"steps": 1}}
    train(make_config(corpus, tmp_path / "start", **short))
    start = {"start": str(tmp_path / "start" / "model"), "backbone": None}
    with pytest.raises(ValueError, match="start from a model with the same"):
        train(make_config(corpus, tmp_path / "out", **groups("uniform", **start)))


def test_the_recipe_is_sound() -> None:
    config = build(TrainConfig, load_yaml(ROOT / "configs/train/qm9-cfg.yaml"))
    assert config.model.labels
    assert config.model.regime == "uniform"
    assert load_config(ROOT / "configs/data/qm9.yaml").labels == {"qed": ["low", "high"]}
