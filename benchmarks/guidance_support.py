"""What reading predictions by their largest entries changes, on a trained model, against whole distributions.

    python benchmarks/guidance_support.py MODEL [--control sentiment=positive] [--support 128] [--steps 20]

Along a trajectory that is guided exactly (support 0), prints at every third time: the relative error of one guidance
gradient, over the vocabulary and on the support alone; the total variation between the guided distributions (mean and
largest over positions); the relative errors of importance and of the guided prediction's embedding. Then, without
control, the relative error of the prediction's embedding, with the rest at the text's mean and at the vocabulary's.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from tta_diffusion import settings as generation
from tta_diffusion.control.guidance import Guidance, Guided
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.sampling import sampler
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.soft_tokens import sparsify
from tta_diffusion.tokens.top_logits import FreeRows, top_logits

PROMPTS = ["The pizza", "The lake"]


def relative(close: Tensor, exact: Tensor) -> float:
    return float(((close - exact).norm(dim=-1) / exact.norm(dim=-1)).mean())


def compare(guidance: Guidance, logits: Tensor, canvas: Canvas, u: float, exact: Guided, k: int, table: Tensor) -> str:
    free = FreeRows.of(canvas)
    top = top_logits(logits.flatten(0, 1)[free.places], free, k)
    moved, _ = guidance._gradient(top, canvas, u, False, [])
    whole, _ = guidance._gradient(logits, canvas, u, False, [])
    assert moved is not None
    assert whole is not None
    whole = whole.flatten(0, 1)[free.places]
    on_support = whole.gather(-1, top.ids)
    close = Guidance.__call__(guidance, top, canvas, u)
    probs = exact.logits.flatten(0, 1)[free.places].softmax(-1)
    distance = (close.logits.whole(slice(None)).softmax(-1) - probs).abs().sum(-1) / 2
    embedded = close.logits.tokens().embed(table).flatten(0, 1)[free.places]
    cells = [
        f"{(torch.zeros_like(whole).scatter(-1, top.ids, moved) - whole).norm() / whole.norm():.2%}",
        f"{(moved - on_support).norm() / on_support.norm():.2%}",
        f"{distance.mean():.5f} ({distance.max():.4f})",
        f"{(close.importance - exact.importance).abs().sum() / exact.importance.sum():.2%}",
        f"{relative(embedded, probs @ table):.2%}",
    ]
    return f"| {u:.2f} | " + " | ".join(cells) + " |"


class Watching(Guidance):
    """Guidance that compares itself with its approximation."""

    def __call__(self, logits: Tensor, canvas: Canvas, u: float) -> Guided:
        exact = super().__call__(logits, canvas, u)
        if round(u * STEPS) % 3 == 0:
            print(compare(Guidance(self.objectives, self.config), logits, canvas, u, exact, SUPPORT, TABLE))
        return exact


def watch_predictions(logits: Tensor, uniform: Tensor, config: object) -> Tensor:
    """In the place of `project`: without control, how well a prediction is embedded."""
    probs = logits[:, 4:].softmax(-1)  # behind the prompts
    rows = probs.flatten(0, 1)
    blank = Canvas.blank(len(probs), probs.shape[1], SPECIAL)
    top = top_logits(logits[:, 4:].flatten(0, 1).clone(), FreeRows.of(blank), SUPPORT)
    exact = rows @ TABLE
    text = relative(top.tokens().embed(TABLE).flatten(0, 1), exact)
    vocabulary = relative(sparsify(logits[:, 4:], SUPPORT).embed(TABLE).flatten(0, 1), exact)
    print(f"| {text:.2%} | {vocabulary:.2%} |")
    return PROJECT(logits, uniform, config)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--control", default="sentiment=positive")
    parser.add_argument("--support", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    pipeline = TTAPipeline.from_pretrained(args.model)
    STEPS, SUPPORT, TABLE, SPECIAL = args.steps, args.support, pipeline.denoiser.table.detach(), pipeline.special
    common = {"num_samples": 2, "seed": 0, "steps": STEPS, "early_exit": False, "support": 0}
    print("| u | gradient | on the support | total variation, mean (max) | importance | embedding |")
    print("|" + "---|" * 6)
    generation.Guidance = Watching
    with torch.no_grad():
        pipeline(PROMPTS, control=args.control, **common)
        PROJECT, sampler.project = sampler.project, watch_predictions
        print("\nwithout control, from u = 1 down:\n\n| rest at the text's mean | at the vocabulary's |\n|---|---|")
        pipeline(PROMPTS, engine="dense", **common)
