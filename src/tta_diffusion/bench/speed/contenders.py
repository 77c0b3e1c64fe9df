"""The four that are timed, and the floor from CUDA graphs.

Each yields seconds a step (autoregressive: a token) as often as it is asked, after an unmeasured round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from tta_diffusion import reference
from tta_diffusion.allocation import parse_allocation
from tta_diffusion.bench.speed import models, networks
from tta_diffusion.bench.speed.case import AR, FLOOR, FLOOR_GRAPH, OURS, PUBLISHED, Case
from tta_diffusion.bench.speed.floor import bare_step
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.control.classifier import AttributeObjective
from tta_diffusion.control.guidance import Guidance, GuidanceConfig
from tta_diffusion.diffusion.simplex import SimplexProcess
from tta_diffusion.fast.cuda_graphs import GraphCache
from tta_diffusion.sampling.sampler import Sampler, SamplerConfig
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens
from tta_diffusion.tokens.projection import ProjectionConfig

TOP_P, STRENGTH, LABEL = 0.9, 2000.0, 1
PROMPT = [0, 100, 200]  # given tokens: the start token and two words


def sheet(case: Case) -> Canvas:
    special = SpecialTokens(pad=1, end=2, start=0, banned=(0, 3))
    canvas = Canvas.blank(1, case.length, special, case.device).pin(0, 0, PROMPT[: case.length - 1])
    return canvas.repeat(case.batch)


def wait(case: Case) -> float:
    """The time, when the device has done all it was asked to.

    On one thread of a CPU, the time that the thread ran: others on the machine do not count.
    """
    if case.device.startswith("cuda"):
        torch.cuda.synchronize()
    elif torch.get_num_threads() == 1:
        return time.process_time()
    return time.perf_counter()


def prepare(case: Case, steps: int) -> tuple[Sampler, Canvas]:
    """Our sampler and the sheets it writes on."""
    return models.prepare(case, steps) if case.model is not None else (sampler_of(case, steps), sheet(case))


def sampler_of(case: Case, steps: int) -> Sampler:
    """Our sampler as users run it, but without early exit: every step is paid."""
    guidance = None
    if case.control:
        objective = AttributeObjective("speed", networks.make_classifier(case), LABEL)
        guidance = Guidance([(objective, 1.0)], GuidanceConfig(STRENGTH, case.iterations))
    return Sampler(
        networks.make_denoiser(case),
        SimplexProcess(case.vocab, engine=case.engine, projection=ProjectionConfig(TOP_P)),
        SamplerConfig(steps, early_exit=False, graphs=case.graphs),
        parse_allocation("adaptive:0.6" if case.control else "constant"),
        guidance,
    )


def time_ours(case: Case) -> Iterator[float]:
    """`measured` steps on the uniform grid 1, ..., 1 / measured: the mean over a trajectory of any length."""
    sampler, canvas = prepare(case, case.measured)
    seeds = Randomness.from_seeds(list(range(case.batch)), case.device)
    for _ in range(3 if case.device.startswith("cuda") else 1):  # the third records the last of its graphs
        sampler_like(sampler, 2).sample(canvas, seeds)
    while True:
        began = wait(case)
        sampler.sample(canvas, seeds)
        yield (wait(case) - began) / case.measured


def sampler_like(sampler: Sampler, steps: int) -> Sampler:
    return replace(sampler, config=replace(sampler.config, steps=steps))


def time_published(case: Case) -> Iterator[float]:
    """`reference.py`, steps from the middle of a trajectory of 50; what a step costs does not depend on its time."""
    denoiser, canvas = networks.make_denoiser(case), sheet(case)
    writing = reference.Writing(
        denoiser.backbone.model,
        denoiser.time,
        canvas.ids,
        canvas.pinned,
        classifier=networks.make_classifier(case) if case.control else None,
        label=LABEL,
    )
    shape = (*canvas.ids.shape, case.vocab)
    count = max(1, case.measured // 3)
    times = [0.5 - i / 50 for i in range(count + 1)]
    allocate = reference.adaptive(0.6) if case.control else reference.constant
    while True:
        began = 0.0
        steps = reference.sample(
            writing,
            times,
            allocate,
            noise=lambda _: torch.randn(shape, device=case.device),
            draws=lambda _: torch.rand(shape[:2], device=case.device),
            strength=STRENGTH,
            iterations=case.iterations,
            top_p=TOP_P,
        )
        for step, _ in enumerate(steps):
            if step == 0:
                began = wait(case)
        yield (wait(case) - began) / count


def time_floor(case: Case) -> Iterator[float]:
    """Bare networks (see `floor`)."""
    step, embeds = bare_step(*prepare(case, 1))
    yield from _time_steps(case, lambda: step(*embeds))


def time_floor_graph(case: Case) -> Iterator[float]:
    """The same from CUDA graphs; nothing where they cannot be recorded."""
    (step, embeds), cache = bare_step(*prepare(case, 1)), GraphCache()
    for _ in range(2):
        cache.run("floor", step, embeds)
    for seconds in _time_steps(case, lambda: cache.run("floor", step, embeds)):
        if cache.failure:
            return
        yield seconds


def _time_steps(case: Case, step: Callable[[], object]) -> Iterator[float]:
    step()
    while True:
        began = wait(case)
        for _ in range(case.measured):
            step()
        yield (wait(case) - began) / case.measured


def time_autoregressive(case: Case) -> Iterator[float]:
    """Sampling with a KV cache through `generate`; at most 64 tokens on a CPU."""
    model = networks.make_autoregressive(case)
    count = case.length if case.device.startswith("cuda") else min(case.length, 64)
    start = torch.zeros(case.batch, 1, dtype=torch.int64, device=case.device)

    def write(tokens: int) -> Tensor:
        settings = {"do_sample": True, "top_k": 0, "min_new_tokens": tokens, "max_new_tokens": tokens}
        return model.generate(start, attention_mask=torch.ones_like(start), **settings)  # type: ignore[operator]

    write(4)
    while True:
        began = wait(case)
        write(count)
        yield (wait(case) - began) / count


TIMED: dict[str, Callable[[Case], Iterator[float]]] = {
    PUBLISHED: time_published,
    OURS: time_ours,
    FLOOR: time_floor,
    FLOOR_GRAPH: time_floor_graph,
    AR: time_autoregressive,
}
