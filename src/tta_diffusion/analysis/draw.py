"""The experiment's second half: scores, figures, tables and a summary, from the traces under `OUT/traces`.

Everything slow is kept under `OUT/scores`: a second drawing takes a minute.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from tta_diffusion.analysis import sweeps, synonyms
from tta_diffusion.analysis.collect import TRACES
from tta_diffusion.analysis.figures.comparison import save_comparison
from tta_diffusion.analysis.figures.forgetting import save_confidence, save_drop, save_synonyms
from tta_diffusion.analysis.figures.perplexity import save_drafts, save_fluctuation, save_semantic, save_time_bins
from tta_diffusion.analysis.figures.trajectory import save_trajectory
from tta_diffusion.analysis.group import Group, load_groups, measure_perplexity, measure_similarity
from tta_diffusion.analysis.relations import time_width
from tta_diffusion.analysis.scores import Perplexities, scorer_directory
from tta_diffusion.analysis.summary import Findings, write_summary
from tta_diffusion.evaluation.checks import require

SCORES, FIGURES = "scores", "figures"


def draw(options: argparse.Namespace) -> Path:
    """Draws all that the traces and sweeps allow, and returns the summary. What is missing is named in it."""
    require("matplotlib", "matplotlib")  # missing, it should be missed before the scoring, not after it
    out: Path = options.out
    scorer_path = scorer_directory(options.scorer)
    groups = load_groups(out / TRACES)
    if not 0 <= options.text < len(groups[0].traces):
        raise ValueError(f"--text is 0 to {len(groups[0].traces) - 1}, got {options.text}")
    for folder in (SCORES, FIGURES):
        (out / folder).mkdir(parents=True, exist_ok=True)
    findings = Findings(groups, scorer=Path(scorer_path).name, skipped=_measure(groups, scorer_path, options))
    figures = out / FIGURES
    _say("figures")
    _draw_traces(groups, figures, options.text)
    if scorer_path:
        save_fluctuation(groups, figures)
        save_time_bins(groups, figures)
        if groups[0].similarity:
            save_semantic(groups, figures)
        if groups[0].draft_perplexity is not None:
            save_drafts(groups, figures)
    findings = replace(findings, synonyms=_synonyms(groups, figures, findings.skipped))
    _sweeps(options, figures, findings.skipped)
    return write_summary(findings, out)


def _measure(groups: list[Group], scorer_path: str, options: argparse.Namespace) -> list[str]:
    """Fills in similarity and perplexity; returns what could not be done, in sentences."""
    from transformers.utils import logging

    from tta_diffusion.analysis.similarity import SemanticSimilarity
    from tta_diffusion.common.devices import find_device

    logging.disable_progress_bar()

    skipped = []
    scores = options.out / SCORES
    try:
        measure = SemanticSimilarity.from_pretrained()
        require("sacrebleu", "sacrebleu")
    except ModuleNotFoundError as error:
        skipped.append(f"BLEU, BERTScore and cosine: {error}.")
    else:
        for i, group in enumerate(groups):
            measure_similarity(group, measure, options.every, scores / f"similarity-{i}.npz")
    if not scorer_path:
        return [*skipped, "Everything about perplexity: no scorer was used (--scorer none)."]
    scorer = Perplexities(scorer_path, scores / "perplexity.jsonl", find_device(options.device))
    for group in groups:
        measure_perplexity(group, scorer, options.drafts)
    if options.drafts < 2:
        skipped.append("The perplexity of drafts: --drafts is below 2.")
    return skipped


def _draw_traces(groups: list[Group], out: Path, text: int) -> None:
    save_comparison({group.policy: group.traces for group in groups}, out)
    save_drop(groups, out)
    save_confidence(groups, out)
    for group in groups:
        save_trajectory(group.traces[text], out, f"trajectory_{group.policy.replace(':', '-').replace('+', '-')}")


def _synonyms(groups: list[Group], out: Path, skipped: list[str]) -> dict[str, list[synonyms.SynonymBin]]:
    try:
        wordnet = synonyms.WordNet.find()
    except ValueError as error:
        skipped.append(f"Synonyms: {error}.")
        return {}
    bins = {g.policy: synonyms.synonym_bins(g.traces, wordnet, time_width(g.length)) for g in groups}
    save_synonyms(bins, out)
    return bins


def _sweeps(options: argparse.Namespace, out: Path, skipped: list[str]) -> None:
    from tta_diffusion.bench.scorers import ScorerChoice, make_scorers

    choice = ScorerChoice(options.scorer, tuple(options.classifier), device=options.device)
    scorers: Callable = partial(make_scorers, choice)
    drawn = set()
    for directory in sweeps.find_sweeps(options.out, options.sweep):
        _say(f"sweep {directory}")
        raw, results = sweeps.scored_sweep(directory, scorers, accuracy=bool(options.classifier))
        if sweeps.save_sweep(raw, results, out):
            drawn.add(raw["name"].removesuffix("-3").removesuffix("-2"))
    hints = {
        "stages": "add --stage NAME=DIR for every training stage",
        "allocation": "add --sweep allocation",
        "smoothing": "add --sweep smoothing",
    }
    skipped += [
        f"The figure of {name}: no such sweep was collected ({how})."
        for name, how in hints.items()
        if name not in drawn
    ]


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
