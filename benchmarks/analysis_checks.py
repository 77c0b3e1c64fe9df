"""What of the summary remains at a fixed time: `python benchmarks/analysis_checks.py OUT [JUDGE]`.

Writes OUT/checks.csv; JUDGE is an evaluation classifier.

draft: r over texts of the mean fluctuation up to t with the perplexity of the draft of t+1, at one t.
pairs: the same over (text, step) pairs of all t from `step` on.
drop: drop of p(target) in points over guided steps of a bin of 100, by how many of the 5 key tokens were changed.
large: share of these steps, in percent, at which the drop is above 10 points.
settled: share of generated tokens of the draft of t that are those of the finished text.
last: the step whose draft is the first that no later one differs from.
repetition: r over texts of Rep-4 with the log perplexity of the last scored draft, and with mean fluctuation.
against: mean difference of that perplexity to the first policy, text by text.
judge: accuracy of the finished texts in percent, its difference to the first policy in points, and r over texts of mean
update-forgetting with the judge's probability of the label.
Intervals: 95 % bootstrap over texts.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tta_diffusion.analysis.correlation import pearson
from tta_diffusion.analysis.forgetting import K, confidence_drop, update_forgetting
from tta_diffusion.analysis.group import Group, load_groups
from tta_diffusion.evaluation.control import TextClassifier
from tta_diffusion.evaluation.diversity import repetition_values

RESAMPLES, WIDTH = 2000, 100
Row = tuple[str, str, str, int, int, float, float, float]


def interval(value: Callable[[np.ndarray], float], texts: int) -> tuple[float, float, float]:
    draw = np.random.default_rng(0)
    found = [value(draw.integers(0, texts, texts)) for _ in range(RESAMPLES)]
    low, high = np.nanpercentile(found, [2.5, 97.5])
    return value(np.arange(texts)), float(low), float(high)


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    known = np.isfinite(x) & np.isfinite(y)
    return pearson(x[known], y[known])


def drafts(file: Path) -> Iterator[Row]:
    with file.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    for policy in dict.fromkeys(row["policy"] for row in rows):
        own = [row for row in rows if row["policy"] == policy]
        steps = sorted({int(row["step"]) for row in own})
        texts = len(own) // len(steps)
        rate = np.array([float(row["mean_fluctuation"]) for row in own]).reshape(texts, -1)
        plain = np.array([float(row["perplexity"]) for row in own]).reshape(texts, -1)
        for scale, value in (("perplexity", plain), ("log perplexity", np.log(plain))):
            for j, step in enumerate(steps):
                for kind, part in (("draft", slice(j, j + 1)), ("pairs", slice(j, None))):
                    x, y = rate[:, part], value[:, part]
                    found = interval(lambda s, x=x, y=y: correlation(x[s].ravel(), y[s].ravel()), texts)
                    yield policy, kind, scale, step, x.size, *found


def drops(group: Group) -> Iterator[Row]:
    fall = 100 * np.array([confidence_drop(trace, group.objective) for trace in group.traces])
    altered = K * np.array([update_forgetting(trace) for trace in group.traces])  # NaN: guidance did not act
    cases = {"all": altered >= 0, "3 or more changed": altered > 2.5, "fewer changed": altered < 2.5}
    texts, length = fall.shape
    for start in (-1, *range(0, length, WIDTH)):  # -1: all steps
        part = slice(None) if start < 0 else slice(start, start + WIDTH)
        for case, mask in cases.items():
            chosen = mask[:, part]
            if not chosen.any():
                continue
            for kind, values in (("drop", fall[:, part]), ("large", 100.0 * (fall[:, part] > 10))):
                sums, counts = (values * chosen).sum(1), chosen.sum(1)
                found = interval(lambda s, a=sums, b=counts: a[s].sum() / b[s].sum() if b[s].sum() else np.nan, texts)
                yield group.policy, kind, case, start, int(counts.sum()), *found


def ends(group: Group, perplexity: np.ndarray, first: np.ndarray) -> Iterator[Row]:
    texts = len(group.traces)
    ids = [trace.ids[:, ~trace.pinned] for trace in group.traces]
    for step in (50, 100, 200, 400):
        kept = np.array([(own[step] == own[-1]).mean() for own in ids])
        found = interval(lambda s, x=kept: float(x[s].mean()), texts)
        yield group.policy, "settled", "all positions", step, texts, *found
    last = np.array([np.flatnonzero((own[1:] != own[:-1]).any(1))[-1] + 1 for own in ids])
    yield group.policy, "last", "median", -1, texts, *interval(lambda s: float(np.median(last[s])), texts)
    yield group.policy, "last", "largest", -1, texts, float(last.max()), np.nan, np.nan
    again = np.array(repetition_values([trace.text for trace in group.traces], 4))
    logs, rate = np.log(perplexity), group.running["all positions"][:, -1]
    for case, x, y in (("Rep-4, log perplexity", again, logs), ("Rep-4, mean fluctuation", again, rate)):
        found = interval(lambda s, x=x, y=y: correlation(x[s], y[s]), texts)
        yield group.policy, "repetition", case, -1, texts, *found
    apart = perplexity - first
    if apart.any():
        yield group.policy, "against", "perplexity", -1, texts, *interval(lambda s: float(apart[s].mean()), texts)


def judged(group: Group, judge: TextClassifier, first: np.ndarray | None) -> Iterator[Row]:
    texts = len(group.traces)
    right, p = verdict(group, judge)
    forgotten = np.array([np.nanmean(update_forgetting(trace)) for trace in group.traces])
    yield group.policy, "judge", "accuracy", -1, texts, *interval(lambda s: 100 * float(right[s].mean()), texts)
    found = interval(lambda s: correlation(forgotten[s], p[s]), texts)
    yield group.policy, "judge", "update-forgetting, p(label)", -1, texts, *found
    if first is not None:
        apart = right.astype(float) - first
        yield group.policy, "judge", "against", -1, texts, *interval(lambda s: 100 * float(apart[s].mean()), texts)


def verdict(group: Group, judge: TextClassifier) -> tuple[np.ndarray, np.ndarray]:
    """Whether the judge finds the label of each text, and its probability."""
    found = judge.probabilities([trace.text for trace in group.traces])
    wanted = np.array([judge.label(trace.settings["label"]) for trace in group.traces])
    return found.argmax(1) == wanted, found[np.arange(len(wanted)), wanted]


def last_perplexity(file: Path, policy: str) -> np.ndarray:
    with file.open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["policy"] == policy]
    last = max(rows, key=lambda row: int(row["step"]))["step"]
    return np.array([float(row["perplexity"]) for row in rows if row["step"] == last])


def main(out: Path, judge: str = "") -> None:
    scored = out / "figures" / "drafts_perplexity.csv"
    rows = [*drafts(scored)]
    groups = load_groups(out / "traces")
    first = last_perplexity(scored, groups[0].policy)
    for group in groups:
        rows += [*drops(group), *ends(group, last_perplexity(scored, group.policy), first)]
    if judge:
        classifier = TextClassifier.from_pretrained(judge)
        base = verdict(groups[0], classifier)[0]
        for group in groups:
            rows += judged(group, classifier, None if group is groups[0] else base)
    with (out / "checks.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("policy", "kind", "case", "step", "count", "value", "low", "high"))
        writer.writerows((*row[:5], *("" if np.isnan(x) else f"{x:.6g}" for x in row[5:])) for row in rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
