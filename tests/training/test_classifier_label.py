"""A teacher's labels: what it decides, what is written, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast
from typer.testing import CliRunner

from conftest import make_tokenizer
from train_helpers import write_sources
from tta_diffusion.cli.train_classifier import app
from tta_diffusion.common.configuration import build, load_yaml
from tta_diffusion.training.classifier.config import ClassifierConfig
from tta_diffusion.training.classifier.label import LEFT_OUT, Request, decide, label, main
from tta_diffusion.training.classifier.prepare import prepare
from tta_diffusion.training.classifier.store import LabelledStore
from tta_diffusion.training.classifier.tasks import build_task
from tta_diffusion.training.classifier.teacher import Teacher
from tta_diffusion.training.classifier.train import train

ROOT = Path(__file__).parents[2]
LENGTH = 12
LABELS = ["negative", "positive"]
SOURCES = {"plain": "the book was {} .", "lakes": "this lake is {} !"}
FILLER = ["the", "pizza", "movie", "a", "very", "and", "but", "it", "this", "place"]


def reader(texts: Any) -> NDArray[Any]:
    """Sure of texts with "good" or "bad", unsure of those with "lake", in doubt about the rest."""
    rows = []
    for text in texts:
        positive = 0.95 if "good" in text else 0.05 if "bad" in text else 0.5 if "lake" in text else 0.8
        rows.append([1 - positive, positive])
    return np.array(rows)


def write_corpus(directory: Path, tokenizer: PreTrainedTokenizerFast, rows: int = 40, length: int = LENGTH) -> None:
    """Two sources; every text is another one."""
    rng = np.random.default_rng(0)

    def text(name: str, i: int) -> str:
        words = [*rng.choice(FILLER, 3), ("good", "bad", "great")[i % 3] if name == "plain" else "very"]
        return SOURCES[name].format(" ".join(words))

    counts = {"plain": rows, "lakes": 2 * rows}
    splits = ("train", "validation")
    texts = {name: {split: [text(name, i) for i in range(counts[name])] for split in splits} for name in SOURCES}
    write_sources(directory, texts, tokenizer, length)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> Path:
    """`data` (prepared), `corpus` and `samples.jsonl`."""
    directory = tmp_path_factory.mktemp("place")
    tokenizer.save_pretrained(directory / "tokenizer")
    rng = np.random.default_rng(1)
    with (directory / "toy.jsonl").open("w") as file:
        for i in range(200):
            words = [*rng.choice(FILLER, 4), ("terrible", "great")[i % 2]]
            file.write(json.dumps({"text": " ".join(words) + " .", "label": i % 2}) + "\n")
    source = {"name": "toy", "path": "toy.jsonl", "hold_out": 0.25}
    task = build_task("sentiment", {"labels": LABELS, "sources": [source]})
    prepare(task, directory, directory / "data", directory / "tokenizer", length=LENGTH)
    write_corpus(directory / "corpus", tokenizer)
    samples = ["we love it and it is good .", "", "a lake and a lake .", "good " * 40]
    (directory / "samples.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in samples))
    return directory


def request(place: Path, out: Path, **changes: Any) -> Request:
    return replace(Request(place / "teacher", out, place / "data", place / "corpus", rows=60), **changes)


@pytest.fixture(scope="module")
def taught(place: Path, tmp_path_factory: pytest.TempPathFactory) -> LabelledStore:
    out = tmp_path_factory.mktemp("taught") / "out"
    label(request(place, out, texts=(place / "samples.jsonl",)), reader)
    return LabelledStore.open(out)


def test_thresholds_decide() -> None:
    probabilities = np.array([[0.9, 0.1], [0.3, 0.7], [0.45, 0.55], [0.05, 0.95], [0.4, 0.6]])
    assert decide(probabilities, 0.9, 0.6).tolist() == [0, LEFT_OUT, -1, 1, LEFT_OUT]
    assert decide(probabilities, 0.6, 0.6).tolist() == [0, 1, -1, 1, 1]


def test_the_data_is_kept_and_the_new_rows_follow(place: Path, taught: LabelledStore) -> None:
    data = LabelledStore.open(place / "data")
    given = len(data.train)
    for name, array in data.train.arrays().items():
        assert np.array_equal(taught.train.arrays()[name][:given], array)
    for name, array in data.validation.arrays().items():
        assert np.array_equal(taught.validation.arrays()[name], array)
    assert taught.validation.origin is None
    assert taught.train.origin is not None
    assert taught.train.origin.tolist() == [0] * given + [1] * (len(taught.train) - given)


def test_new_rows_have_the_form_and_the_label_of_their_text(
    taught: LabelledStore, tokenizer: PreTrainedTokenizerFast
) -> None:
    new = taught.train.taught
    texts = tokenizer.batch_decode(taught.train.ids[new].tolist(), skip_special_tokens=True)
    assert decide(reader(texts), 0.9, 0.6).tolist() == taught.train.labels[new].tolist()
    assert set(taught.train.labels[new].tolist()) == {-1, 0, 1}
    inside = np.arange(LENGTH) < taught.train.lengths[:, None]
    assert (taught.train.ids[~inside] == 0).all()
    assert (taught.train.ids[inside] != 0).all()
    assert (taught.train.ids[:, 0] == 2).all()
    rows = [row.tobytes() for row in taught.train.ids[new]]
    assert len(set(rows)) == len(rows)


def test_the_record_counts_every_source(taught: LabelledStore) -> None:
    teacher = taught.meta["teacher"]
    assert (teacher["name"], teacher["sure"], teacher["unsure"], teacher["seed"]) == ("teacher", 0.9, 0.6, 0)
    assert list(taught.meta["sources"]) == ["toy", "taught:plain", "taught:lakes", "taught:samples.jsonl"]
    assert teacher["read"]["taught:plain"] <= 20
    assert teacher["read"]["taught:lakes"] <= 40
    assert taught.meta["sources"]["taught:samples.jsonl"]["train"] == {"negative": 0, "positive": 2, "undecided": 1}
    plain, lakes = (taught.meta["sources"][f"taught:{name}"]["train"] for name in SOURCES)
    assert min(plain["negative"], plain["positive"]) > 0 == plain["undecided"]
    assert lakes == {"negative": 0, "positive": 0, "undecided": teacher["read"]["taught:lakes"]}
    for number, counts in enumerate(taught.meta["sources"].values()):
        assert int((taught.train.sources == number).sum()) == sum(counts["train"].values())


def test_sources_of_no_class_are_undecided_unread(place: Path, tmp_path: Path) -> None:
    """The teacher is sure of many plain texts, and is not asked."""
    meta = label(request(place, tmp_path / "a", other="plain"), reader)
    counts = meta["sources"]["taught:plain"]["train"]
    assert counts == {"negative": 0, "positive": 0, "undecided": meta["teacher"]["read"]["taught:plain"]}
    assert counts["undecided"] > 0
    with pytest.raises(ValueError, match="--other names 'novels', which is not among the sources read: lakes, plain"):
        label(request(place, tmp_path / "b", other="novels"), reader)


def test_weights_choose_the_sources_and_the_seed_the_rows(place: Path, tmp_path: Path) -> None:
    only = label(request(place, tmp_path / "a", weights="lakes=2"), reader)
    assert list(only["teacher"]["read"]) == ["taught:lakes"]
    again = label(request(place, tmp_path / "b", weights="lakes=2"), reader)
    other = label(request(place, tmp_path / "c", weights="lakes=2", seed=1), reader)
    assert only["fingerprint"] == again["fingerprint"]
    assert only["arrays_sha256"]["train"] != other["arrays_sha256"]["train"]
    assert only["arrays_sha256"]["validation"] == other["arrays_sha256"]["validation"]


def test_rows_that_the_data_has_are_not_read_again(place: Path, tmp_path: Path) -> None:
    data = LabelledStore.open(place / "data")
    tokenizer = make_tokenizer()
    known = tokenizer.batch_decode(data.validation.ids[:5].tolist(), skip_special_tokens=True)
    path = tmp_path / "known.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*known, "it is good ."]))
    meta = label(request(place, tmp_path / "out", rows=0, texts=(path,)), reader)
    assert meta["teacher"]["read"] == {"taught:known.jsonl": 1}


def test_longer_sequences_are_cut_before_they_are_read(
    place: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    write_corpus(tmp_path / "long", tokenizer, length=2 * LENGTH)
    label(request(place, tmp_path / "out", corpus=tmp_path / "long"), reader)
    assert LabelledStore.open(tmp_path / "out").train.ids.shape[1] == LENGTH


def save_teacher(directory: Path, tokenizer: PreTrainedTokenizerFast, names: list[str]) -> None:
    """A classifier with one vector for each word, of which its labels are read: "good", "bad" and all others."""
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=8,
        num_hidden_layers=0,
        num_attention_heads=1,
        max_position_embeddings=LENGTH,
        id2label=dict(enumerate(names)),
    )
    model = BertForSequenceClassification(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.bert.embeddings.LayerNorm.weight.fill_(1)
        signs = torch.tensor([1.0, -1.0] * 4)
        model.bert.embeddings.word_embeddings.weight[tokenizer.convert_tokens_to_ids("good")] = signs
        model.bert.embeddings.word_embeddings.weight[tokenizer.convert_tokens_to_ids("bad")] = -signs
        model.bert.pooler.dense.weight.copy_(torch.eye(8))
        model.classifier.weight[names.index("positive")] = signs
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


@pytest.fixture
def words() -> PreTrainedTokenizerFast:
    """Another vocabulary, whose first token is that of the text: a teacher without layers sees nothing else."""
    tokenizer = make_tokenizer(["good", "bad", "a"])
    tokenizer.bos_token = None
    return tokenizer


def test_a_teacher_reads_with_its_own_tokenizer_and_order_of_labels(
    words: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    texts = ["good a a", "a good", "bad", "bad a " * 20, "unheard"]
    found = []
    for names in (LABELS, LABELS[::-1]):
        save_teacher(tmp_path / names[0], words, names)
        found.append(Teacher.load(tmp_path / names[0], LABELS, torch.device("cpu"), batch=2)(texts))
    assert np.array_equal(found[0], found[1])
    assert decide(found[0], 0.9, 0.6).tolist() == [1, -1, 0, 0, -1]
    assert np.allclose(found[0].sum(1), 1)


def test_of_several_teachers_the_mean_counts(place: Path, words: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """Two that agree are as sure as one; two that contradict each other decide nothing."""
    save_teacher(tmp_path / "one", words, LABELS)
    save_teacher(tmp_path / "same", words, LABELS)
    save_teacher(tmp_path / "against", words, LABELS)
    model = BertForSequenceClassification.from_pretrained(tmp_path / "against")
    with torch.no_grad():
        model.classifier.weight.neg_()
    model.save_pretrained(tmp_path / "against")
    (tmp_path / "good.jsonl").write_text(json.dumps({"text": "good place !"}) + "\n")
    counts = {}
    for name in ("same", "against"):
        base = request(place, tmp_path / f"out-{name}", rows=0, texts=(tmp_path / "good.jsonl",), device="cpu")
        meta = label(replace(base, teacher=tmp_path / "one", also=(tmp_path / name,)))
        counts[name] = meta["sources"]["taught:good.jsonl"]["train"]
        assert meta["teacher"]["also"] == [name]
    assert counts["same"] == {"negative": 0, "positive": 1, "undecided": 0}
    assert counts["against"] == {"negative": 0, "positive": 0, "undecided": 1}


def test_our_own_classifiers_get_the_frame_they_were_trained_with(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    save_teacher(tmp_path, tokenizer, LABELS)
    teacher = Teacher.load(tmp_path, LABELS, torch.device("cpu"), batch=2)
    assert teacher.frame == ([2], [1])
    assert np.allclose(teacher(["good", "bad " * 30]), 0.5)  # the first token is the start


def test_the_module_and_the_command_line_do_the_same(
    place: Path, words: PreTrainedTokenizerFast, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_teacher(tmp_path / "teacher", words, LABELS)
    (tmp_path / "more.jsonl").write_text(json.dumps({"text": "good place !"}) + "\n")
    arguments = [tmp_path / "teacher", tmp_path / "out", "--data", place / "data", "--corpus", place / "corpus"]
    main([str(x) for x in (*arguments, "--texts", place / "samples.jsonl", tmp_path / "more.jsonl", "--rows", 10)])
    printed = capsys.readouterr().out
    assert "taught:more.jsonl: 0 negative, 1 positive, 0 undecided, 0 left out" in printed
    assert printed.splitlines()[-1] == str(tmp_path / "out")
    assert int(LabelledStore.open(tmp_path / "out").train.taught.sum()) > 5
    again = [*arguments[:1], tmp_path / "again", *arguments[2:], "--texts", place / "samples.jsonl"]
    done = CliRunner().invoke(app, ["label", *map(str, (*again, "--texts", tmp_path / "more.jsonl", "--rows", 10))])
    assert done.exit_code == 0
    first, second = (LabelledStore.open(tmp_path / name).meta for name in ("out", "again"))
    assert first == second


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sure": 0.5}, "must rise from 0 to 1, got 0.6 and 0.5"),
        ({"unsure": -0.1}, "must rise"),
        ({"rows": 0}, "nothing to label"),
        ({"batch": 0}, "--batch must be 1 or more"),
        ({"data": Path("nowhere")}, "no labelled data at 'nowhere'"),
        ({"corpus": Path("nowhere")}, "nowhere is no finished corpus"),
        ({"texts": (Path("nowhere.jsonl"),)}, "'nowhere.jsonl' cannot be read"),
        ({"weights": "lake=1"}, "no source 'lake'. Did you mean 'lakes'"),
        ({"weights": "lakes=-1"}, "must be 0 or more"),
        ({"weights": "lakes=0"}, "one of the weights must be positive"),
        ({"weights": "lakes"}, "'lakes' does not"),
    ],
)
def test_what_is_wrong_with_a_request_is_one_sentence(
    changes: dict[str, Any], message: str, place: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        label(request(place, tmp_path / "out", **changes), reader)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", ["text", "[1]", '{"body": "good"}'])
def test_lines_without_a_text_are_named(line: str, place: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps({"text": "good"}) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=r"line 2 of .* is no JSON object with a field 'text'"):
        label(request(place, tmp_path / "out", texts=(path,)), reader)


def test_a_text_may_hold_what_breaks_lines_elsewhere(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text(json.dumps({"text": "good\u2028good\x85good"}, ensure_ascii=False) + "\n", encoding="utf-8")
    meta = label(request(place, tmp_path / "out", texts=(path,)), reader)
    assert meta["teacher"]["read"]["taught:texts.jsonl"] == 1


def test_other_labels_and_other_vocabularies_are_refused(
    place: Path, words: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="no teacher at"):
        label(request(place, tmp_path / "out"))
    save_teacher(tmp_path / "teacher", words, ["positive", "neutral"])
    with pytest.raises(ValueError, match="tells apart positive, neutral, but the labels are negative, positive"):
        label(request(place, tmp_path / "out", teacher=tmp_path / "teacher", device="cpu"))
    write_corpus(tmp_path / "corpus", make_tokenizer([*FILLER, "is", "was", "lake", "book", "good", "bad", "great"]))
    with pytest.raises(ValueError, match="the vocabulary of the corpus"):
        label(request(place, tmp_path / "out", corpus=tmp_path / "corpus"), reader)
    assert not (tmp_path / "out").exists()


def test_finished_data_is_kept_and_taught_once(place: Path, taught: LabelledStore, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="finished already"):
        label(request(place, taught.directory), reader)
    with pytest.raises(ValueError, match="is the data itself"):
        label(request(place, place / "data", overwrite=True), reader)
    with pytest.raises(ValueError, match="labelled by a teacher already"):
        label(request(place, tmp_path / "out", data=taught.directory), reader)
    with pytest.raises(ValueError, match="neither sure nor unsure"):
        label(request(place, tmp_path / "out", sure=1.0, unsure=0.0), reader)


def test_validation_rows_need_a_label(taught: LabelledStore, tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text(json.dumps(taught.meta))
    for split in ("train", "validation"):
        taught.train.save(tmp_path / f"{split}.npz")
    with pytest.raises(ValueError, match=r"the validation data of .* has the label -1"):
        LabelledStore.open(tmp_path)


def test_a_taught_classifier_is_trained_and_says_so(taught: LabelledStore, tmp_path: Path) -> None:
    backbone = {"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    raw = {
        "data": str(taught.directory),
        "out": str(tmp_path / "out"),
        "model": {"backbone": {**backbone, "intermediate_size": 32}},
        "soft": {"evaluate": []},
        "optim": {"steps": 4, "batch": 16},
        "run": {"device": "cpu"},
    }
    report = train(build(ClassifierConfig, raw))["tasks"]["sentiment"]
    assert report["teacher"]["name"] == "teacher"
    assert list(report["by_source"]) == ["toy"]
    assert "labelled by the classifier `teacher`." in (tmp_path / "out" / "README.md").read_text()


def test_the_recipe_of_the_project_is_well_formed() -> None:
    config = build(ClassifierConfig, load_yaml(ROOT / "configs" / "classifiers" / "guidance-taught.yaml"))
    assert (config.optim.undecided, config.optim.given) == (0.2, 0.5)
    for change in ({"undecided": 1.0}, {"given": 1.5}):
        with pytest.raises(ValueError, match=f"optim.{next(iter(change))} must"):
            replace(config, optim=replace(config.optim, **change))
