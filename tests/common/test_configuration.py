"""Settings from YAML and from the command line, and the recipes that ship with the project."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tta_diffusion.common.configuration import build, load_yaml, override
from tta_diffusion.training.config import TrainConfig
from tta_diffusion.training.stages import stage_configs

RECIPES = sorted((Path(__file__).parents[2] / "configs" / "train").glob("*.yaml"))
NAMES = ["base", "bert-base-e2e", "long-form-512", "qqp-paraphrase", "roberta-large-c4", "tiny"]


@dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    pair: tuple[int, float] = (1, 2.0)
    note: str | None = None


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner = field(default_factory=Inner)
    count: int = 3
    flag: bool = False
    many: tuple[dict[str, Any], ...] = ()


def test_values_take_their_types() -> None:
    raw = yaml.safe_load("{name: a, inner: {rate: 3e-4, pair: [4, 1e-3], note: b}, many: [{x: 1}], flag: true}")
    assert build(Outer, raw) == Outer("a", Inner(3e-4, (4, 1e-3), "b"), flag=True, many=({"x": 1},))
    assert build(Outer, {"name": "a"}) == Outer("a")
    assert build(Inner, {"rate": 1, "note": None}) == Inner(1.0)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            {"name": "a", "cuont": 1},
            r"Unknown key 'cuont'. Did you mean 'count'\? Known: count, flag, inner, many, name.",
        ),
        ({"name": "a", "inner": {"rat": 1}}, r"Unknown key 'inner.rat'. Did you mean 'rate'\?"),
        ({"name": "a", "inner": 3}, "'inner' is a group of settings, got 3"),
        ({True: 1}, "Unknown key 'True'"),  # what YAML makes of the word "on"
        ({}, "Missing key 'name': give it in the file or as name=..."),
        ({"name": 3}, "'name' must be str, got 3"),
        ({"name": "a", "count": 1.5}, "'count' must be int, got 1.5"),
        ({"name": "a", "count": True}, "'count' must be int, got True"),
        ({"name": "a", "flag": 1}, "'flag' must be bool, got 1"),
        ({"name": "a", "inner": {"rate": "fast"}}, "'inner.rate' must be float, got 'fast'"),
        ({"name": "a", "inner": {"note": 3}}, "'inner.note' must be str or null, got 3"),
        ({"name": "a", "inner": {"pair": 3}}, "'inner.pair' must be tuple, got 3"),
        ({"name": "a", "inner": {"pair": [1]}}, r"'inner.pair' must be 2 values, got \[1\]"),
        ({"name": "a", "inner": {"pair": [1, "x"]}}, r"'inner.pair\[1\]' must be float, got 'x'"),
        ({"name": "a", "many": ["x"]}, r"'many\[0\]' must be dict, got 'x'"),
    ],
)
def test_what_does_not_fit_is_one_sentence(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        build(Outer, raw)
    assert "\n" not in str(error.value)


def test_overrides() -> None:
    raw = {"a": {"b": 1, "c": 2}, "d": 3}
    changed = override(raw, ["a.b=[1, 2]", "e.f=3e-4", "d=", "a.c=null", "g=x=y"])
    assert changed == {"a": {"b": [1, 2], "c": None}, "d": "", "e": {"f": "3e-4"}, "g": "x=y"}
    assert raw == {"a": {"b": 1, "c": 2}, "d": 3}  # untouched
    for assignment in ("a.b", "=3"):
        with pytest.raises(ValueError, match="is not a setting: write key=value"):
            override(raw, [assignment])
    with pytest.raises(ValueError, match=r"'d.x': 'd' is a value, not a group"):
        override(raw, ["d.x=1"])


@pytest.mark.parametrize("assignment", ["optim.steps=[1", "a={", 'a="x', "a=2020-13-45"])
def test_a_value_that_is_no_yaml_names_its_assignment(assignment: str) -> None:
    with pytest.raises(ValueError, match=r"the value .* is not valid YAML") as error:
        override({}, [assignment])
    assert str(error.value).startswith(f"'{assignment}'")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        load_yaml(path)
    for text, message in (("a: [1", "is not valid YAML"), ("- a", "must hold keys and values")):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            load_yaml(path)
    path.write_bytes(b"a: \xff")
    with pytest.raises(ValueError, match=r"recipe\.yaml' is not a text file in UTF-8"):
        load_yaml(path)
    path.write_text("")
    assert load_yaml(path) == {}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_a_run(path: Path) -> None:
    """It builds, its stages too, and it names no place on anybody's machine."""
    config = build(TrainConfig, load_yaml(path))
    runs = stage_configs(config)
    assert len(runs) == 1 + len(config.stages)
    start = config.model.start or ""
    assert not any(place.startswith(("/", "~", "..")) for place in (config.data, config.out, start))
    assert config.out == f"runs/{path.stem}"


def test_no_recipe_is_lost() -> None:
    assert set(NAMES) <= {path.stem for path in RECIPES}


def test_the_numbers_of_the_paper() -> None:
    recipes = {path.stem: build(TrainConfig, load_yaml(path)) for path in RECIPES}
    c4, e2e = recipes["roberta-large-c4"], recipes["bert-base-e2e"]
    assert (c4.optim.steps, c4.optim.batch, c4.optim.lr, c4.optim.warmup) == (300_000, 64, 3e-5, 2000)
    assert (c4.optim.schedule, c4.optim.weight_decay) == ("linear", 0.01)
    assert (c4.time.grid, c4.condition.prefix, c4.model.scale) == (5000, (2, 10), 5.0)
    chain = [(run.time.grid, run.optim.steps) for run in stage_configs(c4)]
    assert chain[:4] == [(5000, 300_000), (1000, 300_000), (200, 100_000), (50, 40_000)]
    assert (e2e.optim.batch, e2e.optim.lr, e2e.time.grid, e2e.model.scale) == (50, 1e-4, 2000, 5.0)
    qqp, long = recipes["qqp-paraphrase"], recipes["long-form-512"]
    assert (qqp.optim.steps, qqp.optim.batch) == (50_000, 6)
    assert long.model.length == 512
    made = {str(Path(run.out) / "model") for run in stage_configs(c4)}
    assert {qqp.model.start, long.model.start} <= made  # they start from models that the C4 recipe writes
