"""Predictions by their largest entries: what a step needs of the logits, read from them once.

The denoiser's logits l (R, V) of the R positions to be written are reduced to the k largest, log sum exp of the
others, and how the others lie in each text on average. Guidance moves the k largest, projection draws from them (and
looks at a whole row only where the nucleus is wider), and self-conditioning embeds them:

    p E  =  sum_{v in top k} p_v E_v  +  (1 - sum_{v in top k} p_v) q E

Far from the end of a trajectory the others hold a quarter of the mass. For self-conditioning q is their mean over the
text: they lie nearly alike at all its positions (on a trained model this embeds within 1 to 3 %, the mean of the
vocabulary within 5 to 13 %). Guidance is more sensitive and uses the q of each row. Tensors as wide as the vocabulary
live for a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tta_diffusion import kernels
from tta_diffusion.canvas import Canvas
from tta_diffusion.soft_tokens import SparseTokens

TOP = 128  # k, unless guidance asks for more
_CHUNK = 64  # tokens that are first judged by their largest
# Entries of a block of rows: little memory, and enough that its many small operations do not count.
_BLOCK_ENTRIES = {"cpu": 2**21, "cuda": 2**26}
_PRODUCT_ENTRIES = {"cpu": 2**22, "cuda": 2**24}  # where it is multiplied: enough rows to earn the reading of the table


@dataclass(frozen=True)
class FreeRows:
    """The positions of a canvas that are written, as rows; made once for a trajectory."""

    shape: tuple[int, int]  # B, L
    places: Tensor  # (R,) in the flattened (B, L)
    texts: Tensor  # (R,) the text of each
    banned: Tensor  # (n,) tokens that are never written
    no_end: Tensor | None  # (R,) True where the text may not end; None: it may everywhere
    ends: tuple[int, int]

    @classmethod
    def of(cls, canvas: Canvas) -> FreeRows:
        places = canvas.free.flatten().nonzero().flatten()
        shape = (canvas.ids.shape[0], canvas.ids.shape[1])
        no_end = canvas.no_end.flatten()[places] if bool(canvas.no_end.any()) else None
        banned = torch.tensor(canvas.special.banned, dtype=torch.int64, device=places.device)
        return cls(shape, places, places // shape[1], banned, no_end, (canvas.special.end, canvas.special.pad))

    def restrict_(self, logits: Tensor) -> Tensor:
        """`Canvas.restrict` of rows (R, V), in place."""
        if len(self.banned):
            logits.index_fill_(-1, self.banned, -torch.inf)
        if self.no_end is not None:
            for token in self.ends:
                logits[:, token].masked_fill_(self.no_end, -torch.inf)
        return logits

    def spread(self, rows: Tensor, fill: float = 0) -> Tensor:
        """Rows (R, ...) at their places (B, L, ...), `fill` elsewhere."""
        batch, length = self.shape
        out = rows.new_full((batch * length, *rows.shape[1:]), fill)
        return out.index_copy_(0, self.places, rows).view(batch, length, *rows.shape[1:])


@dataclass(frozen=True)
class TopLogits:
    """softmax(logits) of the free rows; guidance replaces `values`, all else stays."""

    free: FreeRows
    logits: Tensor  # (R, V) of the others, as the head gave them; minus infinity at `ids` and what may not be written
    ids: Tensor  # (R, k) the likeliest tokens before guidance
    values: Tensor  # (R, k) float32, their logits
    rest: Tensor  # (R, 1) log sum exp over the others
    ceiling: Tensor  # (R, 1) no other logit is larger
    others: Tensor  # (B, V) mean distribution of the others in each text
    _means: dict[int, Tensor] = field(default_factory=dict, repr=False, compare=False)  # by table

    @property
    def total(self) -> Tensor:
        """(R, 1) log sum exp over all."""
        return torch.logaddexp(self.values.logsumexp(-1, keepdim=True), self.rest)

    @property
    def weights(self) -> Tensor:
        """(R, k) probabilities of `ids`."""
        return (self.values - self.total).exp()

    def probability(self, ids: Tensor) -> Tensor:
        """(B, L) the probability of ids (B, L); 1 where they are given."""
        chosen = ids.flatten()[self.free.places][:, None]
        hit = self.ids == chosen
        moved = self.values.masked_fill(~hit, -torch.inf).amax(-1, keepdim=True)
        value = torch.where(hit.any(-1, keepdim=True), moved, self.logits.gather(-1, chosen).float())
        return self.free.spread((value - self.total).exp().squeeze(-1), fill=1)

    def whole(self, rows: slice) -> Tensor:
        """(rows, V) float32 logits with the moved ones in place."""
        return self.logits[rows].to(torch.float32, copy=True).scatter_(-1, self.ids[rows], self.values[rows])

    def whole_into(self, out: Tensor, rows: Tensor) -> Tensor:
        """The same of any rows, written to the first ones of `out`."""
        found = out[: len(rows)]
        for place, row in zip(found, rows.tolist(), strict=True):  # nothing in between is as wide as the rows
            place.copy_(self.logits[row])
        return found.scatter_(-1, self.ids[rows], self.values[rows])

    @torch.no_grad()
    def mean_of_others(self, table: Tensor) -> Tensor:
        """(R, H) the mean embedding of each row's own others, which guidance does not move: one product a step."""
        if id(table) not in self._means:
            out = table.new_empty(len(self.ids), table.shape[1])
            for block in blocks(len(self.ids), self.logits, _PRODUCT_ENTRIES):
                rest = self.rest[block].clamp_min(torch.finfo(torch.float32).min)  # there may be no others
                out[block] = (self.logits[block] - rest).exp_().to(table.dtype) @ table
            self._means[id(table)] = out
        return self._means[id(table)]

    def blocks(self) -> Iterator[slice]:
        """Slices of the rows, so many that a block of whole rows stays small."""
        return blocks(len(self.ids), self.logits)

    def tokens(self) -> SparseTokens:
        """The prediction as self-conditioning sees it."""
        return SparseTokens(self.free.spread(self.ids), self.free.spread(self.weights), self.others)


def blocks(count: int, logits: Tensor, entries: dict[str, int] = _BLOCK_ENTRIES) -> Iterator[slice]:
    size = block_size(logits, entries)
    return (slice(start, start + size) for start in range(0, count, size))


def block_size(logits: Tensor, entries: dict[str, int] = _BLOCK_ENTRIES) -> int:
    return max(1, entries.get(logits.device.type, entries["cuda"]) // logits.shape[-1])


def room(count: int, logits: Tensor) -> Tensor:
    """Float32 memory for one of the blocks of `count` rows after the other: a CPU spends more time on fresh memory than
    on what it computes there."""
    return logits.new_empty(min(count, block_size(logits)), logits.shape[-1], dtype=torch.float32)


def top_logits(logits: Tensor, free: FreeRows, k: int = TOP) -> TopLogits:
    """Reads logits (R, V); the k largest, and what may not be written, are set to minus infinity in place."""
    free.restrict_(logits)
    read = _read_by_kernels if kernels.available(logits) else _read
    values, ids, rest, others = read(logits, free, min(k, logits.shape[-1]))
    others /= others.sum(-1, keepdim=True).clamp_min(1e-30)
    return TopLogits(free, logits, ids, values, rest, values[:, -1:], others)


def _read(logits: Tensor, free: FreeRows, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The k largest and their ids, log sum exp of the others, and the sum of their probabilities in each text."""
    rows, vocab_size = logits.shape
    ids = torch.empty(rows, k, dtype=torch.int64, device=logits.device)
    values = torch.empty(rows, k, device=logits.device)
    rest = torch.empty(rows, 1, device=logits.device)
    others = torch.zeros(free.shape[0], vocab_size, device=logits.device)
    wide = None if logits.dtype == torch.float32 else room(rows, logits)
    for_probs = room(rows, logits)
    for block in blocks(rows, logits):
        part = logits[block] if wide is None else wide[: len(ids[block])].copy_(logits[block])
        values[block], ids[block] = largest(part, k)
        probs = torch.softmax(part, -1, out=for_probs[: len(part)])
        head = probs.gather(-1, ids[block])
        # log(1 - head) + log sum exp, the latter from any one probability: here the largest.
        left = (1 - head.sum(-1, keepdim=True)).clamp_min(1e-12)
        rest[block] = left.log() + values[block, :1] - head[:, :1].log()
        _add(others, free.texts[block], probs.scatter_(-1, ids[block], 0.0))
        _fill(logits[block], ids[block], -torch.inf)
    if k == vocab_size:
        rest.fill_(-torch.inf)
    return values, ids, rest, others


def _read_by_kernels(logits: Tensor, free: FreeRows, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same on a GPU, without a temporary as wide as the vocabulary."""
    from tta_diffusion.kernels.others import log_sum_exp, sum_by_text

    found = [largest(logits[block], k) for block in blocks(len(logits), logits)]
    values, ids = torch.cat([v for v, _ in found]).float(), torch.cat([i for _, i in found])
    logits.scatter_(-1, ids, -torch.inf)
    rest = log_sum_exp(logits)
    total = torch.logaddexp(values.logsumexp(-1, keepdim=True), rest)
    return values, ids, rest, sum_by_text(logits, total, free.texts, free.shape[0])


def _fill(rows: Tensor, ids: Tensor, value: float) -> None:
    """rows[r, ids[r]] = value. `scatter_` copies rows of 16 bits whole on a CPU; padded rows leave it no other way."""
    if rows.is_cuda or not rows.is_contiguous():
        rows.scatter_(-1, ids, value)
    else:
        starts = torch.arange(len(rows))[:, None] * rows.shape[-1]
        rows.view(-1).index_fill_(0, (ids + starts).flatten(), value)


def _add(others: Tensor, texts: Tensor, probs: Tensor) -> None:
    """others[texts[r]] += probs[r], in an order that does not change from run to run."""
    if others.is_cuda:
        member = torch.arange(len(others), device=texts.device)[:, None] == texts
        others.addmm_(member.to(probs.dtype), probs)
    else:
        others.index_add_(0, texts, probs)


def largest(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and indices of the k largest entries of each row (R, V), falling: `topk`, which is slower.

    The k largest lie in the k chunks with the largest maxima, so only those are looked at.
    """
    if rows.shape[-1] < k * _CHUNK:  # no more chunks than k
        top = rows.topk(k, dim=-1)
        return top.values, top.indices
    return _largest_cpu(rows.float(), k) if rows.device.type == "cpu" else _largest_by_chunks(rows, k)


def _largest_by_chunks(rows: Tensor, k: int, chunk: int = _CHUNK) -> tuple[Tensor, Tensor]:
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
    from tta_diffusion.kernels.maxima import chunk_maxima

    return chunk_maxima(rows, chunks.shape[-1])


def _largest_cpu(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """numpy's selection and search are several times faster than torch's on a CPU."""
    size, vocab_size = rows.shape
    across = vocab_size // _CHUNK
    maxima = rows[:, : across * _CHUNK].unflatten(-1, (_CHUNK, across)).amax(1).numpy()  # chunks of stride `across`
    bound = np.partition(maxima, across - k, axis=-1)[:, across - k, None]
    found = np.flatnonzero(rows.numpy() >= bound)
    row, column = np.divmod(found, vocab_size)
    counts = np.bincount(row, minlength=size)
    place = np.arange(len(found)) - np.repeat(np.cumsum(counts) - counts, counts)
    values = np.full((size, counts.max()), -np.inf, dtype=np.float32)
    columns = np.zeros((size, counts.max()), dtype=np.int64)
    values[row, place], columns[row, place] = rows.numpy().ravel()[found], column
    top = torch.from_numpy(values).topk(k, dim=-1)
    return top.values, torch.from_numpy(columns).gather(-1, top.indices)
