"""SSD-LM (Han et al. 2022): simplex diffusion block by block, each block behind all that is written.

A block of m tokens behind a context c begins as x_T = K eps. At t = T .. 1, with ab the cosine schedule,

    w      = denoiser(softmax(x_t), t / T, c)                     logits (m, V)
    w      = w + lambda d/dw log p(y | c, softmax(w))             one step of guidance
    x_hat  = K on the nucleus of softmax(w), -K elsewhere         the projection; or on one token drawn from it
    x_t-1  = sqrt(ab_t-1) x_hat + sqrt(1 - ab_t-1) K eps

and the block is argmax w of t = 1. There is no self-conditioning. The authors' code shows the classifier the block
alone; `context` adds what stands before it, which our classifiers have learnt to read. Where a control has a panel of
classifiers (`control.bundled`), log p is the sum of theirs: lambda is the first one's, and the others weigh beside it
as they do in our own sampler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_diffusion.baselines.decode import Decoding
from tta_diffusion.baselines.guide import guide_directory
from tta_diffusion.baselines.registry import Setup, Writer, register
from tta_diffusion.baselines.simplex_base import SimplexBase, load_simplex
from tta_diffusion.common.randomness import NOISE, PROJECTION, Randomness
from tta_diffusion.common.seeds import sequence_seed
from tta_diffusion.control.classifier import label_index, load_panel
from tta_diffusion.control.guidance import Guidance, GuidanceConfig
from tta_diffusion.diffusion.schedule import get_schedule
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.logits import DenseLogits
from tta_diffusion.tokens.projection import project_rows
from tta_diffusion.tokens.soft_tokens import DenseTokens, normals

NEAR = 256  # tokens looked at first


@dataclass(frozen=True)
class SSDOptions(Decoding):
    """Published: T = 1000, blocks of 25, top_p 0.2; lambda up to 2000."""

    unused: ClassVar[tuple[str, ...]] = ("repetition_penalty",)
    top_p: float = 0.2  # of the projection
    batch_size: int = 64
    steps: int = 1000
    block: int = 25
    strength: float = 2000.0
    multi_hot: bool = True  # False: a token drawn from the nucleus is projected to, and the last draw is written
    context: bool = True  # whether the classifier reads what stands before the block
    guide: str = ""  # directory of the classifier; empty: the control's in the base model

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "block"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.multi_hot and (self.top_k or self.temperature != 1):
            raise ValueError("top_k and temperature say how a token is drawn, and none is: add multi_hot=false")


def multi_hot(logits: Tensor, top_p: float, scale: float) -> Tensor:
    """K on the nucleus of logits (..., V), -K elsewhere; all tokens are sorted only where a nucleus is large."""
    total = logits.logsumexp(-1, keepdim=True)
    for width in (min(NEAR, logits.shape[-1]), logits.shape[-1]):
        top = logits.topk(width, dim=-1).values
        probs = (top - total).exp()
        mass = probs.cumsum(-1)
        if bool((mass[..., -1] >= top_p).all()):
            break
    least = top.gather(-1, (mass - probs < top_p).sum(-1, keepdim=True) - 1)
    return torch.where((logits >= least) & logits.isfinite(), scale, -scale)


@dataclass(frozen=True)
class BlockWriter:
    """Texts in blocks; `guidance(label)` pushes the logits of a block, None leaves them as they are."""

    base: SimplexBase
    guidance: Callable[[str], Guidance | None]
    options: SSDOptions

    def check(self, prompts: Sequence[str]) -> None:
        self.base.check(list(prompts), self.options.length)

    def __call__(self, prompts: Sequence[str], label: str, seeds: Sequence[int]) -> list[str]:
        """Texts whose contexts are equally long are written together."""
        guidance, rows = self.guidance(label), [self.base.encode(prompt) for prompt in prompts]
        texts = [""] * len(rows)
        for width in sorted(set(map(len, rows))):
            places = [i for i, row in enumerate(rows) if len(row) == width]
            own = [sequence_seed(prompts[i], seeds[i]) for i in places]
            context = torch.tensor([rows[i] for i in places], device=self.base.device)
            written = self.write(context, guidance, Randomness.from_seeds(own, self.base.device))
            for i, ids in zip(places, written, strict=True):
                texts[i] = self.base.decode(ids)
        return texts

    @torch.no_grad()
    def write(self, context: Tensor, guidance: Guidance | None, randomness: Randomness) -> Tensor:
        """(B, length) tokens that begin with context (B, n)."""
        ids, earliest = context, context.shape[1] + self.options.min_new_tokens
        for number in range(-(-(self.options.length - ids.shape[1]) // self.options.block)):
            if bool((ids == self.base.pipeline.special.end).any(-1).all()):
                break
            size = min(self.options.block, self.options.length - ids.shape[1])
            ids = torch.cat([ids, self._block(ids, size, earliest, guidance, randomness, number)], -1)
        return ids

    def _block(
        self, context: Tensor, size: int, earliest: int, guidance: Guidance | None, randomness: Randomness, number: int
    ) -> Tensor:
        """(B, size) the tokens of a block behind context (B, n); no text ends before position `earliest`."""
        options, own, before = self.options, self.base.model.config, context.shape[1]
        canvas = self._canvas(context, size, earliest)
        steps, first = options.steps, number * (options.steps + 1)
        shape = (len(context), before + size)
        x = own.scale * self._noise(randomness, first, size)
        for t in range(steps, 0, -1):
            seen = DenseTokens(F.pad(x, (0, 0, before, 0)))  # where tokens are given, nothing is read
            times = torch.full(shape, t / steps, device=context.device)
            logits = self.base.model.predict(seen, times, canvas, None, None, 0)
            assert isinstance(logits, DenseLogits)
            w = self._guide(logits, canvas, before, t / steps, guidance)
            step = first + steps + 1 - t
            if not options.multi_hot:
                drawn = project_rows(w, randomness.draws(step, PROJECTION, size), options.projection)
            if t == 1:
                break
            level = get_schedule(own.schedule)(torch.tensor((t - 1) / steps, dtype=torch.float64)).item()
            hat = multi_hot(w, options.top_p, own.scale) if options.multi_hot else self._corner(drawn, own.scale)
            x = level**0.5 * hat + (1 - level) ** 0.5 * own.scale * self._noise(randomness, step, size)
        return w.argmax(-1) if options.multi_hot else drawn

    def _guide(self, logits: DenseLogits, canvas: Canvas, before: int, u: float, guidance: Guidance | None) -> Tensor:
        """(B, m, V) the logits of the block behind `before` tokens."""
        if guidance is None:
            return logits.values[:, before:]
        if self.options.context:
            return guidance(logits, canvas, u).logits.values[:, before:]
        alone = canvas.each(lambda x: x[:, before:])
        return guidance(DenseLogits(logits.values[:, before:]), alone, u).logits.values

    def _canvas(self, context: Tensor, size: int, earliest: int) -> Canvas:
        canvas = Canvas.blank(len(context), context.shape[1] + size, self.base.pipeline.special, context.device)
        canvas.ids[:, : context.shape[1]] = context
        canvas.pinned[:, : context.shape[1]] = True
        canvas.no_end[:, :earliest] = True
        return canvas

    def _corner(self, ids: Tensor, scale: float) -> Tensor:
        vocabulary = torch.arange(self.base.model.config.vocab_size, device=ids.device)
        return torch.where(ids[..., None] == vocabulary, scale, -scale)

    def _noise(self, randomness: Randomness, step: int, size: int) -> Tensor:
        return normals(randomness.cells(step, NOISE, size), self.base.model.config.vocab_size)


@register("ssd-lm", SSDOptions, load=load_simplex)
def ssd_lm(setup: Setup, options: SSDOptions) -> Writer:
    base: SimplexBase = setup.base
    config = GuidanceConfig(options.strength, iterations=1, support=0)
    if not (setup.control and options.strength):
        return BlockWriter(base, lambda label: None, options)
    where = guide_directory(options.guide, setup.control, base.name)
    panel = load_panel(where, "0", setup.control, base.pipeline.tokenizer, beside=True)
    for one in panel:
        one.model.to(base.device)

    def guidance(label: str) -> Guidance:
        asked = [replace(one, label=label_index(one.model, label, setup.control)) for one in panel]
        return Guidance([(one, one.weight / panel[0].weight) for one in asked], config)

    return BlockWriter(base, guidance, options)
