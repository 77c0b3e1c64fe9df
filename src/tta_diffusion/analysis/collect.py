"""The experiment's first half: trajectories of the same prompts, labels and seeds under several allocation policies.

It needs a GPU to be quick and nothing but the model: no scorer, no plotting. One pack of traces a policy lies under
`OUT/traces`; after every batch it is whole, and the same command goes on behind the last one. Trajectories take all
their steps: a run that stops when nothing can change any more would leave the late steps to be made up.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tta_diffusion.allocation import parse_allocation
from tta_diffusion.analysis.pack import append_pack, read_index
from tta_diffusion.assets import find_model
from tta_diffusion.bench.plan import Batch, Key, Plan
from tta_diffusion.bench.record import WORLDLY, fingerprint, guide_fingerprint
from tta_diffusion.bench.task import Task, load_task
from tta_diffusion.common.progress import Progress
from tta_diffusion.pipeline import TTAPipeline, load_pipeline
from tta_diffusion.sampling.trace import Trace

TRACES = "traces"
DEFAULTS = "defaults"  # of the model, used where the settings say nothing
POLICIES = ("constant", "adaptive:0.6")
SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True)
class Collection:
    """What to write. `texts` are spread evenly over the task's prompts and labels."""

    out: Path
    model: str | None = None
    policies: tuple[str, ...] = POLICIES
    texts: int = 150
    steps: int = 1000
    batch_size: int = 150
    seed: int = 0
    task: str = "sentiment"
    settings: dict[str, Any] = field(default_factory=dict)  # others, over the task's
    device: str = "auto"
    dtype: str | None = None

    def __post_init__(self) -> None:
        for name in ("texts", "steps", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")
        if not self.policies:
            raise ValueError("name one allocation policy or more: --policies constant,adaptive:0.6")
        if self.steps < 2:
            raise ValueError("--steps must be at least 2: one step has no next one to compare with")
        for policy in self.policies:
            parse_allocation(policy)


def collect(wanted: Collection) -> list[Path]:
    """The packs of all policies, complete."""
    task = load_task(wanted.task)
    plan, keys = choose_texts(task, wanted.texts, wanted.seed)
    model = find_model(wanted.model)
    pipeline = load_pipeline(model, wanted.device, wanted.dtype)
    own: dict[str, Any] = json.loads(json.dumps(pipeline.denoiser.config.sampling, default=str))
    longest = pipeline.denoiser.config.length
    settings = task.settings | {"max_length": min(task.length or longest, longest), "early_exit": False}
    settings |= wanted.settings | {"steps": wanted.steps, "batch_size": wanted.batch_size}
    for label in task.labels:
        pipeline.check(plan.prompts, task.control_for(label), **settings)
    about: dict[str, Any] = {
        "model": Path(model).name,
        "weights": fingerprint(model),
        "classifier": guide_fingerprint(model, task.control),
        "task": task.name,
        "objective": task.control,
        "settings": {name: value for name, value in settings.items() if name not in (*WORLDLY, "allocation")},
        DEFAULTS: {k: v for k, v in own.items() if k not in (*settings, *WORLDLY, "allocation")},
        "seed": wanted.seed,
        "dtype": wanted.dtype or "",
    }
    folder = wanted.out / TRACES
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [(policy, pack_path(folder, policy)) for policy in wanted.policies]
    missing = {policy: _missing(path, keys, about | {"policy": policy}) for policy, path in jobs}
    total = sum(len(m) for m in missing.values()) * wanted.steps
    with Progress("trajectories", total, seconds_between_lines=SECONDS_BETWEEN_LINES) as progress:
        for policy, path in jobs:
            for batch in plan.batches(missing[policy], wanted.batch_size):
                count, what = len(batch.keys), f"{policy}, {batch.label}"

                def step(*_: Any, count: int = count, what: str = what) -> None:
                    progress.advance(count, what)

                traces = trajectories(pipeline, task, plan, batch, settings | {"allocation": policy}, step)
                for trace, key in zip(traces, batch.keys, strict=True):
                    trace.settings |= {"label": key.label, "prompt_index": key.prompt, "sample": key.sample}
                for steps in dict.fromkeys(len(trace.u) for trace in traces):  # one, unless texts may end early
                    append_pack(path, [t for t in traces if len(t.u) == steps], about | {"policy": policy})
    return [path for _, path in jobs]


def trajectories(
    pipeline: TTAPipeline,
    task: Task,
    plan: Plan,
    batch: Batch,
    settings: dict[str, Any],
    callback: Callable[..., None] | None = None,
) -> list[Trace]:
    """The trace of every text of a batch, in the order of its keys."""
    output = pipeline(
        [plan.prompts[i] for i in batch.prompts],
        control=task.control_for(batch.label),
        num_samples=batch.count,
        seed=plan.seed_of(batch.label, batch.first),
        return_trace=True,
        callback_on_step_end=callback,
        **settings,
    )
    return output.traces or []


def choose_texts(task: Task, texts: int, seed: int) -> tuple[Plan, list[Key]]:
    """A plan, and its first `texts` keys when every prompt and label has its turn before any has its second."""
    if not task.prompts:
        raise ValueError(f"the prompts of '{task.name}' lie in files: --task takes one that brings its own (sentiment)")
    prompts = task.prompts
    samples = -(-texts // (len(prompts) * len(task.labels)))
    plan = Plan(prompts, task.labels, samples, seed)
    turns = sorted(plan.keys, key=lambda key: (key.sample, key.prompt, task.labels.index(key.label)))
    return plan, turns[:texts]


def pack_path(folder: Path, policy: str) -> Path:
    return folder / ("".join(c if c.isalnum() or c in ".-" else "-" for c in policy) + ".zip")


def _missing(path: Path, keys: list[Key], about: dict[str, Any]) -> list[Key]:
    """What a pack does not hold yet; one that was begun otherwise is not continued."""
    if not path.is_file():
        return keys
    index = read_index(path)
    for name, value in about.items():
        unknown = name == DEFAULTS and name not in index["about"]  # packs did not always name them
        if (old := index["about"].get(name)) != value and not unknown:
            raise ValueError(f"'{path}' was begun with another {name} ({old}, now {value}): choose another --out")
    found = [entry["settings"] for group in index["groups"] for entry in group["texts"]]
    held = {Key(own["prompt_index"], own["label"], own["sample"]) for own in found}
    return [key for key in keys if key not in held]
