"""Writes the texts of a task, from where the last attempt stopped."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tta_diffusion.assets import find_model, model_name, resolve
from tta_diffusion.baselines.recipes import ON_OURS
from tta_diffusion.bench.methods.base import Method, MethodOptions, find_method
from tta_diffusion.bench.methods.causal import steering
from tta_diffusion.bench.molecules import write_known
from tta_diffusion.bench.people import write_references
from tta_diffusion.bench.plan import Batch, Key, Plan, make_plan
from tta_diffusion.bench.record import (
    Identity,
    Record,
    check_defaults,
    check_same,
    file_fingerprint,
    fingerprint,
    guide_fingerprint,
    short_name,
    write_record,
)
from tta_diffusion.bench.store import Sample, SampleStore, chosen
from tta_diffusion.bench.task import Task, read_prompts, read_references
from tta_diffusion.common.progress import Progress
from tta_diffusion.common.world import World

DEFAULT_OUT = Path("runs") / "bench"
OURS = ("tta", *ON_OURS)  # methods on a model of ours
WITHOUT_SETTINGS = ("file", "copy", "mbr")  # methods that write nothing themselves
NETWORKS = ("spans", "tags")  # of a model, that guide to targets
PATIENCE = 1800.0  # seconds without a new text of another process, after which it is taken for dead


@dataclass(frozen=True)
class Request:
    """A command: what to write, how, and where."""

    task: Task
    method: str = "tta"
    model: str | None = None
    file: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)  # over the task's
    seed: int = 0
    limit: int | None = None  # samples of each prompt and label
    prompts: int | None = None  # the first so many
    data_dir: Path | None = None
    out: Path | None = None
    name: str = ""
    device: str = "auto"
    dtype: str | None = None

    @property
    def all_settings(self) -> dict[str, Any]:
        return self.task.settings | self.settings

    @property
    def directory(self) -> str:
        """The directory of the model; empty where the method has none."""
        return find_model(self.model) if self.method in OURS else self.model or ""

    def check_model(self) -> None:
        """Raises for a model of ours that is not there: at once, not behind scorers that take a minute to load."""
        if self.method in OURS:
            resolve(self.directory)

    def identity(self) -> Identity:
        model = self.directory
        settings = {} if self.method in WITHOUT_SETTINGS else self.all_settings
        guides = (self.task.control, *(NETWORKS if self.task.targets else ()))
        own = self.method == "tta"
        guide = guide_fingerprint(model, *guides) if own else steering(self.method, settings, self.task.control, model)
        return Identity(
            self.task,
            self.method,
            settings,
            self.seed,
            model=model_name(model),
            weights=fingerprint(model),
            file=str(self.file or ""),
            dtype=self.dtype or "",
            classifier=guide,
            content=file_fingerprint(self.file),
        )


def run(request: Request, world: World | None = None) -> tuple[Path, Record]:
    """The directory with all texts of the request. Only the first of several processes waits for the others."""
    world = world or World.from_environment()
    plan = make_plan(
        request.task, read_prompts(request.task, request.data_dir), request.seed, request.limit, request.prompts
    )
    plan = replace(plan, references=read_references(request.task, request.data_dir))
    identity = request.identity()
    out = request.out or DEFAULT_OUT / short_name(identity)
    check_same(out, identity, plan.prompts)
    options = MethodOptions(request.task, plan, request.directory or None, request.file, request.device, request.dtype)
    method = find_method(request.method)(options)
    used = method.prepare(*everything(request.task, plan), request.all_settings)
    record = Record(identity, plan.prompts, plan.samples, request.name, used, method.describe())
    check_defaults(out, record)
    out.mkdir(parents=True, exist_ok=True)
    if world.main:
        write_record(out, record)
        write_references(out, request.task, request.data_dir)
        write_known(out, request.task, request.data_dir)
    store = SampleStore(out, world)
    store.repair()
    write_missing(method, request.task, plan, used, store)
    if world.main:
        wait_for_others(store, plan.keys)
        chosen(store.merge(plan.keys), plan.keys)
    return out, record


def everything(task: Task, plan: Plan) -> tuple[list[str], list[str | None]]:
    """All openings and all controls of a run, each once."""
    targets = plan.prompts if task.targets else plan.prompts[:1]
    controls = [task.controls_for(label, target) for label in plan.labels for target in targets]
    return list(dict.fromkeys(map(task.opening, plan.prompts))) if task.targets else list(plan.prompts), controls


def write_missing(method: Method, task: Task, plan: Plan, settings: dict[str, Any], store: SampleStore) -> None:
    done = store.read()
    missing = [key for key in plan.share(store.world) if key not in done]
    with Progress(task.name, len(missing), store.world.main) as bar:
        for batch in plan.batches(missing, method.batch_size, method.many_targets):
            store.append(write_batch(method, task, plan, settings, batch))
            bar.advance(len(batch.keys))


def write_batch(method: Method, task: Task, plan: Plan, settings: dict[str, Any], batch: Batch) -> list[Sample]:
    prompts = [plan.prompts[i] for i in batch.prompts]
    seeds = [plan.seed_of(batch.label, batch.first, i) for i in batch.prompts]
    began = time.monotonic()
    if len(prompts) > 1 and plan.targeted:
        texts = method.generate_targets(prompts, task.control_for(batch.label), batch.count, seeds, **settings)
    else:
        openings, control = [task.opening(p) for p in prompts], task.controls_for(batch.label, prompts[0])
        texts = method.generate(openings, control, batch.count, seeds[0], **settings)
    if len(texts) != len(batch.keys):
        raise ValueError(f"the method returned {len(texts)} texts for {len(batch.keys)}")
    seconds = round((time.monotonic() - began) / len(texts), 6)
    return [
        Sample(
            *key,
            plan.prompts[key.prompt],
            text,
            plan.seed_of(key.label, key.sample, key.prompt),
            seconds,
            plan.references[key.prompt] if plan.references else (),
        )
        for key, text in zip(batch.keys, texts, strict=True)
    ]


def wait_for_others(store: SampleStore, keys: list[Key], pause: float = 0.5, patience: float = PATIENCE) -> None:
    """Until every text is there. Files are all that the processes share, so that hours may pass between them."""
    missing, changed = len(keys), time.monotonic()
    while store.world.size > 1:
        done = store.read()
        left = sum(key not in done for key in keys)
        if not left:
            return
        if left < missing:
            missing, changed = left, time.monotonic()
        if time.monotonic() - changed > patience:
            raise ValueError(f"the other processes have stopped, {left} texts are missing: run the same command again")
        time.sleep(pause)
