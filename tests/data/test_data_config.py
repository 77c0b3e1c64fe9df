from __future__ import annotations

from pathlib import Path

import pytest

from tta_diffusion.assets import shipped_model
from tta_diffusion.data.config import config_from_dict, load_config
from tta_diffusion.data.tokenizer import load_tokenizer

SOURCE = {"name": "a", "path": "a.txt"}
RECIPE = Path(__file__).parents[2] / "configs" / "data" / "mixed.yaml"


def test_the_recipe_reads_training_splits_only() -> None:
    config = load_config(RECIPE)
    paths = [path for source in config.sources for path in source.path]
    assert config.length == 64
    assert config.vocab_size == 12288
    assert not [p for p in paths if "test" in p or "validation" in p or "realtoxicity" in p]
    assert {s.where.get("label") for s in config.sources if s.name == "jigsaw"} == {0}


def test_the_recipe_has_the_vocabulary_of_the_package() -> None:
    """Else its arrays, and classifiers that learn from them, fit no model that anybody has."""
    directory = RECIPE.parents[2] / load_config(RECIPE).tokenizer
    assert load_tokenizer(directory).get_vocab() == load_tokenizer(shipped_model()).get_vocab()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"sources": [SOURCE], "lenght": 32}, ["lenght", "length"]),
        ({"sources": [{**SOURCE, "wieght": 1}]}, ["wieght", "weight", "sources[0]"]),
        ({"sources": [SOURCE], "length": 7}, ["7", "8 or more"]),
        ({"sources": [SOURCE], "length": "long"}, ["length", "int"]),
        ({"sources": []}, ["no sources"]),
        ({"sources": [{"path": "a.txt"}]}, ["Missing", "name"]),
        ({"sources": [{"name": "a"}]}, ["path", "hub"]),
        ({"sources": [{**SOURCE, "weight": 0}]}, ["weight", "positive"]),
        ({"sources": [{**SOURCE, "name": "../a"}]}, ["letters"]),
        ({"sources": [SOURCE, SOURCE]}, ["share a name"]),
        ({"sources": [SOURCE], "overlong": "crop"}, ["crop", "cut"]),
        ({"sources": [SOURCE], "partial": 1.5}, ["partial", "between 0 and 1"]),
        ({"sources": "a.txt"}, ["list"]),
        ({"sources": [{**SOURCE, "kind": 3}]}, ["kind", "str"]),
        ({"sources": [{**SOURCE, "path": [1]}]}, ["path[0]", "str"]),
        ({"sources": [{**SOURCE, "hold_out": "b.txt"}], "deduplicate": False}, ["hold_out", "deduplicate"]),
        ("nonsense", ["mapping"]),
    ],
)
def test_a_wrong_setting_is_named_in_one_sentence(values: object, words: list[str]) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        config_from_dict(values)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words)


def test_missing_and_broken_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("sources: [")
    with pytest.raises(ValueError, match="not valid YAML"):
        load_config(tmp_path / "bad.yaml")
