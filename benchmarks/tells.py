"""What guidance writes when it fools its classifier: questions, numbers without a subject, and "no, not, nothing".

    python benchmarks/tells.py RUN [RUN ...] [--people people.txt]

For every label of each run of `tta bench`: the share of texts with a question mark, and of words with a digit in them,
and of words that negate, in what follows the prompt; 95 % intervals over texts. `--people` reads a text a line, for
comparison. Judges hardly notice any: a text that asks "How? Why?", or says no to everything, counts as negative.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from tta_diffusion.common.atomic import read_lines
from tta_diffusion.control.alike import NEGATIONS
from tta_diffusion.evaluation.bootstrap import interval

NEGATING = set(NEGATIONS.split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="directories of tta bench")
    parser.add_argument("--people", type=Path, help="a file with a text on every line")
    options = parser.parse_args()
    if options.people:
        show("people", [line for line in options.people.read_text(encoding="utf-8").splitlines() if line.strip()])
    for run in options.runs:
        rows = [row for file in sorted(run.glob("samples*.jsonl")) for row in read_lines(file)]
        for label in sorted({row["label"] for row in rows}):
            mine = [row for row in rows if row["label"] == label]
            show(f"{run.name}, {label}", [row["text"].removeprefix(row["prompt"]) for row in mine])


def show(name: str, texts: list[str]) -> None:
    asking = interval([100.0 * ("?" in text) for text in texts])
    digits = interval([100.0 * share(text, lambda word: any(c.isdigit() for c in word)) for text in texts])
    negating = interval([100.0 * share(text, negates) for text in texts])
    spans = [f"{found.mean:.1f} [{found.low:.1f}, {found.high:.1f}]" for found in (asking, digits, negating)]
    print(f"{name}: {len(texts)} texts, {spans[0]} % ask, {spans[1]} % of the words have a digit, {spans[2]} % negate")


def share(text: str, counts: Callable[[str], bool]) -> float:
    """Of the words of a text."""
    words = text.split()
    return sum(map(counts, words)) / max(1, len(words))


def negates(word: str) -> bool:
    bare = word.lower().replace("’", "'").strip(".,;:!?\"'()[]-")
    return bare in NEGATING or bare.endswith("n't")


if __name__ == "__main__":
    main()
