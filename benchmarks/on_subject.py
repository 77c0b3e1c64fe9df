"""Do texts stay on their prompt's subject, or turn into reviews?

    python benchmarks/on_subject.py RUN [RUN ...] --data-dir DATA [--limit 5]

For each run of `tta bench`: the cosine of the prompt's and the continuation's MiniLM vectors, and the share of
continuations that a linear classifier on these vectors takes for a review. It learns from reviews of Yelp and IMDB on
one side, comments, articles and novels on the other, 45 words from anywhere in them; how often it is right on passages
held out stands first. 95 % intervals [over texts] and {over prompts}.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tta_diffusion.common.atomic import read_lines
from tta_diffusion.evaluation.bootstrap import cluster_interval, interval
from tta_diffusion.evaluation.encoders import find_encoder
from tta_diffusion.evaluation.two_sample import Encoder
from tta_diffusion.training.classifier.unlabelled import read_column
from tta_diffusion.training.classifier.word_lists import passages

REVIEWS = ("yelp_reviews/train.parquet", "imdb/train.parquet")
OTHERS = ("jigsaw/train.parquet", "corpus/wikipedia-0.parquet", "corpus/gutenberg.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="directories of tta bench")
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--rows", type=int, default=1500, help="passages of each side")
    parser.add_argument("--limit", type=int, help="texts of each prompt, at most")
    options = parser.parse_args()
    encode = find_encoder("minilm")
    is_review = learn(options.data_dir, options.rows, encode)
    for run in options.runs:
        rows = [row for file in sorted(run.glob("samples*.jsonl")) for row in read_lines(file)]
        rows = [row for row in rows if options.limit is None or row["sample"] < options.limit]
        prompts = sorted({row["prompt"] for row in rows})
        openings = dict(zip(prompts, unit(encode(prompts)), strict=True))
        written = unit(encode([row["text"].removeprefix(row["prompt"]).strip() or "." for row in rows]))
        near = [float(openings[row["prompt"]] @ vector) for row, vector in zip(rows, written, strict=True)]
        turned = [100.0 * bool(found) for found in is_review.predict(written)]
        print(f"{run.name}: {len(rows)} texts, cosine {spans(near, rows)}, reviews {spans(turned, rows)} %")


def learn(data: Path, rows: int, encode: Encoder) -> Any:
    """A classifier of vectors: 1 for reviews; says how often it is right on a fifth of the passages."""
    from sklearn.linear_model import LogisticRegression

    sides = [
        [text for name in names for text in passages(read_column(data / name), rows // len(names))]
        for names in (OTHERS, REVIEWS)
    ]
    vectors = unit(encode([text for side in sides for text in side]))
    labels = np.repeat([0, 1], [len(side) for side in sides])
    order = np.random.default_rng(0).permutation(len(labels))
    held, kept = np.split(order, [len(order) // 5])
    found = LogisticRegression(max_iter=1000).fit(vectors[kept], labels[kept])
    print(f"right on {100 * found.score(vectors[held], labels[held]):.1f} % of {len(held)} passages")
    return found


def unit(vectors: NDArray[np.floating]) -> NDArray[np.floating]:
    vectors = np.asarray(vectors)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def spans(values: list[float], rows: list[dict[str, str]]) -> str:
    groups: dict[str, list[float]] = {}
    for value, row in zip(values, rows, strict=True):
        groups.setdefault(row["prompt"], []).append(value)
    texts, prompts = interval(values), cluster_interval(list(groups.values()))
    return f"{texts.mean:.3g} [{texts.low:.3g}, {texts.high:.3g}] {{{prompts.low:.3g}, {prompts.high:.3g}}}"


if __name__ == "__main__":
    main()
