"""p(target) of drafts, and which of their tokens matter most to the control."""

from __future__ import annotations

import torch
from torch import Tensor

from tta_diffusion.analysis.forgetting import K
from tta_diffusion.control.guidance import Guidance
from tta_diffusion.control.parse import parse_controls
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.sampling.trace import relative
from tta_diffusion.tokens.canvas import Canvas


class Judge:
    """The controls of a request, one by one, on hard tokens; the classifiers of one judge together."""

    def __init__(self, pipeline: TTAPipeline, control: list[str]) -> None:
        self._pipeline = pipeline
        self._each = {
            spec.rpartition("@")[0] or spec: Guidance(parse_controls(spec, pipeline.library)) for spec in control
        }

    def __call__(self, ids: Tensor, pinned: Tensor, u: float = 0.0) -> list[dict[str, float]]:
        """For each text (B, L): control -> p(target | text)."""
        if not self._each:
            return [{} for _ in ids]
        canvas = Canvas(ids, pinned, torch.zeros_like(pinned), self._pipeline.special)
        vocab_size = self._pipeline.denoiser.config.vocab_size
        found = {
            spec: next(iter(guidance.probabilities(ids, canvas, vocab_size, u).values())).tolist()
            for spec, guidance in self._each.items()
        }
        return [{spec: round(values[row], 4) for spec, values in found.items()} for row in range(len(ids))]


def key_tokens(importance: Tensor | None, pinned: Tensor, k: int = K) -> list[list[int]]:
    """For each text (B, L): the k generated positions with the largest importance, if it is above 0."""
    scaled = relative(importance, ~pinned)
    top = scaled.sort(dim=-1, descending=True, stable=True)
    rows = zip(top.indices[:, :k].tolist(), top.values[:, :k].tolist(), strict=True)
    return [[place for place, value in zip(*row, strict=True) if value > 0] for row in rows]
