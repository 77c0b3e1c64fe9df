"""LD4LG: its parts against their equations, and a tiny one trained end to end."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from baseline_helpers import LABELS, tiny
from test_training import BAD, GOOD, folder, toy  # noqa: F401  (fixtures)
from torch import Tensor

from causal import TOKENIZER
from tta_diffusion.baselines.latent_autoencoder import Autoencoder, LatentSizes, prefix_of, reconstruction_loss
from tta_diffusion.baselines.latent_diffusion import (
    LatentDenoiser,
    clean,
    diffusion_loss,
    sample_latents,
    signal_and_noise,
)
from tta_diffusion.baselines.ld4lg import LD4LGOptions, LD4LGSettings
from tta_diffusion.baselines.prefix import token_log_probs
from tta_diffusion.baselines.registry import Setup, find_baseline
from tta_diffusion.baselines.store import Trained
from tta_diffusion.baselines.train import Request, train
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.training.classifier.batches import Batch
from tta_diffusion.training.classifier.tasks import Task

SIZES = LatentSizes(latents=3, dim=4, width=16, depth=1, heads=2)
QUICK = {"steps": 100, "batch": 16, "lr": 5e-3, "denoiser_steps": 150, "denoiser_batch": 32, "denoiser_lr": 3e-3}
QUICK |= {"latents": 4, "dim": 8, "width": 32, "depth": 1, "heads": 2, "warmup": 10}


def cosine(u: float) -> float:
    def f(x: float) -> float:
        return math.cos((x + 1e-4) / (1 + 1e-4) * math.pi / 2) ** 2

    return f(u) / f(0)


class Oracle(torch.nn.Module):
    """v of texts that are all the point of their class: v = (sqrt(ab) z_u - z) / sqrt(1 - ab)."""

    none = 2

    def __init__(self, points: Tensor) -> None:
        super().__init__()
        self.points = points  # (C, l, d), a row more for no class

    def forward(self, z: Tensor, u: Tensor, classes: Tensor, previous: Tensor | None = None) -> Tensor:
        a, s = signal_and_noise(u)
        return (a * z - self.points[classes]) / s


def test_v_names_the_clean_text_and_the_noise() -> None:
    torch.manual_seed(0)
    z, eps, u = torch.randn(5, 3, 4), torch.randn(5, 3, 4), torch.tensor([0.01, 0.3, 0.5, 0.8, 1.0])
    for i, time in enumerate(u.tolist()):
        a, s = math.sqrt(cosine(time)), math.sqrt(1 - cosine(time))
        noisy, v = a * z[i] + s * eps[i], a * eps[i] - s * z[i]
        torch.testing.assert_close(clean(noisy[None], v[None], u[i : i + 1])[0], z[i], atol=1e-5, rtol=0)


def test_sampling_ends_at_the_point_of_the_class() -> None:
    """With the exact v of a point, whatever the seed; with a scale w, at none + w (point - none)."""
    points = torch.randn(3, 3, 4, generator=torch.Generator().manual_seed(1))
    oracle, randomness = Oracle(points), Randomness.from_seeds([5, 6])
    for label in (0, 1):
        found = sample_latents(oracle, (3, 4), label, 7, 1.0, randomness)  # type: ignore[arg-type]
        torch.testing.assert_close(found, points[label].expand(2, -1, -1), atol=1e-5, rtol=0)
    found = sample_latents(oracle, (3, 4), 0, 7, 3.0, randomness)  # type: ignore[arg-type]
    wanted = points[2] + 3 * (points[0] - points[2])
    torch.testing.assert_close(found, wanted.expand(2, -1, -1), atol=1e-4, rtol=0)


def test_a_step_draws_from_the_posterior() -> None:
    """One step of two, from u = 1 to 1/2: N(sqrt(ab_s) z, 1 - ab_s), since nothing is left of the text at u = 1."""
    points = torch.ones(3, 40, 50)
    oracle = Oracle(points)
    seen: list[Tensor] = []
    forward = oracle.forward
    oracle.forward = lambda z, u, c, p=None: (seen.append(z), forward(z, u, c, p))[1]  # type: ignore[method-assign]
    sample_latents(oracle, (40, 50), 0, 2, 1.0, Randomness.from_seeds([1, 2, 3]))  # type: ignore[arg-type]
    level = cosine(0.5)
    assert seen[0].mean().item() == pytest.approx(0, abs=0.03)
    assert seen[0].std().item() == pytest.approx(1, abs=0.03)
    assert seen[1].mean().item() == pytest.approx(math.sqrt(level), abs=0.03)
    assert seen[1].std().item() == pytest.approx(math.sqrt(1 - level), abs=0.03)


def test_a_latent_text_depends_on_its_seed_alone() -> None:
    torch.manual_seed(0)
    denoiser = LatentDenoiser(2, SIZES)
    torch.nn.init.normal_(denoiser.outside.weight)
    both = sample_latents(denoiser, (3, 4), 1, 5, 1.0, Randomness.from_seeds([8, 9]))
    alone = sample_latents(denoiser, (3, 4), 1, 5, 1.0, Randomness.from_seeds([9]))
    torch.testing.assert_close(both[1:], alone, atol=1e-5, rtol=0)
    assert not torch.allclose(both, sample_latents(denoiser, (3, 4), 0, 5, 1.0, Randomness.from_seeds([8, 9])))


def test_the_loss_of_the_exact_network_is_nothing() -> None:
    points = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(2))
    points = torch.cat([points, points[:1]])
    labels = torch.zeros(64, dtype=torch.long)  # dropped labels mean the same point
    drawn = torch.Generator().manual_seed(0)
    noise = torch.rand(3, 64, generator=drawn), torch.randn(64, 3, 4, generator=drawn)
    loss = diffusion_loss(Oracle(points), points[labels], labels, *noise)  # type: ignore[arg-type]
    assert loss.item() < 1e-4
    assert diffusion_loss(LatentDenoiser(2, SIZES), points[labels], labels, *noise).item() > 0.1


def test_the_prefix_is_what_embeddings_leave_behind() -> None:
    """log p(x | e) from keys and values = from one pass over embeddings and tokens."""
    base = tiny("llama")
    ids = torch.randint(5, len(TOKENIZER), (2, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    embeds = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(1)).double()
    found = token_log_probs(base.model, ids, mask, prefix_of(base.model, embeds))
    whole = torch.cat([embeds, base.model.get_input_embeddings()(ids)], 1)
    logits = base.model(inputs_embeds=whole, use_cache=False).logits[:, 3:-1].float().log_softmax(-1)
    wanted = logits.gather(-1, ids[:, 1:, None]).squeeze(-1) * mask[:, 1:]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


def test_padding_is_not_read_and_latents_have_their_length() -> None:
    torch.manual_seed(0)
    autoencoder = Autoencoder(32, SIZES)
    states = torch.randn(2, 6, 32)
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    found = autoencoder.encode(states, mask)
    torch.testing.assert_close(found.norm(dim=-1), torch.full((2, 3), 2.0))
    torch.testing.assert_close(found[1:], autoencoder.encode(states[1:, :4], mask[1:, :4]), atol=1e-5, rtol=0)
    assert autoencoder.decode(found).shape == (2, 3, 32)


def test_training_moves_the_autoencoder_alone() -> None:
    base = tiny("llama")
    autoencoder = Autoencoder(32, SIZES).double()
    batch = Batch(torch.randint(5, 30, (2, 6)), torch.tensor([6, 5]), torch.tensor([0, 1]))
    autoencoder.float()
    reconstruction_loss(base.model.float(), autoencoder, batch).backward()
    assert all(p.grad is not None for p in autoencoder.parameters())
    assert all(p.grad is None for p in base.model.parameters())


@pytest.fixture(scope="module")
def made(folder: Path, toy: Task) -> Trained:  # noqa: F811
    request = Request("ld4lg", toy, folder, folder / "made" / "ld4lg", str(folder / "tiny"), QUICK, 16, "cpu")
    train(request, "weights")
    return Trained.open(request.out, "ld4lg")


def test_training_lowers_both_losses(made: Trained) -> None:
    for part in ("autoencoder", "denoiser"):
        result = made.facts.results[part]
        assert result["last_loss"] < 0.9 * result["first_loss"], part
    assert made.facts.data["half"] == 0


def test_labels_tell(folder: Path, made: Trained) -> None:  # noqa: F811
    """Under a label its words come more often than under the other; a text depends on its seed alone."""
    baseline = find_baseline("ld4lg")
    base = baseline.load(folder / "tiny", "cpu")
    writer = baseline.build(Setup(base, "sentiment", made), LD4LGOptions(length=14, steps=25, scale=4.0))
    shares = {}
    for label in LABELS:
        words = " ".join(writer(["the movie was"] * 60, label, range(60))).split()
        good, bad = (sum(words.count(w) for w in group) for group in (GOOD, BAD))
        shares[label] = good / (good + bad)
    assert shares["positive"] > shares["negative"] + 0.1, shares
    several = writer(["the movie", "i"], "positive", [3, 4])
    assert writer(["i"], "positive", [4]) == several[1:]
    assert several[0].startswith("the movie")


def test_errors() -> None:
    for wrong, said in (({"width": 30, "heads": 4}, "width must be a multiple"), ({"latents": 0}, "latents must be")):
        with pytest.raises(ValueError, match=said):
            LD4LGSettings(**wrong)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        LD4LGOptions(steps=0)
