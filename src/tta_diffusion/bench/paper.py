"""The numbers of the paper (Kim & Do, NeurIPS 2025), as printed, to stand beside ours.

Its perplexity is GPT-2-large's over the first 49 tokens, its accuracy the mean of three RoBERTa classifiers, its
toxicity that of the Perspective API: other scorers give other numbers for the same texts.
"""

from __future__ import annotations

from dataclasses import dataclass

from tta_diffusion.common.registry import closest

Row = tuple[str, dict[str, float]]


@dataclass(frozen=True)
class PaperTable:
    """Rows of metrics under our names; percentages as printed, that is already times 100."""

    source: str
    rows: tuple[Row, ...]
    note: str = ""
    same_scorers: bool = False  # as ours: its numbers can be compared with ours as they are


def _rows(columns: str, text: str) -> tuple[Row, ...]:
    """`name | number | ...` lines; a dash is a number that the paper does not give."""
    names = columns.split()
    parsed = []
    for line in text.strip().splitlines():
        title, *cells = (cell.strip() for cell in line.split("|"))
        parsed.append((title, {n: float(c) for n, c in zip(names, cells, strict=True) if c != "-"}))
    return tuple(parsed)


_SENTIMENT = """
PPLM | 42.6 | 201.1 | 0.94
GeDi | 79.9 | 98.6 | 0.91
DExperts | 83.2 | 31.8 | 0.93
Air-Decoding | 82.6 | 27.1 | 0.94
LM-Steer | 85.4 | 78.8 | 0.86
Diffusion-LM T=2000 | 72.8 | 89.3 | 0.94
SSD-LM T=1000 | 76.2 | 51.1 | 0.94
LD4LG T=250 | 59.9 | 70.7 | 0.95
TESS T=1000 | 71.1 | 31.7 | 0.85
TTA (50) T=200 | 94.7 | 20.5 | 0.86
TTA (50) T=100 | 92.7 | 28.7 | 0.86
TTA (50) T=50 | 88.7 | 47.3 | 0.87
"""
_DETOXIFICATION = """
PPLM | 30.6 | 59.7 | 107.4 | 0.95
GeDi | 22.0 | 36.1 | 98.8 | 0.94
DExperts | 15.1 | 32.0 | 48.0 | 0.87
Air-Decoding | 18.5 | 40.4 | 49.0 | 0.93
LM-Steer | 19.1 | 47.0 | 44.4 | 0.91
Diffusion-LM T=2000 | 21.8 | - | 131.2 | 0.94
SSD-LM T=1000 | 24.6 | 50.3 | 58.3 | 0.94
LD4LG T=250 | 14.5 | - | 296.4 | 0.90
TESS T=1000 | 14.6 | 32.3 | 58.8 | 0.92
TTA (50) T=200 | 12.2 | 26.0 | 40.6 | 0.92
TTA (50) T=100 | 12.2 | 26.7 | 46.3 | 0.93
TTA (50) T=50 | 12.5 | 27.3 | 59.5 | 0.94
"""
_TOPIC = """
GeDi | 96.4 | 55.6 | 0.94 | 0.11
DExperts | 94.5 | 59.9 | 0.94 | 0.13
Air-Decoding | 92.9 | 32.4 | 0.94 | 0.21
Mix&Match | 63.4 | 64.6 | 0.94 | 0.06
LM-Steer | 52.2 | 44.3 | 0.88 | 0.24
Diffusion-LM T=2000 | 63.1 | 135.6 | 0.93 | 0.10
SSD-LM T=1000 | 46.1 | 61.8 | 0.95 | 0.11
LD4LG T=250 | 88.3 | 129.5 | 0.92 | 0.10
TTA (5000) T=1000 | 94.6 | 41.2 | 0.89 | 0.12
TTA (200) T=200 | 85.8 | 58.8 | 0.90 | 0.10
"""
_QM9 = """
gamma 1: D-CBG | 96.6 | 0.474
gamma 1: D-CBG + adaptive | 97.5 | 0.494
gamma 10: D-CBG | 70.4 | 0.585
gamma 10: D-CBG + adaptive | 73.8 | 0.591
"""
_LEXICAL = """
Diffusion-LM T=200 | 86.0 | 93.8 | 99.9 | 248.6
TTA T=200 | 93.1 | 92.3 | 100.0 | 111.4
"""
_PARAPHRASE = """
TTA (5000) T=1000 | 28.9 | 84.3 | 59.8
TTA (1000) T=1000 | 29.8 | 85.3 | 60.7
TTA (200) T=200 | 30.1 | 85.2 | 60.9
TTA (200) T=200, adaptive | 30.3 | 85.5 | 61.3
TTA (200) T=30, adaptive | 30.3 | 85.5 | 61.5
"""
_LAMBDA = """
strength=0 | 35.8 | 17.0 | 0.86
strength=2 | 42.6 | 15.8 | 0.86
strength=20 | 56.2 | 16.3 | 0.85
strength=200 | 74.1 | 19.4 | 0.83
strength=2000 | 90.1 | 26.8 | 0.85
strength=20000 | 94.2 | 42.4 | 0.90
"""
_SCHEDULING = """
TTA (5000) T=200, constant | 80.8 | 47.3
TTA (5000) T=200, adaptive | 82.1 | 35.5
TTA (50) T=50, constant | 83.5 | 44.0
TTA (50) T=50, adaptive | 85.9 | 40.2
"""
_COMPARISON = """
TTA (200) T=20, constant | 68.9 | 98.5
TTA (200) T=20, adaptive | 71.6 | 96.8
TTA (50) T=20, constant | 69.2 | 94.0
TTA (50) T=20, adaptive | 69.8 | 90.4
TTA (200) T=50, constant | 84.5 | 44.0
TTA (200) T=50, adaptive | 85.9 | 40.2
TTA (50) T=50, constant | 85.0 | 43.7
TTA (50) T=50, adaptive | 85.6 | 42.0
TTA (200) T=100, constant | 89.1 | 30.2
TTA (200) T=100, adaptive | 90.0 | 30.1
TTA (50) T=100, constant | 90.4 | 27.4
TTA (50) T=100, adaptive | 91.0 | 25.4
"""
_STAGES_2 = """
20 | 59.0 119.9 | 60.8 109.3 | 71.6 96.8 | 69.8 90.4 | 66.5 106.5
50 | 71.4 60.2 | 76.8 58.6 | 85.9 40.2 | 85.6 42.0 | 83.8 46.6
100 | 79.6 39.8 | 84.7 38.3 | 90.0 30.1 | 91.0 25.4 | 89.1 29.4
200 | 84.2 29.2 | 89.5 27.8 | 92.1 23.2 | 91.6 19.4 | 91.2 23.4
500 | 87.5 23.9 | 91.9 22.5 | 92.3 18.7 | 92.8 16.1 | 92.5 18.3
1000 | 87.6 21.5 | 93.3 21.0 | 92.6 17.1 | 93.4 15.7 | 93.5 17.5
"""
_STAGES_3 = """
20 | 62.9 137.0 | 74.7 120.0 | 71.3 109.7 | 66.8 107.8
50 | 79.2 75.3 | 89.0 51.1 | 88.7 47.3 | 85.3 56.7
100 | 86.4 48.7 | 93.8 31.9 | 92.7 28.7 | 91.4 36.4
200 | 90.8 32.9 | 95.1 24.3 | 94.7 20.5 | 93.4 23.6
500 | 93.6 25.0 | 95.3 19.5 | 95.6 16.4 | 95.0 18.9
1000 | 94.6 22.6 | 95.1 18.3 | 94.9 16.4 | 95.5 17.0
"""


def _stages(stages: tuple[int, ...], text: str) -> tuple[Row, ...]:
    rows = []
    for line in text.strip().splitlines():
        steps, *cells = (cell.strip() for cell in line.split("|"))
        for stage, cell in zip(stages, cells, strict=True):
            accuracy, perplexity = map(float, cell.split())
            rows.append((f"TTA ({stage}) T={steps}", {"accuracy": accuracy, "perplexity": perplexity}))
    return tuple(rows)


PAPER = {
    "sentiment": PaperTable(
        "Table 1, sentiment control (3 iterations)", _rows("accuracy perplexity dist3", _SENTIMENT)
    ),
    "detoxification": PaperTable(
        "Table 1, detoxification", _rows("toxicity max_toxicity perplexity dist3", _DETOXIFICATION)
    ),
    "topic": PaperTable("topic control (appendix)", _rows("accuracy perplexity dist3 self_bleu", _TOPIC)),
    "long-form": PaperTable(
        "transferability of timestep allocation (text)",
        (("TTA T=50, guided, lower end", {"perplexity": 25.0}), ("TTA T=50, guided, upper end", {"perplexity": 30.0})),
        'the paper gives a range, "around 25-30", and calls the perplexity without guidance extreme',
    ),
    "scheduling": PaperTable(
        "results of scheduling, sentiment",
        _rows("accuracy perplexity", _SCHEDULING),
        "its TTA (50) rows agree with TTA (200) in the appendix, but for 83.5",
    ),
    "qm9": PaperTable(
        "allocation on discrete diffusion, QM9, QED",
        _rows("valid qed", _QM9),
        "its column 'Valid (%)' holds 989, 998, 721 and 756, which are counts of 1,024",
        same_scorers=True,
    ),
    "lexical": PaperTable(
        "lexical control on E2E, T=200",
        _rows("tree span length perplexity", _LEXICAL),
        "trees and constituents by another parser; its perplexity is the mean of the three tasks",
    ),
    "paraphrase": PaperTable(
        "paraphrase generation",
        _rows("bleu bert_score rouge_l", _PARAPHRASE),
        "another split of Quora's questions, and BERTScore by another encoder",
    ),
    "lambda": PaperTable(
        "effect of lambda, TTA (5000), T=1000 (appendix)", _rows("accuracy perplexity dist3", _LAMBDA)
    ),
    "stages-2": PaperTable(
        "steps and training schedules, 2 iterations (appendix)", _stages((5000, 1000, 200, 50, 20), _STAGES_2)
    ),
    "stages-3": PaperTable(
        "steps and training schedules, 3 iterations (appendix)", _stages((1000, 200, 50, 20), _STAGES_3)
    ),
    "comparison": PaperTable(
        "with and without allocation, 2 iterations (appendix)", _rows("accuracy perplexity", _COMPARISON)
    ),
}


def paper_table(name: str) -> PaperTable | None:
    """A table by its name; None where a task names none."""
    if not name:
        return None
    if name not in PAPER:
        raise ValueError(f"Unknown table of the paper '{name}'.{closest(name, list(PAPER))}")
    return PAPER[name]
