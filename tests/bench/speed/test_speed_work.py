"""A guard that counts work, not seconds: FLOPs, tensors as wide as the vocabulary, operations and waits of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from counting import Counting
from torch.utils.flop_counter import FlopCounterMode

import fake_cuda
from tta_diffusion import reference
from tta_diffusion.bench.speed import contenders, networks
from tta_diffusion.bench.speed.case import Case
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.fast import native
from tta_diffusion.tokens import top_logits
from tta_diffusion.tokens.projection import ProjectionConfig, project

V, BATCH, LENGTH = 24_000, 4, 32
STEPS = 5


def case(control: bool) -> Case:
    return Case(BATCH, LENGTH, V, control, backbone="small", measured=STEPS)


def run_ours(control: bool, steps: int = STEPS, vocab: int = V) -> Callable[[], object]:
    one = replace(case(control), vocab=vocab)
    sampler = contenders.sampler_like(contenders.sampler_of(one, steps), steps)
    canvas, seeds = contenders.sheet(one), Randomness.from_seeds(list(range(BATCH)))
    contenders.sampler_like(sampler, 1).sample(canvas, seeds)  # what is kept for the whole life of a model
    return lambda: sampler.sample(canvas, seeds)


def run_published(control: bool, steps: int) -> Callable[[], object]:
    one = case(control)
    denoiser, canvas = networks.make_denoiser(one), contenders.sheet(one)
    classifier = networks.make_classifier(one) if control else None
    writing = reference.Writing(
        denoiser.backbone.model, denoiser.time, canvas.ids, canvas.pinned, classifier=classifier
    )
    times = [1 - i / steps for i in range(steps)]
    allocate = reference.adaptive(0.6) if control else reference.constant
    shape = (BATCH, LENGTH, V)

    def run() -> None:
        noise, draws = lambda _: torch.randn(shape), lambda _: torch.rand(shape[:2])
        for _ in reference.sample(writing, times, allocate, noise, draws, iterations=one.iterations):
            pass  # as it is timed: what a step has found is not kept

    return run


def run_floor(control: bool) -> Callable[[], object]:
    """One step of the bare networks."""
    one = case(control)
    denoiser, width = networks.make_denoiser(one), 256
    classifier = networks.make_classifier(one) if control else None

    def step() -> None:
        embeds = torch.randn(BATCH, LENGTH, width)
        with torch.no_grad():
            denoiser.backbone.model(inputs_embeds=embeds)
        for _ in range(one.iterations if classifier else 0):
            leaf = embeds.clone().requires_grad_(True)
            torch.autograd.grad(classifier(inputs_embeds=leaf).logits.log_softmax(-1)[:, 1].sum(), leaf)

    return step


def flops(run: Callable[[], object]) -> float:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize(("control", "most"), [(False, 1.1), (True, 1.35)])
def test_matrix_products_are_those_of_the_bare_networks(control, most):
    """The vocabulary weighs far more in these small networks than in real ones: with control, one more product over
    it (of which the floor has one) is a quarter of everything here, and a fifteenth at 12 x 768."""
    ours, floor = flops(run_ours(control)) / STEPS, flops(run_floor(control))
    assert ours < most * floor
    assert flops(run_published(control, 2)) / 2 > 1.6 * ours


def test_few_tensors_are_as_wide_as_the_vocabulary():
    """The head's logits, and with control nothing more: all else is read from them a few rows at a time."""
    rows = BATCH * (LENGTH - 3)
    counts = {}
    for control in (False, True):
        run = run_ours(control)
        with Counting(rows, V) as counted:
            run()
        counts[control] = counted.wide / STEPS
    # Steps write them to the same memory: one tensor for a trajectory, and one for the others' mean embedding.
    assert counts[False] <= 1 / STEPS
    assert counts[True] <= 2 / STEPS
    with Counting(rows, V) as counted:
        run_published(False, 2)()
    assert counted.wide / 2 > 10


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_of_rows_share_their_memory(dtype, monkeypatch):
    """However many there are: on a CPU fresh memory costs more than what is computed in it."""
    monkeypatch.setattr(native, "ENABLED", False)
    monkeypatch.setitem(top_logits._BLOCK_ENTRIES, "cpu", 10 * V)
    free = top_logits.FreeRows.of(contenders.sheet(case(False)))
    flat = torch.randn(len(free.places), V, generator=torch.Generator().manual_seed(0)).to(dtype)  # wide nuclei
    uniform = torch.rand(BATCH, LENGTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with Counting(10, V) as reading:
        top = top_logits.top_logits(flat, free)
    with Counting(10, V) as drawing:
        project(top, uniform, ProjectionConfig(top_p=0.95))
    assert len(free.places) > 100
    assert reading.wide <= 1
    assert drawing.wide <= 2


@pytest.mark.parametrize(("control", "waits"), [(False, 1), (True, 5)])
def test_a_step_hardly_waits_for_the_device(control, waits, monkeypatch):
    """While nuclei are narrow: once for the question whether one is wide, once for whether guidance was finite, and
    once an iteration inside the classifier (transformers looks whether its mask masks anything)."""
    monkeypatch.setattr(contenders, "TOP_P", 1e-6)
    counted = []
    for steps in (3, 6):
        run = run_ours(control, steps, vocab=2000)
        with Counting(1, V) as counting:
            run()
        counted.append(counting.waits)
    assert (counted[1] - counted[0]) / 3 <= waits


@pytest.mark.parametrize(("control", "most"), [(False, 75), (True, 100)])
def test_few_operations_stay_outside_the_graph(control, most, monkeypatch):
    """While nuclei are narrow; on a GPU each is a launch."""
    monkeypatch.setattr(contenders, "TOP_P", 1e-6)
    fake_cuda.install(monkeypatch)
    one = replace(case(control), vocab=2000)
    sampler, canvas = contenders.sampler_of(one, 2), contenders.sheet(one)
    seeds = Randomness.from_seeds(list(range(BATCH)))
    for _ in range(3):
        sampler.sample(canvas, seeds)
    monkeypatch.setattr(fake_cuda.FakeGraph, "replay", lambda self: None)
    counted = []
    for steps in (3, 6):
        with Counting(1, V) as counting:
            contenders.sampler_like(sampler, steps).sample(canvas, seeds)
        counted.append(counting.operations)
    assert (counted[1] - counted[0]) / 3 <= most
