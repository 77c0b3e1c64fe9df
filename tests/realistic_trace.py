"""A trace as sampling makes them, for the tests of traces and of what reads them."""

from __future__ import annotations

import numpy as np

from tta_diffusion.sampling.trace import Trace


def realistic(steps: int, length: int, seed: int = 0, vocab_size: int = 50_265) -> Trace:
    """Tokens change often at first and seldom later; times are an adaptive allocation; values fluctuate."""
    rng = np.random.default_rng(seed)
    u = np.arange(steps, 0, -1) / steps
    ids = np.zeros((steps, length), dtype=np.int64)
    ids[0] = rng.integers(0, vocab_size, length)
    for step in range(1, steps):
        change = rng.random(length) < 0.5 * u[step] ** 6
        ids[step] = np.where(change, rng.integers(0, vocab_size, length), ids[step - 1])
    before = np.where(rng.random(ids.shape) < 0.01, rng.integers(0, vocab_size, ids.shape), ids)
    drift = np.cumsum(rng.normal(0, 0.004, ids.shape), axis=0) + rng.random(length)
    importance = np.abs(drift) / np.abs(drift).max(-1, keepdims=True)
    confidence = np.clip(1 - u[:, None] ** 2 * rng.random(length) + rng.normal(0, 0.001, ids.shape), 0, 1)
    return Trace(
        u=u,
        ids=ids,
        ids_before=before,
        times=(0.6 + 0.4 * (1 - importance)) * u[:, None],
        confidence=confidence,
        importance=importance,
        pinned=np.arange(length) < 3,
        probability={"sentiment": {when: rng.random(steps).tolist() for when in ("before", "after")}},
        text="the pizza",
        prompt="the",
        seed=7,
        settings={"steps": steps},
        tokens={int(i): f"token {i}" for i in np.unique(np.concatenate([ids, before]))[:300]},
    )
