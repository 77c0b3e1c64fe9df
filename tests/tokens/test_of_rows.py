"""What is computed of a row does not depend on how many rows there are, to the last bit: a CPU rounds the last few
entries of a tensor otherwise, and a text must not change with those beside it."""

from __future__ import annotations

import pytest
import torch

from tta_diffusion.fast.light import modernbert
from tta_diffusion.tokens.soft_tokens import by_rows
from tta_diffusion.tokens.top_logits import _log_sum_exp, of_rows

ROWS = 488  # eight texts of 61 free tokens


@pytest.fixture(scope="module")
def values() -> torch.Tensor:
    return 5 * torch.randn(ROWS, 128, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("count", [1, 5, 61, 122, 487])
def test_a_row_is_the_same_among_any_number(values: torch.Tensor, count: int) -> None:
    rest = values[:, :1] - 3
    whole = of_rows(_log_sum_exp, values, rest)
    assert torch.equal(of_rows(_log_sum_exp, values[:count], rest[:count]), whole[:count])
    assert torch.equal(of_rows(torch.exp, rest[:count]), of_rows(torch.exp, rest)[:count])


def test_it_is_the_function_of_the_rows(values: torch.Tensor) -> None:
    rest = values[:, :1] - 3
    expected = torch.cat([values, rest], -1).logsumexp(-1, keepdim=True)
    torch.testing.assert_close(of_rows(_log_sum_exp, values[:61], rest[:61]), expected[:61])


def test_the_product_of_a_row_is_the_same_alone_and_a_row_of_nothing_is_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, table = torch.rand(4, 500, generator=generator), torch.randn(500, 48, generator=generator)
    rows[2] = 0
    whole = by_rows(rows, table)
    torch.testing.assert_close(whole, rows @ table)
    assert all(torch.equal(by_rows(rows[i : i + 1], table), whole[i : i + 1]) for i in range(4))


def test_what_a_classifier_says_of_a_text_is_the_same_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    linear = torch.nn.Linear(192, 192)
    mean = torch.randn(4, 192, generator=generator)
    whole = modernbert._by_rows(linear, mean)
    torch.testing.assert_close(whole, linear(mean))
    assert all(torch.equal(modernbert._by_rows(linear, mean[i : i + 1]), whole[i : i + 1]) for i in range(4))
