"""What more candidates would give, from a run with several texts of every prompt and label.

    python benchmarks/more_candidates.py RUN

Of every k texts in a row the one that the guiding classifier finds best is what k times as many candidates would have
kept. RUN needs samples.jsonl and values.jsonl, and must be of the model in the package.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import torch

from tta_diffusion import TTAPipeline
from tta_diffusion.assets import shipped_model
from tta_diffusion.bench.record import guide_fingerprint, read_record
from tta_diffusion.bench.store import Sample
from tta_diffusion.common.atomic import read_lines
from tta_diffusion.control.objective import HardText
from tta_diffusion.evaluation.bootstrap import interval
from tta_diffusion.tokens.canvas import Canvas

METRICS = ("accuracy", "perplexity")


def guide_score(pipeline: TTAPipeline, control: str, sample: Sample) -> float:
    """Sum of log p(label | text) under the classifiers that guided."""
    length, special = pipeline.denoiser.config.length, pipeline.special
    lead = [] if special.start is None else [special.start]
    tokens = [*lead, *pipeline.library.tokenise(sample.text), special.end][:length]
    sheet = Canvas.blank(1, length, special)
    ids = torch.nn.functional.pad(torch.tensor([tokens]), (0, length - len(tokens)), value=special.pad)
    judged = [one.judge(HardText(ids, sheet, 0.0)) for one in pipeline.library.classifiers(control, sample.label)]
    return sum(float(one.log_prob) for one in judged if one is not None)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    run = Path(sys.argv[1])
    identity = read_record(run).identity
    if guide_fingerprint(str(shipped_model()), identity.task.control) != identity.classifier:
        sys.exit(f"'{run}' was not guided by the classifier in the package")
    values: dict[str, dict[tuple[object, ...], float]] = defaultdict(dict)
    for row in read_lines(run / "values.jsonl"):
        values[row["metric"]][tuple(row["where"])] = row["value"]
    pipeline, groups = TTAPipeline.from_pretrained(), defaultdict(list)
    with torch.no_grad():
        for sample in (Sample(**row) for row in read_lines(run / "samples.jsonl")):
            groups[sample.key[:2]].append((guide_score(pipeline, identity.task.control, sample), sample.key))
    written = identity.settings.get("candidates", 1)
    for k in (1, 2, 5):
        parts = [group[i : i + k] for group in groups.values() for i in range(0, len(group) - k + 1, k)]
        kept = [max(part)[1] for part in parts]
        shown = [interval([values[metric][tuple(key)] for key in kept]) for metric in METRICS]
        line = ", ".join(f"{m} {x.mean:.4g} [{x.low:.4g}, {x.high:.4g}]" for m, x in zip(METRICS, shown, strict=True))
        print(f"best of {written * k}: {len(kept)} texts, {line}")


if __name__ == "__main__":
    main()
