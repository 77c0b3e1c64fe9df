"""Lists of words beside a network, or alone: p(label | text) by counting, and what is said of lists that are wrong."""

import json
import math
import shutil

import pytest
import torch

from tta_diffusion.cli.listing import classifiers
from tta_diffusion.control.bundled import bundled
from tta_diffusion.control.classifier import load_classifier
from tta_diffusion.control.objective import HardText, SoftText
from tta_diffusion.control.parse import ControlLibrary, parse_controls
from tta_diffusion.control.words import WORDS, WordExperts, WordLists
from tta_diffusion.packaging.pack import pack
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.serve.models import Served
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens

SPECIAL = SpecialTokens(pad=0, end=1, banned=(2, 3, 4))
LISTS = {"nats": 2.0, "network": 0.5, "words": {"negative": ["hate", "bad"], "positive": ["love", "great"]}}


def written(directory, lists=LISTS):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / WORDS).write_text(json.dumps(lists))
    return directory


@pytest.fixture
def with_network(model_directory, tmp_path):
    directory = tmp_path / "sentiment"
    shutil.copytree(model_directory / "controls" / "sentiment", directory)
    return written(directory)


@pytest.fixture
def sheet():
    return Canvas.blank(1, 16, SPECIAL).pin(0, 0, [2])


def hard(tokenizer, canvas, text):
    """The text on a canvas, from its second place on."""
    ids = canvas.ids.clone()
    tokens = tokenizer(f" {text}", add_special_tokens=False)["input_ids"]
    ids[:, 1 : 1 + len(tokens)] = torch.tensor(tokens)
    return HardText(ids, canvas, 0.0)


def test_words_alone_are_counted(tokenizer, tmp_path, sheet):
    own = load_classifier(written(tmp_path / "mood"), "positive", "mood", tokenizer)
    one, again, two, none = (
        own.judge(hard(tokenizer, sheet, text)).log_prob.exp().item()
        for text in ("the love pizza", "love love love love", "love the great pizza", "the pizza")
    )
    assert none == pytest.approx(0.5)
    assert one == pytest.approx(1 / (1 + math.exp(-2)), abs=1e-3)
    assert again == pytest.approx(one, abs=1e-3), "a word counts once"
    assert two == pytest.approx(1 / (1 + math.exp(-4)), abs=1e-3)


def test_soft_words_count_with_the_chance_that_they_occur(tokenizer, tmp_path, sheet):
    own = load_classifier(written(tmp_path / "mood"), "positive", "mood", tokenizer)
    generator = torch.Generator().manual_seed(0)
    text = SoftText(3 * torch.randn(1, 16, len(tokenizer), generator=generator), sheet, 0.5)
    never = (1 - text.probs[0][text.mask[0]]).prod(0)  # (V,)
    expected = sum(
        sign * (1 - never[tokenizer.convert_tokens_to_ids(word)].item())
        for sign, label in ((-2.0, "negative"), (2.0, "positive"))
        for word in LISTS["words"][label]
    )
    found = own.judge(text).log_prob.item()
    assert found == pytest.approx(-math.log1p(math.exp(-expected)), abs=1e-4)


def test_words_and_network_are_a_product(with_network, model_directory, tokenizer, sheet):
    text = hard(tokenizer, sheet, "love the bad great pizza")
    network = load_classifier(model_directory / "controls" / "sentiment", "positive", "mood", tokenizer)
    alone = network.judge(hard(tokenizer, sheet, "love the bad great pizza")).log_prob.exp().item()
    odds = (alone / (1 - alone)) ** 0.5 * torch.tensor(2.0).exp().item()  # two words for it, one against
    both = load_classifier(with_network, "positive", "mood", tokenizer).judge(text).log_prob.exp().item()
    assert both == pytest.approx(odds / (1 + odds), abs=1e-3)


def test_guidance_raises_words_of_the_label(tokenizer, tmp_path, sheet):
    own = load_classifier(written(tmp_path / "mood"), "positive", "mood", tokenizer)
    leaf = torch.zeros(*sheet.ids.shape, len(tokenizer), requires_grad=True)
    own.judge(SoftText(leaf, sheet, 0.5)).score.sum().backward()
    words = (tokenizer(f" {word}", add_special_tokens=False)["input_ids"][0] for word in ("love", "hate", "pizza"))
    love, hate, pizza = words
    place = int(sheet.free[0].nonzero()[0])
    slope = leaf.grad[0, place]
    assert slope[love] > slope[pizza].abs()
    assert slope[hate] < 0


def test_a_directory_of_words_is_a_control(tokenizer, tmp_path):
    directory = written(tmp_path / "mood")
    ((objective, _),) = parse_controls(f"{directory}=Negative", ControlLibrary(tokenizer))
    assert isinstance(objective.model, WordExperts)
    assert objective.label == 0


@pytest.mark.parametrize(
    ("lists", "problem"),
    [
        ({"words": {"negative": ["bad"]}}, "two labels at least"),
        ({"words": {"negative": ["bad"], "positive": []}}, "two labels at least"),
        ({"words": {"negative": "bad", "positive": ["love"]}}, "each with a list of words"),
        ({"nats": 0, "words": LISTS["words"]}, "'nats' and 'weight' must be positive"),
        ({"weights": 1, "words": LISTS["words"]}, "is no list of words"),
        (["bad"], "is no list of words"),
        ({"words": {"negative": ["bad pizza"], "positive": ["love"]}}, "no word of 'negative' is a single token"),
        ({"words": {"negative": ["bad"], "positive": ["unheard"]}}, "no word of 'positive' is a single token"),
    ],
)
def test_what_is_wrong_with_a_list(lists, problem, tokenizer, tmp_path):
    with pytest.raises(ValueError, match=problem):
        load_classifier(written(tmp_path / "mood", lists), "positive", "mood", tokenizer)


def test_words_of_several_tokens_are_left_out(tokenizer, tmp_path):
    lists = {"words": {"negative": ["bad", "bad pizza", "unheard"], "positive": ["love"]}}
    with pytest.warns(UserWarning, match="left out: bad pizza, unheard"):
        own = load_classifier(written(tmp_path / "mood", lists), "positive", "mood", tokenizer)
    assert own.table.sum() == 2


def test_words_for_other_labels_are_refused(with_network, tokenizer):
    written(with_network, {"words": {"sports": ["love"], "business": ["bad"]}})
    with pytest.raises(ValueError, match="the labels are negative, positive"):
        load_classifier(with_network, "positive", "mood", tokenizer)


@pytest.fixture
def with_weather(model_directory, tmp_path):
    """A model that brings a control of words alone."""
    directory = shutil.copytree(model_directory, tmp_path / "model")
    written(directory / "controls" / "weather", {"words": {"storm": ["bad", "hate"], "sun": ["great"]}})
    return directory


def test_words_alone_beside_a_model_are_a_control_of_it(with_weather):
    pipeline = TTAPipeline.from_pretrained(with_weather)
    assert pipeline("we", control="weather=storm", steps=2, seed=0).texts
    assert classifiers(with_weather) == {"sentiment": "=negative or =positive", "weather": "=storm or =sun"}
    served = Served("tiny", pipeline)
    assert served.judging([served.control("weather=Sun")]) == ["weather=sun"]


def test_packing_keeps_words_alone(with_weather, tmp_path):
    pack(with_weather, tmp_path / "packed")
    assert sorted(bundled(tmp_path / "packed" / "controls")) == ["sentiment", "weather"]


@pytest.mark.parametrize("text", ["{", "[]", '{"nats": 2}', '{"words": 3}'])
def test_words_that_name_no_labels(text, with_weather):
    (with_weather / "controls" / "weather" / WORDS).write_text(text)
    with pytest.raises(ValueError, match=r"words.json' (does not say what labels|is not valid JSON|is no JSON object)"):
        classifiers(with_weather)


def test_no_words_no_lists(model_directory):
    assert WordLists.read(model_directory / "controls" / "sentiment") is None


def test_packing_keeps_the_words(model_directory, tmp_path):
    source = tmp_path / "model"
    shutil.copytree(model_directory, source)
    written(source / "controls" / "sentiment")
    pack(source, tmp_path / "packed")
    assert json.loads((tmp_path / "packed" / "controls" / "sentiment" / WORDS).read_text()) == LISTS
