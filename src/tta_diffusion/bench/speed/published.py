"""The published algorithm on a batch, from its equations, as plainly as its released code runs them.

    x_T = K eps
    for u in times:
        e       = ((softmax(x) + p_previous) / 2) E + W u + b               (and both parts embedded apart, unused)
        logits  = network(e)
        logits += lambda d/dlogits log p(y | softmax(logits) E_clf)         `iterations` times
        w       = top-p draw by a sort of the vocabulary
        x       = sqrt(ab(u - du)) K (2 onehot(w) - 1) + sqrt(1 - ab(u - du)) K eps

`tests/oracle.py` is the same for one text at a time. Every tensor is (B, L, V). The released code embeds the noisy and
the previous probabilities before it embeds their mean, and throws the first two away; so does this.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.diffusion.schedule import cosine

SCALE, TOP_P, STRENGTH, LABEL = 5.0, 0.9, 2000.0, 1


@torch.no_grad()
def run(
    denoiser: SimplexDenoiser,
    classifier: torch.nn.Module | None,
    given: Tensor,
    pinned: Tensor,
    times: list[float],
    iterations: int,
) -> Iterator[Tensor]:
    """Yields the tokens (B, L) after each step."""
    table = denoiser.table
    shape, vocab_size = given.shape, table.shape[0]
    x = SCALE * torch.randn(*shape, vocab_size, device=given.device)
    previous = torch.full_like(x, 1 / vocab_size)
    for step, u in enumerate(times):
        logits = _predict(denoiser, table, x, previous, given, pinned, u)
        for _ in range(iterations if classifier is not None else 0):
            logits = logits + STRENGTH * _gradient(classifier, logits, given, pinned)
        ids = torch.where(pinned, given, _nucleus(logits))
        yield ids
        later = times[step + 1] if step + 1 < len(times) else 0.0
        signal = float(cosine(torch.tensor(later, dtype=torch.float64)))
        corner = SCALE * (2 * F.one_hot(ids, vocab_size) - 1)
        x = math.sqrt(signal) * corner + math.sqrt(1 - signal) * SCALE * torch.randn_like(x)
        previous = logits.softmax(-1)


def _predict(
    denoiser: SimplexDenoiser, table: Tensor, x: Tensor, previous: Tensor, given: Tensor, pinned: Tensor, u: float
) -> Tensor:
    noisy = x.softmax(-1).to(table.dtype)
    noisy @ table
    previous.to(table.dtype) @ table
    embeds = ((noisy + previous) / 2).to(table.dtype) @ table
    told = torch.full((*given.shape, 1), u, dtype=table.dtype, device=given.device)
    embeds = torch.where(pinned[..., None], F.embedding(given, table), embeds + denoiser.time(told))
    return denoiser.backbone.model(inputs_embeds=embeds).logits.float()


def _gradient(classifier: torch.nn.Module | None, logits: Tensor, given: Tensor, pinned: Tensor) -> Tensor:
    assert classifier is not None
    table = classifier.get_input_embeddings().weight  # type: ignore[operator]
    with torch.enable_grad():
        leaf = logits.detach().clone().requires_grad_(True)
        shown = torch.where(pinned[..., None], F.one_hot(given, leaf.shape[-1]).to(leaf.dtype), leaf.softmax(-1))
        mask = torch.ones(given.shape, dtype=torch.int64, device=given.device)
        scores = classifier(inputs_embeds=shown.to(table.dtype) @ table, attention_mask=mask).logits
        (gradient,) = torch.autograd.grad(scores.float().log_softmax(-1)[:, LABEL].sum(), leaf)
    return gradient


def _nucleus(logits: Tensor) -> Tensor:
    ordered, tokens = logits.sort(-1, descending=True)
    probs = ordered.softmax(-1)
    before = probs.cumsum(-1) - probs
    kept = probs.masked_fill(before >= TOP_P, 0.0).flatten(0, 1)
    place = torch.multinomial(kept, 1).view(*logits.shape[:2], 1)
    return tokens.gather(-1, place).squeeze(-1)
