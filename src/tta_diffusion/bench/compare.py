"""Is A better than B? Both wrote for the same prompts, labels and seeds, so the difference is taken text by text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tta_diffusion.bench.metrics import METRICS
from tta_diffusion.bench.record import Record, read_record
from tta_diffusion.bench.results import CONFIDENCE, check_scored, read_results, read_values
from tta_diffusion.bench.table import Table

Where = tuple[int | str, ...]
Values = Mapping[Where, float | None]


@dataclass(frozen=True)
class Comparison:
    """A minus B in one metric, with intervals and p-values over texts and over whole prompts."""

    metric: str
    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float
    prompt_low: float
    prompt_high: float
    prompt_p_value: float
    pairs: int
    left_out: int  # pairs of which one has no value, such as the perplexity of an empty text


def compare(first: Path, second: Path) -> list[Comparison]:
    a, b = read_record(first), read_record(second)
    check_pairs(first, a, second, b)
    check_scorers(first, second)
    for directory, record in ((first, a), (second, b)):
        check_scored(directory, record)
    ours, theirs = read_values(first), read_values(second)
    shared = [name for name in METRICS if name in ours and name in theirs]
    found = [compare_values(name, ours[name], theirs[name]) for name in shared]
    return [comparison for comparison in found if comparison is not None]


def check_pairs(first: Path, a: Record, second: Path, b: Record) -> None:
    """Texts can be paired if both runs hold the same keys, for the same prompts, with the same seeds."""
    if a.identity.seed != b.identity.seed:
        raise ValueError(
            f"the runs have different seeds ({a.identity.seed} in '{first}', {b.identity.seed} in '{second}'): their "
            "texts cannot be paired"
        )
    keys, others = set(a.plan.keys), set(b.plan.keys)
    for here, there, where, other in ((keys, others, first, second), (others, keys, second, first)):
        if alone := sorted(here - there):
            prompt, label, sample = alone[0]
            raise ValueError(
                f"the runs hold different texts: {len(alone)} of '{where}' are not in '{other}', such as sample "
                f"{sample} of prompt {prompt} under '{label}'; run both with the same task, --limit and --prompts"
            )
    for i, (mine, yours) in enumerate(zip(a.prompts, b.prompts, strict=True)):
        if mine != yours:
            raise ValueError(
                f"the runs have different prompts: number {i} is '{mine}' in '{first}', '{yours}' in '{second}'"
            )


def check_scorers(first: Path, second: Path) -> None:
    ours, theirs = read_results(first)["scorers"], read_results(second)["scorers"]
    for name in ours.keys() | theirs.keys():
        if ours.get(name) != theirs.get(name):
            raise ValueError(
                f"the runs were scored differently: {name} is {ours.get(name) or 'missing'} in '{first}', "
                f"{theirs.get(name) or 'missing'} in '{second}'; run `tta bench score` on both with the same scorers"
            )


def compare_values(name: str, ours: Values, theirs: Values) -> Comparison | None:
    """Values by (prompt, label, ...); None where no pair has both."""
    from tta_diffusion.evaluation.bootstrap import paired_difference

    pairs = [(where, ours.get(where), theirs.get(where)) for where in sorted(ours.keys() | theirs.keys())]
    kept = [(where, x, y) for where, x, y in pairs if x is not None and y is not None]
    if not kept:
        return None
    a, b = [x for _, x, _ in kept], [y for _, _, y in kept]
    single = paired_difference(a, b, confidence=CONFIDENCE)
    whole = paired_difference(a, b, clusters=[where[0] for where, _, _ in kept], confidence=CONFIDENCE)
    return Comparison(
        name,
        sum(a) / len(a),
        sum(b) / len(b),
        single.mean,
        single.low,
        single.high,
        single.p_value,
        whole.low,
        whole.high,
        whole.p_value,
        len(kept),
        len(pairs) - len(kept),
    )


def comparison_table(comparisons: list[Comparison], titles: tuple[str, str]) -> Table:
    header = (
        "",
        f"A: {titles[0]}",
        f"B: {titles[1]}",
        "A - B",
        "95 % texts",
        "p",
        "95 % prompts",
        "p",
        "pairs",
        "better",
    )
    rows = []
    for c in comparisons:
        metric = METRICS[c.metric]
        low, high, prompt_low, prompt_high = (
            metric.shown(end, "+") for end in (c.low, c.high, c.prompt_low, c.prompt_high)
        )
        rows.append(
            (
                metric.title,
                metric.shown(c.a),
                metric.shown(c.b),
                metric.shown(c.difference, "+"),
                f"[{low}, {high}]",
                f"{c.p_value:.4f}",
                "–" if single_prompt(c) else f"[{prompt_low}, {prompt_high}]",
                "–" if single_prompt(c) else f"{c.prompt_p_value:.4f}",
                str(c.pairs),
                verdict(c),
            )
        )
    notes = [
        "Paired by prompt, label and sample. p: sign-flip test of no difference, over texts and over whole prompts; "
        "'better' names a run where both intervals leave out 0."
    ]
    notes += [f"{METRICS[c.metric].title}: {c.left_out} pairs left out." for c in comparisons if c.left_out]
    return Table(header, tuple(rows), len(rows), tuple(notes))


def single_prompt(c: Comparison) -> bool:
    """The values of one prompt alone say nothing of others: there is no interval over prompts."""
    return c.prompt_low == c.prompt_high and c.low < c.high


def verdict(c: Comparison) -> str:
    if single_prompt(c):
        return "–"
    low, high = min(c.low, c.prompt_low), max(c.high, c.prompt_high)
    if low <= 0 <= high:
        return "–"
    return "A" if (low > 0) == (METRICS[c.metric].better == "higher") else "B"
