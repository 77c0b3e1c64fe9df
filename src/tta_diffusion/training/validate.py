"""Validation: the loss at fixed times, and a few texts to read."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tta_diffusion.data.store import MixtureSampler
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.training.batches import micro_seed, read_rows
from tta_diffusion.training.config import TrainConfig
from tta_diffusion.training.objective import prefix_mask, source_mask
from tta_diffusion.training.objectives.base import TrainingObjective

TIMES = (0.1, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8, 1.0)
PROMPTS = ("The pizza", "The movie", "The president of the country", "In summary")


@torch.no_grad()
def validation_loss(model: TrainingObjective, data: MixtureSampler, config: TrainConfig) -> dict[str, float]:
    """Mean loss (the simplex's in nats a token) over predicted, unpadded positions at each of TIMES, and their mean.

    The same sequences, prefixes and noise every time, with one time for a sequence and self-conditioning where the
    model has it, so that numbers of different runs on the same corpus compare. `validation/allocated` is the mean at
    the same times with tokens below them, as allocation puts them: u_i = u (1 - 0.4 r_i), r_i uniform.
    """
    form = "self_condition" if config.condition.self_condition > 0 else "plain"
    size = min(config.optim.micro_batch, 64)
    device = next(model.parameters()).device
    special = data.store.special_ids
    totals = torch.zeros(2, len(TIMES), dtype=torch.float64)
    counts = 0.0
    for batch in range(config.run.eval_batches):
        ids, labels = read_rows(data, batch * size, size, config.model.labels)
        told = {} if labels is None else {"labels": labels.to(device)}
        generator = torch.Generator().manual_seed(batch)
        pinned = prefix_mask(size, ids.shape[1], config.condition.prefix, 1.0, "bos" in special, generator)
        if data.store.source_end is not None:
            pinned = source_mask(ids, data.store.source_end)
        weight = (~pinned & (ids != special.get("pad", -1))).double()
        drop = 0.4 * torch.rand(ids.shape, generator=generator)
        counts += float(weight.sum())
        for k, u in enumerate(TIMES):
            for row, times in enumerate((torch.full(ids.shape, u), u * (1 - drop))):
                torch.manual_seed(micro_seed(0, batch, k))
                loss = _loss_at(model, ids.to(device), pinned.to(device), u, times.to(device), form, told)
                totals[row, k] += (loss.cpu().double() * weight).sum()
    means, allocated = totals / max(1.0, counts)
    named = {f"validation/u={u:g}": float(mean) for u, mean in zip(TIMES, means, strict=True)}
    return {"validation/loss": float(means.mean()), "validation/allocated": float(allocated.mean()), **named}


def _loss_at(
    model: TrainingObjective,
    ids: Tensor,
    pinned: Tensor,
    u: float,
    times: Tensor,
    form: str,
    told: dict[str, Tensor],
) -> Tensor:
    shared = torch.full((len(ids),), u, device=ids.device)
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.device.type == "cuda"):
        return model(ids, pinned, shared, times, times, form, **told)


def sample_texts(model: TrainingObjective, pipeline: TTAPipeline, config: TrainConfig) -> list[str]:
    """The first texts for fixed prompts and seed, without guidance."""
    was_training = model.training
    model.eval()
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(config.run.samples)]
    pipe = replace(pipeline, denoiser=model.denoiser)
    texts = [
        pipe(prompt, seed=i, steps=config.run.sample_steps, allocation="constant").texts[0]
        for i, prompt in enumerate(prompts)
    ]
    model.train(was_training)
    return texts
