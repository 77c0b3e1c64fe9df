from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tta_diffusion.data.pack import Packing, SentenceIds, pack

PAD, EOS, BOS = 0, 1, 2


def sentence(*ids: int) -> SentenceIds:
    """The first id is 500 higher where the sentence opens a sequence, so that the two forms differ."""
    return SentenceIds(first=[500 + ids[0], *ids[1:]], later=list(ids))


def run(document: list[SentenceIds], **settings: object) -> list[list[int]]:
    packing = Packing(**{"length": 8, "pad": PAD, "eos": EOS, "bos": BOS, **settings})  # type: ignore[arg-type]
    return list(pack(document, packing, random.Random(0)))


def test_layout_of_whole_sentences() -> None:
    document = [sentence(10, 11), sentence(12, 13), sentence(14, 15, 16, 17)]
    assert run(document) == [
        [BOS, 510, 11, 12, 13, EOS, PAD, PAD],
        [BOS, 514, 15, 16, 17, EOS, PAD, PAD],
    ]


def test_text_that_fills_the_room_exactly_has_no_end_mark() -> None:
    assert run([sentence(*range(10, 17))]) == [[BOS, 510, *range(11, 17)]]


def test_overlong_sentences_are_cut_or_dropped_and_the_next_goes_on() -> None:
    document = [sentence(10, 11), sentence(*range(20, 40)), sentence(50)]
    assert run(document) == [
        [BOS, 510, 11, EOS, PAD, PAD, PAD, PAD],
        [BOS, 520, 21, 22, 23, 24, 25, 26],
        [BOS, 550, EOS, PAD, PAD, PAD, PAD, PAD],
    ]
    # Dropped: the sentences around it are no neighbours and stay apart.
    assert run(document, overlong="drop") == [run(document)[0], run(document)[2]]


def test_partial_one_gives_single_sentences_and_bos_can_be_off() -> None:
    document = [sentence(10), sentence(11), sentence(12)]
    assert run(document, partial=1.0, bos=None) == [[500 + i, EOS] + [PAD] * 6 for i in (10, 11, 12)]


def test_filled_sequences_go_on_into_the_next_sentence_which_begins_anew() -> None:
    document = [sentence(10, 11), sentence(12, 13), sentence(14, 15, 16, 17)]
    assert run(document, filled=1.0) == [
        [BOS, 510, 11, 12, 13, 14, 15, 16],
        [BOS, 514, 15, 16, 17, EOS, PAD, PAD],
    ]
    assert run(document, filled=1.0, partial=1.0) == run(document, partial=1.0), "single sentences stay single"


def test_short_documents_are_dropped() -> None:
    assert run([sentence(10), sentence(11, 12)], min_tokens=4) == []
    assert len(run([sentence(10), sentence(11, 12)], min_tokens=3)) == 1


documents = st.lists(st.lists(st.integers(10, 400), min_size=1, max_size=24), max_size=12)


@given(
    documents,
    st.integers(8, 20),
    st.booleans(),
    st.floats(0, 1),
    st.sampled_from(["cut", "drop"]),
    st.integers(0, 30),
    st.integers(0, 5),
)
def test_no_token_is_lost_but_by_the_stated_rules(
    texts: list[list[int]], length: int, with_bos: bool, partial: float, overlong: str, min_tokens: int, seed: int
) -> None:
    bos = BOS if with_bos else None
    packing = Packing(length, PAD, EOS, bos, partial, overlong=overlong, min_tokens=min_tokens)
    document = [sentence(*ids) for ids in texts]
    sequences = list(pack(document, packing, random.Random(seed)))
    room = length - with_bos
    found: list[int] = []
    for ids in sequences:
        assert len(ids) == length
        assert (ids[0] == BOS) == with_bos
        body = ids[with_bos:]
        text = [i for i in body if i not in (PAD, EOS)]
        rest = body[len(text) :]
        assert text
        assert rest == ([EOS] + [PAD] * (len(rest) - 1) if rest else [])
        assert text[0] >= 500  # the form that opens a sequence, and only there
        assert all(i < 500 for i in text[1:])
        found += [text[0] - 500, *text[1:]]
    expected = [ids[:room] if overlong == "cut" else ids for ids in texts if len(ids) <= room or overlong == "cut"]
    if sum(map(len, texts)) < min_tokens:
        expected = []
    assert found == [i for ids in expected for i in ids]
