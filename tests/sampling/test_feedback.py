"""What self-conditioning sees of the last prediction: guided, plain or part of both, whichever way it is kept."""

from __future__ import annotations

import pytest
import torch

from conftest import make_denoiser
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.control.constraints import CallableObjective
from tta_diffusion.control.guidance import Guidance, GuidanceConfig
from tta_diffusion.diffusion.simplex import SimplexProcess
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.sampling.sampler import Sampler, SamplerConfig
from tta_diffusion.settings import PRESETS, GenerationConfig
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens

V, L = 200, 8
SPECIAL = SpecialTokens(pad=0, end=1, start=2, banned=(2, 3))


class Listening(torch.nn.Module):
    """A denoiser that keeps what it was shown and what it said."""

    def __init__(self) -> None:
        super().__init__()
        self.own = make_denoiser(V).requires_grad_(False)
        self.config, self.heard, self.said = self.own.config, [], []

    def predict(self, seen, times, canvas, previous, free, k):
        self.heard.append(previous)
        logits = self.own.predict(seen, times, canvas, previous, free, k)
        self.said.append(whole_distribution(logits, canvas))  # now: the next step writes over its memory
        return logits


def trajectory(feedback: float, engine: str = "tail", support: int = 128, whole: bool = False):
    """The denoiser after two steps, and the guided prediction of the first."""
    denoiser, guided = Listening(), []
    table = denoiser.own.table

    class Liked(CallableObjective):
        embeds_only = not whole

    class Watched(Guidance):
        def __call__(self, logits, canvas, u, state=None):
            result = super().__call__(logits, canvas, u, state)
            guided.append(whole_distribution(result.logits, canvas))
            return result

    objective = Liked(lambda text: text.embed(table).sum((-1, -2)))
    objective.judge = lambda text: _judgement(objective.function(text))
    guidance = Watched([(objective, 1.0)], GuidanceConfig(5.0, 1, support=support))
    canvas = Canvas.blank(2, L, SPECIAL).pin(0, 0, [2]).pin(1, 0, [2])
    config = SamplerConfig(2, feedback=feedback, early_exit=False)
    Sampler(denoiser, SimplexProcess(V, engine=engine), config, guidance=guidance).sample(
        canvas, Randomness.from_seeds([0, 1])
    )
    return denoiser, guided[0], canvas


def _judgement(score):
    from tta_diffusion.control.objective import Judgement

    return Judgement(score, score)


def whole_distribution(logits, canvas: Canvas) -> torch.Tensor:
    """(R, V) probabilities at the free rows."""
    if hasattr(logits, "whole"):
        return logits.whole(slice(None)).softmax(-1)
    return logits.values.flatten(0, 1)[canvas.free.flatten()].softmax(-1)


@pytest.mark.parametrize("share", [1.0, 0.0, 0.3])
@pytest.mark.parametrize(
    ("engine", "support", "whole"), [("tail", 128, False), ("tail", 0, False), ("tail", 128, True), ("dense", 0, False)]
)
def test_the_next_step_hears_the_share_that_was_asked_for(share, engine, support, whole):
    denoiser, pushed, canvas = trajectory(share, engine, support, whole)
    plain = denoiser.said[0]
    assert float((pushed - plain).abs().sum(-1).mean()) > 0.05, "guidance must have moved something"
    table = denoiser.own.table
    expected = (share * pushed + (1 - share) * plain) @ table
    heard = denoiser.heard[1].embed(table).flatten(0, 1)[canvas.free.flatten()]
    exact = engine == "dense" or support == 0 or whole
    error = float(((heard - expected).norm(dim=-1) / expected.norm(dim=-1)).mean())
    # Kept by the largest entries the rest lies as it does in the text on average; kept whole, nothing may be lost.
    assert error < (1e-5 if exact else 0.1)


def test_whole_predictions_are_not_cut_for_self_conditioning():
    """`support=0` once put all but 128 tokens on the mean of the vocabulary: another comparison than was meant."""
    denoiser, _, _ = trajectory(1.0, "tail", support=0)
    assert denoiser.heard[1].probs.shape[-1] == V


def test_the_preset_sets_the_choices_of_the_released_code(pipeline: TTAPipeline) -> None:
    config = GenerationConfig().override({"preset": "paper", "steps": 100})
    assert (config.grid, config.top_p, config.support, config.engine, config.snap) == (
        "released",
        0.99,
        0,
        "dense",
        True,
    )
    assert (config.penalty, config.max_strength, config.feedback_share, config.steps) == (0.005, 50_000, 1.0, 100)
    assert GenerationConfig().override({"preset": "paper", "top_p": 0.5}).top_p == 0.5, "what is given wins"
    assert set(PRESETS["paper"]) <= set(GenerationConfig.__dataclass_fields__)
    steps = []
    output = pipeline(
        "the pizza",
        control="sentiment=positive",
        preset="paper",
        steps=5,
        seed=0,
        callback_on_step_end=lambda _, step, u, info: steps.append((u, info.importance is not None)),
    )
    assert [round(u, 3) for u, _ in steps] == [0.8, 0.6, 0.4, 0.2, 0.0]
    assert [guided for _, guided in steps] == [True] * 4 + [False], "no guidance at t = 0"
    assert output.settings.preset == "paper"


@pytest.mark.parametrize(("given", "share"), [("guided", 1.0), ("plain", 0.0), (0.25, 0.25), ("0.5", 0.5)])
def test_feedback_by_name_or_share(given, share) -> None:
    assert GenerationConfig().override({"feedback": given}).feedback_share == share
