"""Files that are whole, or whose error names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tta_diffusion.common.atomic import finished, read_object


def test_a_file_is_not_taken_for_a_directory_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with (
        pytest.raises(ValueError, match="out' is a file: choose another name"),
        finished(tmp_path / "out", overwrite=True, mark="mark"),
    ):
        pytest.fail("the work began")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"a": "\xff"}'])
def test_what_is_no_json_object_names_its_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.json' is .*: the file is damaged"):
        read_object(path)
    path.write_text('{"a": 1}')
    assert read_object(path) == {"a": 1}
