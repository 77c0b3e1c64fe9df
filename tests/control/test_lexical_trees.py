"""Trees in brackets, as sets of spans, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tta_diffusion.control.lexical.trees import Span, Tree, parse_span, read_brackets, read_target, write_span


def test_a_tree_is_the_set_of_its_constituents() -> None:
    tree = read_target("(S (NP * *) (VP * (NP *)))")
    assert tree == Tree(4, (Span(0, 3, "S"), Span(0, 1, "NP"), Span(2, 3, "VP"), Span(3, 3, "NP")))


def test_a_number_stands_for_so_many_words() -> None:
    assert read_target("(S (NP *2) (VP *))") == read_target("(S (NP * *) (VP *))")


def test_constituents_over_the_same_words_are_one_chain() -> None:
    assert read_target("(S (VP (NP *2)))").spans == (Span(0, 1, "S::VP::NP"),)
    assert read_target("(S::VP *2)") == read_target("(S (VP *2))")


def trees(words: int) -> st.SearchStrategy[str]:
    """Brackets over so many words, of any shape."""
    label = st.sampled_from(["S", "NP", "VP", "S::VP"])
    if words == 1:
        return st.one_of(st.just("*"), label.map(lambda name: f"({name} *)"))
    halves = st.integers(1, words - 1).flatmap(lambda cut: st.tuples(trees(cut), trees(words - cut)))
    return st.tuples(label, halves).map(lambda made: f"({made[0]} {made[1][0]} {made[1][1]})")


@given(st.integers(2, 7).flatmap(trees))
def test_what_is_written_is_read_back(text: str) -> None:
    tree = read_target(text)
    assert read_target(str(tree)) == tree


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a tree"),
        ("NP", "not a tree"),
        ("(S (NP *)", "leaves 1 brackets open"),
        ("(S *))", "closes a bracket"),
        ("(S *) (NP *)", "more than one tree"),
        ("(S )", "no words"),
        ("(S the)", "a leaf of a tree is"),
        ("( (NP *))", "has no label"),
    ],
)
def test_what_is_no_tree(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_target(text)


def test_brackets_keep_their_words() -> None:
    assert read_brackets("(S (NP a dog) barks)").leaves == ["a", "dog", "barks"]


def test_words_are_counted_from_one() -> None:
    assert parse_span("5-8:PP") == Span(4, 7, "PP")
    assert parse_span("3:NP") == Span(2, 2, "NP")
    assert parse_span(write_span(Span(0, 2, "S::VP"))) == Span(0, 2, "S::VP")


@pytest.mark.parametrize("text", ["5-8", "PP", "8-5:PP", "0-2:NP", "5-8:", "a-b:PP", "5-8:PP NP"])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(ValueError, match="span="):
        parse_span(text)
