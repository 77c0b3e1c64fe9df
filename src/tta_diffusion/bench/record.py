"""`run.json`: what a run directory was made with, so that it is continued, scored and compared for what it is."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tta_diffusion.bench.plan import Plan
from tta_diffusion.bench.task import Task
from tta_diffusion.common.atomic import replace_text
from tta_diffusion.common.configuration import build

RECORD = "run.json"
SAMPLED = 1 << 20
WORLDLY = ("batch_size", "score_batch", "graphs")  # settings that change the speed, not the texts


@dataclass(frozen=True)
class Identity:
    """What the texts depend on. Runs that differ here must not share a directory."""

    task: Task
    method: str
    settings: dict[str, Any]
    seed: int
    model: str = ""
    weights: str = ""  # fingerprint of the model, which may change under the same name
    file: str = ""
    dtype: str = ""
    classifier: str = ""  # fingerprint of the model's own classifier of the task, which guides
    content: str = ""  # fingerprint of the file, which may change under the same name


@dataclass(frozen=True)
class Record:
    """A run directory's own description. The extent (prompts, samples) may grow from one command to the next."""

    identity: Identity
    prompts: tuple[str, ...]
    samples: int
    name: str = ""  # its row in tables; empty: made from method and settings
    used: dict[str, Any] = field(default_factory=dict)  # settings as the method read them
    about: dict[str, Any] = field(default_factory=dict)  # of the method, such as the size of its model

    @property
    def plan(self) -> Plan:
        own = self.identity
        return Plan(self.prompts, own.task.labels, self.samples, own.seed, own.task.targets is not None)

    @property
    def title(self) -> str:
        if self.name:
            return self.name
        own, settings = self.identity, self.identity.settings
        if own.method == "file":
            return Path(own.file).stem
        words = [own.method, Path(own.model).name, settings.get("allocation")]
        words += [f"T={settings['steps']}"] if "steps" in settings else []
        words += [f"best of {settings['candidates']}"] if settings.get("candidates", 1) > 1 else []
        words += [f"{key}={value}" for key, value in sorted(settings.items()) if self._is_own(key, value)] + [own.dtype]
        return " ".join(str(word) for word in words if word)

    def _is_own(self, key: str, value: Any) -> bool:
        """Whether a setting tells this run from others of its task, and no other word of the title does."""
        told = ("allocation", "steps", "candidates", *WORLDLY)
        return key not in told and self.identity.task.settings.get(key) != value


def short_name(identity: Identity) -> str:
    """A directory name: the same command finds its run again, another one gets a directory of its own."""
    digest = hashlib.sha256(json.dumps(comparable(identity), sort_keys=True, default=str).encode()).hexdigest()
    return f"{identity.task.name}-{identity.method.replace(':', '.')}-{digest[:8]}"


def comparable(identity: Identity) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(json.dumps(asdict(identity), default=str))
    together = ("batch_size",) if raw["settings"].get("variety") else ()  # texts of a batch repel each other
    raw["settings"] = {k: v for k, v in raw["settings"].items() if k in together or k not in WORLDLY}
    raw["task"].pop("description")
    if not raw["content"]:  # of runs without a file: their directories keep their names
        raw.pop("content")
    return raw


def fingerprint(directory: str | Path, *others: str) -> str:
    """Tells one set of weights (and other files) from another, from sizes and both ends of its files; empty for what is
    not local."""
    path = Path(directory)
    files = sorted(file for name in ("*.safetensors", *others) for file in path.glob(name)) if path.is_dir() else []
    return _digest(files)


def file_fingerprint(file: Path | None) -> str:
    """The fingerprint of a file of texts, or of the texts in the directory of a run."""
    if file is None:
        return ""
    return fingerprint(file, "samples*.jsonl") if file.is_dir() else _digest([file] if file.is_file() else [])


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(SAMPLED))
            stream.seek(max(0, size - SAMPLED))
            digest.update(stream.read(SAMPLED))
    return digest.hexdigest()[:16] if files else ""


def guide_fingerprint(model: str | Path, *controls: str) -> str:
    """Fingerprints of the classifiers that a model brings for some controls; empty where it brings none."""
    from tta_diffusion.control.bundled import PANEL, WORDS
    from tta_diffusion.pipeline import CONTROLS

    others = (WORDS, f"{PANEL}/*/*.safetensors", f"{PANEL}/*/{WORDS}")
    found = [fingerprint(Path(model) / CONTROLS / control, *others) for control in controls if model and control]
    return " ".join(filter(None, found))


def check_same(directory: Path, identity: Identity, prompts: tuple[str, ...]) -> None:
    """A directory is continued with what it was begun with, or not at all."""
    if not (directory / RECORD).is_file():
        return
    record = read_record(directory)
    old, new = comparable(record.identity), comparable(identity)
    for key in new:
        unknown = key in ("classifier", "content") and not old.get(key)  # records did not always name them
        if old.get(key) != new[key] and not unknown:
            before, after = difference(old.get(key), new[key])
            raise ValueError(
                f"'{directory}' was begun with another {key} ({before}, now {after}): choose another --out"
            )
    if any(before != now for before, now in zip(record.prompts, prompts, strict=False)):
        raise ValueError(f"'{directory}' was begun with other prompts: choose another --out")


def check_defaults(directory: Path, record: Record) -> None:
    """What a model does where the settings say nothing may change under the same weights."""
    if not (directory / RECORD).is_file():
        return
    stored = json.loads(json.dumps(record.about.get("defaults"), default=str))
    found = [
        {k: v for k, v in own.items() if k not in record.used and k not in WORLDLY}
        for own in (read_record(directory).about.get("defaults"), stored)
        if own is not None  # records did not always name them, nor does every method
    ]
    if len(found) == 2 and found[0] != found[1]:
        before, after = difference(*found)
        raise ValueError(
            f"'{directory}' was begun with other defaults of the model ({before}, now {after}): choose another --out, "
            "or set them as they were with --set"
        )


def difference(old: Any, new: Any) -> tuple[str, str]:
    """What two values of a record differ in, in a few words each."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [k for k in {**old, **new} if old.get(k) != new.get(k)]
        old, new = {k: old.get(k) for k in keys}, {k: new.get(k) for k in keys}
        return ", ".join(f"{k} {_short(v)}" for k, v in old.items()), ", ".join(_short(v) for v in new.values())
    return _short(old), _short(new)


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def write_record(directory: Path, record: Record) -> None:
    replace_text(directory / RECORD, json.dumps(asdict(record), indent=1, ensure_ascii=False, default=str) + "\n")


def read_record(directory: Path) -> Record:
    path = directory / RECORD
    if not path.is_file():
        raise ValueError(f"'{directory}' holds no benchmark run: there is no {RECORD} in it")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(f"'{path}' is not JSON") from None
    return build(Record, raw)
