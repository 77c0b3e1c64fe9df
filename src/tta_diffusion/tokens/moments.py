"""Mean and covariance of the rows of an embedding table, kept for weights that do not change.

For a large table on a CPU they are kept on disk as well (`common.cache`), under a hash of the table: half a second
before the first step of every process.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tta_diffusion.common.cache import cache_directory, is_private, private_directory
from tta_diffusion.fast.derived import derived

_BLOCK = 4096  # rows of a table that are held in double precision at once
_LARGE = 2**20  # entries of a table from which on its moments are kept on disk


class Moments(NamedTuple):
    """The mean (H,) of the rows of a table, and the symmetric root (H, H) of their covariance."""

    mean: Tensor
    root: Tensor


_MEANS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
_MOMENTS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def mean(table: Tensor) -> Tensor:
    """(H,) the mean row. Kept for weights that do not change; followed by gradients where those are wanted."""
    if torch.is_grad_enabled() and table.requires_grad:
        return table.mean(0)
    return derived(_MEANS, table, lambda: table.detach().mean(0))


def moments(table: Tensor) -> Moments:
    """Mean and root of the covariance of the rows, float32, kept for weights that do not change."""
    trained = torch.is_grad_enabled() and table.requires_grad
    make = _from_disk if table.device.type == "cpu" and table.numel() >= _LARGE and not trained else computed
    return derived(_MOMENTS, table, lambda: make(table.detach()))


def computed(table: Tensor) -> Moments:
    width = table.shape[1]
    centre = torch.zeros(width, dtype=torch.float64, device=table.device)
    square = torch.zeros(width, width, dtype=torch.float64, device=table.device)
    for block in table.split(_BLOCK):
        rows = block.double()
        centre += rows.sum(0)
        square.addmm_(rows.T, rows)
    centre /= len(table)
    covariance = square / len(table) - centre.outer(centre)
    values, vectors = torch.linalg.eigh(covariance)  # a Cholesky root would need full rank
    # The symmetric root: the signs of eigenvectors, which a device is free to choose, cancel.
    return Moments(centre.float(), ((vectors * values.clamp_min(0).sqrt()) @ vectors.T).float())


def _from_disk(table: Tensor) -> Moments:
    """What is kept of this table, or made and kept now; a file that cannot be read is made anew."""
    width, content = table.shape[1], table.contiguous().view(torch.uint8).numpy().tobytes()
    name = hashlib.blake2b(content, digest_size=12, person=str(table.dtype).encode()[:16]).hexdigest()
    with suppress(OSError, ValueError, EOFError):
        path = private_directory(cache_directory() / "moments") / f"{name}.npy"
        if path.is_file() and is_private(path):
            kept = torch.from_numpy(np.load(path, allow_pickle=False))
            if kept.shape == (width + 1, width) and kept.dtype == torch.float32:
                return Moments(kept[0], kept[1:])
    found = computed(table)
    with suppress(OSError):
        _keep(private_directory(cache_directory() / "moments") / f"{name}.npy", found)
    return found


def _keep(path: Path, found: Moments) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        np.save(file, torch.cat([found.mean[None], found.root]).numpy())
    os.replace(temporary, path)
