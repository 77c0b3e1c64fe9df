"""Do the Triton kernels say what torch says, how fast, and in how much memory? Needs a GPU, torch and triton.

    PYTHONPATH=src python benchmarks/kernels_check.py [--batch 32] [--length 64] [--vocab 50265]
    PYTHONPATH=src python benchmarks/kernels_check.py --profile

Prints milliseconds and the peak of what each piece allocates, with and without kernels; ends with 1 where they differ.
`--profile` runs steps of the speed benchmark without graphs and prints their most expensive kernels.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tta_diffusion.fast import kernels
from tta_diffusion.fast.nucleus import draw_from_nucleus
from tta_diffusion.fast.top_k import _top_k_by_chunks, top_k
from tta_diffusion.tokens.projection import ProjectionConfig, project
from tta_diffusion.tokens.top_logits import TOP, FreeRows, TopLogits, top_logits

FAILURES: list[str] = []


def piece(name: str, run: Callable[[], object]) -> None:
    """One piece; what goes wrong in it is printed and does not stop the others."""
    try:
        run()
        torch.cuda.synchronize()
    except Exception:
        FAILURES.append(name)
        print(f"FAILED: {name}\n{traceback.format_exc()}", flush=True)


def check(name: str, right: bool, found: str = "") -> None:
    print(f"  {'equal' if right else 'DIFFERENT'}: {name} {found}", flush=True)
    if not right:
        FAILURES.append(name)


def timed(name: str, run: Callable[[], object], rounds: int = 20) -> None:
    def measure() -> None:
        for _ in range(3):
            run()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        marks[0].record()
        for _ in range(rounds):
            run()
        marks[1].record()
        torch.cuda.synchronize()
        peak = (torch.cuda.max_memory_allocated() - before) / 2**20
        print(f"  {marks[0].elapsed_time(marks[1]) / rounds:8.3f} ms {peak:8.0f} MB  {name}", flush=True)

    piece(name, measure)


def with_kernels(enabled: bool, run: Callable[[], object]) -> Callable[[], object]:
    def wrapped() -> object:
        kernels.ENABLED = enabled
        try:
            return run()
        finally:
            kernels.ENABLED = True

    return wrapped


def rows_of(batch: int, length: int) -> FreeRows:
    """`length` rows for each text after three given tokens; one less in the second: rows are not in step with texts."""
    length += 3
    free = torch.ones(batch, length, dtype=torch.bool, device="cuda")
    free[:, :3] = False
    free[1 % batch, -1] = False
    places = free.flatten().nonzero().flatten()
    banned = torch.tensor([0, 3], device="cuda")
    return FreeRows((batch, length), places, places // length, banned, None, (2, 1))


def logits_of(free: FreeRows, vocab: int, dtype: torch.dtype) -> Tensor:
    """Word frequencies, as under much noise: nuclei span thousands of tokens."""
    torch.manual_seed(0)
    ranks = torch.randperm(vocab, device="cuda") + 1
    return (torch.randn(len(free.places), vocab, device="cuda") - ranks.log()).to(dtype)


def both(raw: Tensor, free: FreeRows, k: int = TOP) -> tuple[TopLogits, TopLogits]:
    found = [with_kernels(enabled, lambda: top_logits(raw.clone(), free, k))() for enabled in (False, True)]
    return found[0], found[1]  # type: ignore[return-value]


def compare_predictions(raw: Tensor, free: FreeRows) -> None:
    by_torch, by_kernels = both(raw, free)
    for name in ("values", "ids", "rest", "others"):
        one, other = getattr(by_torch, name).double(), getattr(by_kernels, name).double()
        error = float((one - other).abs().max())
        scale = float(one.abs().max()) if name == "others" else 1.0
        check(name, error <= (0 if name in ("values", "ids") else 2e-4) * scale, f"(largest difference {error:.2e})")
    check("logits of the others", torch.equal(by_torch.logits, by_kernels.logits))
    exact = by_kernels.logits.double().logsumexp(-1, keepdim=True)
    check("rest, in float64", torch.allclose(by_kernels.rest.double(), exact, rtol=0, atol=2e-5))
    again = top_logits(raw.clone(), free)
    check("the same twice", torch.equal(again.others, by_kernels.others) and torch.equal(again.rest, by_kernels.rest))


def compare_law(raw: Tensor, top_p: float, moved: float) -> None:
    """Many draws of one row: none outside the nucleus, and their numbers as its law says."""
    from tta_diffusion.fast.kernels.nucleus import draw_wide_

    draws, count, vocab = 2**14, 64, raw.shape[1]
    places = torch.zeros(1, dtype=torch.int64, device="cuda")
    free = FreeRows((1, 1), places, places, places[:0], None, (2, 1))
    top = top_logits(raw[:1].clone(), free)
    top = replace(top, values=top.values + moved)
    whole = top.whole(slice(None))[0].double()
    probs = whole.softmax(-1)
    ordered, order = probs.sort(descending=True)
    # Tokens as likely as one inside are inside.
    first = torch.searchsorted(-ordered, -ordered, right=False)
    inside = (ordered.cumsum(-1) - ordered)[first] < top_p * (1 - 1e-6)
    unclear = ((ordered.cumsum(-1) - ordered)[first] - top_p).abs() < 1e-4  # float32 may decide either way
    law = torch.zeros(vocab, dtype=torch.float64, device="cuda").index_copy_(0, order, ordered * inside)
    law /= law.sum()
    outside = torch.ones(vocab, dtype=torch.bool, device="cuda").index_copy_(0, order, ~inside & ~unclear)
    # Tokens in bins of about equal mass, in the order of their probabilities.
    mass = law[order].cumsum(-1)
    bins = torch.empty_like(order).index_copy_(0, order, (mass * count).long().clamp(max=count - 1))
    expected = torch.zeros(count, dtype=torch.float64, device="cuda").index_add_(0, bins, law) * draws
    uniform = torch.rand(draws, dtype=torch.float64, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    size, drawn, reference = 2**10, [], []
    for start in range(0, draws, size):
        u = uniform[start : start + size]
        tokens, wide = torch.full((size,), -1, device="cuda"), torch.ones(size, dtype=torch.bool, device="cuda")
        known = (top.ids.expand(size, -1), top.values.expand(size, -1), top.total.expand(size, -1))
        drawn.append(draw_wide_(tokens, wide, top.logits.expand(size, -1), *known, u, top_p))
        reference.append(draw_from_nucleus(whole.float().softmax(-1).expand(size, -1), u, top_p))
    used = expected > 5
    freedom = max(1, int(used.sum()) - 1)
    most = 1 + 5 * (2 / freedom) ** 0.5  # five standard deviations
    found = []
    for tokens in (torch.cat(drawn), torch.cat(reference)):
        observed = torch.bincount(bins[tokens], minlength=count).double()
        found.append(float(((observed - expected)[used] ** 2 / expected[used]).sum()) / freedom)
    wrong = int(outside[torch.cat(drawn)].sum())
    check(
        f"law of draws, top_p {top_p}, known tokens moved by {moved}",
        wrong == 0 and found[0] < most,
        f"(chi^2 / {freedom} = {found[0]:.2f}, of torch {found[1]:.2f}, at most {most:.2f}; outside {wrong})",
    )


def compare_narrow(raw: Tensor, free: FreeRows) -> None:
    """Sharp rows are drawn from the known tokens by the same code: equal but for wide ones."""
    sharp = raw.clone()
    sharp[::2] *= 8
    by_torch, by_kernels = both(sharp, free)
    uniform = torch.rand(free.shape, dtype=torch.float64, device="cuda")
    config = ProjectionConfig(0.9)
    one = with_kernels(False, lambda: project(by_torch, uniform, config))()
    other = with_kernels(True, lambda: project(by_kernels, uniform, config))()
    narrow = free.spread((by_torch.weights.sum(-1) > 0.901).long()).bool()
    assert isinstance(one, Tensor)
    assert isinstance(other, Tensor)
    same = float((one == other)[narrow].float().mean()) if bool(narrow.any()) else 1.0
    check("tokens of narrow rows", same > 0.999, f"({same:.2%} of {int(narrow.sum())})")


def compare_graph(raw: Tensor, free: FreeRows) -> None:
    """The reading of logits as a CUDA graph, replayed on other numbers than it was recorded with."""
    buffer = raw.clone()
    top_logits(buffer, free)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = top_logits(buffer, free)
    other = raw.flip(0).contiguous()
    buffer.copy_(other)
    graph.replay()
    plain = top_logits(other, free)
    check("a replayed graph", all(torch.equal(getattr(recorded, x), getattr(plain, x)) for x in ("rest", "others")))


def times(raw: Tensor, free: FreeRows) -> None:
    from tta_diffusion.fast.kernels import nucleus, others
    from tta_diffusion.fast.kernels.others import log_sum_exp, sum_by_text

    vocab, buffer = raw.shape[1], raw.clone()
    timed("copy of the logits (contained in the next two)", lambda: buffer.copy_(raw))
    for name, enabled in (("torch", False), ("kernels", True)):
        timed(f"top_logits, {name}", with_kernels(enabled, lambda: top_logits(buffer.copy_(raw), free)))
    timed("largest", lambda: top_k(buffer, TOP))
    for chunk in (16, 32, 64, 128):
        timed(f"largest by chunks of {chunk}", partial(_top_k_by_chunks, raw, TOP, chunk))
    timed("maxima of chunks of 64", lambda: raw[:, : vocab // 64 * 64].unflatten(-1, (-1, 64)).amax(-1))
    top = top_logits(raw.clone(), free)
    timed("scatter of minus infinity", lambda: top.logits.scatter_(-1, top.ids, -torch.inf))
    timed("log_sum_exp", lambda: log_sum_exp(top.logits))
    timed("sum_by_text", lambda: sum_by_text(top.logits, top.total, free.texts, free.shape[0]))
    uniform = torch.rand(free.shape, dtype=torch.float64, device="cuda")
    for top_p in (0.9, 1.0):
        wide = float((top.weights.sum(-1) < top_p).float().mean())
        for name, enabled in (("torch", False), ("kernels", True)):
            run = with_kernels(enabled, partial(project, top, uniform, ProjectionConfig(top_p)))
            timed(f"projection, top_p {top_p}, {wide:.0%} wide, {name}", run)
    variants = ((1024, 4), (2048, 4), (2048, 8), (4096, 8), (4096, 16))
    config = ProjectionConfig(0.9)
    for module, name, run in (
        (nucleus, "projection, top_p 0.9", partial(project, top, uniform, config)),
        (others, "log_sum_exp", partial(log_sum_exp, top.logits)),
    ):
        usual = module._BLOCK, module._WARPS
        for module._BLOCK, module._WARPS in variants:
            timed(f"{name}, blocks of {module._BLOCK}, {module._WARPS} warps", run)
        module._BLOCK, module._WARPS = usual
    table = torch.randn(vocab, 768, device="cuda", dtype=raw.dtype)

    def mean() -> None:
        top._means.clear()
        top.mean_of_others(table)

    timed("mean_of_others", mean)


def profile(batch: int, length: int, vocab: int) -> None:
    from tta_diffusion.bench.speed import contenders
    from tta_diffusion.bench.speed.case import Case
    from tta_diffusion.common.randomness import Randomness

    case = Case(batch, length, vocab, False, device="cuda", dtype="bf16", graphs=False)
    steps = 4
    sampler, canvas = contenders.sampler_of(case, steps), contenders.sheet(case)
    seeds = Randomness.from_seeds(list(range(batch)), "cuda")
    for _ in range(2):
        sampler.sample(canvas, seeds)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        sampler.sample(canvas, seeds)
        torch.cuda.synchronize()
    print(f"{case.name}, bf16: the sums over {steps} steps", flush=True)
    events = sorted(found.key_averages(), key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in events)
    print(f"  {total / 1000 / steps:.3f} ms a step on the device")
    for event in events[:25]:
        used = event.self_device_time_total / 1000 / steps
        print(f"  {used:8.3f} ms a step, {event.count / steps:7.1f} launches  {event.key[:110]}")


def everything(batch: int, length: int, vocab: int, dtype: torch.dtype) -> None:
    free = rows_of(batch, length)
    raw = logits_of(free, vocab, dtype)
    print(f"{dtype}, {len(raw)} rows, V {vocab}, k {TOP}", flush=True)
    piece("predictions", partial(compare_predictions, raw, free))
    for top_p, moved in ((0.9, 0.0), (0.3, 0.0), (1.0, 0.0), (0.9, -3.0), (0.5, -50.0)):
        piece(f"law {top_p} {moved}", partial(compare_law, raw, top_p, moved))
    piece("narrow rows", partial(compare_narrow, raw, free))
    piece("a graph", partial(compare_graph, raw, free))
    piece("times", partial(times, raw, free))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=50265)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: no CUDA device was found")
    if not kernels.ENABLED:
        sys.exit("error: the package triton was not found")
    torch.set_grad_enabled(False)
    if args.profile:
        piece("profile", lambda: profile(args.batch, args.length, args.vocab))
        sys.exit(1 if FAILURES else 0)
    for dtype in (torch.bfloat16, torch.float32):
        everything(args.batch, args.length, args.vocab, dtype)
    print("all equal" if not FAILURES else f"failures: {FAILURES}")
    sys.exit(1 if FAILURES else 0)
