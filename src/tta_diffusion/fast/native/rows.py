"""`rows.c` for tensors."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import CDLL, c_double, c_float, c_int, c_int64, c_void_p
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tta_diffusion.fast.native import library


def read_rows(
    logits: Tensor, bias: Tensor | None, texts: Tensor, count: int, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The k largest of rows (R, V) and their ids, log sum exp of the others, and the sum of their probabilities in each
    of `count` texts.

    Args:
        logits: float32 or bfloat16; the k largest become minus infinity in place.
        bias: (V,) float32, contiguous, to be added to them first.
        texts: (R,) the text of each row, rising: a thread has texts of its own.
    """
    rows, vocab_size = logits.shape
    values, ids = torch.empty(rows, k), torch.empty(rows, k, dtype=torch.int64)
    rest, others = torch.empty(rows, 1), torch.zeros(count, vocab_size)

    def read(part: slice) -> int:
        return _library().read_rows(
            *(_at(logits[part]), c_int(logits.dtype == torch.bfloat16), c_int64(part.stop - part.start)),
            *(c_int64(logits.stride(0)), c_int64(vocab_size), _at(bias), _at(texts[part]), c_int64(k)),
            *(_at(values[part]), _at(ids[part]), _at(rest[part]), _at(others)),
        )

    _run(read, parts_of(texts.numpy(), torch.get_num_threads()))
    return values, ids, rest, others


def draw_rows(
    logits: Tensor,
    bias: Tensor | None,
    rows: Tensor,
    values: Tensor,
    ids: Tensor,
    total: Tensor,
    uniform: Tensor,
    top_p: float,
) -> Tensor:
    """Tokens (n,) of rows (n,) of logits (R, V), drawn as by `kernels.nucleus.draw_wide_`.

    Args:
        values: (n, k) of the known tokens `ids` (n, k), where the logits are minus infinity.
        total: (n, 1) log sum exp over known tokens and others.
        uniform: (n,) float64 in (0, 1); further numbers are its hashes.
    """
    (count, k), tokens = ids.shape, ids[:, 0].clone()
    rows, values, ids, total, uniform = (x.contiguous() for x in (rows, values, ids, total, uniform))

    def draw(part: slice) -> int:
        return _library().draw_rows(
            *(_at(logits), c_int(logits.dtype == torch.bfloat16), c_int64(logits.stride(0))),
            *(c_int64(logits.shape[-1]), _at(bias), _at(rows[part]), c_int64(part.stop - part.start)),
            *(_at(values[part]), _at(ids[part]), c_int64(k), _at(total[part]), _at(uniform[part])),
            *(c_double(top_p), _at(tokens[part])),
        )

    _run(draw, parts_of(np.arange(count), torch.get_num_threads()))
    return tokens


def encode_rows(rows: Tensor, columns: Tensor, least: float, codes: Tensor, scales: Tensor) -> None:
    """Rows (M, K) float32 times columns (K,), contiguous, K a multiple of 64, into codes (M, K) uint8 and scales (M,):
    see `products.vnni.encode`."""
    (count, width), library = rows.shape, _library()
    library.encode_rows.restype = None
    library.encode_rows(
        *(_at(rows), c_int64(count), c_int64(width), _at(columns), c_float(least), _at(codes), _at(scales))
    )


def _library() -> CDLL:
    found = library()
    assert found is not None
    return found


def _at(tensor: Tensor | None) -> c_void_p:
    return c_void_p(None if tensor is None else tensor.data_ptr())


def _run(work: Callable[[slice], int], parts: list[slice]) -> None:
    """In a thread for each part: a call of C lets the others run."""
    if len(parts) == 1:
        failed = work(parts[0])
    else:
        with ThreadPoolExecutor(len(parts)) as pool:
            failed = max(pool.map(work, parts))
    if failed:
        raise MemoryError("there is no memory for a row of logits")


def parts_of(texts: NDArray[np.int64], count: int) -> list[slice]:
    """About equal parts of the rows, at most `count`, none of which shares a text with another."""
    rows = len(texts)
    inner = [np.searchsorted(texts, texts[rows * i // count]) for i in range(1, count)]  # where a text begins
    bounds = [int(bound) for bound in np.unique([0, *inner, rows])]
    return [slice(low, high) for low, high in pairwise(bounds)]
