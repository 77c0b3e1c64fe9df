"""Matrix products in 8 bits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from int8_quality import EmulatedLinear  # type: ignore[import-not-found]

from tta_diffusion.fast import native, products
from tta_diffusion.fast.products import EightBitLinear, lower_products, vnni
from tta_diffusion.fast.products.codes import LARGEST, MIDDLE
from tta_diffusion.pipeline import TTAPipeline

LIBRARIES = ["onnx_runtime", *(["vnni"] if vnni.available() else [])]


@pytest.fixture(params=LIBRARIES, autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each that this processor has."""
    monkeypatch.setattr(vnni, "available", lambda: request.param == "vnni")
    return str(request.param)


def relative(close: torch.Tensor, exact: torch.Tensor) -> float:
    return float((close - exact).norm() / exact.norm())


@pytest.mark.parametrize(("rows", "width", "out"), [(1, 64, 8), (37, 192, 96), (256, 576, 200)])
def test_it_is_nearly_the_product(rows: int, width: int, out: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, rows, width), torch.randn(out, width)
    found = EightBitLinear(weight)(x)
    assert found.shape == (3, rows, out)
    assert relative(found, x @ weight.T) < 0.012


@pytest.mark.parametrize(("rows", "width", "out"), [(1, 64, 8), (37, 192, 96), (256, 576, 200)])
def test_by_rows_and_columns_it_is_nearly_the_product(rows: int, width: int, out: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(rows, width), torch.randn(out, width)
    x *= 10.0 ** torch.randint(-2, 3, (rows, 1))  # texts of all sizes side by side
    found = EightBitLinear(weight, x.abs().amax(0))(x)
    assert ((found - x @ weight.T).norm(dim=-1) / (x @ weight.T).norm(dim=-1)).max() < 0.025


def test_a_row_does_not_depend_on_those_beside_it() -> None:
    torch.manual_seed(4)
    x, weight = torch.randn(9, 64), torch.randn(16, 64)
    for layer in (EightBitLinear(weight), EightBitLinear(weight, x.abs().amax(0))):
        assert torch.allclose(layer(x)[:1], layer(x[:1]), atol=1e-4)
        assert layer(x[:0]).shape == (0, 16)


@pytest.mark.parametrize("by_rows", [False, True])
def test_the_same_numbers_as_floats_have_the_same_product(by_rows: bool) -> None:
    """What stands for it on a GPU, where many texts are compared."""
    torch.manual_seed(6)
    x, weight = 10.0 ** torch.randn(41, 1) * torch.randn(41, 192), torch.randn(96, 192)
    x[0] = 0.0
    largest = x.abs().amax(0) if by_rows else None
    found, wanted = EmulatedLinear(weight, largest)(x), EightBitLinear(weight, largest)(x)
    assert ((found - wanted).norm(dim=-1) <= 1e-4 * (1e-6 + wanted.norm(dim=-1))).all()
    assert relative(found, x @ weight.T) > 1e-3


def test_large_columns_are_moved_into_the_weights() -> None:
    """A column that is 300 times as large and matters as much as the others; without its scale it drowns them."""
    torch.manual_seed(5)
    x, weight = torch.randn(64, 576), torch.randn(96, 576)
    x[:, 7] *= 300.0
    weight[:, 7] /= 300.0
    exact = x @ weight.T
    assert relative(EightBitLinear(weight, x.abs().amax(0))(x), exact) < 0.025
    assert relative(EightBitLinear(weight, weight.abs().amax(0))(x), exact) > 0.2


def test_a_sample_chooses_the_way(library: str) -> None:
    """With one, by rows and columns; ONNX Runtime does so but where a layer narrows."""
    network = nn.Sequential(nn.Linear(64, 128, bias=False), nn.Linear(128, 64, bias=False))
    assert lower_products(network, lambda: network(torch.randn(4, 64))) == 2
    assert [layer.by_blocks for layer in network] == [False, library == "onnx_runtime"]
    network = nn.Sequential(nn.Linear(64, 128, bias=False))
    assert lower_products(network) == 1
    assert network[0].by_blocks


@pytest.mark.parametrize("in_c", [False, *([True] if native.library() else [])])
def test_codes_are_the_nearest(in_c: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every row, times its columns' scales, the largest is the last code; padding is no part of it."""
    monkeypatch.setattr(native, "ENABLED", in_c)
    torch.manual_seed(7)
    x, columns = 10.0 ** torch.randn(21, 1) * torch.randn(21, 128), 10.0 ** torch.randn(128)
    x[3] = 0.0
    codes, scales = vnni.encode(x, columns)
    assert codes.shape == (32, 128)
    assert scales.shape == (21, 1)
    wanted = x * columns
    torch.testing.assert_close(scales, wanted.abs().amax(-1, keepdim=True).clamp_min(vnni.LEAST))
    found = codes[:21].int() - MIDDLE
    assert (found.abs().amax(-1) == LARGEST).sum() == 20
    assert (found * scales / LARGEST - wanted).abs().div(scales / LARGEST).max() <= 0.501


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


@pytest.mark.parametrize(
    ("machine", "installed", "on_arm"), [("aarch64", True, True), ("x86_64", True, False), ("arm64", False, False)]
)
def test_where_it_is_quicker(
    library: str, machine: str, installed: bool, on_arm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products.platform, "machine", lambda: machine)
    monkeypatch.setattr(products, "find_spec", lambda name: name if installed else None)
    assert products.quicker() == (library == "vnni" or on_arm)


def test_no_gradient_is_promised() -> None:
    x = torch.randn(2, 64, requires_grad=True)
    assert not EightBitLinear(torch.randn(4, 64))(x).requires_grad


def test_a_missing_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ValueError, match=r"pip install 'tta-diffusion\[cpu\]'"):
        lower_products(nn.Sequential(nn.Linear(64, 8, bias=False)))


@pytest.mark.slow
def test_the_shipped_model_predicts_nearly_the_same() -> None:
    """The distributions of one prediction from the same noisy text, in total variation."""
    plain, lowered = (TTAPipeline.from_pretrained(dtype=dtype) for dtype in (None, torch.int8))
    encoder = lowered.denoiser.backbone.model.base_model
    lower = [m for m in encoder.modules() if isinstance(m, EightBitLinear)]
    assert len(lower) == 4 * len(encoder.layers)
    ids = plain.tokenizer("The pizza was good, but the service slow.", return_tensors="pt").input_ids
    with torch.inference_mode():
        backbones = [pipe.denoiser.backbone for pipe in (plain, lowered)]
        exact, close = (one.head(one.encode(one.table(ids))).softmax(-1) for one in backbones)
    assert 0 < float((exact - close).abs().sum(-1).mean()) / 2 < 0.06
