"""Openings of texts that no corpus holds, and how people went on."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tta_diffusion.data.config import SourceConfig
from tta_diffusion.data.held_out import held_out
from tta_diffusion.data.openings import Openings
from tta_diffusion.data.sources import iterate_held_out, iterate_texts

ROWS = 400
SHARE = 0.3


def article(number: int) -> str:
    """A heading, a paragraph that is too short, and one of 41 words; every second word tells the article."""
    words = " ".join(f"water{number} flows" for _ in range(18))
    return f"Lake {number}\n\nIt is a lake.\n\nThe lake of the valley {words}.\n\nThe lake of the other valley {words}."


@pytest.fixture
def data(tmp_path: Path) -> Path:
    half = ROWS // 2
    for name, rows in (("a", range(half)), ("b", range(half, ROWS))):
        table = {"title": [f"Lake {i}" for i in rows], "text": [article(i) for i in rows]}
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    return tmp_path


def chosen() -> list[int]:
    return [i for i in range(ROWS) if held_out(f"Lake {i}", SHARE)]


def openings(**changes: object) -> Openings:
    return Openings(**{"path": ("a.parquet", "b.parquet"), "share": SHARE, "kind": "plain"} | changes)  # type: ignore[arg-type]


def test_what_is_held_out_is_what_the_corpus_leaves_out(data: Path) -> None:
    source = SourceConfig("lakes", path=("a.parquet", "b.parquet"), hold_out_by="title", hold_out_share=SHARE)
    out, kept = list(iterate_held_out(source, data)), [text for text, _ in iterate_texts(source, data)]
    assert out == [article(i) for i in chosen()]
    assert sorted(out + kept) == sorted(map(article, range(ROWS)))
    assert 0.2 < len(out) / ROWS < 0.4


def test_held_out_by_the_text_itself_and_without_texts(tmp_path: Path) -> None:
    rows = [{"text": f"line {i}"} for i in range(50)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": None}, {"text": ""}]))
    source = SourceConfig("lines", path="a.jsonl", hold_out_by="text", hold_out_share=1.0)  # type: ignore[arg-type]
    assert list(iterate_held_out(source, tmp_path)) == [row["text"] for row in rows]


def test_the_first_long_paragraph_is_cut_in_two(data: Path) -> None:
    found = openings(words=5, following=4).read(data)
    assert len(found) == len(chosen())
    for number, opening in zip(chosen(), found, strict=True):
        assert opening.prompt == "The lake of the valley"
        assert opening.continuation == f"water{number} flows water{number} flows"


def test_a_paragraph_that_is_too_short_is_passed_over(data: Path) -> None:
    assert {o.prompt for o in openings(words=5, following=36).read(data)} == {"The lake of the valley"}
    assert {o.prompt for o in openings(words=6, following=36).read(data)} == {"The lake of the other valley"}
    with pytest.raises(ValueError, match=r"no row of a.parquet, b.parquet is held out by its title"):
        openings(words=6, following=37).read(data)


def test_a_later_paragraph_gives_other_openings_of_the_same_rows(data: Path) -> None:
    first, second = (openings(words=6, following=20, paragraph=k).read(data) for k in (0, 1))
    assert {o.prompt for o in second} == {"The lake of the other valley"}
    assert len(first) == len(second) == len(chosen())
    with pytest.raises(ValueError, match="no row of"):
        openings(words=6, following=20, paragraph=2).read(data)


def test_the_first_so_many_always_the_same(data: Path) -> None:
    whole = openings().read(data)
    assert openings(count=7).read(data) == whole[:7]
    assert openings().read(data) == whole
    assert [o for name in ("a", "b") for o in openings(path=(f"{name}.parquet",)).read(data)] == whole
    assert set(openings(share=0.1).read(data)) < set(whole)  # a larger share holds out all of a smaller one


def test_texts_are_cleaned_as_their_kind_is(data: Path) -> None:
    text = "It | is a table. " * 12 + "\n\n" + "The lake (; or ]) is here, they say. " * 8
    pq.write_table(pa.table({"title": ["x"], "text": [text]}), data / "a.parquet")
    (found,) = openings(path=("a.parquet",), share=1.0, kind="wikipedia").read(data)
    assert found.prompt == "The lake is here, they say. The lake"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"path": ("c.parquet",)}, "no .parquet / .jsonl / .txt file matches 'c.parquet'"),
        ({"by": "name"}, "no column 'name'"),
        ({"share": 0.0}, "'hold_out_by' .* and 'hold_out_share'"),
        ({"kind": "wikpedia"}, "Did you mean 'wikipedia'"),
    ],
)
def test_mistakes(data: Path, change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        openings(**change).read(data)


def test_joined_paragraphs_make_longer_continuations(data: Path) -> None:
    assert len(openings(words=5, following=60, joined=True).read(data)[0].continuation.split()) == 60
    with pytest.raises(ValueError, match="no row"):
        openings(words=5, following=60).read(data)
