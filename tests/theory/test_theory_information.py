"""What is unknown of a noisy token, against draws of whole simplexes."""

from __future__ import annotations

import math

import pytest
import torch

from tta_diffusion.theory.information import token_uncertainty


def test_nothing_is_known_of_noise_and_all_of_a_clean_token():
    ends = token_uncertainty(torch.tensor([0.0, 1.0]), entropy=7.5)
    torch.testing.assert_close(ends, torch.tensor([7.5, 0.0], dtype=torch.float64), rtol=0, atol=1e-6)


def test_it_falls_with_the_signal():
    levels = torch.linspace(0, 1, 50, dtype=torch.float64)
    assert bool((token_uncertainty(levels).diff() < 0).all())


@pytest.mark.parametrize("alpha_bar", [0.1, 0.3, 0.5])
def test_it_is_the_loss_of_the_exact_posterior(alpha_bar):
    """All tokens alike: h = log V. The sum over the others is replaced by its mean, which holds at weak signals."""
    vocab, draws = 2000, 2000
    generator = torch.Generator().manual_seed(0)
    s = 2 * math.sqrt(alpha_bar / (1 - alpha_bar))
    z = torch.randn(draws, vocab, generator=generator, dtype=torch.float64)
    z[:, 0] += s
    loss = -(s * z).log_softmax(-1)[:, 0]
    error = float(loss.std()) / math.sqrt(draws)
    expected = float(token_uncertainty(torch.tensor(alpha_bar), math.log(vocab)))
    assert expected == pytest.approx(float(loss.mean()), abs=4 * error + 0.05)
