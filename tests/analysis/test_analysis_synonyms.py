"""Synonyms from a WordNet database of a few words."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from small_trace import make_trace

from tta_diffusion.analysis.synonyms import WordNet, synonym_bins, whole_words
from tta_diffusion.sampling.trace import Trace

LICENCE = "  1 This software and database is being provided to you\n"
INDEX = {
    "noun": ["movie n 1 2 @ ~ 1 1 06613686", "film n 2 1 @ 2 1 06613686 06262567", "man n 1 0 1 1 10287213"],
    "verb": ["be v 1 0 1 1 02604760", "exist v 1 1 ~ 1 1 02604760", "like v 1 0 1 0 01777210"],
    "adj": ["bad a 2 1 ! 2 1 01125429 01001", "awful a 1 1 & 1 0 01125429"],
    "adv": ["very r 1 0 1 1 00031899"],
}


@pytest.fixture
def trace() -> Trace:
    return make_trace()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for part, lines in INDEX.items():
        (tmp_path / f"index.{part}").write_text(LICENCE + "".join(f"{line}  \n" for line in lines))
    (tmp_path / "verb.exc").write_text("was be\nwere be\n")
    return tmp_path


def test_synonyms_share_a_synset(directory):
    wordnet = WordNet(directory)
    assert wordnet.synonyms("movie", "film")
    assert wordnet.synonyms("movies", "films")  # forms are led back to their lemmas
    assert wordnet.synonyms("was", "existed")
    assert wordnet.bases("men", "noun") == {"man"}
    assert not wordnet.synonyms("bad", "very")
    assert not wordnet.synonyms("like", "likes")
    assert not wordnet.synonyms("pizza", "movie")


def test_changes_are_counted_in_bins(trace, directory):
    first, second = synonym_bins([trace, trace], WordNet(directory), width=2)
    # Steps 0 and 1 of each text: great -> bad, <pad> -> </s>, bad -> awful
    assert (first.start, first.end, first.drafts, first.changed, first.words, first.synonyms) == (0, 2, 4, 6, 4, 2)
    assert (first.inside, first.share_inside) == (6, first.share)  # the first draft has no end
    assert first.share == pytest.approx(1 / 3)
    assert (second.start, second.end, second.drafts, second.changed) == (2, 3, 2, 0)
    assert math.isnan(second.share)
    assert math.isnan(second.share_inside)
    with pytest.raises(ValueError, match="at least 1 step"):
        synonym_bins([trace], WordNet(directory), width=0)


def test_changes_behind_the_end_are_told_apart(trace, directory):
    trace.ids[:, 3] = 1  # "The pizza": great -> bad and <pad> -> </s> are behind it, as is bad -> awful
    (found,) = synonym_bins([trace], WordNet(directory))
    assert (found.changed, found.inside, found.words, found.synonyms) == (3, 0, 0, 0)


def test_pieces_of_words_are_not_words(trace):
    trace.ids[0] = [0, 3, 4, 7, 9, 5]  # The pizza bad|ly is
    assert whole_words(trace, 0) == {1: "the", 2: "pizza", 5: "is"}


def test_the_database_is_found_or_asked_for(directory, monkeypatch, tmp_path):
    monkeypatch.setenv("WNSEARCHDIR", str(directory))
    assert WordNet.find().synonyms("film", "movie")
    monkeypatch.setenv("WNSEARCHDIR", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="install Debian's 'wordnet-base'"):
        WordNet.find()


def test_a_damaged_index_is_named(directory):
    (directory / "index.adv").write_text("very r many\n")
    with pytest.raises(ValueError, match="is not a WordNet index: 'very r many'"):
        WordNet(directory)
