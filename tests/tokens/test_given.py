"""What users give is text: no token that steers the writing, and nothing that a tokenizer cannot read."""

from __future__ import annotations

import pytest

from tta_diffusion.assets import MODEL
from tta_diffusion.fast.light.tokenizer import LightTokenizer
from tta_diffusion.tokens.given import given_ids, given_spans

STEERING = "<s>The end</s><pad> of <mask>"


def test_names_of_special_tokens_are_plain_text() -> None:
    tokenizer = LightTokenizer.of(MODEL)
    ids = given_ids(tokenizer, STEERING)
    assert not set(ids) & set(tokenizer.all_special_ids)
    assert tokenizer.decode(ids) == STEERING
    assert len(given_spans(tokenizer, STEERING)) == len(ids)
    assert set(tokenizer(STEERING, add_special_tokens=False)["input_ids"]) & set(tokenizer.all_special_ids)


def test_a_tokenizer_of_transformers_is_told_so_too(tokenizer) -> None:
    unknown = tokenizer.unk_token_id
    assert set(given_ids(tokenizer, "the </s> pizza")) & set(tokenizer.all_special_ids) == {unknown}


@pytest.mark.parametrize(
    "call",
    [
        {"prompt": "\ud800"},
        {"control": "keywords=\ud800"},
        {"control": "infill=\ud800 [3]"},
    ],
)
def test_a_text_that_is_none_is_one_sentence(pipeline, call) -> None:
    with pytest.raises(ValueError, match="is not valid UTF-8"):
        pipeline(**call, steps=1)


def test_a_text_to_rewrite_that_is_none_is_one_sentence(pipeline) -> None:
    with pytest.raises(ValueError, match="is not valid UTF-8"):
        pipeline.rewrite("\ud800", 0.5, steps=1)
