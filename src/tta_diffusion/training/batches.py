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
from tta_diffusion.training.objective import prefix_mask
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

    def to(self, device: torch.device) -> MicroBatch:
        names = ("ids", "pinned", "shared", "times", "earlier")
        if device.type == "cuda":  # from pinned memory, so that the copy does not wait for the device
            move = {n: getattr(self, n).pin_memory().to(device, non_blocking=True) for n in names}
        else:
            move = {n: getattr(self, n).to(device) for n in names}
        return MicroBatch(**move, form=self.form, seed=self.seed)


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
    ids: Tensor, config: TrainConfig, sampler: TimeSampler, start_token: bool, seed: int, form: str
) -> MicroBatch:
    """Draws times and prefix for tokens (B, L)."""
    generator = torch.Generator().manual_seed(seed)
    batch, length = ids.shape
    shared, before = sampler.shared(batch, generator)
    times = sampler.per_token(shared, length, generator)
    condition = config.condition
    pinned = prefix_mask(batch, length, condition.prefix, condition.prefix_share, start_token, generator)
    earlier = (times + (before - shared)[:, None]).clamp(max=1.0)
    return MicroBatch(ids, pinned, shared, times, earlier, form, seed)


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
    start_token = "bos" in data.store.special_ids
    mine = range(group.rank, optim.batch // optim.micro_batch, group.size)

    def rows(step: int) -> list[Tensor]:
        first = step * optim.batch
        return [torch.from_numpy(data.rows(first + m * optim.micro_batch, optim.micro_batch)) for m in mine]

    with ThreadPoolExecutor(1) as reader:
        ahead = reader.submit(rows, first_step)
        for step in range(first_step, optim.steps):
            current, ahead = ahead.result(), reader.submit(rows, step + 1)
            form = step_form(config.condition, micro_seed(config.run.seed, step, -1))
            yield [
                make_micro_batch(ids, config, sampler, start_token, micro_seed(config.run.seed, step, m), form)
                for ids, m in zip(current, mine, strict=True)
            ]
