"""The record of a trajectory: what every token was, at what time, how important, at every step.

Saved as JSON, one object a text. Arrays over (step, position) are quantised, delta-coded along the steps, deflated and
written as base64, so that a trace of 1,000 steps and 64 tokens stays well under 300 KB:

    {"format": "tta-trace", "version": 1, "text", "prompt", "seed", "settings", "tokens": {"id": "text", ...},
     "u": [...], "pinned": [...], "probability": {"objective": {"before": [...], "after": [...]}},
     "ids" | "ids_before" | "times" | "importance" | "confidence": {"shape", "dtype", "scale", "data"}}

`ids_before` are the tokens that the same draw picks from the unguided logits, `ids` those from the guided ones.
`times` are the u_i given to the tokens for the next step. `importance` is relative to its maximum over the tokens that
are not given, in each step.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FORMAT, VERSION = "tta-trace", 1
_BLOCK = 64  # steps that are moved to the host together
_MOST_BYTES = 2**28  # of one array: a file that claims more is not unpacked


@dataclass
class Trace:
    """The trajectory of one text of L tokens over S steps."""

    u: np.ndarray  # (S,) global times
    ids: np.ndarray  # (S, L) after guidance
    ids_before: np.ndarray  # (S, L) before guidance
    times: np.ndarray  # (S, L) u_i
    confidence: np.ndarray  # (S, L) probability of the chosen token, after guidance
    importance: np.ndarray  # (S, L) relative to the largest of the step; 0 where guidance did not act
    pinned: np.ndarray  # (L,)
    probability: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # objective -> before, after
    text: str = ""
    prompt: str = ""
    seed: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    tokens: dict[int, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "text": self.text,
            "prompt": self.prompt,
            "seed": self.seed,
            "settings": self.settings,
            "tokens": {str(i): t for i, t in self.tokens.items()},
            "u": [round(float(x), 6) for x in self.u],
            "pinned": self.pinned.astype(int).tolist(),
            "probability": {
                name: {when: [round(p, 4) for p in values] for when, values in both.items()}
                for name, both in self.probability.items()
            },
            "ids": _pack(self.ids.astype(np.int32)),
            "ids_before": _pack(self.ids_before.astype(np.int32)),
            "times": _pack_unit(self.times),
            "confidence": _pack_unit(self.confidence),
            "importance": _pack_unit(self.importance),
        }

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Trace:
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            raise ValueError("this is not a trace of tta-diffusion")
        if raw.get("version") != VERSION:
            raise ValueError(
                f"the trace has version {raw.get('version')}, this program reads version {VERSION}: upgrade "
                "tta-diffusion, or write the trace again"
            )
        try:
            return cls._decode(raw)
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise ValueError(f"the trace is damaged ({type(error).__name__}: {error}): write it again") from error

    @classmethod
    def _decode(cls, raw: dict[str, Any]) -> Trace:
        arrays = {name: _unpack(raw[name]) for name in ("ids", "ids_before", "times", "confidence", "importance")}
        return cls(
            u=np.array(raw["u"]),
            pinned=np.array(raw["pinned"], dtype=bool),
            probability=raw["probability"],
            text=raw["text"],
            prompt=raw["prompt"],
            seed=raw["seed"],
            settings=raw["settings"],
            tokens={int(i): t for i, t in raw["tokens"].items()},
            **arrays,
        )


def save_traces(traces: list[Trace], path: str | Path) -> None:
    Path(path).write_text(json.dumps([trace.to_dict() for trace in traces], separators=(",", ":")) + "\n")


def load_traces(path: str | Path) -> list[Trace]:
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"'{path}' is not a readable trace file: {error}") from error
    return [Trace.from_dict(one) for one in (raw if isinstance(raw, list) else [raw])]


def _pack(array: np.ndarray) -> dict[str, Any]:
    """Differences along the steps, deflated: most tokens stay what they were."""
    delta = np.diff(array, axis=0, prepend=np.zeros_like(array[:1]))
    data = zlib.compress(np.ascontiguousarray(delta.T).tobytes(), level=9)
    return {
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "scale": 1,
        "data": base64.b64encode(data).decode(),
    }


def _pack_unit(array: np.ndarray) -> dict[str, Any]:
    """Values in [0, 1] to 8 bits; differences wrap around, which decoding undoes."""
    return _pack(np.rint(np.clip(array, 0, 1) * 255).astype(np.uint8)) | {"scale": 255}


def _unpack(packed: dict[str, Any]) -> np.ndarray:
    steps, length = packed["shape"]
    size = steps * length * np.dtype(packed["dtype"]).itemsize
    if not 0 <= size <= _MOST_BYTES:
        raise ValueError(f"an array of {size} bytes is more than a trace may hold")
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(base64.b64decode(packed["data"]), size + 1)  # a small file may unfold to any size
    if len(data) != size:
        raise ValueError("an array does not have the size that it claims")
    delta = np.frombuffer(data, dtype=packed["dtype"]).reshape(length, steps).T
    array = np.cumsum(delta, axis=0, dtype=packed["dtype"])
    return array / packed["scale"] if packed["scale"] != 1 else array


class TraceRecorder:
    """Collects the steps of a batch; `traces()` cuts them into one trace a text.

    A block of steps stays where it was computed and is moved at once: the device is not waited for at each step, and
    need not hold them all.
    """

    def __init__(self) -> None:
        self._u: list[float] = []
        self._arrays: dict[str, _Series] = defaultdict(_Series)
        self._probability: dict[str, dict[str, _Series]] = defaultdict(lambda: defaultdict(_Series))

    def record(self, u: float, probability: dict[str, dict[str, Tensor]], **arrays: Tensor) -> None:
        """arrays are (B, L); probability is objective -> before/after -> (B,)."""
        self._u.append(u)
        for name, array in arrays.items():
            self._arrays[name].append(array)
        for objective, both in probability.items():
            for when, p in both.items():
                self._probability[objective][when].append(p)

    def traces(self, pinned: Tensor, steps: list[int], last: int = 0) -> list[Trace]:
        """One for each text (B, L), up to the step after which it did not change, and of the `last` ones."""
        u = np.array(self._u)
        kept = [np.r_[:count, len(u) - last : len(u)] for count in steps]
        stacked: dict[str, Any] = {name: series.numpy() for name, series in self._arrays.items()}  # (S, B, L)
        curves = {
            objective: {when: series.numpy() for when, series in both.items()}  # (S, B)
            for objective, both in self._probability.items()
        }
        fixed = pinned.cpu().numpy()
        return [
            Trace(
                u=u[places],
                pinned=fixed[row],
                probability={
                    objective: {when: values[places, row].tolist() for when, values in both.items()}
                    for objective, both in curves.items()
                },
                **{name: array[places, row] for name, array in stacked.items()},
            )
            for row, places in enumerate(kept)
        ]


class _Series:
    """One value a step: the last ones on their device, those before on the host."""

    def __init__(self) -> None:
        self._steps: list[Tensor] = []
        self._blocks: list[np.ndarray] = []

    def append(self, value: Tensor) -> None:
        """Keeps a copy that the next step cannot overwrite; ids need no 64 bits."""
        dtype = torch.int32 if value.dtype == torch.int64 else value.dtype
        self._steps.append(value.detach().to(dtype, copy=True))
        if len(self._steps) == _BLOCK:
            self._move()

    def numpy(self) -> np.ndarray:
        """(S, ...)."""
        if self._steps:
            self._move()
        return np.concatenate(self._blocks)

    def _move(self) -> None:
        self._blocks.append(torch.stack(self._steps).cpu().numpy())
        self._steps.clear()


def relative(importance: Tensor | None, free: Tensor) -> Tensor:
    """Importance (B, L) over its largest value at free positions (B, L) of the row; 0 elsewhere, and where it is None.

    A given token cannot be pushed: however much it matters, it is no measure for those that can.
    """
    if importance is None:
        return torch.zeros(free.shape, device=free.device)
    own = importance.masked_fill(~free, 0.0)
    return own / own.amax(-1, keepdim=True).clamp_min(torch.finfo(own.dtype).tiny)


def describe_tokens(traces: list[Trace], decode: Callable[[int], str]) -> None:
    """Writes the text of every token id that occurs into the traces, so that they can be read without the model."""
    known: dict[int, str] = {}  # texts of one model share most tokens
    for trace in traces:
        seen = np.unique(np.concatenate([trace.ids.ravel(), trace.ids_before.ravel()])).tolist()
        known |= {i: decode(i) for i in seen if i not in known}
        trace.tokens = {i: known[i] for i in seen}
