"""Micro-batches: a pure function of (seed, step, micro-batch), so that a run can stop and go on anywhere.

Tokens, times, prefixes and noise of a micro-batch do not depend on how many processes share the work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from tta_diffusion.data.store import MixtureSampler
from tta_diffusion.training.config import ConditionSettings, TrainConfig
from tta_diffusion.training.distributed import Group
from tta_diffusion.training.objective import prefix_mask, source_mask
from tta_diffusion.training.times import TimeSampler


@dataclass(frozen=True)
class MicroBatch:
    """The arguments of `TrainingObjective.forward`, and the seed of its noise."""

    ids: Tensor
    pinned: Tensor
    shared: Tensor
    times: Tensor
    earlier: Tensor
    form: str
    seed: int
    labels: Tensor | None = None  # (B,) numbers, see `denoiser.token_model`

    def to(self, device: torch.device) -> MicroBatch:
        names = ["ids", "pinned", "shared", "times", "earlier", *self.told]
        if device.type == "cuda":  # from pinned memory, so that the copy does not wait for the device
            move = {n: getattr(self, n).pin_memory().to(device, non_blocking=True) for n in names}
        else:
            move = {n: getattr(self, n).to(device) for n in names}
        return MicroBatch(**move, form=self.form, seed=self.seed)

    @property
    def told(self) -> dict[str, Tensor]:
        """What an objective is told where the model has labels."""
        return {} if self.labels is None else {"labels": self.labels}


def micro_seed(seed: int, step: int, micro: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{step}/{micro}".encode()).digest()[:6], "big")


def step_form(condition: ConditionSettings, seed: int) -> str:
    """The form of all micro-batches of a step: processes that shard the weights must run the same passes."""
    coin = float(torch.rand((), generator=torch.Generator().manual_seed(seed)))
    if coin < condition.rollout:
        return "rollout"
    twice = condition.rollout + condition.self_condition * (1 - condition.rollout)
    return "self_condition" if coin < twice else "plain"


def make_micro_batch(
    ids: Tensor,
    config: TrainConfig,
    sampler: TimeSampler,
    start_token: bool,
    seed: int,
    form: str,
    labels: Tensor | None = None,
    source: int | None = None,
) -> MicroBatch:
    """Draws times and prefix for tokens (B, L), and which of the labels (B,) are not told.

    Where texts are written from a source, `source` is the token behind it: the source is given, in place of a prefix.
    """
    generator = torch.Generator().manual_seed(seed)
    batch, length = ids.shape
    shared, before = sampler.shared(batch, generator)
    times = sampler.per_token(shared, length, generator)
    condition = config.condition
    if source is None:
        pinned = prefix_mask(batch, length, condition.prefix, condition.prefix_share, start_token, generator)
    else:
        pinned = source_mask(ids, source)
    earlier = (times + (before - shared)[:, None]).clamp(max=1.0)
    if labels is not None:
        labels = labels * (torch.rand(batch, generator=generator) >= condition.label_dropout)
    return MicroBatch(ids, pinned, shared, times, earlier, form, seed, labels)


def read_rows(data: MixtureSampler, start: int, count: int, labels: bool) -> tuple[Tensor, Tensor | None]:
    """Tokens (count, L) of samples from `start` on, and their labels (count,) if asked for."""
    told = torch.from_numpy(data.labels(start, count)) if labels else None
    return torch.from_numpy(data.rows(start, count)), told


def check_shares(config: TrainConfig, group: Group) -> None:
    count = config.optim.batch // config.optim.micro_batch
    if count % group.size:
        raise ValueError(
            f"{count} micro-batches a step cannot be shared by {group.size} processes: make optim.batch / "
            "optim.micro_batch a multiple of the number of processes"
        )


def stream(
    data: MixtureSampler, config: TrainConfig, sampler: TimeSampler, group: Group, first_step: int
) -> Iterator[list[MicroBatch]]:
    """For every step from `first_step` on, this process's micro-batches; rows are read one step ahead."""
    optim = config.optim
    start_token, source = "bos" in data.store.special_ids, data.store.source_end
    mine = range(group.rank, optim.batch // optim.micro_batch, group.size)

    def rows(step: int) -> list[tuple[Tensor, Tensor | None]]:
        first, size = step * optim.batch, optim.micro_batch
        return [read_rows(data, first + m * size, size, config.model.labels) for m in mine]

    with ThreadPoolExecutor(1) as reader:
        ahead = reader.submit(rows, first_step)
        for step in range(first_step, optim.steps):
            current, ahead = ahead.result(), reader.submit(rows, step + 1)
            form = step_form(config.condition, micro_seed(config.run.seed, step, -1))
            yield [
                make_micro_batch(
                    ids, config, sampler, start_token, micro_seed(config.run.seed, step, m), form, labels, source
                )
                for (ids, labels), m in zip(current, mine, strict=True)
            ]
