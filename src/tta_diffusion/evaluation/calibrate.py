"""Our metrics on texts whose published numbers are known: Air-Decoding's released outputs, RealToxicityPrompts.

    python -m tta_diffusion.evaluation.calibrate --data-dir DATA [--limit N] [--controls DIR]

prints the tables of docs/evaluation.md. DATA holds `air_decoding_outputs/` and `realtoxicityprompts/` as parquet.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tta_diffusion.evaluation.bootstrap import Interval, interval
from tta_diffusion.evaluation.checks import require
from tta_diffusion.evaluation.control import Classifier, TextClassifier, VaderSentiment, control_accuracy_values
from tta_diffusion.evaluation.diversity import distinct_n_corpus, distinct_n_sentence_values
from tta_diffusion.evaluation.perplexity import CausalScorer, perplexity_per_text, summarise
from tta_diffusion.evaluation.scorer_models import default_scorer_directory
from tta_diffusion.evaluation.toxicity import ClassifierToxicity, calibration, toxicity_summary

TASKS = {"sentiment": (0.94, 27.1), "topic": (0.94, 32.4), "detoxification": (0.93, 49.0)}  # the paper: Dist-3, PPL
SPLITS = ("challenging", "nontoxic", "mixed")
TOPICS = {"science": "sci-tech"}  # the data's name -> the classifiers'
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tta_diffusion.evaluation.calibrate", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="directory of the data sets")
    parser.add_argument("--limit", type=int, default=300, help="texts of each set that the scorer reads (seeded draw)")
    parser.add_argument("--scorer", default="", help="causal language model; default: Gemma-3 270M")
    parser.add_argument("--controls", type=Path, help="directory of classifiers: sentiment, topic, toxicity")
    options = parser.parse_args(arguments)
    outputs = read(options.data_dir / "air_decoding_outputs" / "outputs.parquet")
    tasks = {task: [row for row in outputs if row["task"] == task] for task in TASKS}
    show(diversity_table(tasks))
    scorer = CausalScorer.from_pretrained(options.scorer or default_scorer_directory())
    show(perplexity_table(tasks, scorer, options.limit))
    if options.controls:
        show(accuracy_table(tasks, options.controls))
        toxicity = ClassifierToxicity.from_pretrained(options.controls / "toxicity")
        show(toxicity_table(options.data_dir, toxicity))
        show(summary_table(tasks["detoxification"], toxicity))


def diversity_table(tasks: dict[str, list[Row]]) -> Iterator[str]:
    """What was written alone: the prompts of the detoxification outputs are not part of it."""
    yield "| Air-Decoding's outputs | texts | Dist-3 by sentence | the paper's Dist-3 | Dist-3 of all texts |"
    yield "|---|---|---|---|---|"
    for task, rows in tasks.items():
        texts = [row["text"] for row in rows]
        found = interval(distinct_n_sentence_values(texts))
        corpus = distinct_n_corpus(texts, 3)
        yield f"| {task} | {len(texts)} | {spread(found, 4)} | {TASKS[task][0]:.2f} | {corpus:.3f} |"


def perplexity_table(tasks: dict[str, list[Row]], scorer: CausalScorer, limit: int) -> Iterator[str]:
    """Whole texts, prompt included, the first 64 tokens."""
    yield "| Air-Decoding's outputs | texts | failures | mean perplexity | median | by token | GPT-2-large, the paper |"
    yield "|---|---|---|---|---|---|---|"
    for task, rows in tasks.items():
        drawn = draw(rows, limit)
        scores = scorer.score([row["prompt"] + row["text"] for row in drawn])
        totals = summarise(scores)
        mean = interval([p for p, score in zip(perplexity_per_text(scores), scores, strict=True) if score.tokens])
        yield (
            f"| {task} | {totals.texts} | {totals.failures} | {spread(mean, 1)} | {totals.median:.1f} "
            f"| {totals.token_weighted:.1f} | {TASKS[task][1]:.1f} |"
        )


def accuracy_table(tasks: dict[str, list[Row]], controls: Path) -> Iterator[str]:
    yield "| Air-Decoding's outputs | texts | judge | accuracy |"
    yield "|---|---|---|---|"
    for task in ("sentiment", "topic"):
        rows = tasks[task]
        targets = [TOPICS.get(str(row["target"]), str(row["target"])) for row in rows]
        judges: dict[str, Classifier] = {name_of(controls / task): TextClassifier.from_pretrained(controls / task)}
        if task == "sentiment":
            judges["VADER (lexical)"] = VaderSentiment()
        for name, judge in judges.items():
            found = interval(control_accuracy_values([judge], [row["text"] for row in rows], targets))
            yield f"| {task} | {len(rows)} | {name} | {spread(found, 3)} |"


def toxicity_table(data: Path, scorer: ClassifierToxicity) -> Iterator[str]:
    """Prompts and continuations are scored apart, as Perspective scored them."""
    yield "| RealToxicityPrompts | texts | Pearson | Spearman | mean score | mean of Perspective |"
    yield "|---|---|---|---|---|---|"
    for split in SPLITS:
        rows = read(data / "realtoxicityprompts" / f"{split}.parquet")
        for part in ("prompt", "continuation"):
            known = [row for row in rows if row[f"{part}_toxicity"] is not None and row[part].strip()]
            reference = [row[f"{part}_toxicity"] for row in known]
            scores = scorer.scores([row[part].strip() for row in known])
            found = calibration(scores, reference)
            means = f"{sum(scores) / len(scores):.3f} | {sum(reference) / len(reference):.3f}"
            yield f"| {split}, {part}s | {found.texts} | {found.pearson:.3f} | {found.spearman:.3f} | {means} |"


def summary_table(rows: list[Row], scorer: ClassifierToxicity) -> Iterator[str]:
    """What was written alone, grouped by prompt."""
    by_prompt: dict[str, list[float]] = {}
    for row, score in zip(rows, scorer.scores([row["text"] for row in rows]), strict=True):
        by_prompt.setdefault(row["prompt"], []).append(score)
    found = toxicity_summary(list(by_prompt.values()))
    yield "| Air-Decoding's outputs | prompts | average | average maximum | texts > 0.5 | prompts with max >= 0.5 |"
    yield "|---|---|---|---|---|---|"
    yield (
        f"| detoxification | {len(by_prompt)} | {found.average:.3f} | {found.average_maximum:.3f} "
        f"| {found.probability_per_text:.3f} | {found.probability_per_prompt:.3f} |"
    )


def read(path: Path) -> list[Row]:
    if not path.is_file():
        raise SystemExit(f"no data at '{path}': give the directory of the data sets with --data-dir")
    rows: list[Row] = require("pyarrow.parquet", "pyarrow").read_table(path).to_pylist()
    return rows


def name_of(classifier: Path) -> str:
    """A classifier as the table names it: its directory, and the one that it is in."""
    found = classifier.resolve()
    return f"{found.parent.name}/{found.name}"


def draw(rows: list[Row], limit: int) -> list[Row]:
    """A seeded draw without replacement, or all rows if there are fewer."""
    return random.Random(0).sample(rows, limit) if 0 < limit < len(rows) else rows


def spread(found: Interval, digits: int) -> str:
    return f"{found.mean:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


def show(lines: Iterator[str]) -> None:
    for line in lines:
        print(line, flush=True)
    print(flush=True)


if __name__ == "__main__":
    main()
