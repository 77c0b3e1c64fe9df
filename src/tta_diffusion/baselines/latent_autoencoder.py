"""The autoencoder of LD4LG: a text as a few short vectors, between the two halves of a frozen language model.

    h = LM(x)                                states of the tokens (n, H)
    z = sqrt(d) normalise(W_d P(q, h))       l queries read them: the latent text (l, d)
    e = W_u R(z)                             l input embeddings (l, H), which stand before the text in the LM

P and R are small transformers, trained so that LM(x | e) writes x; the language model stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from tta_diffusion.baselines.causal import Layers
from tta_diffusion.baselines.prefix import token_loss
from tta_diffusion.training.classifier.batches import Batch


@dataclass(frozen=True)
class LatentSizes:
    """Published: 32 latents of 64 numbers (BART-base has 768 a token)."""

    latents: int = 32  # l
    dim: int = 64  # d
    width: int = 384  # of the small transformers
    depth: int = 3  # their layers
    heads: int = 6

    def __post_init__(self) -> None:
        for name in ("latents", "dim", "depth", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads ({self.heads}), got {self.width}")


class Autoencoder(nn.Module):
    """What is learnt around a language model of width H."""

    def __init__(self, hidden: int, sizes: LatentSizes) -> None:
        super().__init__()
        width, kind = sizes.width, {"batch_first": True, "norm_first": True, "dropout": 0.0, "activation": "gelu"}
        self.queries = nn.Parameter(torch.randn(sizes.latents, width) * 0.02)
        self.inside = nn.Linear(hidden, width)
        reader = nn.TransformerDecoderLayer(width, sizes.heads, 4 * width, **kind)  # type: ignore[arg-type]
        self.reader = nn.TransformerDecoder(reader, sizes.depth, nn.LayerNorm(width))
        self.down = nn.Linear(width, sizes.dim)
        self.up = nn.Linear(sizes.dim, width)
        self.places = nn.Parameter(torch.randn(sizes.latents, width) * 0.02)
        writer = nn.TransformerEncoderLayer(width, sizes.heads, 4 * width, **kind)  # type: ignore[arg-type]
        self.writer = nn.TransformerEncoder(writer, sizes.depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.outside = nn.Linear(width, hidden)

    def encode(self, states: Tensor, mask: Tensor) -> Tensor:
        """z (B, l, d), each vector of length sqrt(d), from states (B, n, H) of the tokens under a mask (B, n)."""
        states = F.layer_norm(states, states.shape[-1:])
        queries = self.queries.expand(len(states), -1, -1)
        read = self.reader(queries, self.inside(states), memory_key_padding_mask=mask == 0)
        found = self.down(read)
        return F.normalize(found, dim=-1) * found.shape[-1] ** 0.5

    def decode(self, z: Tensor) -> Tensor:
        """Input embeddings e (B, l, H) of z (B, l, d)."""
        return self.outside(self.writer(self.up(z) + self.places))


def states_of(model: PreTrainedModel, batch: Batch) -> Tensor:
    """(B, n, H) the last hidden states of the language model."""
    with torch.no_grad():
        return model.base_model(input_ids=batch.ids, attention_mask=batch.mask).last_hidden_state


def prefix_of(model: PreTrainedModel, embeddings: Tensor) -> Layers:
    """The keys and values that input embeddings (B, l, H) leave behind: what stands before a text."""
    cache = DynamicCache()
    model.base_model(inputs_embeds=embeddings.to(model.dtype), past_key_values=cache, use_cache=True)
    return [(layer[0], layer[1]) for layer in cache]


def reconstruction_loss(model: PreTrainedModel, autoencoder: Autoencoder, batch: Batch) -> Tensor:
    """-log p(x_t | x_<t, e(z(x))), mean over the tokens of a batch."""
    z = autoencoder.encode(states_of(model, batch).float(), batch.mask)
    return token_loss(model, batch, prefix_of(model, autoencoder.decode(z)))
