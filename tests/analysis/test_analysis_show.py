"""The step table, the page and `tta trace show`."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import typer
from small_trace import make_trace
from typer.testing import CliRunner

from tta_diffusion.analysis.grid import trajectory
from tta_diffusion.analysis.page import page
from tta_diffusion.analysis.steps import picture, plain, rich_table, step_table
from tta_diffusion.cli.errors import guard
from tta_diffusion.cli.trace import app
from tta_diffusion.sampling.trace import save_traces


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    save_traces([make_trace()], path)
    return path


def run(*arguments: object) -> int:
    command = typer.main.get_command(app)
    return guard(lambda: command.main(args=list(map(str, arguments)), prog_name="tta trace", standalone_mode=False))


def test_the_table_marks_key_tokens():
    rows = step_table(make_trace(), [0, 1, 2, 3])
    assert plain(rows).splitlines() == [
        "3  The _pizza_ _is_ _great_",
        "2  The _pizza_ is _bad_",
        "1  The pizza is awful",
        "0  The pizza is _awful_",
    ]
    assert [span.given for span in rows[0].spans] == [True, False, False, False]
    assert rich_table(rows).row_count == 4


def test_the_map_of_every_step():
    grid = trajectory(make_trace())
    assert grid.labels == ["The", "pizza", "is", "awful"]
    assert (grid.positions, grid.steps) == ([1, 2, 3, 4], [0, 1, 2, 3])
    assert grid.tokens[3] == ["great", "bad", "awful", "awful"]
    assert grid.changed.astype(int).tolist() == [[0] * 4, [0] * 4, [0] * 4, [0, 1, 1, 0]]
    assert grid.key.astype(int).tolist() == [[0] * 4, [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 0, 1]]
    np.testing.assert_allclose(grid.times[2], [0.8, 0.6, 0.4, 0.2])


def test_columns_of_several_steps_lose_no_change():
    grid = trajectory(make_trace(), columns=2)
    assert grid.steps == [1, 3]
    assert grid.changed[3].tolist() == [True, True]
    assert grid.tokens[3] == ["bad", "awful"]


class Balanced(HTMLParser):
    """Fails on tags that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_is_escaped():
    trace = make_trace()
    trace.tokens = trace.tokens | {8: " <script>\x1b"}
    trace.text = "The pizza is <script>"
    html = page(trace, [0, 3])
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    assert "<script" not in html
    assert "\x1b" not in html
    assert not re.search(r"https?:|src=|@import|url\(", html)
    assert "<u>great</u>" in html
    assert html.count('class="tick"') == 2
    assert html.count('class="key"') == 6


def test_an_empty_text_has_a_page():
    trace = make_trace()
    trace.ids[:, 1:], trace.text = 1, ""
    assert "(empty text)" in page(trace, [0, 3])


def shown(svg: str) -> list[str]:
    """The texts of a picture; ET fails on what is no XML."""
    found = [(element.text or "").replace("\xa0", " ").strip() for element in ET.fromstring(svg).iter() if element.text]
    return [text for text in found if text]


def test_the_picture_holds_every_token_and_is_escaped():
    trace = make_trace()
    trace.tokens = trace.tokens | {4: " TITLE", 8: " <b>&\x1b"}
    svg = picture(step_table(trace, [0, 1, 3]), "“{0} & <i>\x00”, sentiment")
    found = shown(svg)
    assert "“{0} & <i>�”, sentiment" in found
    assert {"The", "is", "great", "bad", "<b>&�"} <= set(found)
    assert found.count("TITLE") == 3  # a word like any other
    assert not re.search(r"<b>|<i>|\x1b|\x00|href|@import|url\((?!#)", svg)
    assert svg == picture(step_table(trace, [0, 1, 3]), "“{0} & <i>\x00”, sentiment")


def test_show_draws_a_picture(file, tmp_path, capsys):
    assert run("show", file, "--at", "4,0", "--svg", tmp_path / "out.svg") == 0
    out, err = capsys.readouterr()
    assert out == "3  The _pizza_ _is_ _great_\n0  The pizza is _awful_\n"
    assert err == f"Wrote {tmp_path / 'out.svg'}\n"
    found = shown((tmp_path / "out.svg").read_text(encoding="utf-8"))
    assert "“The”, sentiment, 4 steps, adaptive:0.6" in found
    assert {"great", "awful"} <= set(found)
    assert "bad" not in found  # of a step that was not chosen


def test_show_prints_marks_where_it_is_piped(file, tmp_path, capsys):
    assert run("show", file, "--at", "4,0", "--html", tmp_path / "out.html") == 0
    assert capsys.readouterr().out == "3  The _pizza_ _is_ _great_\n0  The pizza is _awful_\n"
    assert "<svg" in (tmp_path / "out.html").read_text(encoding="utf-8")
    assert run("show", file) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--index", 1), "holds 1 traces, so --index is 0 to 0, got 1"),
        (("--at", "2,x"), "whole numbers"),
        (("--at", "9"), "between 4 and 0, got 9"),
        (("--at", "1", "--steps", 2), "not both"),
        (("--steps", 0), "at least 1"),
    ],
)
def test_mistakes_are_one_sentence(file, capsys, arguments, message):
    assert run("show", file, *arguments) == 2
    assert message in capsys.readouterr().err


def test_help_names_the_command():
    assert "show" in CliRunner().invoke(app, ["--help"]).output
