"""Many trajectories in one small file: the traces of one policy, to be carried from machine to machine.

A zip archive that grows by groups of traces of one length and one grid of times. `index.json` says what is in it, and
the member `n/name` holds an array of group n for all its texts, compressed by LZMA:

    {"format": "tta-traces", "version": 1, "about": {...}, "tokens": {"id": "text"},
     "groups": [{"u": [...], "objectives": [...], "shares": true,
                 "texts": [{"pinned", "text", "prompt", "seed", "settings"}, ...]}]}

    ids          x_t - x_{t-1}             importance   in 8 bits
    ids_before   y_t - x_t                 confidence   in 8 bits
    times        u_i / u in 8 bits         probability  in 16 bits: before and after guidance, for each objective

An array (S, L) is laid out position by position, its low bytes before the high ones, so that what does not change is a
run of zeros. All but `ids_before` are differences along the steps. Where some u_i lies above u, as those of `random`
do, the times of the group are u_i in 8 bits, and `shares` is false.
"""

from __future__ import annotations

import json
import lzma
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tta_diffusion.sampling.trace import Trace, load_traces

FORMAT, VERSION = "tta-traces", 1
INDEX = "index.json"
WHENS = ("before", "after")
DTYPES = {
    "ids": "<i4",
    "ids_before": "<i4",
    "importance": "u1",
    "confidence": "u1",
    "times": "u1",
    "probability": "<u2",
}
# Runs along the steps are all there is to find: no alignment, no memory of a previous byte.
_MOST_BYTES = 2**30  # of one array of a group: a file that unfolds to more is not read
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 0, "pb": 0}]


def append_pack(path: Path, traces: list[Trace], about: dict[str, Any]) -> None:
    """Adds a group of traces; a kill leaves the file as it was before."""
    index: dict[str, Any] = {"format": FORMAT, "version": VERSION, "about": about, "tokens": {}, "groups": []}
    members: dict[str, bytes] = {}
    if path.is_file():
        with _open(path) as archive:
            index = _index(archive, path)
            members = {name: archive.read(name) for name in archive.namelist() if name != INDEX}
    number = len(index["groups"])
    index["groups"].append(_describe(traces))
    for trace in traces:
        index["tokens"] |= {str(i): text for i, text in trace.tokens.items()}
    shares = bool(index["groups"][number]["shares"])
    members |= {f"{number}/{name}": data for name, data in _encode(traces, shares).items()}
    temporary = path.with_name(f".{path.name}.tmp")
    with zipfile.ZipFile(temporary, "w") as archive:
        text = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
        archive.writestr(INDEX, text, zipfile.ZIP_DEFLATED)
        for name, data in members.items():
            archive.writestr(name, data)
    os.replace(temporary, path)


def load_pack(path: str | Path) -> list[Trace]:
    """The traces of all groups."""
    with _open(path) as archive:
        index = _index(archive, path)
        tokens = {int(i): text for i, text in index["tokens"].items()}
        try:
            return [
                trace
                for number, group in enumerate(index["groups"])
                for trace in _decode({name: archive.read(f"{number}/{name}") for name in DTYPES}, group, tokens)
            ]
        except (KeyError, TypeError, ValueError, lzma.LZMAError, zipfile.BadZipFile) as error:
            raise ValueError(f"the pack '{path}' is damaged ({error}): collect the traces again") from error


def read_index(path: str | Path) -> dict[str, Any]:
    """What is in a pack, without its arrays."""
    with _open(path) as archive:
        return _index(archive, path)


def load_any(path: str | Path) -> list[Trace]:
    """The traces of a pack, or of a JSON file of `tta generate --trace`."""
    return load_pack(path) if zipfile.is_zipfile(path) else load_traces(path)


def _open(path: str | Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"'{path}' is not a readable pack of traces: {error}") from error


def _index(archive: zipfile.ZipFile, path: str | Path) -> dict[str, Any]:
    if INDEX in archive.namelist() and archive.getinfo(INDEX).file_size > _MOST_BYTES:
        raise ValueError(f"the index of '{path}' is larger than a pack may have")
    raw = json.loads(archive.read(INDEX)) if INDEX in archive.namelist() else {}
    if raw.get("format") != FORMAT:
        raise ValueError(f"'{path}' is not a pack of traces of tta-diffusion")
    if raw.get("version") != VERSION:
        raise ValueError(
            f"the pack '{path}' has version {raw.get('version')}, this program reads version {VERSION}: upgrade "
            "tta-diffusion, or collect the traces again"
        )
    found: dict[str, Any] = raw
    return found


def _describe(traces: list[Trace]) -> dict[str, Any]:
    first = traces[0]
    for trace in traces:
        same = trace.ids.shape == first.ids.shape and trace.probability.keys() == first.probability.keys()
        if not same or not np.array_equal(trace.u, first.u):
            raise ValueError("the traces of a group must share their times, their length and their objectives")
    texts = [
        {
            "pinned": trace.pinned.astype(int).tolist(),
            "text": trace.text,
            "prompt": trace.prompt,
            "seed": trace.seed,
            "settings": trace.settings,
        }
        for trace in traces
    ]
    shares = all(bool((trace.times <= trace.u[:, None] + 1e-6).all()) for trace in traces)
    times = [round(float(u), 9) for u in first.u]
    return {"u": times, "objectives": list(first.probability), "shares": shares, "texts": texts}


def _encode(traces: list[Trace], shares: bool) -> dict[str, bytes]:
    """The members of a group; LZMA takes longest, and threads share it out."""
    arrays = [_arrays(trace, shares) for trace in traces]
    with ThreadPoolExecutor() as pool:
        return dict(zip(DTYPES, pool.map(lambda name: _compress([a[name] for a in arrays]), DTYPES), strict=True))


def _arrays(trace: Trace, shares: bool) -> dict[str, np.ndarray]:
    """(S, width) integers in which 0 means: as before."""
    curves = np.array([both[when] for both in trace.probability.values() for when in WHENS])
    times = trace.times / np.maximum(trace.u, 1e-9)[:, None] if shares else trace.times
    ids = trace.ids.astype(np.int32)
    return {
        "ids": _differences(ids),
        "ids_before": trace.ids_before.astype(np.int32) - ids,
        "importance": _differences(_quantise(trace.importance, "u1")),
        "confidence": _differences(_quantise(trace.confidence, "u1")),
        "times": _differences(_quantise(times, "u1")),
        "probability": _differences(_quantise(curves.reshape(-1, len(ids)).T, "<u2")),
    }


def _decode(members: dict[str, bytes], group: dict[str, Any], tokens: dict[int, str]) -> list[Trace]:
    u, texts, objectives = np.array(group["u"]), group["texts"], group["objectives"]
    planes = {name: _expand(data, DTYPES[name], len(texts), len(u)) for name, data in members.items()}
    summed = {name: np.cumsum(plane, axis=1, dtype=plane.dtype) for name, plane in planes.items()}
    whole = u[:, None] if group.get("shares", True) else 1.0  # older packs have shares alone
    traces = []
    for i, entry in enumerate(texts):
        ids, curves = summed["ids"][i], _unit(summed["probability"][i])
        traces.append(
            Trace(
                u=u,
                ids=ids,
                ids_before=planes["ids_before"][i] + ids,
                times=_unit(summed["times"][i]) * whole,
                confidence=_unit(summed["confidence"][i]),
                importance=_unit(summed["importance"][i]),
                pinned=np.array(entry["pinned"], dtype=bool),
                probability={
                    name: {when: curves[:, len(WHENS) * k + w].tolist() for w, when in enumerate(WHENS)}
                    for k, name in enumerate(objectives)
                },
                text=entry["text"],
                prompt=entry["prompt"],
                seed=entry["seed"],
                settings=entry["settings"],
                tokens=tokens,
            )
        )
    return traces


def _quantise(values: np.ndarray, dtype: str) -> np.ndarray:
    """[0, 1] to all values of an unsigned type."""
    found: np.ndarray = np.rint(np.clip(values, 0, 1) * np.iinfo(dtype).max).astype(dtype)
    return found


def _unit(array: np.ndarray) -> np.ndarray:
    """Back to [0, 1]; 32 bits, since hundreds of traces are in memory at once."""
    return array.astype(np.float32) / np.float32(np.iinfo(array.dtype).max)


def _differences(array: np.ndarray) -> np.ndarray:
    """Along the steps, the first step as it is; unsigned ones wrap around, which adding them up undoes."""
    found: np.ndarray = np.diff(array, axis=0, prepend=np.zeros_like(array[:1]))
    return found


def _compress(arrays: list[np.ndarray]) -> bytes:
    stacked = np.ascontiguousarray(np.stack(arrays).transpose(0, 2, 1))  # (N, width, S)
    planes = stacked.reshape(-1).view("u1").reshape(-1, stacked.itemsize).T
    return lzma.compress(np.ascontiguousarray(planes).tobytes(), lzma.FORMAT_XZ, filters=_FILTERS)


def _expand(data: bytes, dtype: str, texts: int, steps: int) -> np.ndarray:
    unpacker = lzma.LZMADecompressor()
    plain = unpacker.decompress(data, _MOST_BYTES)
    if not unpacker.eof:
        raise ValueError("an array holds more than a pack may")
    planes = np.frombuffer(plain, dtype="u1").reshape(np.dtype(dtype).itemsize, -1).T
    return np.ascontiguousarray(planes).view(dtype).reshape(texts, -1, steps).transpose(0, 2, 1)
