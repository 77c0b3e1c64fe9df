"""What one update does: moving average, optimizers, accumulation over micro-batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from train_helpers import ALONE, make_config, same_tensors, sentences, train, write_corpus
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.tokens.moments import mean
from tta_diffusion.training.batches import stream
from tta_diffusion.training.config import OptimSettings, TimeSettings
from tta_diffusion.training.loop import Run
from tta_diffusion.training.optimizers import make_optimizers
from tta_diffusion.training.state import TrainState
from tta_diffusion.training.times import TimeSampler


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data") / "corpus", sentences(60))


def make_state(model: nn.Module, **settings: object) -> TrainState:
    return TrainState(model, OptimSettings(**settings), TimeSampler(TimeSettings()), torch.device("cpu"))  # type: ignore[arg-type]


def test_moving_average_by_hand() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    state = make_state(model, ema=0.5, weight_decay=0.0)
    expected = [p.detach().double().clone() for p in model.parameters()]
    for step in range(1, 13):
        model(torch.randn(4, 3)).square().sum().backward()
        state.update(lr=0.1, clip=1.0)
        decay = min(0.5, (1 + step) / (10 + step))  # a short memory at first
        pairs = zip(expected, model.parameters(), strict=True)
        expected = [decay * e + (1 - decay) * p.detach().double() for e, p in pairs]
    for average, value, parameter in zip(state.ema, expected, model.parameters(), strict=True):
        torch.testing.assert_close(average.double(), value, atol=1e-6, rtol=1e-5)
        assert float((average - parameter).detach().abs().max()) > 1e-3
    raw = [p.detach().clone() for p in model.parameters()]
    state.swap_ema()
    torch.testing.assert_close(model.weight.detach().double(), expected[0], atol=1e-6, rtol=1e-5)
    state.swap_ema()
    assert all(map(torch.equal, raw, model.parameters()))


@pytest.mark.parametrize("change", ["update", "swap_ema"])
def test_what_is_kept_of_weights_is_forgotten_when_they_change(change: str) -> None:
    """FSDP writes the gathered weights without a new version, and often to where the last ones were."""
    table = nn.Parameter(torch.randn(8, 4))
    state = make_state(nn.Linear(3, 2), ema=0.5)
    with torch.no_grad():
        before = mean(table).clone()
        with torch.autograd._unsafe_preserve_version_counter(table):
            table += 1
        if change == "update":
            state.update(lr=0.1, clip=1.0)
        else:
            state.swap_ema()
        torch.testing.assert_close(mean(table), before + 1)


@pytest.mark.parametrize("ema", [0.9, 0.0])
def test_the_export_is_the_average_where_there_is_one(corpus: Path, tmp_path: Path, ema: float) -> None:
    out = tmp_path / "out"
    run = train(make_config(corpus, out, optim={"steps": 6, "ema": ema}))
    exported = {f"denoiser.{n}": p for n, p in SimplexDenoiser.from_pretrained(out / "model").named_parameters()}
    raw = {name: p.detach() for name, p in run.state.named.items()}
    kept = dict(zip(raw, run.state.ema, strict=True)) if ema else raw
    assert same_tensors(exported, kept)
    assert same_tensors(exported, raw) == (ema == 0)


def test_vectors_are_not_decayed() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    nn.init.ones_(model.bias)
    state = make_state(model, weight_decay=0.5, ema=0.0)
    before = model.weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    state.update(lr=0.1, clip=1.0)
    torch.testing.assert_close(model.weight.detach(), before * (1 - 0.1 * 0.5))
    assert torch.equal(model.bias.detach(), torch.ones(2))


def test_muon_takes_the_matrices_of_the_layers_only(corpus: Path, tmp_path: Path) -> None:
    run = Run(make_config(corpus, tmp_path / "out", optim={"name": "muon"}), ALONE)
    adamw, muon = run.state.optimizers
    name_of = {id(p): name for name, p in run.state.named.items()}
    names = [name_of[id(p)] for group in muon.param_groups for p in group["params"]]
    assert len(names) == 2 * 7  # q, k, v, o, gate, up, down in each of two layers
    assert all(".layers." in name for name in names)
    others = [name_of[id(p)] for group in adamw.param_groups for p in group["params"]]
    assert sorted(names + others) == sorted(run.state.named)
    with pytest.raises(ValueError, match="Unknown optimizer 'sgd'"):
        make_optimizers({}, replace(OptimSettings(), name="sgd"), torch.device("cpu"))


def test_accumulation_is_one_batch(corpus: Path, tmp_path: Path) -> None:
    """Four micro-batches of 2: the update of one backward pass through the mean of their losses, same noise."""
    optim = {"steps": 1, "batch": 8, "micro_batch": 2, "weight_decay": 0.0}
    config = make_config(corpus, tmp_path / "out", optim=optim, condition={"pad_weight": 0.5})
    run, whole = Run(config, ALONE), Run(config, ALONE)
    micro_batches = next(stream(run.data, config, run.state.times, ALONE, 0))
    assert len(micro_batches) == 4
    run.runner.train()
    total = run._accumulate(micro_batches)

    means = []
    for micro in micro_batches:
        torch.manual_seed(micro.seed)
        loss = whole.model(micro.ids, micro.pinned, micro.shared, micro.times, micro.earlier, micro.form)
        weight = torch.where(micro.ids == 0, 0.5, 1.0) * ~micro.pinned
        means.append((loss * weight).sum() / weight.sum())
    mean = torch.stack(means).mean()
    mean.backward()
    assert float(total) == pytest.approx(mean.item(), rel=1e-6)
    for name, parameter in run.state.named.items():
        torch.testing.assert_close(parameter.grad, whole.state.named[name].grad, atol=1e-6, rtol=1e-4, msg=name)
    for one in (run, whole):
        one.state.update(0.001, 1.0)
    pairs = zip(run.state.named.values(), whole.state.named.values(), strict=True)
    assert max(float((a - b).detach().abs().max()) for a, b in pairs) < 2e-4  # Adam's first step is the gradient's sign


def test_a_micro_batch_does_not_depend_on_who_works_on_it(corpus: Path, tmp_path: Path) -> None:
    """Three processes see, between them, what one sees; and a step is the same whatever came before it."""
    config = make_config(corpus, tmp_path / "out", optim={"batch": 12, "micro_batch": 2, "steps": 3})
    run = Run(config, ALONE)

    def batches(rank: int, size: int, first: int) -> list[Tensor]:
        group = replace(ALONE, rank=rank, size=size)
        micro_batches = next(stream(run.data, config, run.state.times, group, first))
        return [torch.cat([m.ids.flatten(), m.times.flatten(), m.pinned.flatten()]) for m in micro_batches]

    for step in (0, 2):
        alone = batches(0, 1, step)
        shared = [batches(rank, 3, step) for rank in range(3)]
        assert all(torch.equal(alone[m], shared[m % 3][m // 3]) for m in range(6))
    assert not torch.equal(alone[0], alone[1])
