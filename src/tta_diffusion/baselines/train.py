"""`tta train-baseline`: from labelled rows to a directory that `tta bench --method NAME --model DIR` reads.

The rows are those of half 0, which guidance classifiers learn from; the judges' half 1 stays unseen.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tta_diffusion.assets import resolve
from tta_diffusion.baselines.recipes import load_recipe
from tta_diffusion.baselines.registry import find_baseline, find_trainer
from tta_diffusion.baselines.store import RECORD, Facts
from tta_diffusion.common.atomic import finished
from tta_diffusion.common.configuration import build
from tta_diffusion.common.devices import find_device
from tta_diffusion.data.tokenizer import load_tokenizer
from tta_diffusion.training.classifier.prepare import prepare
from tta_diffusion.training.classifier.store import META, LabelledStore
from tta_diffusion.training.classifier.tasks import Task
from tta_diffusion.training.record import versions

HALF = 0
ITSELF = "."  # as base: the trained directory is the model


@dataclass(frozen=True)
class Request:
    """What `tta train-baseline` is asked for."""

    method: str
    task: Task
    data_dir: Path
    out: Path
    base: str = ""  # directory or hub name; empty: the one from its package
    settings: dict[str, Any] = field(default_factory=dict)  # over the recipe's
    length: int = 64
    device: str = "auto"
    overwrite: bool = False


def base_directory(request: Request) -> Path:
    return resolve(request.base) if request.base else find_trainer(request.method).start()


def train(request: Request, base_weights: str = "") -> Facts:
    """Trains into `request.out`, which appears when it is complete. `base_weights` is the base's fingerprint."""
    import torch

    trainer = find_trainer(request.method)
    settings = build(trainer.settings, load_recipe(request.method).train | request.settings)
    directory = base_directory(request)
    with finished(request.out, request.overwrite, RECORD) as temporary:
        store = rows(request, directory)
        torch.manual_seed(settings.seed)
        base = find_baseline(request.method).load(directory, find_device(request.device))
        results = trainer.train(base, store, settings, temporary)
        facts = Facts(
            request.method,
            request.task.name,
            tuple(store.labels),
            ITSELF if trainer.whole else request.base,
            "" if trainer.whole else base_weights,
            asdict(settings),
            {"fingerprint": store.meta["fingerprint"], "half": store.meta["half"], "rows": len(store.train)},
            results,
            versions(),
        )
        facts.write(temporary)
    return facts


def rows(request: Request, base: Path) -> LabelledStore:
    """The arrays of the task in the base's tokens, prepared once beside the trained directories."""
    folder = request.out.parent / f"rows-{request.task.name}-{base.name}"
    if not (folder / META).is_file():
        prepare(request.task, request.data_dir, folder, base, HALF, request.length)
    store = LabelledStore.open(folder)
    for name, value in {"half": HALF, "length": request.length}.items():
        if store.meta[name] != value:
            raise ValueError(f"the rows in '{folder}' have the {name} {store.meta[name]}, not {value}: delete them")
    if store.meta["config"] != json.loads(json.dumps(asdict(request.task))):
        raise ValueError(f"the rows in '{folder}' are of the task '{request.task.name}' as it was before: delete them")
    if load_tokenizer(store.tokenizer_dir).get_vocab() != load_tokenizer(base).get_vocab():
        raise ValueError(f"the rows in '{folder}' have the tokens of another model than '{base}': delete them")
    return store
