"""The model inside the package: complete, small enough, and it writes."""

from __future__ import annotations

import time
import zlib
from pathlib import Path

import pytest

from tta_diffusion import TTAPipeline
from tta_diffusion.assets import MODEL, NAMED, ROOT, find_model, model_directory, model_name
from tta_diffusion.control.objective import HardText
from tta_diffusion.tokens.canvas import Canvas

FILES = [path for path in MODEL.rglob("*") if path.is_file()]
ALL = [path for path in ROOT.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]


@pytest.fixture(scope="module")
def shipped() -> TTAPipeline:
    return TTAPipeline.from_pretrained()


def test_it_fits_its_limits() -> None:
    assert sum(path.stat().st_size for path in FILES) <= 100e6
    assert max(path.stat().st_size for path in FILES) <= 50e6
    assert {path.suffix for path in ALL} <= {".safetensors", ".json", ".md"}


def test_all_models_fit_one_package() -> None:
    """As a wheel has them, compressed."""
    assert sum(len(zlib.compress(path.read_bytes(), 1)) for path in ALL) <= 99.5e6


def test_another_model_of_the_package_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_model("qm9") == str(NAMED["qm9"])
    assert model_directory(model_name(find_model("qm9"))) == find_model("qm9")
    assert model_name(find_model(None)) == ""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qm9").mkdir()
    assert find_model("qm9") == "qm9"  # a directory wins


@pytest.fixture(scope="module")
def molecules() -> TTAPipeline:
    return TTAPipeline.from_pretrained("qm9")


def test_it_writes_molecules(molecules: TTAPipeline) -> None:
    """Of 16 texts most are molecules, without control, led by its own label, and by its classifiers."""
    pytest.importorskip("rdkit")
    from tta_diffusion.evaluation.molecules import read_molecule

    for control in (None, "qed=high", "rings=high"):
        texts = molecules("", control=control, num_samples=16, seed=1, batch_size=16).texts
        found = [m for text in texts if (m := read_molecule(text))]
        assert len(found) >= 10
        if control == "qed=high":
            assert sum(m.qed for m in found) / len(found) > 0.54  # the mean of QM9 is .466


def test_its_label_asks_for_another_text(molecules: TTAPipeline) -> None:
    texts = [molecules("", control=f"qed={label}", seed=3, steps=8).texts[0] for label in ("low", "high")]
    assert texts[0] != texts[1]
    assert not any(" " in text for text in texts)


def test_it_loads_within_three_seconds(shipped: TTAPipeline) -> None:
    begun = time.process_time()
    TTAPipeline.from_pretrained()
    assert time.process_time() - begun < 3


def test_it_brings_its_classifiers_and_settings(shipped: TTAPipeline) -> None:
    assert list(shipped.library.bundled) == ["sentiment", "topic", "toxicity"]
    assert shipped.defaults.min_length > 0


def test_guidance_moves_its_texts(shipped: TTAPipeline) -> None:
    """With the same noise, few steps and a short sheet: the sentiment classifier's word for both labels."""
    settings = {"steps": 12, "max_length": 24, "min_length": 16, "seed": 0, "num_samples": 2, "return_trace": True}
    for label in ("negative", "positive"):
        output = shipped("The food", control=f"sentiment={label}", **settings)
        assert all(text.startswith("The food") for text in output.texts)
        final = [float(trace.probability["sentiment"]["after"][-1]) for trace in output.traces]
        assert sum(final) / len(final) > 0.8  # one text may be unlucky: rounding decides which text it is


def test_its_topics_need_words(shipped: TTAPipeline) -> None:
    """Common words, which are world news to its network alone with p = 0.5, decide little."""
    lead = shipped.tokenizer.bos_token_id
    chance = {}
    for text in (" people who were to say to people who were to say to them", " troops and the elections in Iraq"):
        ids = [lead, *shipped.library.tokenise(text)]
        sheet = Canvas.blank(1, len(ids), shipped.special).pin(0, 0, ids)
        (classifier,) = shipped.library.classifiers("topic", "world")
        judged = classifier.judge(HardText(sheet.ids, sheet, 0.0))
        chance[text] = float(judged.log_prob.exp())
    common, news = chance.values()
    assert common < 0.4
    assert news > 0.95
