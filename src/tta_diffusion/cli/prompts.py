"""Where prompts come from: arguments, a file, the config file, or standard input."""

from __future__ import annotations

import sys
from pathlib import Path

STDIN = "-"


def read_prompts(arguments: list[str], file: Path | None, config: list[str]) -> list[str]:
    """Arguments first (`-` stands for standard input), then the file; the config file's only without either.

    With none of them, prompts are read from standard input, unless it is a terminal: then one text is written from
    nothing.
    """
    if arguments or file:
        given = [prompt for argument in arguments for prompt in (_stdin() if argument == STDIN else [argument])]
        return given + (_file(file) if file else [])
    if config:
        return config
    return [""] if sys.stdin.isatty() else _stdin()


def _stdin() -> list[str]:
    try:
        prompts = _lines(sys.stdin.read())
    except UnicodeDecodeError as error:
        raise ValueError("standard input is not text in UTF-8") from error
    if not prompts:
        raise ValueError('no prompt: standard input is empty (give a prompt, or "" to start from nothing)')
    return prompts


def _file(path: Path) -> list[str]:
    try:
        prompts = _lines(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"'{path}' is not a text file in UTF-8") from error
    if not prompts:
        raise ValueError(f"no prompt: '{path}' is empty")
    return prompts


def _lines(text: str) -> list[str]:
    """One prompt a line; blank lines are none."""
    return [line for line in text.split("\n") if line.strip()]
