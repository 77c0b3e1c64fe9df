"""The bounds of uniform and masked diffusion against their exact values, and training for them from end to end."""

from __future__ import annotations

import itertools
from pathlib import Path
from statistics import median

import pytest
import torch
from torch import Tensor

from train_helpers import LENGTH, make_config, metrics, sentences, train, write_corpus
from tta_diffusion.common.configuration import build, load_yaml
from tta_diffusion.control.constraints import CallableObjective
from tta_diffusion.data.store import TokenStore
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.token_model import TokenDenoiser
from tta_diffusion.diffusion.schedule import get_schedule, slope
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.settings import GenerationConfig
from tta_diffusion.training.config import TrainConfig
from tta_diffusion.training.objectives.masked import MaskedObjective, mdlm_bound
from tta_diffusion.training.objectives.uniform import UniformObjective, udlm_bound
from tta_diffusion.training.regimes import TRAINING

V, L, MASK = 3, 2, 3
TEXTS = torch.tensor(list(itertools.product(range(V), repeat=L)))  # (9, 2)
DATA = torch.tensor([0.30, 0.02, 0.03, 0.02, 0.20, 0.08, 0.15, 0.05, 0.15], dtype=torch.float64)
ENTROPY = float(-(DATA * DATA.log()).sum())


def kernel(alpha: float, masked: bool) -> Tensor:
    """q(x_u = w | x_0 = v) as (V, W)."""
    kept = alpha * torch.eye(V, dtype=torch.float64)
    return torch.cat([kept, torch.full((V, 1), 1 - alpha).double()], -1) if masked else kept + (1 - alpha) / V


def given_others(alpha: float, masked: bool) -> Tensor:
    """(W, W, L, V) p(x_0,i = v | the other token of x_u), for all x_u."""
    q, pairs = kernel(alpha, masked), DATA.view(V, V)
    first, second = pairs @ q, pairs.T @ q  # (V, W): p(x_0,i = v, the other shows w)
    width = q.shape[-1]
    one = (first / first.sum(0)).T.expand(width, width, V)  # by the second token shown
    two = (second / second.sum(0)).T[:, None].expand(width, width, V)
    return torch.stack([one, two], 2)


def expected_bound(u: float, schedule: str, masked: bool, skew: float = 0.0) -> float:
    """E over x_0 and x_u of the integrand at u; `skew` nats off the first token make the prediction wrong."""
    time = torch.tensor(u, dtype=torch.float64)
    alpha, falling = get_schedule(schedule)(time), -slope(get_schedule(schedule), time)
    q, width = kernel(float(alpha), masked), V + masked
    shown = torch.tensor(list(itertools.product(range(width), repeat=L)))  # (W^2, 2)
    logits = given_others(float(alpha), masked)[shown[:, 0], shown[:, 1]].clamp_min(1e-30).log()
    logits[..., 0] -= skew
    if masked:
        logits = torch.cat([logits, torch.zeros(*logits.shape[:-1], 1)], -1)
    total = 0.0
    for text, p in zip(TEXTS, DATA, strict=True):
        weight = q[text[0], shown[:, 0]] * q[text[1], shown[:, 1]]
        given = (logits, text.expand(len(shown), L), shown, alpha.expand(len(shown), L), falling.expand(len(shown), L))
        loss = mdlm_bound(*given, MASK) if masked else udlm_bound(*given)
        total += float(p * (weight * loss.sum(-1)).sum())
    return total


def integrate(schedule: str, masked: bool, skew: float = 0.0, points: int = 120) -> float:
    """Midpoints, denser at both ends, where the integrand of a curved schedule is steep."""
    edges = 0.5 - 0.5 * torch.cos(torch.linspace(0, torch.pi, points + 1, dtype=torch.float64))
    values = [expected_bound(float(u), schedule, masked, skew) for u in (edges[1:] + edges[:-1]) / 2]
    return float((torch.tensor(values) * edges.diff()).sum())


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("masked", [False, True], ids=["uniform", "masked"])
def test_the_bound_of_a_perfect_model_is_the_entropy_of_the_data(schedule: str, masked: bool) -> None:
    """One token at a time jumps, so a model that knows each token given the others reverses the process exactly."""
    assert integrate(schedule, masked) == pytest.approx(ENTROPY, abs=2e-3)


def test_the_bound_of_a_wrong_model_is_larger_and_does_not_depend_on_the_schedule() -> None:
    for masked in (False, True):
        linear, cosine = (integrate(schedule, masked, skew=1.0, points=80) for schedule in ("linear", "cosine"))
        assert linear == pytest.approx(cosine, abs=5e-3)
        assert linear > ENTROPY + 0.1


def test_the_closed_form_is_the_divergence_between_rates() -> None:
    """beta / V sum_{j != i} ( r'_j - r_j + r_j log(r_j / r'_j) ), r_j = xbar_j / xbar_i, term by term."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 5, 7, generator=generator, dtype=torch.float64)
    ids, noisy = torch.randint(7, (2, 4, 5), generator=generator)
    alpha, falling = torch.rand(2, 4, 5, generator=generator, dtype=torch.float64) * 0.9 + 0.05
    found = udlm_bound(logits, ids, noisy, alpha, falling)

    def rates(clean: Tensor) -> Tensor:
        mean = 7 * alpha[..., None] * clean + 1 - alpha[..., None]
        return mean / mean.gather(-1, noisy[..., None])

    true, model = rates(torch.nn.functional.one_hot(ids, 7).double()), rates(logits.softmax(-1))
    exact = falling / alpha / 7 * (model - true + true * (true / model).log()).sum(-1)  # the term of j = i is 0
    assert torch.allclose(found, exact)
    assert bool((found >= 0).all())
    single = udlm_bound(logits.float(), ids, noisy, alpha.float(), falling.float())
    assert torch.allclose(single.double(), exact, rtol=1e-3, atol=1e-4)


def tiny(regime: str, vocab_size: int = 12) -> TokenDenoiser:
    backbone = {"model_type": "llama", "vocab_size": vocab_size, "hidden_size": 32, "num_hidden_layers": 1}
    backbone |= {"num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 16}
    torch.manual_seed(0)
    return TokenDenoiser(DenoiserConfig(backbone, 8, regime=regime, schedule="linear", mask_token=1))


@pytest.mark.parametrize(("regime", "kind"), [("uniform", UniformObjective), ("masked", MaskedObjective)])
def test_every_token_has_its_time_and_given_ones_have_no_loss(regime: str, kind: type) -> None:
    model, ids = kind(tiny(regime)), torch.randint(2, 12, (64, 8))
    pinned = torch.zeros(64, 8, dtype=torch.bool)
    pinned[:, :2] = True
    times = torch.full((64, 8), 0.9)
    times[:, 5:] = 1e-3  # hardly any of these is noised
    loss = model(ids, pinned, torch.full((64,), 0.9), times, times, "plain")
    assert loss.shape == ids.shape
    assert bool((loss[:, :2] == 0).all())
    assert bool(loss[:, 2:5].mean() > 0)
    assert bool(loss.isfinite().all())
    edge = model(ids, pinned, torch.ones(64), torch.tensor([0.0, 1.0]).repeat(64, 4), times, "plain")
    assert bool(edge.isfinite().all())
    if regime == "masked":
        assert float((loss[:, 5:] > 0).float().mean()) < 0.05
    loss.sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ["ba", "da", "ga", "ka", "la"]  # five words of the vocabulary: much to learn at once
    directory = tmp_path_factory.mktemp("data")
    return write_corpus(directory / "corpus", sentences(300, 0, words), sentences(20, 1, words))


@pytest.mark.parametrize("regime", ["uniform", "masked"])
def test_a_model_trains_saves_loads_and_writes_under_control(regime: str, corpus: Path, tmp_path: Path) -> None:
    groups = {
        "model": {"regime": regime, "schedule": "linear"},
        "optim": {"steps": 60, "batch": 32, "micro_batch": 32, "lr": 0.01},
        "time": {"sampler": "uniform"},
        "condition": {"prefix": [1, 3], "self_condition": 0.0},
        "run": {"samples": 1, "sample_steps": 3, "save_every": 100},
    }
    train(make_config(corpus, tmp_path / "out", **groups))
    curve = [loss for _, loss in metrics(tmp_path / "out", "loss")]
    assert median(curve[-20:]) < 0.8 * median(curve[:8])
    assert regime in (tmp_path / "out" / "model" / "denoiser.json").read_text()
    assert f"{regime.capitalize()} diffusion" in (tmp_path / "out" / "model" / "README.md").read_text()

    pipe = TTAPipeline.from_pretrained(tmp_path / "out" / "model")
    assert isinstance(pipe.denoiser, TokenDenoiser)
    token = pipe.tokenizer.convert_tokens_to_ids("ka")
    wish = CallableObjective(lambda text: text.probs[..., token].sum(-1), name="wish")
    settings = {"num_samples": 12, "seed": 0, "steps": 10, "min_length": LENGTH - 1}
    plain = pipe("ba", allocation="constant", **settings)
    assert not any("mask" in text or "unk" in text for text in plain.texts)
    for allocation in ("constant", "adaptive:0.6"):
        guided = pipe("ba", control=[wish], strength=3.0, allocation=allocation, return_trace=True, **settings)
        assert (guided.sequences == token).float().mean() > 1.5 * (plain.sequences == token).float().mean()
        trace = guided.traces[0]
        assert set(trace.probability) == {"wish"}
        assert (trace.times <= trace.u[:, None] + 1e-9).all()
    text = plain.texts[0]
    again = pipe.rewrite(text, time=0.5, control=[wish], strength=3.0, seed=1, num_samples=4, steps=8)
    assert any(one != text for one in again.texts)
    assert pipe.rewrite(text, time=0.01, seed=1, steps=8).texts == [text]


def test_going_on_from_a_simplex_model_keeps_its_weights(corpus: Path, tmp_path: Path) -> None:
    short = {"optim": {"steps": 1}, "run": {"save_every": 100}}
    train(make_config(corpus, tmp_path / "simplex", **short))
    groups = {"model": {"start": str(tmp_path / "simplex" / "model"), "backbone": None}}
    groups["model"] |= {"regime": "masked", "schedule": "linear"}
    config = make_config(corpus, tmp_path / "masked", **groups)
    denoiser = TRAINING.get("masked").build(config, TokenStore.open(corpus))
    assert denoiser.config.regime == "masked"
    assert denoiser.config.schedule == "linear"
    assert denoiser.config.mask_token == 4
    before = TTAPipeline.from_pretrained(tmp_path / "simplex" / "model").denoiser
    assert torch.equal(denoiser.backbone.table.weight, before.backbone.table.weight)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"model": {"regime": "unifrom"}}, "Unknown diffusion regime 'unifrom'. Did you mean 'uniform'"),
        ({"model": {"regime": "uniform"}, "condition": {"rollout": 0.5}}, "leave condition.rollout"),
    ],
)
def test_errors_are_one_sentence(groups: dict, message: str, corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train(make_config(corpus, tmp_path / "out", **groups))


@pytest.mark.parametrize("name", ["uniform", "masked"])
def test_the_recipe_is_sound(name: str) -> None:
    config = build(TrainConfig, load_yaml(Path(__file__).parents[2] / f"configs/train/{name}.yaml"))
    assert config.model.regime == name
    GenerationConfig().override(config.model.sampling)
