"""What there is to choose from, written down so that help needs no torch; tests hold it against the registries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

POLICIES = {
    "constant": "every token at the global time",
    "scaled": "every token at 0.85 (scaled:0.85) of the global time",
    "linear": "early tokens settle first",
    "backward-linear": "late tokens settle first",
    "ar-diffusion": "a front moves from left to right (AR-Diffusion)",
    "random": "a time between 0 and 1 (random:0,1), whatever the step",
    "fixed": "one time for all: 0 keeps every token, 1 always redraws it",
    "adaptive": "what matters to the control settles first; 0.6 smooths",
    "confidence": "what the model is sure of settles first; 0.6 smooths",
    "entropy": "what has few alternatives settles first; 0.6 smooths",
    "centred": "adaptive with the mean time of constant: noise moves only",
    "halves": "every other token at half (halves:0.5) the time, in turns",
    "top-k": "the 5 (top-k:5) that matter most to the control are frozen",
    "settle": "the surest tokens settle one by one, the others go on",
    "budgeted": "80% (0.8) of the noise, least where the control cares",
}
WRAPPERS = {
    "warmup": "+warmup:0.2: all at the global time for the first fifth",
    "monotone": "+monotone: a token's time is never raised again",
    "once": "+once: random times are drawn once, not at every step",
    "matched": "matched(linear): its control, all tokens at its mean time",
}
SIGNALS = {
    "importance": "what matters to the control (its gradient)",
    "confidence": "the probability of the drafted token",
    "entropy": "how few alternatives the prediction leaves",
    "sure-importance": "importance times confidence",
    "stability": "for how many steps the token has not changed",
    "random": "random, anew at every step",
    "spread": "random, but even over neighbours and steps",
    "parity": "every other token, in turns",
}
CONTROLS = {
    "length": "length=20: exactly 20 tokens, prompt included",
    "keywords": "'keywords=love,great place': both stand in the text",
    "infill": "'infill=The pizza [4] but [6].': gaps of 4 and 6 tokens",
}
LEXICAL_CONTROLS = {
    "tree": "'tree=(S (NP * *) (VP *3))': this syntax tree, a word a star",
    "span": "span=5-8:PP: the words 5 to 8 are a PP; the first is 1",
    "pos": "'pos=DET NOUN VERB': these parts of speech, word by word",
}
GRIDS = {
    "uniform": "evenly spaced times, from pure noise on",
    "released": "evenly spaced, the last step on clean text (public TESS code)",
    "information": "more steps while noise still hides the tokens in part: best at few steps",
    "decided": "more steps at the times when tokens are decided",
}
ENGINES = {
    "tail": "the largest noise token by token, the rest as one Gaussian: fastest",
    "dense": "noise on the whole vocabulary",
}
STEP_RULES = {
    "ddpm": "fresh noise at every step",
    "ddim": "keeps its noise; needs the dense engine",
}
FORMS = {
    "soft": "the prediction of the clean text is pushed",
    "first-order": "the next state is, by one gradient (uniform, masked)",
    "exact": "the next state is, by every one-token change (uniform, masked)",
    "cfg": "the model itself is told the label, and not; no classifier (uniform, masked)",
}
ORDERS = {
    "random": "masked tokens are written in any order",
    "confidence": "the likeliest draft first",
    "margin": "the draft furthest ahead of the next token first",
    "entropy": "the fewest alternatives first",
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
FEEDBACK = {
    "guided": "the prediction after the push of the control",
    "plain": "the prediction before it",
}
COMPUTE = {
    "exact": "every token at every step",
    "settled": "what is certain is computed anew every few steps only",
}
ENDS = {
    "model": "the model decides where a text ends",
    "drawn": "a text ends at a place drawn evenly between --min-length and --max-length",
}
PRESETS = {
    "paper": "every choice of the authors' released code that a setting can express",
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
    "preset": Setting(str, None),
    "steps": Setting(int, 50),
    "allocation": Setting(str, "constant"),
    "strength": Setting(float, 2000.0),
    "max_strength": Setting(float, math.inf),
    "iterations": Setting(int, 3),
    "guidance_start": Setting(float, 1.0),
    "guidance_stop": Setting(float, 0.0),
    "strength_schedule": Setting(str, "constant"),
    "enough": Setting(float, 1.0),
    "penalty": Setting(float, 0.0),
    "score_batch": Setting(int, 0),
    "importance": Setting(str, "embeddings"),
    "support": Setting(int, 128),
    "feedback": Setting(str, "guided"),
    "top_p": Setting(float, 0.9),
    "top_k": Setting(int, 0),
    "temperature": Setting(float, 1.0),
    "variety": Setting(float, 0.0),
    "local_repetition_penalty": Setting(float, 0.0),
    "revise": Setting(int, 0),
    "revise_groups": Setting(int, 4),
    "doubt": Setting(float, 0.1),
    "candidates": Setting(int, 1),
    "grid": Setting(str, "uniform"),
    "engine": Setting(str, "tail"),
    "step_rule": Setting(str, "ddpm"),
    "guidance_form": Setting(str, None),
    "order": Setting(str, "random"),
    "remasking": Setting(float, 0.0),
    "eta": Setting(float, 1.0),
    "clamp": Setting(bool, True),
    "fluency": Setting(float, 0.01),
    "time_conditioning": Setting(str, None),
    "max_length": Setting(int, None),
    "window": Setting(int, None),
    "block": Setting(int, None),
    "opening": Setting(int, None),
    "min_length": Setting(int, 0),
    "ends": Setting(str, "model"),
    "snap": Setting(bool, False),
    "early_exit": Setting(bool, True),
    "graphs": Setting(bool, True),
    "compute": Setting(str, "exact"),
    "batch_size": Setting(int, 32),
}


RENAMED = {"judged_at_once": "score_batch", "stutter": "local_repetition_penalty"}  # old names, for one more version


def listed(table: dict[str, str]) -> str:
    """`a, b, c`, for help texts."""
    return ", ".join(table)


def block(title: str, table: dict[str, str]) -> str:
    """A title and one line a name, which help must not wrap (\\b says so)."""
    return "\b\n" + title + "".join(f"\n  {name:<17}{what}" for name, what in table.items())
