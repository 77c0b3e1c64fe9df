"""What packing costs, on a tiny corpus."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import make_denoiser
from train_helpers import LENGTH, make_tokenizer, sentences, write_corpus
from tta_diffusion.cli import main as cli
from tta_diffusion.packaging.compare import compare
from tta_diffusion.packaging.pack import pack
from tta_diffusion.pipeline import TTAPipeline


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data") / "corpus", sentences(20), sentences(20, seed=1))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer, directory = make_tokenizer(), tmp_path_factory.mktemp("model")
    TTAPipeline(make_denoiser(len(tokenizer)).with_config(length=LENGTH), tokenizer).save_pretrained(directory)
    return directory


def test_packing_costs_little_and_the_command_says_how_much(model, corpus, tmp_path, capsys):
    packed = pack(model, tmp_path / "packed").directory
    found = compare(model, packed, corpus, batches=1, size=4)
    assert abs(found.relative) < 0.02
    assert found.before["loss"] != found.after["loss"]
    assert compare(model, model, corpus, batches=1, size=4).relative == 0
    arguments = ["model", "compare", str(model), str(packed), "--data", str(corpus), "--batches", "1", "--size", "4"]
    assert cli.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("loss ")
    assert lines[-1] == f"relative loss: {100 * found.relative:+.2f} %"


def test_a_model_of_another_vocabulary(model_directory, model, corpus, capsys):
    assert cli.main(["model", "compare", str(model_directory), str(model), "--data", str(corpus)]) == 2
    assert "measure it on the corpus it was trained on" in capsys.readouterr().err
    with pytest.raises(ValueError, match="at least 1"):
        compare(model, model, corpus, batches=0)
