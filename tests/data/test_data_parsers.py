"""Parsers: the chart parser finds the best tree of all, link-grammar's leaves are read back to words, nothing twice."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from tta_diffusion.control.lexical.network import SPANS, LexicalConfig, LexicalNetwork
from tta_diffusion.control.lexical.trees import Span, Tree, read_target
from tta_diffusion.data.chart_parser import ChartParser, best_tree, encode, join, split
from tta_diffusion.data.link_grammar import LinkGrammar, align
from tta_diffusion.data.parsers import CachedParser, find_parser
from tta_diffusion.data.treebank import read_penn, read_treebank

PENN = """( (S (NP-SBJ-1 (NP (DT A) (NN form) ) (PP (IN of) (NP (-NONE- *) (NN asbestos) )))
    (VP (VBZ is) (S (NP-SBJ (-NONE- *-1) ) (ADJP-PRD (JJ bad) (-LRB- -LRB-) ))) (. .) ))"""


def test_a_tree_of_the_treebank_loses_traces_tags_and_parts_of_speech(tmp_path: Path) -> None:
    words, tree = read_penn(PENN)
    assert words == ["A", "form", "of", "asbestos", "is", "bad", "(", "."]
    assert str(tree) == "(S (NP (NP * *) (PP * (NP *))) (VP * (S::ADJP * *)) *)"
    (tmp_path / "trees.jsonl").write_text(json.dumps({"tree": PENN}) + "\n")
    assert list(read_treebank(tmp_path / "trees.jsonl")) == [(words, tree)]


@cache
def binary_trees(start: int, end: int) -> list[frozenset[tuple[int, int]]]:
    """All binary trees over the words start to end, as sets of spans."""
    if start == end:
        return [frozenset([(start, end)])]
    return [
        left | right | {(start, end)}
        for cut in range(start, end)
        for left, right in itertools.product(binary_trees(start, cut), binary_trees(cut + 1, end))
    ]


@pytest.mark.parametrize("seed", range(5))
def test_the_best_tree_is_the_best_of_all(seed: int) -> None:
    words = 6
    odds = np.random.default_rng(seed).normal(-0.5, 1.5, (words, words))
    labels = np.random.default_rng(seed).integers(0, 2, (words, words)).astype(float)
    tree = best_tree(odds, labels, words, ["NP", "VP"])
    found = {(s.start, s.end) for s in tree.spans}
    best = max(sum(max(odds[span], 0) for span in spans) for spans in binary_trees(0, words - 1))
    assert (0, words - 1) in found
    assert sum(max(odds[span], 0) for span in found) == pytest.approx(best)
    assert all(odds[span] > 0 for span in found - {(0, words - 1)})
    assert all(s.label == ["NP", "VP"][int(labels[s.start, s.end])] for s in tree.spans)
    assert any(found <= spans for spans in binary_trees(0, words - 1))  # they nest


def test_texts_are_parsed_sentence_by_sentence() -> None:
    text = ["It", "is", "a", "pub", ".", "It", "is", "cheap", "!"]
    assert split(text) == [["It", "is", "a", "pub", "."], ["It", "is", "cheap", "!"]]
    assert split(["no", "stop"]) == [["no", "stop"]]
    one, two = read_target("(S (NP *) *)"), read_target("(S *)")
    assert str(join([one, two])) == "(S (S (NP *) *) (S *))"
    assert join([one]) == one


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chart parser with random weights over word pieces."""
    directory = tmp_path_factory.mktemp("chart")
    pieces = ["[PAD]", "[UNK]", "the", "pub", "##s", "is", "cheap", "."]
    inner = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(directory)
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    base = BertModel(BertConfig(vocab_size=len(pieces), initializer_range=0.5, **size))
    LexicalNetwork(LexicalConfig(SPANS, ("", "NP", "VP"), {"model_type": "bert"}), base).save(directory)
    return directory


def test_a_parser_reads_words_in_pieces(chart: Path) -> None:
    parser = ChartParser.from_pretrained(chart)
    pieces = encode([["the", "pubs", "is"], ["cheap"]], parser.tokenizer, torch.device("cpu"))
    assert pieces.firsts.tolist() == [[0, 1, 3], [0, 0, 0]]
    assert pieces.lasts.tolist() == [[0, 2, 3], [0, 0, 0]]
    sentences = [["the", "pubs", "is", "cheap", "."], ["cheap"], ["the", "pub", ".", "cheap", "."], []]
    trees = parser.parse(sentences)
    assert [tree.words for tree in trees] == [5, 1, 5, 0]
    assert trees == [parser.parse([words])[0] for words in sentences]  # whatever else is parsed with it
    assert {Span(0, 4, "S"), trees[2].spans[0]} == {Span(0, 4, "S")}


def test_what_is_no_parser_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no lexical network at .*lexical\.json is missing"):
        find_parser(str(tmp_path))


class Counting:
    """Parses everything as one NP, and counts."""

    identity = "counting"

    def __init__(self) -> None:
        self.seen = 0

    def parse(self, sentences: Sequence[Sequence[str]]) -> list[Tree]:
        self.seen += len(sentences)
        return [Tree(len(words), (Span(0, len(words) - 1, "NP"),)) for words in sentences]


def test_no_sentence_is_parsed_twice(tmp_path: Path) -> None:
    parser = Counting()
    cached = CachedParser(parser, tmp_path)
    first = cached.parse([["a", "b"], ["c"], ["a", "b"]])
    assert parser.seen == 2
    assert first[0] == first[2] == Tree(2, (Span(0, 1, "NP"),))
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes() + b'{"of": "half')  # a kill
    assert CachedParser(parser, tmp_path).parse([["c"], ["a", "b"]]) == [first[1], first[0]]
    assert parser.seen == 2


def test_leaves_are_words_again() -> None:
    leaves = ["the", "Vaults{!}", "pub.n", "costs.v", "{£}", "20-{?}.n", "25", ",.j", "{", "{and}", "}", "."]
    words = ["The", "Vaults", "pub", "costs", "£", "20-25", ",", "(", "and", ")", "."]
    found = align(leaves, words)
    assert found is not None
    assert [word for begun in found for word in begun] == words
    assert found[6] == []  # inside a word
    assert align(leaves, [*words, "more"]) is None
    assert align(["other"], ["words"]) is None


needs_link_grammar = pytest.mark.skipif(shutil.which("link-parser") is None, reason="link-grammar is not installed")


@needs_link_grammar
def test_link_grammar_parses() -> None:
    parser = LinkGrammar.find()
    sentences = [["The", "pub", "is", "cheap", "."], ["!", "no"], ["It", "serves", "(", "good", ")", "food", "."]]
    trees = parser.parse(sentences)
    assert [tree.words for tree in trees] == [5, 2, 7]
    assert {Span(0, 4, "S"), Span(0, 1, "NP")} <= set(trees[0].spans)
    assert trees[1].spans == ()  # a command to it, not a sentence
    assert parser.parse(sentences[2:]) == trees[2:]
    assert "link-grammar-" in parser.identity


def test_a_missing_link_grammar_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match="apt-get install link-grammar"):
        find_parser("link-grammar")
