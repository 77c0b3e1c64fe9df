"""Help is written down without torch: it must say what the registries hold."""

from __future__ import annotations

import typing
from dataclasses import fields

import typer

from tta_diffusion.allocation import POLICIES
from tta_diffusion.allocation.allocator import WRAPPERS
from tta_diffusion.assets import shipped_sampling
from tta_diffusion.cli import generate, names
from tta_diffusion.cli.request import EXTRA
from tta_diffusion.control.discrete import FORMS
from tta_diffusion.control.guidance import IMPORTANCE, STRENGTHS
from tta_diffusion.control.lexical.parse import LEXICAL_CONTROLS
from tta_diffusion.control.parse import HARD_CONTROLS
from tta_diffusion.diffusion.grid import GRIDS
from tta_diffusion.diffusion.masked import ORDERS
from tta_diffusion.diffusion.noise import ENGINES
from tta_diffusion.diffusion.schedule import SCHEDULES
from tta_diffusion.diffusion.simplex import STEPS
from tta_diffusion.pipeline import GenerationConfig
from tta_diffusion.settings import COMPUTE, ENDS


def test_names_match_the_registries() -> None:
    pairs = [
        (names.POLICIES, POLICIES),
        (names.WRAPPERS, WRAPPERS),
        (names.CONTROLS, HARD_CONTROLS),
        (names.LEXICAL_CONTROLS, LEXICAL_CONTROLS),
        (names.GRIDS, GRIDS),
        (names.ENGINES, ENGINES),
        (names.STEP_RULES, STEPS),
        (names.STRENGTHS, STRENGTHS),
        (names.IMPORTANCE, IMPORTANCE),
        (names.SCHEDULES, SCHEDULES),
        (names.FORMS, FORMS),
        (names.ORDERS, ORDERS),
        (names.COMPUTE, COMPUTE),
        (names.ENDS, ENDS),
    ]
    for written, registered in pairs:
        assert sorted(written) == sorted(registered)


def test_settings_match_the_generation_config() -> None:
    hints = typing.get_type_hints(GenerationConfig)
    assert {f.name: f.default for f in fields(GenerationConfig)} == {n: s.default for n, s in names.SETTINGS.items()}
    for name, setting in names.SETTINGS.items():
        assert setting.kind in (typing.get_args(hints[name]) or (hints[name],))


def test_every_setting_and_key_is_an_option() -> None:
    parameters = {parameter.name for parameter in typer.main.get_command(generate.app).params}
    assert parameters >= {*names.SETTINGS, *EXTRA}


def test_help_says_what_the_shipped_model_brings() -> None:
    own = shipped_sampling()
    assert own.keys() <= names.SETTINGS.keys()
    texts = {parameter.name: parameter.help for parameter in typer.main.get_command(generate.app).params}
    for name, value in own.items():
        assert f"default: {value} with the package's model, else {names.SETTINGS[name].default}" in texts[name]


def test_help_lines_fit_a_terminal() -> None:
    blocks = [part for part in generate.EPILOG.split("\n\n") if part.startswith("\b")]
    assert len(blocks) == 4
    assert all(len(line) <= 78 for block in blocks for line in block.splitlines())
