"""Memory does not depend on the number of steps, nor, block by block, on the length: bytes of all living tensors."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from conftest import make_classifier, make_tokenizer, tiny_backbone
from tta_diffusion.control.classifier import AttributeObjective
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.pipeline import TTAPipeline

pytestmark = pytest.mark.slow
LENGTH = 512


class Peak(TorchDispatchMode):
    """The most bytes that tensors made inside held at once."""

    def __init__(self) -> None:
        super().__init__()
        self.held = self.most = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return out

    def _count(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._known:
            return
        self._known[key] = storage.nbytes()
        self.held += self._known[key]
        self.most = max(self.most, self.held)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.held -= self._known.pop(key)


@pytest.fixture(scope="module")
def pipe() -> TTAPipeline:
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    backbone = tiny_backbone(len(tokenizer), "llama") | {"max_position_embeddings": LENGTH}
    return TTAPipeline(SimplexDenoiser(DenoiserConfig(backbone=backbone, length=16)).eval(), tokenizer)


@pytest.fixture(scope="module")
def mood() -> AttributeObjective:
    classifier = make_classifier(len(make_tokenizer()))
    table = torch.nn.Embedding(LENGTH, classifier.config.hidden_size)
    classifier.bert.embeddings.position_embeddings = table
    classifier.bert.embeddings.position_ids = torch.arange(LENGTH)[None]
    classifier.bert.embeddings.token_type_ids = torch.zeros(1, LENGTH, dtype=torch.long)
    return AttributeObjective("mood", classifier, 1)


def peak(pipe: TTAPipeline, steps: int, length: int = LENGTH, window: int = LENGTH, **more: Any) -> int:
    gc.collect()
    settings = {"max_length": length, "min_length": length, "window": window, "early_exit": False}
    with Peak() as found:
        out = pipe("the pizza", steps=steps, seed=0, **settings, **more)
    assert out.steps == [steps] or window < length
    assert out.sequences.shape == (1, length)
    return found.most


@pytest.mark.parametrize("allocation", ["constant", "matched(adaptive:0.6)"])
def test_memory_does_not_depend_on_the_steps(pipe: TTAPipeline, mood: AttributeObjective, allocation: str) -> None:
    more = {"control": [mood], "allocation": allocation, "guidance_stop": 0.5}
    peak(pipe, 2, **more)  # caches are filled
    few, many = peak(pipe, 5, **more), peak(pipe, 20, **more)
    assert few > 512 * 32 * 4  # it counts: one hidden state at least
    assert many <= 1.01 * few


def test_the_count_notices_what_is_kept(pipe: TTAPipeline) -> None:
    kept: list[torch.Tensor] = []

    def keep(pipeline: Any, step: int, u: float, info: Any) -> None:
        kept.append(info.times.repeat(64, 1))

    peak(pipe, 2)
    few = peak(pipe, 5, callback_on_step_end=keep)
    kept.clear()
    assert peak(pipe, 20, callback_on_step_end=keep) > 1.5 * few


def test_block_by_block_memory_does_not_depend_on_the_length(pipe: TTAPipeline, mood: AttributeObjective) -> None:
    more = {"control": [mood], "window": 64}
    peak(pipe, 2, length=256, **more)
    short, long = peak(pipe, 4, length=256, **more), peak(pipe, 4, length=1024, **more)
    assert long <= short + 40 * 1024  # the sheet itself: ids, what is given, and where it may not end
    assert long < peak(pipe, 4, length=LENGTH, control=[mood]) / 3
