"""Where prompts come from: arguments, a file, the config file, or standard input."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

STDIN = "-"
BOM = "\ufeff"  # which some editors put before the first line


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


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The prompts of a file, each with the number of its line, from 1; the file is never held whole."""
    try:
        with path.open(encoding="utf-8") as file:
            yield from _prompts(file)
    except UnicodeDecodeError as error:
        raise ValueError(f"'{path}' is not a text file in UTF-8") from error


def _stdin() -> list[str]:
    try:
        prompts = [prompt for _, prompt in _prompts(io.StringIO(sys.stdin.read(), newline=None))]
    except UnicodeDecodeError as error:
        raise ValueError("standard input is not text in UTF-8") from error
    if not prompts:
        raise ValueError('no prompt: standard input is empty (give a prompt, or "" to start from nothing)')
    return prompts


def _file(path: Path) -> list[str]:
    prompts = [prompt for _, prompt in read_lines(path)]
    if not prompts:
        raise ValueError(f"no prompt: '{path}' is empty")
    return prompts


def _prompts(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """One prompt a line, whichever way lines end; blank lines are none."""
    for number, line in enumerate(lines, start=1):
        text = (line.removeprefix(BOM) if number == 1 else line).removesuffix("\n")
        if text.strip():
            yield number, text
