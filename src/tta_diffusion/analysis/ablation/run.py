"""Writes, measures and scores every cell; what is finished is not done again."""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from tta_diffusion.analysis.ablation.dynamics import write_dynamics
from tta_diffusion.analysis.ablation.earlier import find_earlier
from tta_diffusion.analysis.ablation.plan import Ablation, Cell
from tta_diffusion.bench.cache import Scorer
from tta_diffusion.bench.methods.tta import shared_pipeline
from tta_diffusion.bench.results import score
from tta_diffusion.bench.run import Request, run
from tta_diffusion.bench.store import SampleStore
from tta_diffusion.bench.table import write_table
from tta_diffusion.common.atomic import write_json
from tta_diffusion.common.progress import Progress

CELLS = "cells.json"
TEXTS = "texts.jsonl.xz"


def write(ablation: Ablation, request: Request, out: Path) -> tuple[list[Cell], str]:
    """All texts and trajectories of a task under `out`/TASK; returns the cells of the folder in their order, and a
    sentence on those that do not belong to them."""
    folder = out / ablation.task.name
    planned = list(ablation.cells())

    def request_of(cell: Cell) -> Request:
        return replace(
            request,
            task=ablation.task,
            settings=ablation.settings | request.settings | cell.settings,
            limit=ablation.limit(cell.steps),
            out=folder / cell.name,
            name=cell.policy,
        )

    earlier = find_earlier(folder, planned, request_of)
    cells = earlier.beside(planned)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / CELLS, [asdict(cell) for cell in cells])
    with Progress(ablation.task.name, len(planned)) as progress:
        for cell in planned:
            directory, record = run(request_of(cell))
            if ablation.traced:
                pipeline = shared_pipeline(request.directory, request.device, request.dtype)
                plan = replace(record.plan, samples=min(ablation.traced, record.plan.samples))
                write_dynamics(pipeline, directory, ablation.task, plan, record.used, ablation.traced)
            progress.advance(what=cell.name)
    return cells, earlier.told


def score_all(folder: Path, cells: Sequence[Cell], scorers: list[Scorer]) -> None:
    for cell in cells:
        write_table(folder / cell.name, score(folder / cell.name, scorers))


def read_cells(folder: Path) -> list[Cell]:
    path = folder / CELLS
    if not path.is_file():
        raise ValueError(f"'{folder}' holds no ablation: there is no {CELLS} in it")
    return [Cell(**raw) for raw in json.loads(path.read_text(encoding="utf-8"))]


def keep_texts(folder: Path, cells: Sequence[Cell]) -> Path:
    """All texts in one small file, for judges that come later."""
    rows = [
        {"cell": cell.name, "prompt": s.prompt, "label": s.label, "sample": s.sample, "text": s.text}
        for cell in cells
        for s in SampleStore(folder / cell.name).read().values()
    ]
    data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    path = folder / TEXTS
    path.write_bytes(lzma.compress(data, preset=9))
    return path
