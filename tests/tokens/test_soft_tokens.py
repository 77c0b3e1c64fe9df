"""Weighted bags of embeddings, by parts."""

import torch
import torch.nn.functional as F

from tta_diffusion.tokens.soft_tokens import WeightedBag


def test_the_gradient_on_the_weights_of_a_bag_is_that_of_the_product(monkeypatch):
    monkeypatch.setattr("tta_diffusion.tokens.soft_tokens._GATHERED_ROWS", 3)
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(20, 4, dtype=torch.float64, generator=generator)
    ids = torch.randint(20, (7, 5), generator=generator)
    weights = torch.rand(7, 5, dtype=torch.float64, generator=generator).requires_grad_(True)
    assert torch.autograd.gradcheck(lambda w: WeightedBag.apply(ids, w, table), weights)
    expected = (weights[:, None] @ F.embedding(ids, table)).squeeze(1)
    torch.testing.assert_close(WeightedBag.apply(ids, weights, table), expected)
