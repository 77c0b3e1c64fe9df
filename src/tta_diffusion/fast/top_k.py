"""The k largest entries of rows as wide as the vocabulary, without looking at all of them in order.

Every row is cut into chunks. The k-th largest of their maxima bounds the k-th largest entry from below, so only what
reaches it is sorted.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tta_diffusion.fast import kernels

_CHUNK = 64


def top_k(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and indices of the k largest entries of each row (R, V), falling: `topk`, which is slower."""
    if rows.shape[-1] < k * _CHUNK:  # no more chunks than k
        top = rows.topk(k, dim=-1)
        return top.values, top.indices
    return _top_k_cpu(rows.float(), k) if rows.device.type == "cpu" else _top_k_by_chunks(rows, k)


def _top_k_by_chunks(rows: Tensor, k: int, chunk: int = _CHUNK) -> tuple[Tensor, Tensor]:
    """In shapes that do not depend on the data: nothing waits for a GPU."""
    whole = rows.shape[-1] // chunk * chunk
    chunks = rows[:, :whole].unflatten(-1, (-1, chunk))
    best = _maxima(rows, chunks).topk(min(k, chunks.shape[1]), sorted=False).indices
    kept = chunks.gather(1, best[..., None].expand(-1, -1, chunk)).flatten(1)
    top = torch.cat([kept, rows[:, whole:]], -1).topk(k, dim=-1)
    place, count = top.indices, kept.shape[-1]
    inside = best.gather(-1, place.clamp(max=count - 1) // chunk) * chunk + place % chunk
    return top.values, torch.where(place < count, inside, place + (whole - count))


def _maxima(rows: Tensor, chunks: Tensor) -> Tensor:
    """(R, n) the largest entry of each of the chunks (R, n, chunk) of rows (R, V)."""
    if not kernels.available(rows):
        return chunks.amax(-1)
    from tta_diffusion.fast.kernels.maxima import chunk_maxima

    return chunk_maxima(rows, chunks.shape[-1])


def _top_k_cpu(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """numpy's maxima, selection and search are faster than torch's on a CPU. Of equal entries the first ones."""
    entries = rows.numpy()
    size, vocab_size = entries.shape
    across = vocab_size // _CHUNK
    maxima = entries[:, : across * _CHUNK].reshape(size, _CHUNK, across).max(1)  # chunks of stride `across`
    least = np.partition(maxima, across - k, axis=-1)[:, across - k, None]
    row, column = np.divmod(np.flatnonzero(entries >= least), vocab_size)
    counts = np.bincount(row, minlength=size)
    place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    values = np.full((size, counts.max()), -np.inf, dtype=np.float32)
    columns = np.zeros((size, counts.max()), dtype=np.int64)
    values[row, place], columns[row, place] = entries[row, column], column
    top = torch.from_numpy(values).sort(dim=-1, descending=True, stable=True)
    return top.values[:, :k], torch.from_numpy(columns).gather(-1, top.indices[:, :k])
