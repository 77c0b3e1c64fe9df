"""Packing with a corpus: rounding minds what the layers read in it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conftest import make_denoiser
from train_helpers import LENGTH, make_tokenizer, sentences, write_corpus
from tta_diffusion.cli import main as cli
from tta_diffusion.denoiser.checkpoint import read_weights
from tta_diffusion.packaging.calibration import calibrate
from tta_diffusion.packaging.lower import plan
from tta_diffusion.packaging.pack import pack
from tta_diffusion.pipeline import TTAPipeline


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data") / "corpus", sentences(40), sentences(4, seed=1))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer, directory = make_tokenizer(), tmp_path_factory.mktemp("model")
    denoiser = make_denoiser(len(tokenizer), "llama").with_config(length=LENGTH)
    TTAPipeline(denoiser, tokenizer).save_pretrained(directory)
    return directory


def test_every_matrix_of_a_layer_is_seen(model, corpus):
    grams, matrices = calibrate(model, corpus, sequences=20), plan(read_weights(model), 4)
    assert matrices.keys() <= grams.keys()
    again = calibrate(model, corpus, sequences=20)
    assert all(torch.equal(grams[name], again[name]) for name in matrices), "the same texts and noise every time"


def test_products_are_closer_with_a_corpus_than_without(model, corpus, tmp_path):
    state, grams = read_weights(model), calibrate(model, corpus)
    errors = []
    for data in (None, corpus):
        packed = read_weights(pack(model, tmp_path / str(bool(data)), bits=4, data=data).directory)
        rounded = {name: packed[name] - state[name] for name in plan(state, 4)}
        errors.append(sum(float((error @ grams[name] * error).sum()) for name, error in rounded.items()))
    assert errors[1] < 0.8 * errors[0]


def test_a_corpus_of_another_vocabulary(model_directory, corpus, tmp_path, capsys):
    arguments = ["model", "pack", str(model_directory), str(tmp_path / "out"), "--bits", "4", "--data", str(corpus)]
    assert cli.main(arguments) == 2
    assert "calibrate it on the corpus it was trained on" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
