"""`summary.md`: our values beside the paper's, with intervals; the correlations behind it as `relations.csv`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tta_diffusion.analysis import relations as rel
from tta_diffusion.analysis.confidence_bands import Array, band, ratio_band
from tta_diffusion.analysis.figures.base import table
from tta_diffusion.analysis.figures.comparison import CURVES
from tta_diffusion.analysis.figures.perplexity import HEAD, relation_rows
from tta_diffusion.analysis.fluctuation import changes, counted
from tta_diffusion.analysis.forgetting import drops
from tta_diffusion.analysis.group import POSITIONS, Group
from tta_diffusion.analysis.synonyms import SynonymBin
from tta_diffusion.common.atomic import replace_text
from tta_diffusion.evaluation.bootstrap import paired_difference

SUMMARY = "summary.md"
NOTE = (
    "In brackets: 95% bootstrap intervals over texts. The paper's model, classifier and perplexity scorer are others: "
    "signs and orders of size can be compared, perplexities cannot. A correlation of group means tends to be larger "
    "than one over texts."
)
Row = tuple[str, str, list[str]]  # quantity, the paper's value, ours for each policy


@dataclass(frozen=True)
class Findings:
    groups: list[Group]
    scorer: str  # empty: none
    skipped: list[str]  # sentences
    synonyms: Mapping[str, list[SynonymBin]] = field(default_factory=dict)


def write_summary(findings: Findings, out: Path) -> Path:
    groups = findings.groups
    found = [r for group in groups for r in _relations(group)]
    table(out, "relations", HEAD, relation_rows(found))
    rows = [*_correlations(groups, found), *_forgetting(groups), *_stability(groups), *_synonyms(findings)]
    lines = ["# Fluctuation and update-forgetting", "", *_about(findings), "", NOTE, ""]
    lines += ["| | paper | " + " | ".join(group.policy for group in groups) + " |", "|---|---|" + "---|" * len(groups)]
    lines += [f"| {what} | {paper} | {' | '.join(ours)} |" for what, paper, ours in rows]
    if findings.skipped:
        lines += ["", "Not measured:", "", *(f"- {sentence}" for sentence in findings.skipped)]
    replace_text(out / SUMMARY, "\n".join(lines) + "\n")
    return out / SUMMARY


def _about(findings: Findings) -> list[str]:
    lines = []
    for group in findings.groups:
        steps = sorted({len(trace.u) for trace in group.traces})
        took = str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
        line = f"- {group.policy}: {len(group.traces)} texts of {took} steps"
        if group.perplexity is not None:
            kept, values = group.scored
            line += f", mean perplexity {values.mean():.1f}, median {np.median(values):.1f} ({findings.scorer})"
            line += f", {int((~kept).sum())} empty" if not kept.all() else ""
        if group.ended_early:
            line += (
                f"; {group.ended_early} runs ended before step {group.asked}: curves take them for still, but means "
                "over steps lack their still steps, and drops are too large (collect with early_exit=false)"
            )
        lines.append(line)
    return lines


def _relations(group: Group) -> Iterator[rel.Relation]:
    if group.perplexity is not None:
        for part in (rel.at_the_end, rel.over_pairs, rel.in_time_bins, rel.held_fixed):
            yield from part(group)
    yield from rel.with_similarity(group)


def _correlations(groups: list[Group], found: list[rel.Relation]) -> Iterator[Row]:
    def row(what: str, paper: str, wanted: Callable[[rel.Relation], bool]) -> Row:
        cells = []
        for group in groups:
            own = [r for r in found if r.policy == group.policy and wanted(r)]
            cells.append(_number(own[-1].found.r, own[-1].found.low, own[-1].found.high, 2) if own else "–")
        return what, paper, cells

    def match(measure: str, outcome: str, over: str) -> Callable[[rel.Relation], bool]:
        return lambda r: (r.measure, r.outcome, r.over) == (measure, outcome, over)

    if groups[0].perplexity is None:
        return
    bins = rel.bins_of(len(groups[0].scored[1]))
    for positions in POSITIONS:
        for scale in rel.SCALES:
            what = f"r of mean fluctuation ({positions}) with the final {scale}"
            paper = "0.86, binned" if scale == "perplexity" else ""
            yield row(f"{what}, {bins} groups of texts", paper, match(positions, f"{scale} final", "groups of texts"))
            yield row(f"{what}, texts", "", match(positions, f"{scale} final", "texts"))
            for other in (rel.CONFIDENCE, rel.LENGTH):
                over = f"texts, {other} held fixed"
                yield row(f"{what}, {over}", "", match(positions, f"{scale} final", over))
    for scale in rel.SCALES:
        for other in (rel.CONFIDENCE, rel.LENGTH):
            known = match(other, f"{scale} final", "texts")
            yield row(f"r of {other} with the final {scale}, texts", "", known)
    for positions in POSITIONS if groups[0].draft_perplexity is not None else ():
        for scale in rel.SCALES:
            what = f"r of mean fluctuation ({positions}) with the {scale} at t, groups of (text, step) pairs"
            paper = "0.86, binned" if scale == "perplexity" else ""
            yield row(what, paper, match(positions, f"{scale} at t", "groups of pairs"))
    for measure in groups[0].similarity:
        for scale in rel.SCALES if groups[0].draft_perplexity is not None else ():
            paper = "-0.6 to -0.8" if scale == "perplexity" else ""
            yield row(f"r of {measure} with the {scale} at t, pairs", paper, match(measure, f"{scale} at t", "pairs"))
        yield row(
            f"r of mean {measure} with the final perplexity, texts", "", match(measure, "perplexity final", "texts")
        )
    width = rel.time_width(groups[0].length)
    for measure in [*groups[0].similarity, *POSITIONS]:
        name = f"fluctuation ({measure})" if measure in POSITIONS else measure
        what = f"r of {name} with the final perplexity, pairs of the last {width} steps"
        late = match(measure, rel.FINAL, f"pairs of {width} steps")
        yield row(what, "-0.23" if measure == "BLEU" else "", late)
    for measure in groups[0].similarity:
        yield row(
            f"r of fluctuation (all positions) with {measure}, pairs", "", match("all positions", measure, "pairs")
        )


def _forgetting(groups: list[Group]) -> Iterator[Row]:
    cases = [drops(group.traces, group.objective) for group in groups]
    papers = ("3 to 4", "above 10, often", "")
    for k, paper in enumerate(papers):
        cells = [_number(own[k].drop, own[k].low, own[k].high, 1, scale=100) for own in cases]
        yield f"drop of p(target) in points, {cases[0][k].case}", paper, cells
    share = [f"{own[1].steps / own[0].steps:.1%}" if own[0].steps else "–" for own in cases]
    yield f"guided steps with {cases[0][1].case}", "", share


def _stability(groups: list[Group]) -> Iterator[Row]:
    """Means over steps and texts, and what a policy changes against the first, text by text."""
    for quantity, curve in CURVES.items():
        values = [
            np.array([np.nanmean(curve(t)) if np.isfinite(curve(t)).any() else np.nan for t in g.traces])
            for g in groups
        ]
        cells = [_mean(v) for v in values]
        lower = quantity in ("fluctuation", "key-token change ratio")
        yield f"{quantity}, mean of all steps", "lower with adaptive" if lower else "", cells
        yield (
            f"{quantity}, against {groups[0].policy}",
            "",
            ["–", *(_difference(groups[0], values[0], g, v) for g, v in zip(groups[1:], values[1:], strict=True))],
        )
    yield "changes behind the end of the text", "", [_behind(group) for group in groups]


def _synonyms(findings: Findings) -> Iterator[Row]:
    if not findings.synonyms:
        return
    every = [findings.synonyms[group.policy] for group in findings.groups]
    for inside, positions in enumerate(POSITIONS):
        what = f"changed tokens ({positions}) that a synonym replaces, all steps (least and most of a bin)"
        yield what, "1 to 5% a bin", [_shares(bins, bool(inside)) for bins in every]
    tokens = [sum(b.synonyms for b in bins) / max(1, sum(b.drafts for b in bins)) for bins in every]
    yield "tokens of a text that a synonym replaces, a step", "0.117", [f"{value:.3f}" for value in tokens]


def _shares(bins: list[SynonymBin], inside: bool) -> str:
    known = [x for b in bins if not math.isnan(x := b.share_inside if inside else b.share)]
    whole = sum(b.synonyms for b in bins) / max(1, sum(b.inside if inside else b.changed for b in bins))
    return f"{whole:.1%} ({min(known):.1%} to {max(known):.1%})" if known else "– (nothing changes)"


def _behind(group: Group) -> str:
    counts = np.array([[(changes(t) & ~counted(t, inside=True)).sum(), changes(t).sum()] for t in group.traces], float)
    found = ratio_band(counts[:, :1], counts[:, 1:])
    return _number(found.mean[0], found.low[0], found.high[0], 0, scale=100) + "%"


def _difference(base: Group, first: Array, group: Group, values: Array) -> str:
    """The mean difference over texts of the same prompt, label and seed."""
    place = {(t.prompt, t.seed): i for i, t in enumerate(base.traces)}
    pairs = [(place.get((t.prompt, t.seed)), i) for i, t in enumerate(group.traces)]
    kept = [(a, b) for a, b in pairs if a is not None and np.isfinite(first[a]) and np.isfinite(values[b])]
    if not kept:
        return "–"
    found = paired_difference([values[b] for _, b in kept], [first[a] for a, _ in kept])
    return f"{_number(found.mean, found.low, found.high, 4)}, p = {found.p_value:.2g}"


def _mean(values: Array) -> str:
    found = band(values[:, None])
    return _number(found.mean[0], found.low[0], found.high[0], 4)


def _number(value: float, low: float, high: float, digits: int, scale: float = 1) -> str:
    if not math.isfinite(value):
        return "– (nothing varies)"
    return f"{scale * value:.{digits}f} [{scale * low:.{digits}f}, {scale * high:.{digits}f}]"
