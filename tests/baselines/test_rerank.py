"""Best of n."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from baseline_helpers import PROMPTS, tiny
from torch import Tensor

from tta_diffusion.baselines.causal import Reader
from tta_diffusion.baselines.decode import CausalWriter, Decoding
from tta_diffusion.baselines.guide import load_guide
from tta_diffusion.baselines.rerank import Reranker, RerankOptions


def letters(texts: Sequence[str], label: str) -> Tensor:
    return torch.tensor([float(text.count(label)) for text in texts])


def test_the_best_of_the_candidates_is_kept() -> None:
    base = tiny()
    plain = CausalWriter(base, lambda label: Reader(base.model), Decoding(length=14, top_p=1.0))
    seeds = [4, 5, 6]
    first = Reranker(plain, letters, 1)(PROMPTS, "e", seeds)
    assert first == plain(PROMPTS, "e", seeds)
    best = Reranker(plain, letters, 8)(PROMPTS, "e", seeds)
    assert all(text.startswith(prompt) for text, prompt in zip(best, PROMPTS, strict=True))
    assert letters(best, "e").sum() > letters(first, "e").sum()
    assert (letters(best, "e") >= letters(first, "e")).all()
    assert Reranker(plain, letters, 8)([PROMPTS[1]], "e", [5]) == [best[1]]


def test_an_empty_text_is_never_the_best() -> None:
    class Silent:
        def check(self, prompts: Sequence[str]) -> None: ...

        def __call__(self, prompts: Sequence[str], label: str, seeds: Sequence[int]) -> list[str]:
            return [prompt + ("" if i % 2 else " x") for i, prompt in enumerate(prompts)]

    assert Reranker(Silent(), lambda texts, label: -torch.tensor([float(len(t)) for t in texts]), 2)(
        ["a"], "", [0]
    ) == ["a x"]


def test_the_guide_reads_as_the_classifier_does(model_directory: Path, pipeline: object) -> None:
    texts = ["the movie was good .", "hate it"]
    guide = load_guide(str(model_directory / "controls" / "sentiment"), "sentiment", "cpu")
    found = torch.stack([guide.log_probs(texts, label) for label in ("negative", "positive")])
    torch.testing.assert_close(found.exp().sum(0), torch.ones(2, dtype=torch.float64))
    ids = torch.tensor([guide.classifiers[0].encode(texts[0])])
    wanted = guide.classifiers[0].model(ids).logits.log_softmax(-1)[0]
    torch.testing.assert_close(found[:, 0].float(), wanted, atol=1e-5, rtol=0)


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="candidates must be at least 1"):
        RerankOptions(candidates=0)
    with pytest.raises(ValueError, match="there is no guidance classifier"):
        load_guide(str(tmp_path / "none"), "sentiment", "cpu")
