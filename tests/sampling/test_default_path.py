"""The default path (engine `tail`, predictions by their largest entries, loops in C) writes what the reference writes.

20,000 guided trajectories of each; a vocabulary of 400 is above the 128 entries that are kept. Token counts of both, at
every position, must be alike within the error of sampling: chi-square of two samples, rare tokens together.
"""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

from tta_diffusion import reference
from tta_diffusion.allocation import parse_allocation
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.control.classifier import AttributeObjective
from tta_diffusion.control.guidance import Guidance, GuidanceConfig
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.diffusion.simplex import SimplexProcess
from tta_diffusion.sampling.sampler import Sampler, SamplerConfig
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens
from tta_diffusion.tokens.projection import ProjectionConfig

V, L, STEPS, TEXTS, BATCH = 400, 3, 2, 20_000, 5_000
STRENGTH, TOP_P, LABEL = 200.0, 0.9, 1
SPECIAL = SpecialTokens(pad=0, end=1, start=2, banned=(2, 3))
RARE = 20  # counts below this go together


def small_bert(**more: object) -> dict[str, object]:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    return {"vocab_size": V, "max_position_embeddings": 16, "initializer_range": 0.3, **sizes, **more}


@pytest.fixture(scope="module")
def networks() -> tuple[SimplexDenoiser, BertForSequenceClassification]:
    """Predictions as sharp as a trained denoiser's: words by their frequency in noise, one token without."""
    torch.manual_seed(0)
    denoiser = SimplexDenoiser(DenoiserConfig(backbone=small_bert(model_type="bert"), length=L)).eval()
    head = denoiser.backbone.model.cls.predictions
    with torch.no_grad():
        head.decoder.bias.copy_(-(torch.randperm(V) + 1).float().log())
        head.transform.dense.weight.copy_(torch.eye(32))
    torch.manual_seed(1)
    classifier = BertForSequenceClassification(BertConfig(**small_bert(num_labels=2))).eval()
    return denoiser.requires_grad_(False), classifier.requires_grad_(False)


def sheet() -> Canvas:
    return Canvas.blank(1, L, SPECIAL).pin(0, 0, [2]).repeat(BATCH)


def write_by_default(networks, allocation: str) -> Tensor:
    denoiser, classifier = networks
    guidance = Guidance([(AttributeObjective("label", classifier, LABEL), 1.0)], GuidanceConfig(STRENGTH, iterations=1))
    process = SimplexProcess(V, projection=ProjectionConfig(TOP_P))
    sampler = Sampler(denoiser, process, SamplerConfig(STEPS), parse_allocation(allocation), guidance)
    seeds = torch.arange(TEXTS).split(BATCH)
    return torch.cat([sampler.sample(sheet(), Randomness.from_seeds(some.tolist())).ids for some in seeds])


def write_by_reference(networks, allocation: str) -> Tensor:
    denoiser, classifier = networks
    generator = torch.Generator().manual_seed(7)

    def random(u: float, g: Tensor, text: Tensor, free: Tensor) -> Tensor:
        drawn = torch.rand(g.shape, generator=generator, dtype=torch.float64)
        return torch.where(text & free, drawn, u)

    allocate = {"constant": reference.constant, "adaptive:0.6": reference.adaptive(0.6), "random": random}[allocation]
    times = [(STEPS - k) / STEPS for k in range(STEPS)]
    texts = []
    for _ in range(TEXTS // BATCH):
        canvas = sheet()
        writing = reference.Writing(
            denoiser.backbone.model,
            denoiser.time,
            canvas.ids,
            canvas.pinned,
            ends=(SPECIAL.end, SPECIAL.pad),
            banned=SPECIAL.banned,
            classifier=classifier,
            label=LABEL,
        )
        *_, last = reference.sample(
            writing,
            times,
            allocate,
            noise=lambda _: torch.randn(BATCH, L, V, generator=generator),
            draws=lambda _: torch.rand(BATCH, L, generator=generator),
            strength=STRENGTH,
            iterations=1,
            top_p=TOP_P,
        )
        texts.append(last.ids)
    return torch.cat(texts)


@pytest.mark.slow
@pytest.mark.parametrize("allocation", ["constant", "adaptive:0.6", "random"])
def test_token_marginals_are_those_of_the_reference(networks, allocation: str) -> None:
    ours, theirs = write_by_default(networks, allocation), write_by_reference(networks, allocation)
    for position in range(1, L):
        one, two = (torch.bincount(ids[:, position], minlength=V).double() for ids in (ours, theirs))
        common = one + two >= RARE
        one, two = (torch.cat([x[common], x[~common].sum()[None]]) for x in (one, two))
        chi_square = ((one - two).square() / (one + two).clamp_min(1)).sum()
        assert int(common.sum()) > 30, "a comparison of few tokens would show little"
        assert stats.chi2.sf(float(chi_square), int(common.sum())) > 1e-3
