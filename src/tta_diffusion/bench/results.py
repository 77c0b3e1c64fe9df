"""`results.json`: every metric with its intervals; `values.jsonl`: the values behind them, for paired comparisons."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean, median
from typing import Any

from tta_diffusion.assets import model_directory
from tta_diffusion.bench.cache import ScoreCache, Scorer
from tta_diffusion.bench.metrics import Item, Scores, measure
from tta_diffusion.bench.molecules import with_known
from tta_diffusion.bench.people import encoder_identities, metric_of, told_apart_values
from tta_diffusion.bench.record import Identity, Record, fingerprint, guide_fingerprint, read_record
from tta_diffusion.bench.reference import corpus_numbers
from tta_diffusion.bench.store import Sample, SampleStore, chosen
from tta_diffusion.common.atomic import read_lines, write_json, write_lines
from tta_diffusion.common.configuration import build
from tta_diffusion.evaluation.encoders import MINILM

RESULTS, VALUES = "results.json", "values.jsonl"
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Summary:
    """A mean with two 95 % intervals: texts resampled, and whole prompts resampled."""

    value: float
    low: float
    high: float
    prompt_low: float
    prompt_high: float
    count: int  # values in the mean
    left_out: int = 0  # texts without a value: empty ones


def score(directory: Path, scorers: list[Scorer], show: bool = True, encoders: Sequence[str] = ()) -> dict[str, Any]:
    """Scores what is written and writes both files. Texts scored before are not scored again.

    `encoders` are those of C2ST; without any it is MiniLM.
    """
    record = read_record(directory)
    samples = chosen(SampleStore(directory).read(), record.plan.keys)
    if all(sample.empty for sample in samples):
        raise ValueError(f"all {len(samples)} texts in '{directory}' are empty: there is nothing to score")
    cache = ScoreCache(directory)
    scores = {s.name: cache.values(s, samples, record.identity.task, show) for s in scorers}
    identities = {s.name: s.identity for s in scorers}
    if "c2st" in record.identity.task.metrics:
        for encoder in dict.fromkeys(encoders or (MINILM,)):
            scores[metric_of(encoder)] = told_apart_values(directory, record.identity.task, samples, encoder)
        identities |= encoder_identities(encoders)
    if "molecules" in scores:
        scores["molecules"] = with_known(directory, scores["molecules"])
    items = measure(samples, scores)
    results = collect(record, samples, scores, items, identities)
    results["reliability"] = {s.name: found for s in scorers if (found := getattr(s, "reliability", ""))}
    write_lines(directory / VALUES, _value_rows(items))
    write_json(directory / RESULTS, results)
    return results


def collect(
    record: Record, samples: list[Sample], scores: Scores, items: dict[str, list[Item]], scorers: dict[str, str]
) -> dict[str, Any]:
    from tta_diffusion.training.record import revision, versions

    judges = {name: values for name, values in scores.items() if name.startswith("classifier")}
    return {
        "title": record.title,
        "task": record.identity.task.name,
        "texts": len(samples),
        "empty": sum(s.empty for s in samples),
        "seconds_per_text": fmean(s.seconds for s in samples),
        "metrics": {name: asdict(summarise(values)) for name, values in items.items() if _any(values)},
        "by_label": {
            label: {name: asdict(summarise(part)) for name, values in items.items() if _any(part := _of(values, label))}
            for label in record.identity.task.labels
        },
        "classifiers": {name: fmean(v.get("correct", 0.0) for v in values) for name, values in judges.items()},
        "other": _plain_numbers(scores) | corpus_numbers(samples, scores),
        "scorers": scorers,
        "warnings": _warnings(record, scorers),
        "confidence": CONFIDENCE,
        "config": asdict(record),
        "versions": versions(),
        "revision": revision(),
    }


def summarise(items: list[Item]) -> Summary:
    from tta_diffusion.evaluation.bootstrap import cluster_interval, interval

    kept = sorted((i.prompt, i.value) for i in items if i.value is not None)
    over_texts = interval([value for _, value in kept], CONFIDENCE)
    groups = [[value for _, value in group] for _, group in groupby(kept, key=lambda pair: pair[0])]
    over_prompts = cluster_interval(groups, CONFIDENCE)
    return Summary(
        over_texts.mean,
        over_texts.low,
        over_texts.high,
        over_prompts.low,
        over_prompts.high,
        len(kept),
        len(items) - len(kept),
    )


def _plain_numbers(scores: Scores) -> dict[str, float]:
    """Numbers that other papers call perplexity: a mean of perplexities is ruled by its worst texts."""
    import math

    rows = [row for row in scores.get("perplexity", []) if row]
    if not rows:
        return {}
    tokens = sum(row["tokens"] for row in rows)
    return {
        "median_perplexity": median(row["perplexity"] for row in rows),
        "token_weighted_perplexity": math.exp(math.fsum(row["nll"] for row in rows) / tokens),
    }


def _warnings(record: Record, scorers: dict[str, str]) -> list[str]:
    """A classifier that steered the texts will be pleased with them, whatever they are worth."""
    guides = steering_weights(record.identity)
    return [
        f"{name} is the classifier that steered"
        for name, who in scorers.items()
        if any(guide in who for guide in guides)
    ]


def steering_weights(identity: Identity) -> list[str]:
    """The fingerprints of the classifiers that steered, as the record names them; older ones name a model alone.

    A record has one for a control with all its words and its panel, where a judge has that of its weights alone.
    """
    from tta_diffusion.control.bundled import panel_of

    named = identity.classifier.split()
    model = model_directory(identity.model) if identity.method == "tta" else identity.model
    if (
        not model
        or not identity.task.control
        or (named and guide_fingerprint(model, identity.task.control) not in named)
    ):
        return named
    place = Path(model) / "controls" / identity.task.control
    return [*named, *filter(None, (fingerprint(one) for one in (place, *panel_of(place))))]


def _any(items: list[Item]) -> bool:
    return any(item.value is not None for item in items)


def _of(items: list[Item], label: str) -> list[Item]:
    return [item for item in items if item.where[1] == label]


def _value_rows(items: dict[str, list[Item]]) -> list[dict[str, Any]]:
    return [{"metric": name, "where": i.where, "value": i.value} for name, part in items.items() for i in part]


def read_results(directory: Path) -> dict[str, Any]:
    path = directory / RESULTS
    if not path.is_file():
        raise ValueError(f"'{directory}' has no {RESULTS}: run `tta bench score {directory}` first")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def check_scored(directory: Path, record: Record) -> None:
    """A run may have grown since it was scored, and its values are of its beginning."""
    scored, written = read_results(directory)["texts"], len(record.plan.keys)
    if scored != written:
        raise ValueError(
            f"'{directory}' was scored when it had {scored} texts, now it has {written}: run `tta bench score "
            f"{directory}` first"
        )


def read_values(directory: Path) -> dict[str, dict[tuple[int | str, ...], float | None]]:
    """Values by metric and by key."""
    read_results(directory)
    found: dict[str, dict[tuple[int | str, ...], float | None]] = {}
    for row in read_lines(directory / VALUES):
        found.setdefault(row["metric"], {})[tuple(row["where"])] = row["value"]
    return found


def summary_of(results: dict[str, Any], metric: str) -> Summary | None:
    raw = results["metrics"].get(metric)
    return build(Summary, raw) if raw is not None else None
