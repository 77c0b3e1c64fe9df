"""DGLM (Lovelace et al. 2024) by its parts, for the speed table alone: networks of its sizes with random weights.

    c = S(prompt)                              a sentence encoder (Sentence-T5-XL), once
    z ~ diffusion(c), 50 steps                 a transformer of 12 x 768 over the embedding of what is to be written; a
                                               step goes down its gradient of -log mean_k sigma(w . (z_hat + s eps_k))
    x_t ~ LM(. | P(z), prompt, x_<t)           P: a transformer of 6 x 768 that makes 8 input embeddings of z

The embedding of 768 numbers is cut into 32 pieces as it is, where the authors have a linear layer before the cut. LM is
the table's base, theirs is GPT-2-large. Nothing is trained, so no text is kept: what comes back are the prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import T5Config, T5EncoderModel

from tta_diffusion.baselines.causal import CausalLM, Reader
from tta_diffusion.baselines.decode import Decoding, own_seeds, write
from tta_diffusion.baselines.latent_autoencoder import Autoencoder, LatentSizes, prefix_of
from tta_diffusion.baselines.latent_diffusion import LatentDenoiser, clean, signal_and_noise
from tta_diffusion.baselines.registry import Setup, Writer, register
from tta_diffusion.bench.methods.causal import BaselineMethod
from tta_diffusion.diffusion.gaussian import posterior

NAME = "dglm-parts"
method = partial(BaselineMethod, NAME)  # `--method tta_diffusion.bench.methods.dglm_parts:method`


@dataclass(frozen=True)
class DGLMOptions(Decoding):
    """The sizes that were published; 50 steps are those of the paper's speed table."""

    steps: int = 50
    pieces: int = 32  # of the embedding
    piece: int = 24  # numbers of each: 768 together
    width: int = 768
    heads: int = 12
    depth: int = 12  # layers of the diffusion; the prompts' has half as many
    soft: int = 8  # input embeddings before the text
    draws: int = 32  # around z_hat, under the classifier
    encoder_layers: int = 24  # Sentence-T5-XL: 24 layers of 1024, 32 heads of 128, 16,384 inside; 0: left out
    encoder_width: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if self.depth < 2 or self.depth % 2:
            raise ValueError(f"depth must be even and at least 2, got {self.depth}")
        if self.pieces * self.piece % self.soft:
            raise ValueError(f"soft must divide the {self.pieces * self.piece} numbers of the embedding")

    @property
    def diffusion(self) -> LatentSizes:
        return LatentSizes(self.pieces, self.piece, self.width, self.depth // 2, self.heads)

    @property
    def prompts(self) -> LatentSizes:
        return LatentSizes(self.soft, self.pieces * self.piece // self.soft, self.width, self.depth // 2, self.heads)


class Parts(nn.Module):
    """All networks but the language model, of hidden size H."""

    def __init__(self, options: DGLMOptions, hidden: int, vocab: int) -> None:
        super().__init__()
        size = options.pieces * options.piece
        self.encoder: T5EncoderModel | None = None
        if options.encoder_layers:
            wide = options.encoder_width
            config = T5Config(
                vocab_size=vocab,
                d_model=wide,
                d_kv=wide // 8,
                d_ff=16 * wide,
                num_layers=options.encoder_layers,
                num_heads=32,
            )
            self.encoder = T5EncoderModel(config)
            self.project = nn.Linear(wide, size, bias=False)
        self.denoiser = LatentDenoiser(1, options.diffusion)
        self.prompter = Autoencoder(hidden, options.prompts)
        self.classifier = nn.Linear(size, 1)

    def encode(self, ids: Tensor, mask: Tensor, shape: tuple[int, int]) -> Tensor:
        """c (B, pieces, piece) of prompts (B, n); zeros without an encoder."""
        if self.encoder is None:
            return torch.zeros(len(ids), *shape, device=ids.device)
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return F.normalize(self.project(mean.to(self.project.weight.dtype)), dim=-1).float().view(-1, *shape)

    def propose(self, context: Tensor, steps: int, draws: int) -> Tensor:
        """z (B, pieces, piece) after so many guided steps, from noise."""
        z, count = torch.randn_like(context), len(context)
        classes = torch.zeros(count, dtype=torch.long, device=z.device)
        times = torch.linspace(1, 0, steps + 1, dtype=torch.float64, device=z.device)[:, None].expand(-1, count)
        for u, later in pairwise(times):
            a, s = signal_and_noise(u)
            with torch.enable_grad():
                leaf = z.detach().requires_grad_(True)
                z_hat = clean(leaf, self.denoiser(leaf, u, classes, context), u)
                around = z_hat.flatten(1)[:, None] + s * torch.randn(count, draws, z[0].numel(), device=z.device)
                score = F.logsigmoid(self.classifier(F.normalize(around, dim=-1))).logsumexp(1).sum()
            (push,) = torch.autograd.grad(score, leaf)
            mean, std = posterior(z, z_hat.detach() + s * push, a**2, signal_and_noise(later)[0] ** 2)
            z = mean + std * torch.randn_like(z)
        return z


@dataclass(frozen=True)
class PartsWriter:
    base: CausalLM
    parts: Parts
    options: DGLMOptions

    def check(self, prompts: Sequence[str]) -> None:
        self.base.check(prompts, self.options.length)
        if self.options.length + self.options.soft > self.base.room:
            raise ValueError(f"'{self.base.name}' has no room for {self.options.soft} more embeddings: lower length")

    @torch.no_grad()
    def __call__(self, prompts: Sequence[str], label: str, seeds: Sequence[int]) -> list[str]:
        """The prompts, when all the work of their texts is done."""
        options, given = self.options, self.base.encode(prompts)
        context = self.parts.encode(given.ids, given.mask, (options.pieces, options.piece))
        z = self.parts.propose(context, options.steps, options.draws)
        soft = self.parts.prompter.decode(z.view(len(z), options.soft, -1))
        reader = Reader(self.base.model, prefix_of(self.base.model, soft))
        write(reader, given, own_seeds(prompts, seeds), options, self.base.end)
        return list(prompts)


@register(NAME, DGLMOptions)
def dglm_parts(setup: Setup, options: DGLMOptions) -> Writer:
    config = setup.base.model.config
    with torch.device(setup.base.device):  # made where it runs: the encoder has 1.2 billion weights
        parts = Parts(options, config.hidden_size, config.vocab_size)
    if parts.encoder is not None:
        parts.encoder.to(setup.base.model.dtype)
    return PartsWriter(setup.base, parts.eval().requires_grad_(False), options)
