"""Gaussian diffusion of embeddings: its step against chains that were noised forward, token by token."""

from __future__ import annotations

import pytest
import torch

from tta_diffusion.common.randomness import Randomness
from tta_diffusion.diffusion.gaussian import GaussianProcess, GaussianState, forward, marginal, posterior
from tta_diffusion.diffusion.schedule import sqrt
from tta_diffusion.tokens.point_logits import PointLogits, rounding

N, D = 40_000, 2
TABLE = torch.tensor([[1.0, 0.5], [-1.0, 0.3], [0.2, -1.5]])
SOON = torch.tensor([0.05, 0.3, 0.6, 0.0, 0.9], dtype=torch.float64)  # s of five tokens
LATE = torch.tensor([0.10, 0.9, 0.7, 0.4, 1.0], dtype=torch.float64)  # u


def signal(times: torch.Tensor) -> torch.Tensor:
    return sqrt(times)[..., None]


def draw(normal: tuple[torch.Tensor, torch.Tensor], generator: torch.Generator) -> torch.Tensor:
    mean, std = normal
    return mean + std * torch.randn(mean.shape, generator=generator, dtype=mean.dtype)


@pytest.fixture(scope="module")
def chains() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x_0 (L, D), and N draws of x_s and of x_u from it, (N, L, D)."""
    generator = torch.Generator().manual_seed(0)
    clean = torch.randn(len(SOON), D, generator=generator, dtype=torch.float64)
    soon = draw(marginal(clean.expand(N, -1, -1), signal(SOON)), generator)
    return clean, soon, draw(forward(soon, signal(SOON), signal(LATE)), generator)


def test_forward_steps_compose(chains) -> None:
    clean, _, late = chains
    mean, std = marginal(clean, signal(LATE))
    assert (late.mean(0) - mean).abs().max() < 5 / N**0.5
    assert (late.var(0) / std.square() - 1).abs().max() < 5 * (2 / N) ** 0.5


def test_the_posterior_has_the_moments_of_the_chains(chains) -> None:
    """x_s - mean(x_u, x_0) is N(0, sigma^2) and tells nothing of x_u: that is all a Gaussian posterior is."""
    clean, soon, late = chains
    mean, std = posterior(late, clean.expand_as(late), signal(LATE), signal(SOON))
    rest = soon - mean
    scale = std.clamp_min(1e-9)
    assert (rest.mean(0) / scale).abs().max() < 5 / N**0.5
    noisy = (SOON > 0)[:, None].expand(-1, D)
    ratio = rest.var(0) / scale.square()
    assert (ratio[noisy] - 1).abs().max() < 5 * (2 / N) ** 0.5
    assert rest[:, ~noisy[:, 0]].abs().max() < 1e-12, "at s = 0 it is x_0"
    product = (rest / scale * (late - late.mean(0)) / late.std(0)).mean(0)
    assert product.abs().max() < 5 / N**0.5


@pytest.mark.parametrize("eta", [0.0, 0.4, 1.0])
def test_every_eta_keeps_the_marginals(chains, eta: float) -> None:
    clean, _, late = chains
    generator = torch.Generator().manual_seed(1)
    soon = draw(posterior(late, clean.expand_as(late), signal(LATE), signal(SOON), eta), generator)
    mean, std = marginal(clean, signal(SOON))
    assert (soon.mean(0) - mean).abs().max() < 5 / N**0.5
    assert (soon.var(0) - std.square()).abs().max() < 5 * (2 / N) ** 0.5


def test_eta_one_is_the_textbook_posterior() -> None:
    generator = torch.Generator().manual_seed(2)
    x, clean = torch.randn(2, 4, 5, D, generator=generator, dtype=torch.float64)
    ab_s, ab_u = signal(SOON), signal(LATE)
    kept = ab_u / ab_s
    expected = (ab_s.sqrt() * (1 - kept) * clean + kept.sqrt() * (1 - ab_s) * x) / (1 - ab_u)
    mean, std = posterior(x, clean, ab_u, ab_s)
    torch.testing.assert_close(mean, expected)
    torch.testing.assert_close(std.square(), (1 - ab_s) * (1 - kept) / (1 - ab_u))


def step(
    process: GaussianProcess, seeds: range, levels: torch.Tensor, shift: torch.Tensor | None = None
) -> torch.Tensor:
    """x (seeds, 5, D) after one step from five tokens at the times LATE."""
    n, generator = len(seeds), torch.Generator().manual_seed(3)
    x = torch.randn(1, 5, D, generator=generator).expand(n, -1, -1)
    points = torch.randn(1, 5, D, generator=generator).expand(n, -1, -1)
    logits = PointLogits(rounding(points, TABLE), points, shift)
    state = GaussianState(torch.zeros(n, 5).long(), LATE.expand(n, -1), x)
    randomness = Randomness.from_seeds(list(seeds))
    draft = process.draft(state, logits, randomness, 0)
    assert torch.equal(draft, torch.cdist(points, TABLE).argmin(-1)), "rounding is to the nearest"
    after = process.advance(state, logits, draft, levels.expand(n, -1), randomness, 0)
    assert torch.equal(after.times, levels.expand(n, -1))
    assert after.x is not None
    return after.x


def test_ddim_draws_nothing_and_the_posterior_does() -> None:
    falls = SOON < LATE
    assert bool(falls.all())
    one, two = step(GaussianProcess(TABLE, eta=0.0), range(2), SOON)
    assert torch.equal(one, two)
    one, two = step(GaussianProcess(TABLE), range(2), SOON)
    noisy = SOON > 0
    assert bool((one != two)[noisy].all())
    assert torch.equal(one[~noisy], two[~noisy]), "no noise at u = 0"


def test_a_token_that_comes_to_rest_is_the_clamped_embedding_or_the_point() -> None:
    for clamp in (True, False):
        x = step(GaussianProcess(TABLE, clamp=clamp), range(1), torch.zeros(5))
        assert bool((torch.cdist(x, TABLE).amin(-1) < 1e-6).all()) == clamp


def test_a_rising_token_is_noised_forward_and_others_stay_where_they_are() -> None:
    """ab falls from LATE to `levels` for two tokens; one stays at its time, and keeps its x."""
    levels = torch.tensor([0.5, 0.9, 0.7, 0.9, 1.0], dtype=torch.float64)
    x = torch.randn(1, 5, D, generator=torch.Generator().manual_seed(3))
    after = step(GaussianProcess(TABLE), range(2000), levels)
    kept = (sqrt(levels) / sqrt(LATE)).nan_to_num(1.0)[:, None].float()
    assert (after.mean(0) - kept.sqrt() * x[0]).abs().max() < 5 / 2000**0.5
    assert (after.var(0) - (1 - kept)).abs().max() < 5 * (2 / 2000) ** 0.5
    same = levels == LATE
    assert torch.equal(after[:, same], x[:, same].expand(2000, -1, -1))


def test_guidance_shifts_the_mean() -> None:
    shift = torch.full((1, 5, D), 0.25)
    moved = step(GaussianProcess(TABLE), range(1), SOON, shift) - step(GaussianProcess(TABLE), range(1), SOON)
    torch.testing.assert_close(moved, shift)


def test_a_given_text_begins_noised_and_the_prior_is_noise() -> None:
    process, randomness = GaussianProcess(TABLE), Randomness.from_seeds(list(range(4000)))
    ids = torch.tensor([[0, 1, 2, 2, 1]]).expand(4000, -1)
    _, x = process.observe(process.begin(ids, LATE.expand(4000, -1)), randomness, 0)
    mean, std = marginal(TABLE[ids[0]], signal(LATE).float())
    assert (x.mean(0) - mean).abs().max() < 5 / 4000**0.5
    assert (x.var(0) - std.square()).abs().max() < 5 * (2 / 4000) ** 0.5
    state, seen = process.observe(process.prior(ids), randomness, 0)
    assert seen.mean(0).abs().max() < 5 / 4000**0.5
    assert process.observe(state, randomness, 1)[1] is seen, "noise is drawn once"


def test_eta_is_checked() -> None:
    with pytest.raises(ValueError, match="eta must be between 0"):
        GaussianProcess(TABLE, eta=2.0)


def test_the_schedule_is_diffusion_lms() -> None:
    """Their table for T = 2000 is the product of 1 - beta_k, beta_k = min(1 - f(k + 1) / f(k), 0.999)."""
    grid = torch.arange(2001, dtype=torch.float64) / 2000
    f = 1 - (grid + 1e-4).sqrt()
    published = (1 - (1 - f[1:] / f[:-1]).clamp(max=0.999)).cumprod(0)
    assert (sqrt(grid[1:]) - published).abs().max() < 1e-4
