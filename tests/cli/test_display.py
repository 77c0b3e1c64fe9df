"""What a terminal shows."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from tta_diffusion.cli import main as cli
from tta_diffusion.display import LiveView, ProgressView, draft, heat, printable
from tta_diffusion.pipeline import TTAPipeline


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for variable in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    return Terminal()


def test_time_goes_from_cool_to_warm() -> None:
    def red_over_blue(u: float) -> int:
        colour = heat(u)
        return int(colour[1:3], 16) - int(colour[5:7], 16)

    assert heat(-1) == heat(0)
    assert heat(2) == heat(1)
    assert red_over_blue(0) < 0 < red_over_blue(0.5) < red_over_blue(1)


def test_a_draft_reads_like_the_text_and_its_given_tokens_are_bold(pipeline: TTAPipeline) -> None:
    output = pipeline("the pizza", steps=3, seed=1)
    ids = output.sequences[0].tolist()
    pinned = [i < 3 for i in range(len(ids))]
    shown = draft(pipeline, ids, [0.0 if given else 0.5 for given in pinned], pinned)
    assert shown.plain == output.texts[0]
    bold = [shown.plain[span.start : span.end].strip() for span in shown.spans if "bold" in str(span.style)]
    assert bold == ["the", "pizza"]


def test_nothing_in_a_text_moves_the_cursor() -> None:
    assert printable("a\x1b[2Jb\nc\td\xa0e") == "a�[2Jb↵c d e"


def test_the_live_view_draws_steps_and_leaves_nothing_behind(pipeline: TTAPipeline, terminal: Terminal) -> None:
    view = LiveView(Console(file=terminal))
    pipeline("the pizza", num_samples=6, steps=4, seed=1, early_exit=False, callback_on_step_end=view.step)
    view.hide()
    drawn = terminal.getvalue()
    assert "step 1/4" in drawn
    assert "step 4/4" in drawn
    assert "left" in drawn
    assert "and 2 more" in drawn
    assert drawn.endswith("\x1b[2K")  # the last thing is to erase a line


def test_the_bar_waits_for_its_delay(pipeline: TTAPipeline, terminal: Terminal) -> None:
    patient = ProgressView(Console(file=terminal), texts=2, delay=60)
    pipeline("the", steps=2, callback_on_step_end=patient.step)
    patient.hide()
    assert terminal.getvalue() == ""
    prompt = ProgressView(Console(file=terminal), texts=2)
    pipeline("the", steps=2, callback_on_step_end=prompt.step)
    prompt.hide()
    assert "1/2 texts" in terminal.getvalue()


def test_the_bar_counts_kept_texts_over_all_batches_of_a_call(pipeline: TTAPipeline, terminal: Terminal) -> None:
    view = ProgressView(Console(file=terminal), texts=4, candidates=3)
    settings = {"steps": 2, "early_exit": False, "candidates": 3, "batch_size": 5, "control": "sentiment=positive"}
    pipeline("the", num_samples=2, callback_on_step_end=view.step, **settings)
    view.hide()
    assert "2/4 texts" in terminal.getvalue()
    assert "50%" in terminal.getvalue()
    assert "100%" not in terminal.getvalue()


@pytest.mark.parametrize("extra", [[], ["--no-live"], ["--batch-size", "1"]])
def test_generate_on_a_terminal_ends_with_the_texts(
    extra: list[str], terminal: Terminal, model_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", terminal)
    arguments = ["the pizza", "--model", str(model_directory), "-n", "2", "--steps", "3", "--seed", "7", *extra]
    assert cli.main(["generate", *arguments]) == 0
    drawn = terminal.getvalue()
    assert "the pizza" in drawn.splitlines()[-1]
    assert ("step 3/3" in drawn) == (extra == [])
