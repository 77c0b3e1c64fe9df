"""What reading predictions by their largest entries changes, on a trained model, against whole distributions.

    python benchmarks/guidance_support.py [--model DIR] [--control sentiment=positive] [--support 128] [--steps 20]

Along a trajectory that is guided exactly (support 0), prints at every third step: the relative error of one guidance
gradient, over the vocabulary and on the support alone; the total variation between the guided distributions (mean and
largest over positions); the relative errors of importance and of the guided prediction's embedding.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from torch import Tensor

from tta_diffusion import settings
from tta_diffusion.control.guidance import Guidance, Guided
from tta_diffusion.diffusion.process import State
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.logits import DenseLogits
from tta_diffusion.tokens.top_logits import FreeRows, top_logits

PROMPTS = ["The pizza", "The lake"]


def relative(close: Tensor, exact: Tensor) -> float:
    return float(((close - exact).norm(dim=-1) / exact.norm(dim=-1)).mean())


def compare(guidance: Guidance, logits: DenseLogits, canvas: Canvas, u: float, exact: Guided) -> str:
    """A row of the table: guidance on the largest entries beside guidance on all."""
    free = FreeRows.of(canvas)
    top = top_logits(logits.values.flatten(0, 1)[free.places], free, SUPPORT)
    moved, _ = guidance._gradient(top, canvas, u, None, False, [])
    whole, _ = guidance._gradient(logits, canvas, u, None, False, [])
    assert moved is not None
    assert whole is not None
    whole = whole.flatten(0, 1)[free.places]
    on_support = whole.gather(-1, top.ids)
    close = Guidance(guidance.objectives, replace(guidance.config, support=SUPPORT))(top, canvas, u)
    probs = exact.logits.values.flatten(0, 1)[free.places].softmax(-1)
    distance = (close.logits.whole(slice(None)).softmax(-1) - probs).abs().sum(-1) / 2
    embedded = close.logits.tokens().embed(TABLE).flatten(0, 1)[free.places]
    cells = [
        f"{(torch.zeros_like(whole).scatter(-1, top.ids, moved) - whole).norm() / whole.norm():.2%}",
        f"{(moved - on_support).norm() / on_support.norm():.2%}",
        f"{distance.mean():.5f} ({distance.max():.4f})",
        f"{(close.importance - exact.importance).abs().sum() / exact.importance.sum():.2%}",
        f"{relative(embedded, probs @ TABLE):.2%}",
    ]
    return f"| {u:.2f} | " + " | ".join(cells) + " |"


class Watching(Guidance):
    """Guidance that compares itself with its approximation."""

    def __call__(self, logits: DenseLogits, canvas: Canvas, u: float, state: State | None = None) -> Guided:
        exact = super().__call__(logits, canvas, u, state)
        SEEN.append(u)
        if len(SEEN) % 3 == 1:
            print(compare(Guidance(self.objectives, self.config), logits, canvas, u, exact))
        return exact


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--control", default="sentiment=positive")
    parser.add_argument("--support", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    pipeline = TTAPipeline.from_pretrained(args.model)
    SUPPORT, TABLE, SEEN = args.support, pipeline.denoiser.table.detach(), []
    print("| u | gradient | on the support | total variation, mean (max) | importance | embedding |")
    print("|" + "---|" * 6)
    settings.Guidance = Watching
    pipeline(PROMPTS, control=args.control, num_samples=2, seed=0, steps=args.steps, early_exit=False, support=0)
