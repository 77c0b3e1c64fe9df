"""What there is to choose from, written down so that help needs no torch; tests hold it against the registries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

POLICIES = {
    "constant": "every token at the global time",
    "linear": "early tokens settle first",
    "backward-linear": "late tokens settle first",
    "random": "a random time for every token, whatever the step",
    "fixed": "one time for all: 0 keeps every token, 1 always redraws it",
    "adaptive": "what matters to the control settles first; 0.6 smooths",
    "confidence": "what the model is sure of settles first; 0.6 smooths",
    "entropy": "what has few alternatives settles first; 0.6 smooths",
    "top-k": "the 5 (top-k:5) that matter most to the control are frozen",
    "budgeted": "80% (0.8) of the noise, least where the control cares",
}
WRAPPERS = {
    "warmup": "+warmup:0.2: all at the global time for the first fifth",
    "monotone": "+monotone: a token's time is never raised again",
}
CONTROLS = {
    "length": "length=20: exactly 20 tokens, prompt included",
    "keywords": "'keywords=love,great place': both stand in the text",
    "infill": "'infill=The pizza [4] but [6].': gaps of 4 and 6 tokens",
}
GRIDS = {
    "uniform": "evenly spaced times, from pure noise on",
    "released": "evenly spaced, the last step on clean text (public TESS code)",
    "information": "more steps while noise still hides the tokens in part: best at few steps",
    "decided": "more steps at the times when tokens are decided",
}
ENGINES = {
    "sparse": "noise on the few tokens that matter: less memory",
    "tail": "the largest noise token by token, the rest as one Gaussian: fastest",
    "dense": "noise on the whole vocabulary",
}
STEP_RULES = {
    "ddpm": "fresh noise at every step",
    "ddim": "keeps its noise; needs the dense engine",
}
STRENGTHS = {
    "constant": "the same push at every step",
    "falling": "strong early, weak late",
    "rising": "weak early, strong late",
    "cosine": "falling, slow at both ends",
}
IMPORTANCE = {
    "embeddings": "gradient on the classifier's input embeddings",
    "logits": "gradient on the denoiser's logits",
}
SCHEDULES = {
    "cosine": "the schedule of TESS and TTA",
    "sqrt": "the schedule of Diffusion-LM",
    "linear": "signal 1 - u at time u",
}


@dataclass(frozen=True)
class Setting:
    """A field of `GenerationConfig`."""

    kind: type
    default: Any


SETTINGS = {
    "steps": Setting(int, 50),
    "allocation": Setting(str, "adaptive:0.6"),
    "strength": Setting(float, 2000.0),
    "iterations": Setting(int, 3),
    "guidance_start": Setting(float, 1.0),
    "guidance_stop": Setting(float, 0.0),
    "strength_schedule": Setting(str, "constant"),
    "penalty": Setting(float, 0.0),
    "judged_at_once": Setting(int, 0),
    "importance": Setting(str, "embeddings"),
    "support": Setting(int, 128),
    "top_p": Setting(float, 0.9),
    "top_k": Setting(int, 0),
    "temperature": Setting(float, 1.0),
    "variety": Setting(float, 0.0),
    "stutter": Setting(float, 0.0),
    "candidates": Setting(int, 1),
    "grid": Setting(str, "uniform"),
    "engine": Setting(str, "tail"),
    "step_rule": Setting(str, "ddpm"),
    "time_conditioning": Setting(str, None),
    "max_length": Setting(int, None),
    "min_length": Setting(int, 0),
    "snap": Setting(bool, False),
    "early_exit": Setting(bool, True),
    "graphs": Setting(bool, True),
    "batch_size": Setting(int, 32),
}


def listed(table: dict[str, str]) -> str:
    """`a, b, c`, for help texts."""
    return ", ".join(table)


def block(title: str, table: dict[str, str]) -> str:
    """A title and one line a name, which help must not wrap (\\b says so)."""
    return "\b\n" + title + "".join(f"\n  {name:<17}{what}" for name, what in table.items())
