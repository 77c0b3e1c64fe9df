"""Networks of spans and tags, a chart parser and a decoder, trained on a language with an exact grammar."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import train_helpers
from tta_diffusion.common.configuration import build, load_yaml
from tta_diffusion.control.lexical.network import SPANS, TAGS, LexicalNetwork
from tta_diffusion.control.lexical.objectives import TagObjective
from tta_diffusion.control.lexical.trees import Tree, read_target
from tta_diffusion.control.objective import HardText
from tta_diffusion.data.chart_parser import ChartParser
from tta_diffusion.data.words import word_tokenizer
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens
from tta_diffusion.training.classifier.batches import take
from tta_diffusion.training.classifier.config import ClassifierConfig
from tta_diffusion.training.classifier.store import LabelledStore
from tta_diffusion.training.config import TrainConfig
from tta_diffusion.training.lexical import prepare as preparing
from tta_diffusion.training.lexical.__main__ import train
from tta_diffusion.training.lexical.decoder import DecoderSettings, corpus_texts, train_decoder
from tta_diffusion.training.lexical.parser import ParserSettings, train_parser
from tta_diffusion.training.lexical.prepare import charts, known_labels, label_number, prepare, spread
from tta_diffusion.training.lexical.run import Reader, build_network, flat_labels
from tta_diffusion.training.stages import stage_configs

ROOT = Path(__file__).parents[2]
LENGTH = 12
TAG = {"the": "DET", "a": "DET", "pub": "NOUN", "mill": "NOUN", "old": "ADJ", "big": "ADJ", "is": "VERB", "was": "VERB"}
BACKBONE = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
BACKBONE |= {"intermediate_size": 64}


def phrase(rng: random.Random) -> list[str]:
    return [rng.choice(["the", "a"]), *rng.choices(["old", "big"], k=rng.randint(0, 2)), rng.choice(["pub", "mill"])]


def sentence(rng: random.Random) -> list[str]:
    return [*phrase(rng), rng.choice(["is", "was"]), *phrase(rng)]


def parse(words: Sequence[str]) -> Tree:
    """(S (NP ...) (VP verb (NP ...)))"""
    verb = next(i for i, word in enumerate(words) if TAG[word] == "VERB")
    return read_target(f"(S (NP *{verb}) (VP * (NP *{len(words) - verb - 1})))")


class Grammar:
    """Parser and tagger of the language."""

    identity = "the grammar"

    def parse(self, sentences: Sequence[Sequence[str]], show: bool = False) -> list[Tree]:
        return [parse(words) for words in sentences]

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        return [[TAG[word] for word in words] for words in sentences]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts as jsonl, a tokenizer, and the arrays of both kinds."""
    directory = tmp_path_factory.mktemp("language")
    rng = random.Random(0)
    (directory / "e2e").mkdir()
    for split, count in (("train", 600), ("validation", 60)):
        rows = [{"text": " ".join(sentence(rng))} for _ in range(count)]
        (directory / "e2e" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    word_tokenizer([" ".join(TAG)], 100).save_pretrained(directory / "tokenizer")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparing, "FILES", {s: f"e2e/{s}.jsonl" for s in ("train", "validation")})
        patch.setattr(preparing, "find_parser", lambda name: Grammar())
        patch.setattr(preparing, "find_tagger", lambda name: Grammar())
        for kind in (SPANS, TAGS):
            prepare(kind, directory, directory / kind, directory / "tokenizer", "", length=LENGTH)
    return directory


def test_the_arrays_hold_charts_and_tags(data: Path) -> None:
    for kind, labels in ((SPANS, ["", "NP", "S", "VP"]), (TAGS, ["", "ADJ", "DET", "NOUN", "VERB"])):
        store = LabelledStore.open(data / kind)
        assert (store.labels, store.task, store.meta["by"]) == (labels, kind, "the grammar")
    spans = LabelledStore.open(data / SPANS).validation
    assert spans.labels.shape == (60, LENGTH - 2, LENGTH - 2)
    words = int(spans.lengths[0]) - 2
    assert spans.labels[0, 0, words - 1] == 2
    assert np.count_nonzero(spans.labels[0]) == 4


def test_labels_of_a_batch_are_those_of_its_texts(data: Path) -> None:
    """In the order in which the network reads them, and no others."""
    batch = take(LabelledStore.open(data / TAGS).validation, np.arange(5))
    words = (batch.lengths - 2).tolist()
    assert flat_labels(batch).tolist() == [int(x) for row, n in zip(batch.labels, words, strict=True) for x in row[:n]]
    batch = take(LabelledStore.open(data / SPANS).validation, np.arange(5))
    expected = [
        int(chart[i, j]) for chart, n in zip(batch.labels, words, strict=True) for i in range(n) for j in range(i, n)
    ]
    assert flat_labels(batch).tolist() == expected


def test_rare_chains_fall_back_on_their_outermost_part() -> None:
    trees = [read_target("(S (NP *) (VP *))")] * 3 + [read_target("(S (NP (QP *)) (VP *))")]
    labels = known_labels(trees, least=2)
    assert labels == ("", "NP", "S", "VP")
    assert label_number("NP::QP", labels) == 1
    assert label_number("PRT", labels) == 0
    assert charts(trees[3:], labels, 4)[0, 0, 0] == 1


def test_rows_are_spread_over_the_file() -> None:
    rows = [["w"] * (1 + i % 15) for i in range(100)]
    assert len(spread(rows, 0, LENGTH)) == 70  # the others are too long
    assert len(spread(rows, 10, LENGTH)) == 10
    with pytest.raises(ValueError, match="between 1 and 10 words"):
        spread([["w"] * 30], 0, LENGTH)


def settings(data: Path, kind: str, out: Path, **optim: Any) -> ClassifierConfig:
    raw = {
        "data": str(data / kind),
        "out": str(out),
        "model": {"backbone": BACKBONE},
        "soft": {"noisy": 0.2, "mixture": 0.2, "replaced": 0.0, "evaluate": [0.2, 0.6]},
        "optim": {"steps": 150, "batch": 32, "lr": 3e-3, "warmup": 10, "ema": 0.9, "balanced": False, "cut": 0.0},
        "run": {"eval_every": 150, "log_every": 50, "device": "cpu", "eval_batch": 25},
    }
    raw["optim"] |= optim
    return build(ClassifierConfig, raw)


def test_training_and_control_read_the_same_words(data: Path) -> None:
    """The loss on a text is the score that guidance climbs, turned round."""
    store = LabelledStore.open(data / TAGS)
    network = build_network(settings(data, TAGS, data / "none"), store).eval()
    batch = take(store.validation, np.arange(1))
    tags = [store.labels[i] for i in flat_labels(batch)]
    logits = Reader(network)(network.table[batch.ids], batch.mask).logits
    special = SpecialTokens(store.special["pad"], store.special["eos"], store.special["bos"])
    canvas = Canvas.blank(1, LENGTH, special).pin(0, 0, [special.start])
    judged = TagObjective("pos", network, tuple(tags)).judge(HardText(batch.ids, canvas, 0.0))
    torch.testing.assert_close(-F.cross_entropy(logits, flat_labels(batch)), judged.score[0])


@pytest.mark.parametrize("kind", [SPANS, TAGS])
def test_the_grammar_is_learnt_from_soft_words(data: Path, tmp_path: Path, kind: str) -> None:
    report = train(settings(data, kind, tmp_path / "out"))
    found = report["measures"]
    assert found["clean"]["accuracy"] > 0.95
    assert found["clean"]["nll"] < found["u=0.60"]["nll"]
    network = LexicalNetwork.load(tmp_path / "out")
    assert (network.config.kind, network.config.about["by"]) == (kind, "the grammar")
    assert (tmp_path / "out" / "tokenizer.json").is_file()


def test_a_network_begins_from_nothing(data: Path, tmp_path: Path) -> None:
    config = settings(data, TAGS, tmp_path / "out")
    raw = config.to_dict() | {"model": {"start": str(tmp_path)}}
    with pytest.raises(ValueError, match="trained from scratch"):
        train(build(ClassifierConfig, raw))


def test_punctuation_is_not_made_alike(data: Path, tmp_path: Path) -> None:
    raw = settings(data, TAGS, tmp_path / "out").to_dict() | {"alike": ["marks"]}
    with pytest.raises(ValueError, match="punctuation have tags"):
        train(build(ClassifierConfig, raw))


def test_a_chart_parser_learns_a_treebank(tmp_path: Path) -> None:
    rng = random.Random(1)
    rows = []
    for _ in range(120):
        words = sentence(rng)
        verb = next(i for i, word in enumerate(words) if TAG[word] == "VERB")
        tagged = [f"({TAG[w][:2]} {w})" for w in words]
        subject, rest = " ".join(tagged[:verb]), " ".join(tagged[verb + 1 :])
        rows.append({"tree": f"( (S (NP-SBJ {subject}) (VP {tagged[verb]} (NP {rest}))))"})
    (tmp_path / "trees.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["[PAD]", *TAG])}, unk_token="[PAD]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]").save_pretrained(tmp_path / "encoder")
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(TAG) + 1, **{k: v for k, v in BACKBONE.items() if k != "model_type"})
              ).save_pretrained(tmp_path / "encoder")  # fmt: skip
    given = ParserSettings(epochs=10, batch=8, lr=2e-3, head_lr=5e-3, warmup=5, device="cpu")
    report = train_parser(tmp_path / "trees.jsonl", str(tmp_path / "encoder"), tmp_path / "parser", given)
    assert report["f1"] > 0.95
    words = ["the", "old", "pub", "is", "a", "mill"]
    assert ChartParser.from_pretrained(tmp_path / "parser").parse([words]) == [parse(words)]


def test_a_decoder_learns_the_texts_of_a_corpus(tmp_path: Path) -> None:
    tokenizer = train_helpers.make_tokenizer()
    texts = ["ba de gi ko lu"] * 30 + ["ba de zz gi"]
    corpus = train_helpers.write_corpus(tmp_path / "corpus", texts, texts[:3], tokenizer)
    assert corpus_texts(corpus, "train") == texts[:30]  # not the one with an unknown word
    torch.manual_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **size)).save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    given = DecoderSettings(steps=40, batch=8, lr=1e-2, warmup=5, device="cpu")
    found = train_decoder(str(tmp_path / "start"), corpus, tmp_path / "out", given)["perplexity"]
    assert found["after"] < 1.5 < 20 < found["before"]
    assert (tmp_path / "out" / "model.safetensors").is_file()


@pytest.mark.parametrize("kind", [SPANS, TAGS])
def test_the_recipes_load(kind: str) -> None:
    config = build(ClassifierConfig, load_yaml(ROOT / f"configs/classifiers/e2e-{kind}.yaml"))
    assert config.soft.replaced == 0
    assert config.out.endswith(f"controls/{kind}")
    denoiser = build(TrainConfig, load_yaml(ROOT / "configs/train/e2e-simplex.yaml"))
    assert config.soft.denoiser == f"{stage_configs(denoiser)[-1].out}/model"  # its last stage
    gaussian = build(TrainConfig, load_yaml(ROOT / "configs/train/gaussian-e2e-small.yaml"))
    assert denoiser.data == gaussian.data  # one corpus, tokenizer and network for both, and as many texts
    assert denoiser.model.backbone == gaussian.model.backbone
    assert sum(stage.optim.steps for stage in stage_configs(denoiser)) == gaussian.optim.steps
    assert denoiser.optim.batch == gaussian.optim.batch
