from __future__ import annotations

import builtins
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tta_diffusion.data.config import LabelRule, SourceConfig
from tta_diffusion.data.sources import Text, count_rows, iterate_texts


def source(**settings: Any) -> SourceConfig:
    return SourceConfig(**{"name": "a", **settings})


def texts(found: Iterable[Text]) -> list[str]:
    return [text for text, _ in found]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    table = pa.table({"text": [f"row {i}" for i in range(300)], "label": [i % 3 for i in range(300)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    lines = [json.dumps({"body": f"line {i}"}) for i in range(4)]
    (tmp_path / "b.jsonl").write_text("\n".join(lines) + "\n\n")
    folder = tmp_path / "folder" / "deep"
    folder.mkdir(parents=True)
    (folder / "c.txt").write_text("one\n\ntwo\n")
    (folder / "ignored.md").write_text("no")
    return tmp_path


def test_formats_folders_and_globs(data: Path) -> None:
    assert texts(iterate_texts(source(path="a.parquet"), data)) == [f"row {i}" for i in range(300)]
    assert texts(iterate_texts(source(path="b.jsonl", field="body"), data)) == [f"line {i}" for i in range(4)]
    assert [t.strip() for t in texts(iterate_texts(source(path="folder"), data))] == ["one", "two"]
    assert [t.strip() for t in texts(iterate_texts(source(path="**/*.txt"), data))] == ["one", "two"]
    assert len(texts(iterate_texts(source(path=["a.parquet", "folder"]), data))) == 302


def test_filter_and_limit(data: Path) -> None:
    assert len(texts(iterate_texts(source(path="a.parquet", where={"label": 0}), data))) == 100
    assert len(texts(iterate_texts(source(path="a.parquet", where={"label": [0, 2]}), data))) == 200
    assert texts(iterate_texts(source(path="a.parquet", where={"label": 1}, limit=2), data)) == ["row 1", "row 4"]


def test_a_rule_gives_texts_their_labels(data: Path) -> None:
    by_number = LabelRule("size", "label", ("small", "large"), above=1)
    found = list(iterate_texts(source(path="a.parquet", label=by_number, limit=3), data))
    assert found == [("row 0", 1), ("row 1", 1), ("row 2", 2)]
    by_value = LabelRule("kind", "label", ("2", "0"))
    assert [label for _, label in iterate_texts(source(path="a.parquet", label=by_value, limit=3), data)] == [2, 0, 1]
    assert by_number.number(None) == 0
    with pytest.raises(ValueError, match="holds str, which 'above' cannot compare"):
        list(iterate_texts(source(path="a.parquet", label=LabelRule("size", "text", ("a", "b"), above=1)), data))


def test_the_row_count_bounds_the_texts(data: Path) -> None:
    assert count_rows(source(path="a.parquet"), data) == 300
    assert count_rows(source(path="a.parquet", limit=7), data) == 7
    assert count_rows(source(hub="some/name"), data) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": "none-*.parquet"}, "no .parquet / .jsonl / .txt file matches"),
        ({"path": "a.parquet", "field": "body"}, r"no column 'body' \(it has: text, label\)"),
        ({"path": "b.jsonl"}, "no column 'text'"),
        ({"path": "folder", "where": {"label": 0}}, "no column 'label'"),
        ({"path": "a.parquet", "field": "label"}, "holds int, not text"),
    ],
)
def test_errors_say_what_to_do(data: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        texts(iterate_texts(source(**settings), data))


def test_a_broken_line_is_named(data: Path) -> None:
    (data / "b.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    with pytest.raises(ValueError, match="line 2 is not JSON"):
        texts(iterate_texts(source(path="b.jsonl"), data))


def test_the_hub_package_is_asked_for(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_datasets(name: str, *args: Any) -> Any:
        if name == "datasets":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without_datasets)
    with pytest.raises(ValueError, match="pip install"):
        texts(iterate_texts(source(hub="imdb"), data))


def test_half_a_character_is_no_reason_to_stop(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"text": "a \\ud800 b"}\n{"text": "a \\uD83c\\uDf55 b"}\n{"text": "\\\\ud800"}\n'
    )
    assert texts(iterate_texts(source(path="a.jsonl"), tmp_path)) == ["a \ufffd b", "a 🍕 b", "\\ud800"]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_another_encoding_is_said_with_the_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes('{"text": "café"}\n'.encode("latin-1"))
    with pytest.raises(ValueError, match=f"{name} is not text in UTF-8: convert it"):
        list(iterate_texts(source(path=name), tmp_path))
