"""How fluent our texts of E2E are beside those of gaussian diffusion: perplexities, and their ratio.

    python benchmarks/lexical_perplexity.py results/lexical/perplexity.jsonl.xz

A line of the file is a text: its cell, its target, its number, and [negative log-likelihood, tokens] under each scorer.
The ratio is that of the mean perplexities; it is resampled over texts [in brackets] and over targets {in braces}, both
systems by the same ones.
"""

from __future__ import annotations

import json
import lzma
import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Cell = dict[str, list[float]]  # target -> the perplexities of its texts
KINDS = ("tree", "span", "pos", "length")
SCORERS = ("decoder", "gemma")
OTHER = "gaussian-"
RESAMPLES = 2000


def read(path: Path) -> dict[tuple[str, str], Cell]:
    """By scorer and cell; people's texts are a cell of their own."""
    found: dict[tuple[str, str], Cell] = defaultdict(lambda: defaultdict(list))
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            for scorer in SCORERS:
                if scorer in row:
                    nll, tokens = row[scorer]
                    found[scorer, row["cell"]][row["target"]].append(math.exp(nll / tokens))
    return found


def ratio_of(ours: Cell, other: Cell, by_target: bool, seed: int = 0) -> tuple[float, float, float]:
    """mean(ours) / mean(other), with the ends of its 95 % bootstrap interval."""
    rng = np.random.default_rng(seed)
    if by_target:
        targets = sorted(ours.keys() & other.keys())
        drawn = rng.integers(len(targets), size=(RESAMPLES, len(targets)))
        means = [_mean_of(cell, targets, drawn) for cell in (ours, other)]
    else:
        means = [_means(np.concatenate([*map(np.array, cell.values())]), rng) for cell in (ours, other)]
    low, high = np.quantile(means[0] / means[1], [0.025, 0.975])
    return mean(ours) / mean(other), float(low), float(high)


def _means(values: Array, rng: np.random.Generator) -> Array:
    """Of resampled texts, a resample at a time."""
    return np.array([values[rng.integers(len(values), size=len(values))].mean() for _ in range(RESAMPLES)])


def _mean_of(cell: Cell, targets: list[str], drawn: NDArray[np.int64]) -> Array:
    sums = np.array([sum(cell[target]) for target in targets])[drawn].sum(1)
    found: Array = sums / np.array([len(cell[target]) for target in targets])[drawn].sum(1)
    return found


def mean(cell: Cell) -> float:
    return float(np.mean(np.concatenate([*map(np.array, cell.values())])))


def main(path: Path) -> None:
    found = read(path)
    print("| scorer | control | ours | gaussian | ratio |\n|---|---|---|---|---|")
    for scorer in SCORERS:
        for kind in KINDS:
            ours, other = found[scorer, kind], found[scorer, OTHER + kind]
            value, low, high = ratio_of(ours, other, by_target=False)
            _, least, most = ratio_of(ours, other, by_target=True)
            intervals = f"[{low:.3f}, {high:.3f}] {{{least:.3f}, {most:.3f}}}"
            print(f"| {scorer} | {kind} | {mean(ours):.2f} | {mean(other):.2f} | {value:.3f} {intervals} |")
    print(f"\npeople's texts under the decoder: {mean(found['decoder', 'people']):.2f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
