"""Another target for every prompt of one call: what a benchmark of many targets writes in large batches.

Row r of a batch of B texts belongs to the prompt r // (B / N) of N, as the pipeline lays texts out; the whole call must
be one batch. Targets of one kind share a pass of their network: their cells stand side by side, filled up to the
longest with cells of weight 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tta_diffusion.control.chunked import judge_in_chunks
from tta_diffusion.control.classifier import texts_at_once
from tta_diffusion.control.guidance import Objectives
from tta_diffusion.control.lexical.objectives import LexicalObjective, lead_of, log_likelihoods
from tta_diffusion.control.objective import Judgement, SoftText
from tta_diffusion.tokens.canvas import Canvas


@dataclass
class ByPrompt:
    """`targets` of each prompt: objectives that pin, and lexical ones, the same kinds for all."""

    targets: Sequence[Objectives]
    name: str = "targets"
    stacks: list[Stack] = field(init=False)
    embeds_only: ClassVar[bool] = True
    by_row: ClassVar[bool] = True
    placed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        judged = [[pair for pair in own if isinstance(pair[0], LexicalObjective)] for own in self.targets]
        kinds = {tuple(type(objective) for objective, _ in own) for own in judged}
        others = [o for own in self.targets for o, _ in own if not isinstance(o, LexicalObjective)]
        if len(kinds) > 1 or not all(getattr(o, "pins_only", False) for o in others):
            raise ValueError("prompts with targets of their own need the same kinds of lexical control for all")
        self.stacks = [Stack.of(same) for same in zip(*judged, strict=True)]

    @property
    def pins_only(self) -> bool:
        return not self.stacks

    @property
    def model(self) -> nn.Module:
        """All networks, for whoever moves them to a device."""
        return nn.ModuleList([stack.objectives[0][0].model for stack in self.stacks])

    @property
    def capture_key(self) -> Hashable:
        return tuple(stack.capture_key for stack in self.stacks)

    def prepare(self, canvas: Canvas) -> Canvas:
        if len(canvas.ids) != len(self.targets):
            raise ValueError(f"{len(self.targets)} targets for {len(canvas.ids)} prompts: give one for each")
        rows = []
        for row, own in enumerate(self.targets):
            sheet = canvas.rows(row, row + 1)
            for objective, _ in own:
                sheet = objective.prepare(sheet)
            rows.append(sheet)
        ids, pinned, no_end = (torch.cat([getattr(r, n) for r in rows]) for n in ("ids", "pinned", "no_end"))
        return replace(canvas, ids=ids, pinned=pinned, no_end=no_end)

    def judge(self, text: SoftText) -> Judgement | None:
        found = [stack.judge(text) for stack in self.stacks]
        if not found:
            return None
        return Judgement(*(torch.stack(parts).sum(0) for parts in zip(*found, strict=True)))


@dataclass
class Stack:
    """One kind of target, of every prompt. `cells` (N, P) each: places, labels; `weights` (N, P), 0 where filled up."""

    objectives: Sequence[tuple[LexicalObjective, float]]
    cells: tuple[Tensor, ...]
    weights: Tensor

    @classmethod
    def of(cls, objectives: Sequence[tuple[LexicalObjective, float]]) -> Stack:
        cells = [pad_sequence(list(column), True) for column in zip(*(o.cells for o, _ in objectives), strict=True)]
        weights = [torch.full((len(o.cells[-1]),), weight / o.parts) for o, weight in objectives]
        return cls(objectives, tuple(cells), pad_sequence(weights, True))

    @property
    def capture_key(self) -> Hashable:
        own = tuple((o.capture_key, weight) for o, weight in self.objectives)
        return (*own, *(x.data_ptr() for x in (*self.cells, self.weights)))

    def judge(self, text: SoftText) -> Judgement:
        first = self.objectives[0][0]
        embeds = text.embed(first.model.table)
        each, left = divmod(len(embeds), len(self.weights))
        if left:
            raise ValueError(f"{len(embeds)} texts cannot be shared by {len(self.weights)} targets: use one batch")
        self.cells, self.weights = tuple(x.to(embeds.device) for x in self.cells), self.weights.to(embeds.device)
        (*places, labels), weights, lead = self.cells, self.weights, lead_of(text.canvas)

        def score(part: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
            mask, own = seen[:, :-1], seen[:, -1]
            hidden = first.model.hidden(part, mask.bool())[:, lead:]
            found = log_likelihoods(first.logits(hidden, *(x[own] for x in places)), labels[own])
            total = (found * weights[own]).sum(-1)
            return total, total

        row = torch.arange(len(self.weights), device=embeds.device).repeat_interleave(each)
        seen = torch.cat([text.mask.long(), row[:, None]], 1)  # which target it is travels with the mask of a text
        size = texts_at_once(len(embeds), embeds.shape[1], embeds.device.type)
        return Judgement(*judge_in_chunks(score, embeds, seen, size))
