"""`tta demo` on a tiny model: the table, the page, the progress."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from tta_diffusion.analysis.text import step_text
from tta_diffusion.assets import MODEL
from tta_diffusion.cli import main as cli
from tta_diffusion.common.progress import Progress
from tta_diffusion.demo.cases import CASES, Case, usable
from tta_diffusion.demo.frames import CHANGED, GIVEN, KEY, frames
from tta_diffusion.demo.pace import LEAST, MOST, PATIENCE, affordable_steps, precision, quick
from tta_diffusion.demo.page import page
from tta_diffusion.demo.run import Pair, ways, write
from tta_diffusion.demo.table import table
from tta_diffusion.fast import products
from tta_diffusion.pipeline import TTAPipeline

SMALL = [
    Case("Good", "the pizza", ("sentiment=positive",)),
    Case("Long", "the lake", ("length=9", "keywords=book", "sentiment=negative")),
]
STEPS = 4


@pytest.fixture(scope="module")
def pairs(pipeline: TTAPipeline) -> list[Pair]:
    with Progress("4 texts", 4 * STEPS) as progress:
        return list(write(pipeline, SMALL, STEPS, 3, progress))


def content(html: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_both_ways_start_from_the_same_noise(pairs: list[Pair], pipeline: TTAPipeline) -> None:
    for pair in pairs:
        plain, guided = pair.samples
        assert (plain.name, guided.name) == ("plain feedback", "guided feedback")
        assert plain.trace.seed == guided.trace.seed == 3
        # The first prediction comes before anything is fed back.
        assert (plain.trace.ids_before[0] == guided.trace.ids_before[0]).all()
        again = pipeline(pair.case.prompt, list(pair.case.control), steps=STEPS, seed=3, feedback="plain")
        assert again.texts == [plain.text]


def test_what_is_lost_is_the_fall_of_p_between_two_pushes(pairs: list[Pair]) -> None:
    for sample in (sample for pair in pairs for sample in pair.samples):
        (both,) = sample.trace.probability.values()
        falls = [after - before for after, before in zip(both["after"], both["before"][1:], strict=False)]
        assert sample.lost == pytest.approx(sum(falls) / len(falls))
        word = "lost" if sample.lost > -0.0005 else "gained"
        assert f"{word} {abs(100 * sample.lost):.1f} points a step" in sample.facts


def test_what_rises_between_two_pushes_is_gained(pairs: list[Pair]) -> None:
    sample = pairs[0].samples[0]
    rising = {"sentiment": {"before": [0.1, 0.553, 0.9], "after": [0.5, 0.8, 0.95]}}
    gaining = replace(sample, trace=replace(sample.trace, probability=rising, u=sample.trace.u[:3]))
    assert gaining.facts == ["p(positive) = 0.95", "gained 7.7 points a step"]
    assert frames(gaining)["forgot"] == "gained 7.7 points a step"


def test_a_model_that_is_not_shown_its_prediction_is_allocated_in_two_ways(pipeline: TTAPipeline) -> None:
    deaf = replace(pipeline.denoiser.config, self_conditioning="none")
    bare = SimpleNamespace(denoiser=SimpleNamespace(config=deaf))
    assert list(ways(bare)) == ["constant", "adaptive:0.6"]  # type: ignore[arg-type]


def test_frames_spell_the_draft_of_every_step(pairs: list[Pair]) -> None:
    for pair in pairs:
        for sample in pair.samples:
            made = frames(sample)
            assert len(made["steps"]) == len(made["u"]) == len(sample.trace.u)
            for step, (tokens, levels, marks) in enumerate(made["steps"]):
                assert "".join(made["words"][i] for i in tokens).strip() == step_text(sample.trace, step)
                assert len(tokens) == len(levels) == len(marks)
                assert all("a" <= level <= "u" for level in levels)
            flags = [int(mark) for _, _, marks in made["steps"] for mark in marks]
            assert all(any(flag & kind for flag in flags) for kind in (GIVEN, KEY, CHANGED))
            assert not any(flag & GIVEN and flag & (KEY | CHANGED) for flag in flags)
            (curve,) = made["curves"]
            assert len(curve["before"]) == len(curve["after"]) == len(made["u"])


def test_the_page_is_one_file_without_network(pairs: list[Pair]) -> None:
    html = page(pairs, "4 steps")
    HTMLParser().feed(html)
    assert not re.search(r"(src|href)\s*=|url\(|@import|https?://(?!www\.w3\.org/2000/svg)", html)
    data = content(html)
    assert [len(case) for case in data["cases"]] == [2, 2]
    assert data["cases"][0][0]["text"] == pairs[0].samples[0].text
    assert "prefers-reduced-motion" in html
    assert "prefers-color-scheme: dark" in html


def test_a_text_cannot_break_out_of_the_page(pairs: list[Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    trace, evil = pairs[0].samples[0].trace, "</script><b onclick=x>&"
    monkeypatch.setattr(trace, "text", evil)
    monkeypatch.setattr(trace, "tokens", dict.fromkeys(trace.tokens, evil))
    html = page(pairs, evil)
    assert evil not in html
    assert content(html)["cases"][0][0]["text"] == evil


@pytest.mark.parametrize("width", [34, 60, 80, 140])
def test_the_table_fits_any_terminal(pairs: list[Pair], width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    console.print(table(pairs, width))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width
    shown = " ".join(lines)
    for word in ("Good", "plain", "guided", "sentiment=positive", "pizza"):
        assert word in shown
    assert "\x1b" not in shown, "no colours where there is no terminal"


def test_the_command(
    model_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTA_MODEL", str(model_directory))
    out = tmp_path / "demo.html"
    assert cli.main(["demo", "--steps", "2", "--out", str(out)]) == 0
    text, err = capsys.readouterr()
    # The tiny model has a classifier of sentiment alone: four of the six cases.
    assert "Positive" in text
    assert "A topic" not in text
    assert text.splitlines()[-1].endswith(out.as_uri())
    assert len(err.splitlines()) == 8
    assert "With keywords, guided feedback: 100%, 0:00:00 left" in err
    assert len(content(out.read_text())["cases"]) == 4


def test_a_page_without_its_ending_gets_one(model_directory: Path, tmp_path: Path) -> None:
    """Browsers would show it as text."""
    assert cli.main(["demo", "--steps", "1", "--out", str(tmp_path / "v1.2"), "-m", str(model_directory)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["v1.2.html"]


@pytest.mark.parametrize(("a_step", "steps"), [(0.001, MOST), (PATIENCE / (30.5 * 4), 30), (60.0, LEAST)])
def test_a_slow_machine_takes_fewer_steps(pipeline: TTAPipeline, a_step: float, steps: int) -> None:
    """Two cases are four texts; the clock is read before and after one step, then four."""
    times = iter([0.0, 5.0, 10.0, 10.0 + 4 * a_step])
    assert affordable_steps(pipeline, SMALL, lambda: next(times)) == steps


def test_progress_on_a_terminal_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm-256color")
    with Progress("2 texts", 8) as progress:
        progress.advance()
        progress.advance(3, "one")
        progress.note("nothing but the bar")
    shown = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "2 texts:   0%|" in shown
    assert "one:  50%|" in shown
    assert "left" in shown
    assert "nothing but the bar" not in shown


def test_wrong_input_is_one_sentence(
    model_directory: Path, pipeline: TTAPipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", "--out", str(tmp_path / "no" / "demo.html"), "-m", str(model_directory)]) == 2
    assert "does not exist" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no classifier that the demo can use"):
        usable((Case("A topic", "the", ("topic=sports",)),), pipeline.library)
    assert usable(CASES, pipeline.library)


def test_the_quick_way_is_for_the_shipped_model_on_a_cpu(
    pipeline: TTAPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "quicker", lambda: True)
    assert precision(str(MODEL), "cpu") == "int8"
    assert precision("elsewhere", "cpu") is None
    assert quick(pipeline) == {}  # no Llama
    monkeypatch.setattr(products, "quicker", lambda: False)
    assert precision(str(MODEL), "cpu") is None
