"""Weighted bags of embeddings, and the moments of a table, by parts."""

import torch
import torch.nn.functional as F

from tta_diffusion.tokens.soft_tokens import WeightedBag, moments


def test_the_gradient_on_the_weights_of_a_bag_is_that_of_the_product(monkeypatch):
    monkeypatch.setattr("tta_diffusion.tokens.soft_tokens._GATHERED_ROWS", 3)
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(20, 4, dtype=torch.float64, generator=generator)
    ids = torch.randint(20, (7, 5), generator=generator)
    weights = torch.rand(7, 5, dtype=torch.float64, generator=generator).requires_grad_(True)
    assert torch.autograd.gradcheck(lambda w: WeightedBag.apply(ids, w, table), weights)
    expected = (weights[:, None] @ F.embedding(ids, table)).squeeze(1)
    torch.testing.assert_close(WeightedBag.apply(ids, weights, table), expected)


def test_moments_do_not_depend_on_how_the_rows_are_split(monkeypatch):
    table = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    whole = moments(table)
    monkeypatch.setattr("tta_diffusion.tokens.soft_tokens._MOMENT_ROWS", 7)
    for once, split in zip(whole, moments(table.clone()), strict=True):
        torch.testing.assert_close(once, split)
    torch.testing.assert_close(whole.root @ whole.root, torch.cov(table.T, correction=0), atol=1e-5, rtol=1e-5)
