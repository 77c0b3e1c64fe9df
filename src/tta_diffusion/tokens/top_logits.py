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

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_diffusion.fast import kernels, native
from tta_diffusion.fast.native.rows import read_rows
from tta_diffusion.fast.scratch import Scratch
from tta_diffusion.fast.top_k import top_k
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.soft_tokens import SparseTokens

TOP = 128  # k, unless guidance asks for more
Rule = Callable[[Tensor, Tensor], Tensor]  # tokens (R, k) at places (R,) of the flattened (B, L) -> (R, k) True: lower
# Entries of a block of rows: on a CPU they stay in its cache, and are so many that small operations do not count.
_BLOCK_ENTRIES = {"cpu": 2**19, "cuda": 2**26}
_VECTOR = 32  # a multiple of the numbers that any CPU computes at once
_PRODUCT_ENTRIES = {"cpu": 2**23, "cuda": 2**24}  # where it is multiplied: enough rows to earn the reading of the table


@dataclass(frozen=True)
class FreeRows:
    """The positions of a canvas that are written, as rows; made once for a trajectory."""

    shape: tuple[int, int]  # B, L
    places: Tensor  # (R,) in the flattened (B, L)
    texts: Tensor  # (R,) the text of each
    banned: Tensor  # (n,) tokens that are never written
    no_end: Tensor | None  # (R,) True where the text may not end; None: it may everywhere
    ends: tuple[int, int]
    scratch: Scratch = field(default_factory=Scratch, repr=False, compare=False)

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

    def take(self, rows: Tensor, scratch: Scratch) -> FreeRows:
        """Some of the rows (n,), whose logits lie in other memory."""
        no_end = None if self.no_end is None else self.no_end[rows]
        return replace(self, places=self.places[rows], texts=self.texts[rows], no_end=no_end, scratch=scratch)

    def buffer(self, name: str, logits: Tensor, block: slice, more: int = 0) -> Tensor:
        """Float32 memory for a block of rows of logits, and `more` columns."""
        rows = block.stop - block.start
        return self.scratch.take(name, rows, logits.shape[-1] + more, torch.float32, logits.device)

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
    bias: Tensor | None = None  # (V,) still to be added to `logits`
    # (table, mean of the others) by the id of the table
    _means: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def total(self) -> Tensor:
        """(R, 1) log sum exp over all."""
        return of_rows(_log_sum_exp, self.values, self.rest)

    @property
    def weights(self) -> Tensor:
        """(R, k) probabilities of `ids`."""
        return (self.values - self.total).exp()

    def moved(self, values: Tensor) -> TopLogits:
        return replace(self, values=values)

    def lowered(self, rule: Rule, nats: float) -> TopLogits:
        return self.moved(self.values - nats * rule(self.ids, self.free.places))

    def updated(self, rows: Tensor, part: TopLogits) -> TopLogits:
        """The prediction with some rows (n,) taken from `part`, which has those rows alone.

        A text none of whose rows is new keeps the distribution of its other tokens.
        """
        self.logits.index_copy_(0, rows, part.logits)
        pairs = ((self.ids, part.ids), (self.values, part.values), (self.rest, part.rest), (self.ceiling, part.ceiling))
        ids, values, rest, ceiling = (old.index_copy(0, rows, new) for old, new in pairs)
        touched = torch.zeros(len(self.others), 1, dtype=torch.bool, device=rows.device)
        touched[part.free.texts] = True
        others = torch.where(touched, part.others, self.others)
        means = {
            key: (table, mean.index_copy(0, rows, part.mean_of_others(table)))
            for key, (table, mean) in self._means.items()
        }
        return TopLogits(self.free, self.logits, ids, values, rest, ceiling, others, self.bias, means)

    def by_position(self, values: Tensor) -> Tensor:
        return self.free.spread(values)

    def negative_entropy(self) -> Tensor:
        """(B, L) sum_v p log p; 0 where tokens are given."""
        return self.free.spread(torch.cat([negative_entropy(self.whole(block)) for block in self.blocks()]))

    def margin(self) -> Tensor:
        """(B, L) the probability of the likeliest token less that of the next; 1 where tokens are given."""
        return self.free.spread(lead(self.weights), fill=1)

    def probability(self, ids: Tensor) -> Tensor:
        """(B, L) the probability of ids (B, L); 1 where they are given."""
        chosen = ids.flatten()[self.free.places][:, None]
        hit = self.ids == chosen
        moved = self.values.masked_fill(~hit, -torch.inf).amax(-1, keepdim=True)
        other = self.logits.gather(-1, chosen).float() + (0 if self.bias is None else self.bias[chosen])
        value = torch.where(hit.any(-1, keepdim=True), moved, other)
        return self.free.spread(of_rows(torch.exp, value - self.total).squeeze(-1), fill=1)

    def whole(self, rows: slice) -> Tensor:
        """(rows, V) float32 logits with the moved ones in place."""
        out = torch.empty_like(self.logits[rows], dtype=torch.float32)
        return widen(self.logits[rows], self.bias, out).scatter_(-1, self.ids[rows], self.values[rows])

    @torch.no_grad()
    def mean_of_others(self, table: Tensor) -> Tensor:
        """(R, H) the mean embedding of each row's own others, which guidance does not move: one product a step."""
        if id(table) not in self._means:
            self._means[id(table)] = (table, self._mean_of_others(table))
        return self._means[id(table)][1]

    def _mean_of_others(self, table: Tensor) -> Tensor:
        logits, rows = self.logits, len(self.ids)
        rest = self.rest.masked_fill(self.rest == -torch.inf, torch.inf)  # no others: a mean of nothing
        out = table.new_empty(rows, table.shape[1])
        size = min(rows, block_size(logits, _PRODUCT_ENTRIES))
        probs = self.free.scratch.take("product", size, logits.shape[-1], table.dtype, logits.device)
        for start in range(0, rows, size):
            several = slice(start, min(rows, start + size))
            for block in blocks(several.stop, logits, start):
                place = probs[block.start - start : block.stop - start]
                wide = place if place.dtype == torch.float32 else self.free.buffer("one", logits, block)
                widen(logits[block], self.bias, wide).sub_(rest[block]).exp_()
                if wide is not place:
                    place.copy_(wide)
            out[several] = probs[: several.stop - start] @ table
        return out

    def blocks(self) -> Iterator[slice]:
        """Slices of the rows, so many that a block of whole rows stays small."""
        return blocks(len(self.ids), self.logits)

    def tokens(self, other: TopLogits | None = None, share: float = 1.0) -> SparseTokens:
        """The prediction as self-conditioning sees it; or share p + (1 - share) p_other, both with the same `ids`."""
        weights = self.weights
        if other is not None and share != 1:
            weights = share * weights + (1 - share) * other.weights
        others = self.others
        if others.device.type == "cpu":
            parts = [self] if other is None or share == 1 else [self, other]
            mass = torch.stack([(part.rest - part.total).exp() for part in parts]).amax(0).squeeze(-1)  # (R,)
            largest = mass.new_zeros(len(others)).scatter_reduce_(0, self.free.texts, mass, "amax")
            # Where the logits' own type could not tell it from none, it is not worth a product with the table.
            worth = largest >= torch.finfo(self.logits.dtype).eps / 8
            others = others if worth.numpy().all() else others.masked_fill(~worth[:, None], 0.0)
        return SparseTokens(self.free.spread(self.ids), self.free.spread(weights), others)


def of_rows(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """A function of the rows of tensors (R, ...) that is the same for a row whatever R is: a CPU computes the last few
    entries of a tensor otherwise than whole vectors of them, so rows are filled up."""
    rows = len(tensors[0])
    if tensors[0].is_cuda or not rows % _VECTOR:
        return function(*tensors)
    return function(*(F.pad(x, (0, 0, 0, -rows % _VECTOR)) for x in tensors))[:rows]


def _log_sum_exp(values: Tensor, rest: Tensor) -> Tensor:
    """(R, 1) of values (R, k) and the rest (R, 1)."""
    return torch.logaddexp(values.logsumexp(-1, keepdim=True), rest)


def negative_entropy(logits: Tensor) -> Tensor:
    """(...) sum_v p log p of logits (..., V)."""
    log_p = logits.float().log_softmax(-1)
    return (log_p.exp() * log_p.clamp_min(torch.finfo(torch.float32).min)).sum(-1)


def lead(probs: Tensor) -> Tensor:
    """(...) the largest of probabilities (..., n) less the next."""
    first, second = probs.topk(2, dim=-1).values.unbind(-1)
    return first - second


def blocks(stop: int, logits: Tensor, start: int = 0, buffers: int = 1) -> Iterator[slice]:
    """Slices of rows from `start` to `stop`, so few that what is computed of them, in so many buffers, stays small."""
    size = max(1, block_size(logits) // buffers)
    return (slice(low, min(stop, low + size)) for low in range(start, stop, size))


def block_size(logits: Tensor, entries: dict[str, int] = _BLOCK_ENTRIES) -> int:
    return max(1, entries.get(logits.device.type, entries["cuda"]) // logits.shape[-1])


def widen(logits: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    """Logits (r, V) in float32, with their bias (V,), written to `out`."""
    if bias is None:
        return out.copy_(logits)
    return torch.add(logits, bias, out=out) if logits.dtype == torch.float32 else out.copy_(logits).add_(bias)


def top_logits(logits: Tensor, free: FreeRows, k: int = TOP, bias: Tensor | None = None) -> TopLogits:
    """Reads logits (R, V), to which a bias (V,) is still to be added, if any; the k largest, and what may not be
    written, are set to minus infinity in place."""
    free.restrict_(logits)
    k = min(k, logits.shape[-1])
    bias = None if bias is None else bias.float()
    if kernels.available(logits):
        values, ids, rest, others = _read_by_kernels(logits, free, k)
    else:
        read = read_rows if native.available(logits) else _read
        values, ids, rest, others = read(logits, bias, free.texts, free.shape[0], k)
    others /= others.sum(-1, keepdim=True).clamp_min(1e-30)
    return TopLogits(free, logits, ids, values, rest, values[:, -1:], others, bias)


def _read(
    logits: Tensor, bias: Tensor | None, texts: Tensor, count: int, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The k largest and their ids, log sum exp of the others, and the sum of their probabilities in each text."""
    rows, vocab_size = logits.shape
    ids = torch.empty(rows, k, dtype=torch.int64, device=logits.device)
    values = torch.empty(rows, k, device=logits.device)
    rest = torch.empty(rows, 1, device=logits.device)
    others = torch.zeros(count, vocab_size, device=logits.device)
    buffer = torch.empty(min(rows, block_size(logits)), vocab_size, device=logits.device)
    for block in blocks(rows, logits):
        wide = widen(logits[block], bias, buffer[: block.stop - block.start])
        values[block], ids[block] = top_k(wide, k)
        for one in (logits[block], wide):
            _fill(one, ids[block], -torch.inf)
        top = values[block, :1]
        weights = wide.sub_(top).exp_()
        rest[block] = top + of_rows(torch.log, weights.sum(-1, keepdim=True).clamp_min(1e-30))
        total = of_rows(_log_sum_exp, values[block], rest[block])
        _add(others, texts[block], weights, of_rows(torch.exp, top - total))
    if k == vocab_size:
        rest.fill_(-torch.inf)
    return values, ids, rest, others


def _read_by_kernels(logits: Tensor, free: FreeRows, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same on a GPU, without a temporary as wide as the vocabulary."""
    from tta_diffusion.fast.kernels.others import log_sum_exp, sum_by_text

    found = [top_k(logits[block], k) for block in blocks(len(logits), logits)]
    values, ids = torch.cat([v for v, _ in found]).float(), torch.cat([i for _, i in found])
    logits.scatter_(-1, ids, -torch.inf)
    rest = log_sum_exp(logits)
    total = _log_sum_exp(values, rest)
    return values, ids, rest, sum_by_text(logits, total, free.texts, free.shape[0])


def _fill(rows: Tensor, ids: Tensor, value: float) -> None:
    """rows[r, ids[r]] = value. On a CPU `scatter_` copies rows of 16 bits whole."""
    if rows.is_cuda:
        rows.scatter_(-1, ids, value)
    else:
        size, stride = len(rows), rows.stride(0)
        flat = rows.as_strided((size * stride - stride + rows.shape[-1],), (1,))
        flat.index_fill_(0, (ids + stride * torch.arange(size)[:, None]).flatten(), value)


def _add(others: Tensor, texts: Tensor, weights: Tensor, shares: Tensor) -> None:
    """others[texts[r]] += shares[r] weights[r], in an order that does not change from run to run."""
    (_add_at_once if others.is_cuda else _add_by_rows)(others, texts, weights, shares)


def _add_at_once(others: Tensor, texts: Tensor, weights: Tensor, shares: Tensor) -> None:
    member = torch.arange(len(others), device=texts.device)[:, None] == texts
    others.addmm_(member * shares.T, weights)


def _add_by_rows(others: Tensor, texts: Tensor, weights: Tensor, shares: Tensor) -> None:
    """What is read and written stays in the cache of a CPU, and no text depends on those beside it."""
    for text, row, share in zip(texts.tolist(), weights, shares.flatten().tolist(), strict=True):
        others[text].add_(row, alpha=share)
