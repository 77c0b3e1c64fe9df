"""The paper's speed table: seconds relative to GPT-2 base, as printed."""

from __future__ import annotations

# (method, T, ratio)
TABLE: list[tuple[str, int | None, float]] = [
    ("GPT-2 (base)", None, 1.0),
    ("DExperts", None, 2.6),
    ("PPLM", None, 270.1),
    ("LM-steer", None, 1.2),
    ("Diffusion-LM", 200, 14.7),
    ("Diffusion-LM", 1000, 72.7),
    ("SSD-LM", 1000, 109.8),
    ("LD4LG", 250, 2.2),
    ("DGLM", 50, 4.4),
    ("TTA (w/o control)", 50, 1.4),
    ("TTA (w/o control)", 1000, 27.4),
    ("TTA (with control)", 50, 2.0),
    ("TTA (with control)", 100, 4.0),
    ("TTA (with control)", 200, 7.9),
    ("TTA (with control)", 1000, 39.2),
]


def ratio(control: bool, steps: int) -> float | None:
    """What the paper says for TTA, where it says anything."""
    name = "TTA (with control)" if control else "TTA (w/o control)"
    return next((value for method, at, value in TABLE if method == name and at == steps), None)
