"""`tta`, `tta env`, `tta list` and the table of commands."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import typer

import tta_diffusion
from tta_diffusion import assets
from tta_diffusion.cli import main as cli


def say(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(list(arguments)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert say(capsys) == say(capsys, "--help")


def test_a_group_without_a_command_shows_its_help_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Usage: tta data ")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert say(capsys, "--version") == f"tta-diffusion {tta_diffusion.__version__}\n"


@pytest.mark.parametrize("name", cli.Commands.table)
def test_every_command_of_the_table_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    entry = cli.Commands.table[name]
    assert isinstance(getattr(importlib.import_module(entry.module), entry.attribute), typer.Typer)
    assert f"Usage: tta {name} " in say(capsys, name, "--help")
    assert entry.help in say(capsys, "--help")


def test_env_names_versions_device_and_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TTA_MODEL", raising=False)
    monkeypatch.setattr(assets, "MODEL", tmp_path / "missing")
    rows = dict(line.split(maxsplit=1) for line in say(capsys, "env").splitlines())
    assert rows.keys() >= {
        "python",
        "tta-diffusion",
        "torch",
        "transformers",
        "tokenizers",
        "safetensors",
        "accelerate",
    }
    assert rows["device"].startswith(("cpu", "cuda"))
    assert "none" in rows["default"]
    monkeypatch.setenv("TTA_MODEL", "somewhere")
    assert "somewhere" in say(capsys, "env")


def test_models_of_the_package_are_listed_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert "  qm9" in say(capsys, "list")
    assert "rings            =low or =high" in say(capsys, "list", "--model", "qm9")


def test_list_names_policies_and_the_classifiers_of_a_model(
    capsys: pytest.CaptureFixture[str], model_directory: Path
) -> None:
    out = say(capsys, "list", "--model", str(model_directory))
    assert "backward-linear" in out
    assert "=negative or =positive" in out


def test_list_shows_the_labels_that_a_model_was_trained_with(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "denoiser.json").write_text('{"labels": {"mood": ["low", "high"]}}')
    rows = say(capsys, "list", "--model", str(tmp_path)).splitlines()
    assert ["mood", "=low or =high (the model's own)"] in [row.split(maxsplit=1) for row in rows]
