"""Matrix products in 8 bits."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from torch import nn

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from tta_diffusion.fast.products import EightBitLinear, lower_products
from tta_diffusion.pipeline import TTAPipeline


def relative(close: torch.Tensor, exact: torch.Tensor) -> float:
    return float((close - exact).norm() / exact.norm())


@pytest.mark.parametrize(("rows", "width", "out"), [(1, 64, 8), (37, 192, 96), (256, 576, 200)])
def test_it_is_nearly_the_product(rows: int, width: int, out: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, rows, width), torch.randn(out, width)
    found = EightBitLinear(weight)(x)
    assert found.shape == (3, rows, out)
    assert relative(found, x @ weight.T) < 0.012


def test_weights_of_eight_bits_lose_nothing() -> None:
    """With one-hot rows the layer says its weights: numbers that are multiples of a scale come back."""
    torch.manual_seed(1)
    codes = torch.randint(-127, 128, (16, 128)).float()
    codes[:, ::64] = 127.0
    weight = codes * (0.5 + torch.rand(16, 1))
    assert torch.allclose(EightBitLinear(weight)(torch.eye(128)).T, weight, atol=5e-3)


def test_columns_that_are_far_larger_do_not_drown_the_others() -> None:
    """With one scale for all of x little would be left; here one block of nine suffers."""
    torch.manual_seed(2)
    x, weight = torch.randn(64, 576), torch.randn(96, 576)
    x[:, 7] *= 300.0
    weight[:, 7] = 0.0
    assert relative(EightBitLinear(weight)(x), x @ weight.T) < 0.25
    one = x.abs().max() / 127
    assert relative((x / one).round() * one @ weight.T, x @ weight.T) > 0.8


def test_only_layers_without_bias_and_with_whole_groups_change() -> None:
    network = nn.Sequential(nn.Linear(64, 8, bias=False), nn.Linear(8, 64, bias=False), nn.Linear(64, 64), nn.ReLU())
    assert lower_products(network) == 1
    assert [type(layer) for layer in network[:3]] == [EightBitLinear, nn.Linear, nn.Linear]


def test_no_gradient_is_promised() -> None:
    x = torch.randn(2, 64, requires_grad=True)
    assert not EightBitLinear(torch.randn(4, 64))(x).requires_grad


def test_a_missing_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ValueError, match=r"pip install 'tta-diffusion\[cpu\]'"):
        lower_products(nn.Sequential())


@pytest.mark.slow
def test_the_shipped_model_predicts_nearly_the_same() -> None:
    """The distributions of one prediction from the same noisy text, in total variation."""
    pipe = TTAPipeline.from_pretrained()
    lowered = copy.deepcopy(pipe.denoiser)
    assert lower_products(lowered.backbone.model.base_model) == 112
    torch.manual_seed(3)
    ids = pipe.tokenizer("The pizza was good, but the service slow.", return_tensors="pt").input_ids
    with torch.inference_mode():
        embeds = pipe.denoiser.backbone.model.get_input_embeddings()(ids)
        exact, close = (d.backbone.head(d.backbone.encode(embeds)).softmax(-1) for d in (pipe.denoiser, lowered))
    assert 0 < float((exact - close).abs().sum(-1).mean()) / 2 < 0.06
