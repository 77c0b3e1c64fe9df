"""The baselines of `tta_diffusion.baselines` as methods: `tta bench sentiment --method gedi --model DIR`.

DIR is a directory of `tta train-baseline`, or the base model of a method that needs no training. The settings of a task
are our sampler's; a baseline takes its own from its recipe (`configs/baselines`) and from `--set`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tta_diffusion.baselines.recipes import MODULES, ON_OURS, load_recipe
from tta_diffusion.bench.methods.base import METHODS, Method, MethodOptions
from tta_diffusion.bench.methods.tta import device_of_process
from tta_diffusion.bench.record import fingerprint
from tta_diffusion.bench.task import Task
from tta_diffusion.common.configuration import build
from tta_diffusion.common.devices import find_device, find_float

if TYPE_CHECKING:
    from tta_diffusion.baselines.registry import Setup, Writer
    from tta_diffusion.baselines.store import Trained

GUIDE = "guide"  # the option that names the classifier
WITHOUT_OURS = ("decoder",)  # methods with settings of their own and no recipe


def task_of(task: Task, method: str) -> Task:
    """The task with the settings of the method's recipe in place of our sampler's."""
    if method in WITHOUT_OURS:
        return replace(task, settings={})
    if method not in MODULES:
        return task
    return replace(task, settings=load_recipe(method).written_with(task.control))


def steering(method: str, settings: dict[str, Any], control: str, model: str = "") -> str:
    """The fingerprints of the classifiers that a baseline is steered by, or chooses by; empty where there are none."""
    if method not in MODULES or not control:
        return ""
    from tta_diffusion.baselines.guide import guide_directory
    from tta_diffusion.baselines.registry import find_baseline
    from tta_diffusion.control.bundled import WORDS, panel_of

    if GUIDE not in {f.name for f in fields(find_baseline(method).options)}:
        return ""
    path = guide_directory(str(settings.get(GUIDE) or ""), control, model if method in ON_OURS else "")
    return " ".join([fingerprint(path), *(fingerprint(member, WORDS) for member in panel_of(path))]).strip()


class BaselineMethod(Method):
    """A writer that is built when the settings are known; texts of a batch have one label."""

    def __init__(self, name: str, options: MethodOptions) -> None:
        from tta_diffusion.baselines.registry import find_baseline

        self.name, self.task = name, options.task
        self.baseline = find_baseline(name)
        device = find_device(device_of_process(options.device))
        self.setup = load_setup(name, options.model, options.task.control, device, options.dtype)
        self._writer: Writer | None = None

    @property
    def names(self) -> list[str]:
        """The settings that it reads."""
        return [f.name for f in fields(self.baseline.options) if f.name not in self.baseline.options.unused]

    def prepare(
        self, prompts: Sequence[str], controls: Sequence[str | None], settings: dict[str, Any]
    ) -> dict[str, Any]:
        known = {f.name for f in fields(self.baseline.options)}
        given = {k: v for k, v in settings.items() if k in known or k not in self.task.settings}  # ours are not its own
        for name in self.baseline.options.unused:
            if name in given:
                raise ValueError(f"'{self.name}' has no use for '{name}': leave it out; it has {', '.join(self.names)}")
        if self.task.length is not None and "length" not in self.baseline.options.unused:
            given.setdefault("length", self.task.length)
        used = build(self.baseline.options, given)
        self.batch_size = used.batch_size
        self._writer = self.baseline.build(self.setup, used)
        self._writer.check(prompts)
        if self.setup.trained is not None:
            for control in controls:
                self.setup.trained.label(label_of(control))
        return {name: getattr(used, name) for name in self.names}

    def describe(self) -> dict[str, Any]:
        base = self.setup.base
        about: dict[str, Any] = {
            "base": Path(base.name).name,
            "base_weights": fingerprint(base.name),
            "parameters": sum(p.numel() for p in base.model.parameters()),
        }
        return about if self.setup.trained is None else about | {"trained": asdict(self.setup.trained.facts)}

    def generate(
        self, prompts: Sequence[str], control: str | None, num_samples: int, seed: int, **settings: Any
    ) -> list[str]:
        if self._writer is None:
            self.prepare(prompts, [control], settings)
        assert self._writer is not None
        rows = [(prompt, seed + i) for prompt in prompts for i in range(num_samples)]
        return self._writer([prompt for prompt, _ in rows], label_of(control), [number for _, number in rows])


def label_of(control: str | None) -> str:
    """`sentiment=positive` asks for `positive`."""
    return (control or "").partition("=")[2]


def find_trained(name: str, model: str | None, control: str) -> Trained | None:
    """What was trained for a method, if `model` is that; where the method cannot do without, the command for it."""
    from tta_diffusion.baselines.registry import find_baseline
    from tta_diffusion.baselines.store import Trained

    baseline = find_baseline(name)
    if model and Trained.is_one(model):
        return Trained.open(model, name)
    if baseline.needs_training and not (model and baseline.takes_other):
        out = model or f"runs/baselines/{name}-{control}"
        raise ValueError(
            f"'{name}' must be trained first: tta train-baseline {name} --task {control or 'TASK'} --data-dir DATA "
            f"--out {out}; then name that directory with --model"
        )
    return None


@lru_cache(maxsize=1)  # the runs of a sweep share it
def load_setup(name: str, model: str | None, control: str, device: str, dtype: str | None) -> Setup:
    """The base model, and what was trained for the method where `model` is a directory of that."""
    from tta_diffusion.baselines.registry import Setup, find_baseline
    from tta_diffusion.baselines.train import ITSELF
    from tta_diffusion.evaluation.scorer_models import smollm_directory

    trained, where = find_trained(name, model, control), model or ""
    if trained is not None:
        where = str(trained.directory) if trained.facts.base == ITSELF else trained.facts.base
    base = find_baseline(name).load(where or smollm_directory(), device, find_float(dtype))
    if trained is not None and trained.facts.base_weights not in ("", fingerprint(base.name)):
        raise ValueError(f"'{model}' was trained on other weights than those of '{base.name}' now: train it again")
    return Setup(base, control, trained)


for _name in MODULES:
    METHODS.register(_name)(partial(BaselineMethod, _name))
