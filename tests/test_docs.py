"""The docs are run: every Python block of README.md and docs/; pages stay short; links lead somewhere."""

from __future__ import annotations

import functools
import gc
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tta_diffusion import TTAPipeline
from tta_diffusion.common.registry import Registry

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
# Blocks that show a shape, or need what a test does not have: their first lines.
NOT_RUN = ("from tta_diffusion.bench.methods.base",)
MOST_WORDS = {"README.md": 900, "allocation.md": 900, "texts.md": 2000}


loaded = functools.cache(TTAPipeline.from_pretrained)  # the shipped model once, not for every block


@pytest.fixture(scope="module", autouse=True)
def names_as_before() -> Iterator[None]:
    """What the pages register is gone when other tests ask what there is."""
    yield
    for registry in [thing for thing in gc.get_objects() if isinstance(thing, Registry)]:
        for name, item in list(registry._items.items()):
            if any(
                getattr(part, "__module__", "") == "docs" for part in (item, *getattr(item, "__dict__", {}).values())
            ):
                del registry._items[name]


def blocks() -> list[tuple[str, int, str]]:
    found = [(page.name, i, code) for page in PAGES for i, code in enumerate(BLOCK.findall(page.read_text()))]
    return [(page, i, code) for page, i, code in found if not code.startswith(NOT_RUN)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "number", "code"), blocks(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_code_runs(
    page: str, number: int, code: str, capsys: pytest.CaptureFixture[str], tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TTAPipeline, "from_pretrained", loaded)
    exec(compile(code, f"{page}, block {number}", "exec"), {"__name__": "docs"})
    if "print(" in code:
        assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_are_short(page: Path) -> None:
    assert len(page.read_text().split()) <= MOST_WORDS.get(page.name, 1500)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_texts_of_all_tables_stay_small() -> None:
    texts = [*(ROOT / "results").rglob("*.xz")]
    assert texts
    assert sum(file.stat().st_size for file in texts) <= 15e6
    assert not [*(ROOT / "results").rglob("samples.jsonl")], "compress them: xz -9e"
