"""What a request asks of a pipeline, cut into pieces that can be written together.

A text of seed s is the text of `tta generate PROMPT --seed s`, whatever is written beside it: its random numbers are
hashes of its own seed and prompt (`common.randomness`). So texts of different requests share a batch where their
manner is the same. Two kinds are written apart: with `variety`, texts of one request repel each other; a rewriting has
a text of its own to start from, and a grid of times that begins with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tta_diffusion.pipeline import TTAOutput, TTAPipeline
    from tta_diffusion.sampling.sampler import StepInfo

Watch = Callable[["TTAPipeline", int, float, "StepInfo"], None]


@dataclass(frozen=True)
class Manner:
    """What the texts of a batch have in common."""

    model: str
    control: tuple[str, ...]
    settings: tuple[tuple[str, Any], ...]
    candidates: int = 1  # written for each text that is kept

    def call(self, watch: Watch, machine: dict[str, Any]) -> dict[str, Any]:
        """The arguments that all calls of the pipeline share."""
        return {"control": list(self.control), "callback_on_step_end": watch, **machine, **dict(self.settings)}


@dataclass(frozen=True)
class Text:
    """One text, which may be written beside any other of the same manner."""

    manner: Manner
    prompt: str
    seed: int
    texts: int = field(default=1, init=False)


@dataclass(frozen=True)
class Varied:
    """All texts of a request with `variety`."""

    manner: Manner
    prompts: tuple[str, ...]
    n: int
    seed: int

    @property
    def texts(self) -> int:
        return len(self.prompts) * self.n

    def write(self, pipeline: TTAPipeline, watch: Watch, machine: dict[str, Any]) -> TTAOutput:
        call = self.manner.call(watch, machine)
        return pipeline(list(self.prompts), num_samples=self.n, seed=self.seed, **call)


@dataclass(frozen=True)
class Rewriting:
    """`n` versions of a text whose tokens start at times u_i; 0 keeps one."""

    manner: Manner
    text: str
    times: tuple[float, ...]
    n: int
    seed: int

    @property
    def texts(self) -> int:
        return self.n

    def write(self, pipeline: TTAPipeline, watch: Watch, machine: dict[str, Any]) -> TTAOutput:
        call = self.manner.call(watch, machine)
        return pipeline.rewrite(self.text, list(self.times), num_samples=self.n, seed=self.seed, **call)


Piece = Text | Varied | Rewriting


def write(pieces: Sequence[Piece], pipeline: TTAPipeline, watch: Watch, **machine: Any) -> TTAOutput:
    """The texts of one batch: several pieces of kind `Text` and of one manner, or a single one of another kind.

    `machine` has settings of the machine, not of the request, such as `batch_size`.
    """
    first = pieces[0]
    if not isinstance(first, Text):
        return first.write(pipeline, watch, machine)
    together = [piece for piece in pieces if isinstance(piece, Text)]
    prompts, seeds = [piece.prompt for piece in together], [piece.seed for piece in together]
    return pipeline(prompts, seed=seeds, **first.manner.call(watch, machine))


@dataclass(frozen=True)
class Written:
    """A finished text, and what is known of it."""

    text: str
    behind: str  # what follows the prompt
    seed: int
    steps: int  # taken, fewer than asked for after an early exit
    prompt_tokens: int
    tokens: int  # behind the prompt
    ended: bool  # False: it filled its sheet
    pieces: list[str]  # the text, token by token, as a rewriting would read it
    p: dict[str, float]  # control -> p(target) of the text
    molecule: dict[str, Any] | None = None
