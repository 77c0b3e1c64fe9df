"""A model directory in 8 bits or fewer, and the model that comes with the package."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from conftest import LENGTH, make_classifier, make_tokenizer, tiny_backbone
from tta_diffusion import assets
from tta_diffusion.cli import main as cli
from tta_diffusion.control.lexical.network import SPANS, LexicalConfig, LexicalNetwork
from tta_diffusion.denoiser import quantised
from tta_diffusion.denoiser.checkpoint import read_weights
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.packaging.lower import lower, plan
from tta_diffusion.packaging.pack import pack
from tta_diffusion.pipeline import TTAPipeline

SETTINGS = {"control": "sentiment=positive", "seed": 3, "steps": 4, "num_samples": 2}


@pytest.fixture(scope="module")
def packed(model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    source = Path(shutil.copytree(model_directory, folder / "source"))
    (source / "README.md").write_text("# Tiny\n")
    return pack(source, folder / "model").directory


def test_a_packed_model_has_one_tokenizer_and_no_full_weights(packed, model_directory):
    names = {str(path.relative_to(packed)) for path in packed.rglob("*") if path.is_file()}
    shard = "model-int8-00001-of-00001.safetensors"
    assert names == {
        "README.md",
        "denoiser.json",
        "tokenizer.json",
        "tokenizer_config.json",
        shard,
        "controls/sentiment/config.json",
        f"controls/sentiment/{shard}",
    }
    assert (packed / shard).stat().st_size < (model_directory / "model.safetensors").stat().st_size / 2


def test_a_packed_model_is_the_model(packed, pipeline):
    loaded = TTAPipeline.from_pretrained(packed)
    assert loaded.denoiser.config == pipeline.denoiser.config
    for name, weight in pipeline.denoiser.state_dict().items():
        torch.testing.assert_close(loaded.denoiser.state_dict()[name], weight, rtol=0, atol=0.01)
    first = loaded("the pizza", **SETTINGS).texts
    assert first == loaded("the pizza", **SETTINGS).texts
    (one,), (other,) = (p.library.classifiers("sentiment", "positive") for p in (loaded, pipeline))
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        torch.testing.assert_close(one.model(ids).logits, other.model(ids).logits, rtol=0.05, atol=0.05)
    assert not one.model.training


@pytest.mark.parametrize(("bits", "apart"), [(6, 0.05), (4, 0.2)])
def test_classifiers_may_have_fewer_bits(bits, apart, model_directory, pipeline, tmp_path):
    directory = pack(model_directory, tmp_path / "small", control_bits=bits).directory
    (control,) = (directory / "controls/sentiment").glob("*.safetensors")
    assert control.name == f"model-int{bits}-00001-of-00001.safetensors"
    assert {path.name for path in directory.glob("*.safetensors")} == {"model-int8-00001-of-00001.safetensors"}
    (one,), (other,) = (
        p.library.classifiers("sentiment", "positive") for p in (TTAPipeline.from_pretrained(directory), pipeline)
    )
    for name, weight in other.model.state_dict().items():
        if weight.ndim == 2:
            error = (one.model.state_dict()[name] - weight).norm() / weight.norm()
            assert 0 < error < apart, name


def test_bits_of_classifiers_are_checked_first(model_directory, tmp_path):
    with pytest.raises(ValueError, match="4 to 8 bits, not 3"):
        pack(model_directory, tmp_path / "small", control_bits=3)
    assert not (tmp_path / "small").exists()


def test_the_networks_of_trees_and_tags_are_packed_too(model_directory, tokenizer, tmp_path):
    source = Path(shutil.copytree(model_directory, tmp_path / "source"))
    config = LexicalConfig(SPANS, ("", "NP", "S"), tiny_backbone(len(tokenizer)))
    LexicalNetwork(config).save(source / "controls" / SPANS)
    directory = pack(source, tmp_path / "small").directory
    before, after = (LexicalNetwork.load(place / "controls" / SPANS) for place in (source, directory))
    assert not (directory / "controls" / SPANS / "model.safetensors").exists()
    assert after.config.labels == before.config.labels
    for name, weight in before.state_dict().items():
        torch.testing.assert_close(after.state_dict()[name], weight, rtol=0, atol=0.01)
    assert TTAPipeline.from_pretrained(directory)(control="tree=(S (NP * *) *)", steps=2, seed=0).texts


def test_a_model_is_not_packed_over_itself(model_directory, tmp_path):
    source = Path(shutil.copytree(model_directory, tmp_path / "source"))
    with pytest.raises(ValueError, match="is the model itself: choose another directory"):
        pack(source, tmp_path / "source", overwrite=True)
    assert (source / "model.safetensors").is_file()


def test_packing_goes_again_from_a_packed_model(packed, tmp_path):
    again = pack(packed, tmp_path / "again")
    for name, weight in quantised.read(packed).items():
        torch.testing.assert_close(quantised.read(again.directory)[name], weight, rtol=0.02, atol=0.01)


@pytest.mark.parametrize("bits", [4, 5])
def test_layers_in_fewer_bits(model_directory, tmp_path, bits):
    directory = pack(model_directory, tmp_path / "small", bits=bits).directory
    shard = f"model-int{bits}-00001-of-00001.safetensors"
    assert [path.name for path in quantised.shards(directory)] == [shard]
    assert (directory / "controls/sentiment/model-int8-00001-of-00001.safetensors").is_file()
    state, loaded = read_weights(model_directory), TTAPipeline.from_pretrained(directory)
    few = lower(state, plan(state, bits))
    assert len(few) > 4
    for name, weight in loaded.denoiser.state_dict().items():
        if name in few:
            part = few[name]
            assert ".layer." in name
            assert torch.equal(weight, quantised.dequantise(part.codes, part.scales, part.group))
        elif name in state:
            torch.testing.assert_close(weight, state[name], rtol=0, atol=0.01)
    texts = loaded("the pizza", **SETTINGS).texts
    assert texts == loaded("the pizza", **SETTINGS).texts
    assert len(texts) == 2


def test_8_bit_products_and_settled_compute_on_fewer_bits(tokenizer, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    source = tmp_path / "llama"
    rope = {"rope_type": "default", "rope_theta": 1000.0}
    raw = tiny_backbone(len(tokenizer), "llama") | {"hidden_size": 64, "rms_norm_eps": 1e-5, "rope_parameters": rope}
    torch.manual_seed(0)
    TTAPipeline(SimplexDenoiser(DenoiserConfig(backbone=raw, length=LENGTH)), tokenizer).save_pretrained(source)
    directory = pack(source, tmp_path / "small", bits=4).directory
    loaded = TTAPipeline.from_pretrained(directory, dtype=torch.int8)
    assert all(loaded("the pizza", seed=3, steps=4, compute="settled").texts)


def test_values_have_more_bits_than_queries():
    state = {f"model.layers.3.self_attn.{k}_proj.weight": torch.zeros(4, 4) for k in "qkv"}
    state |= {"model.layers.3.norm.weight": torch.zeros(4), "lm_head.weight": torch.zeros(4, 4)}
    assert list(plan(state, 5).values()) == [4, 5, 7]
    assert list(plan(state, 4).values()) == [4, 4, 6]


def test_bits_that_there_are_not(model_directory, tmp_path, capsys):
    arguments = ["model", "pack", str(model_directory), str(tmp_path / "out")]
    assert cli.main([*arguments, "--bits", "3"]) == 2
    assert "4 to 8 bits, not 3" in capsys.readouterr().err
    assert cli.main([*arguments, "--data", "corpus"]) == 2
    assert "with fewer than 8 bits only" in capsys.readouterr().err
    assert cli.main([*arguments, "--bits", "4"]) == 0
    assert "model-int4-00001-of-00001.safetensors" in capsys.readouterr().out


def test_controls_may_lie_elsewhere(model_directory, tokenizer, tmp_path):
    make_classifier(len(tokenizer), seed=4).save_pretrained(tmp_path / "mine" / "mood")
    written = pack(model_directory, tmp_path / "model", tmp_path / "mine")
    assert list(TTAPipeline.from_pretrained(written.directory).library.bundled) == ["mood"]
    assert written.total == sum(written.files.values()) > 0


def test_named_controls_must_be_there(model_directory, tmp_path):
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "missing", tmp_path / "empty"):
        with pytest.raises(ValueError, match=f"no classifier in '{place}'"):
            pack(model_directory, tmp_path / "out", place)
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_packed(model_directory, tmp_path):
    source = Path(shutil.copytree(model_directory, tmp_path / "source"))
    with pytest.raises(ValueError, match=r"denoiser\.json is missing"):
        pack(tmp_path, tmp_path / "out")
    (source / "run.json").write_text(json.dumps({"step": 50, "config": {"optim": {"steps": 1000}}}))
    with pytest.raises(ValueError, match="50 of 1,000 training steps: go on"):
        pack(source, tmp_path / "out")
    (source / "run.json").write_text("{}")
    pack(source, tmp_path / "out")
    with pytest.raises(ValueError, match="holds a model already"):
        pack(source, tmp_path / "out")
    pack(source, tmp_path / "out", overwrite=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(ValueError, match="holds other files"):
        pack(source, tmp_path / "other", overwrite=True)
    other = make_tokenizer(["entirely", "different"])
    other.save_pretrained(source / "controls" / "sentiment")
    with pytest.raises(ValueError, match="vocabulary"):
        pack(source, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "denoiser.json").is_file(), "a failed packing leaves the old one"
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_a_damaged_control(packed, tmp_path, damage):
    copy = Path(shutil.copytree(packed, tmp_path / "model"))
    (shard,) = quantised.shards(copy / "controls" / "sentiment")
    if damage == "truncated":
        shard.write_bytes(shard.read_bytes()[:500])
    else:
        shard.unlink()
    with pytest.raises(ValueError, match=r"the classifier '.*sentiment' cannot be loaded: "):
        TTAPipeline.from_pretrained(copy)("we", **SETTINGS)


def test_a_control_of_a_smaller_vocabulary(packed, tmp_path):
    copy = Path(shutil.copytree(packed, tmp_path / "model"))
    make_classifier(20).save_pretrained(copy / "controls" / "sentiment")
    with pytest.raises(ValueError, match="knows 20 tokens, the tokenizer of the model has 31"):
        TTAPipeline.from_pretrained(copy)("we", **SETTINGS)


def test_a_classifier_from_elsewhere_needs_its_own_tokenizer(packed, pipeline):
    with pytest.raises(ValueError, match=r"the classifier '.*sentiment'"):
        pipeline("we", control=f"{packed / 'controls' / 'sentiment'}=positive", steps=1)


def test_the_shipped_model_needs_no_name(packed, monkeypatch, capsys):
    monkeypatch.delenv("TTA_MODEL", raising=False)
    monkeypatch.setattr(assets, "MODEL", packed)
    monkeypatch.setattr(assets, "MODEL", packed)
    assert TTAPipeline.from_pretrained()("the pizza", **SETTINGS).texts
    assert cli.main(["list"]) == 0
    assert "=negative or =positive" in capsys.readouterr().out
    assert cli.main(["generate", "the pizza", "--steps", "2"]) == 0
    assert capsys.readouterr().out.startswith("the pizza")


def test_no_shipped_model_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(assets, "MODEL", tmp_path)
    with pytest.raises(ValueError, match="this installation brings no model: name a model directory"):
        TTAPipeline.from_pretrained()


def test_the_command_packs_and_prints_sizes(model_directory, tmp_path, capsys):
    assert cli.main(["model", "pack", str(model_directory), str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "controls/sentiment/model-int8-00001-of-00001.safetensors" in out
    assert out.splitlines()[-1].endswith(" MB")
    assert cli.main(["model", "pack", str(model_directory), str(tmp_path / "out")]) == 2
    assert "holds a model already" in capsys.readouterr().err
