"""A benchmark task: prompts, labels, how many texts of each, and settings that it needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tta_diffusion.common.atomic import read_lines
from tta_diffusion.common.configuration import build, load_yaml
from tta_diffusion.common.registry import closest
from tta_diffusion.data.openings import Openings
from tta_diffusion.data.targets import AND, Targets

METRICS = ("accuracy", "perplexity", "diversity", "toxicity", "c2st", "molecules", "lexical", "reference", "coherence")
SHIPPED = Path(__file__).parent / "tasks"
LOCAL = Path("configs") / "tasks"


@dataclass(frozen=True)
class Task:
    """Every prompt is continued `samples` times under `control=label`, for each label.

    With `targets`, texts are written from nothing: a target stands in the place of a prompt, wherever texts are counted
    and named, and is asked for beside `control=label`.
    """

    name: str
    labels: tuple[str, ...]
    samples: int
    control: str = ""  # empty: nothing steers, and the one label is only a name
    prompts: tuple[str, ...] = ()
    prompts_file: str = ""  # .parquet or .jsonl under the data directory, in place of `prompts`
    prompt_field: str = "prompt"
    reference_field: str = ""  # of the file: what a text should say; the prompt is a source, and no part of the text
    openings: Openings | None = None  # of texts that no model has read, under the data directory, in place of `prompts`
    targets: Targets | None = None  # other controls for each text, under the data directory, in place of `prompts`
    tagger: str = ""  # spaCy model that finds parts of speech in the texts; empty: the standard one
    length: int | None = None  # tokens of a text, prompt included; a model that was trained for fewer writes fewer
    settings: dict[str, Any] = field(default_factory=dict)  # of the method, such as steps and strength
    metrics: tuple[str, ...] = ("accuracy", "perplexity", "diversity")
    score_tokens: int = 64  # of a text, seen by the perplexity scorer
    known: str = ""  # .parquet or .jsonl under the data directory: canonical SMILES of molecules that are not new
    known_field: str = "smiles"
    aliases: dict[str, str] = field(default_factory=dict)  # other names of the labels, in files and classifiers
    paper: str = ""  # which of the paper's tables stands beside the results
    description: str = ""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.prompts, self.prompts_file, self.openings, self.targets))) != 1:
            raise ValueError(f"task '{self.name}' needs one of 'prompts', 'prompts_file' and 'openings', or 'targets'")
        if "lexical" in self.metrics and self.targets is None:
            raise ValueError(f"task '{self.name}': 'lexical' measures how targets are met, so it needs 'targets'")
        compared = "reference" in self.metrics
        if bool(self.reference_field) != compared or (compared and not self.prompts_file):
            raise ValueError(
                f"task '{self.name}': the metric 'reference' and a 'reference_field' of a 'prompts_file' go together"
            )
        if "c2st" in self.metrics and self.openings is None:
            raise ValueError(f"task '{self.name}': 'c2st' compares with what people wrote, so it needs 'openings'")
        if not self.labels or len(set(self.labels)) < len(self.labels):
            raise ValueError(f"task '{self.name}' needs different labels, one at least, got {list(self.labels)}")
        for count in ("samples", "score_tokens"):
            if getattr(self, count) < 1:
                raise ValueError(f"task '{self.name}': '{count}' must be at least 1, got {getattr(self, count)}")
        for metric in self.metrics:
            if metric not in METRICS:
                raise ValueError(f"task '{self.name}': unknown metric '{metric}'.{closest(metric, list(METRICS))}")
        for alias, label in self.aliases.items():
            if label not in self.labels:
                raise ValueError(
                    f"task '{self.name}': the alias '{alias}' names '{label}', which is none of its labels"
                )

    def label(self, name: str) -> str | None:
        """The label that a file or a classifier calls `name`, whatever its case and punctuation; None for others."""
        known = {plain(label): label for label in self.labels}
        known |= {plain(alias): label for alias, label in self.aliases.items()}
        return known.get(plain(name))

    def control_for(self, label: str) -> str | None:
        return f"{self.control}={label}" if self.control else None

    def controls_for(self, label: str, prompt: str) -> str | None:
        """What is asked of the texts of a prompt, or of a target, under a label."""
        asked = (prompt if self.targets else None, self.control_for(label))
        return AND.join(filter(None, asked)) or None

    def opening(self, prompt: str) -> str:
        """What a method is given to write the texts of a prompt from: an opening or a source; nothing, if it is a
        target."""
        return "" if self.targets else prompt

    def beginning(self, prompt: str) -> str:
        """What the texts of a prompt begin with; nothing, if it is a source or a target."""
        return "" if self.reference_field else self.opening(prompt)


def plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def load_task(name_or_path: str) -> Task:
    """A task of the package, of ./configs/tasks, or a YAML file."""
    path = find_config(name_or_path, "task", SHIPPED, LOCAL)
    return build_task({"name": path.stem, **load_yaml(path)})


def build_task(raw: dict[str, Any]) -> Task:
    return build(Task, raw)


def find_config(name_or_path: str, kind: str, *folders: Path) -> Path:
    if name_or_path.endswith((".yaml", ".yml")):
        return Path(name_or_path)
    for folder in folders:
        if (file := folder / f"{name_or_path}.yaml").is_file():
            return file
    known = sorted({file.stem for folder in folders for file in folder.glob("*.yaml")})
    raise ValueError(f"Unknown {kind} '{name_or_path}'.{closest(name_or_path, known)} Or give the path of a YAML file.")


def read_prompts(task: Task, data_dir: Path | None) -> tuple[str, ...]:
    """The prompts of the task itself, or of its file."""
    if task.prompts:
        return task.prompts
    if data_dir is None:
        where = task.prompts_file or (task.targets.path if task.targets else "")
        where = where or ", ".join(task.openings.path if task.openings else ())
        raise ValueError(f"the prompts of '{task.name}' are read from '{where}': add --data-dir DIR")
    if task.openings:
        return tuple(opening.prompt for opening in task.openings.read(data_dir))
    if task.targets:
        return task.targets.read(data_dir)
    rows = read_rows(data_dir / task.prompts_file)
    found = tuple(str(row[task.prompt_field]) for row in rows if row.get(task.prompt_field) is not None)
    if not found:
        raise ValueError(f"'{data_dir / task.prompts_file}' holds no '{task.prompt_field}'")
    return found


def read_references(task: Task, data_dir: Path | None) -> tuple[tuple[str, ...], ...]:
    """What the text of each prompt is compared with, one text or several; nothing for tasks without references."""
    if not task.reference_field or data_dir is None:
        return ()
    rows = [row for row in read_rows(data_dir / task.prompts_file) if row.get(task.prompt_field) is not None]
    found = [row.get(task.reference_field) or "" for row in rows]
    references = tuple((one,) if isinstance(one, str) else tuple(map(str, one)) for one in found)
    for row, each in zip(rows, references, strict=True):
        if not any(one.strip() for one in each):
            raise ValueError(
                f"'{data_dir / task.prompts_file}' has no '{task.reference_field}' for '{row[task.prompt_field]}': "
                "leave the row out, or say what its text is compared with"
            )
    return references


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a .parquet or .jsonl file."""
    if not path.is_file():
        raise ValueError(f"there is no file '{path}'")
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return list(pq.read_table(path).to_pylist())
    return read_lines(path, ours=False)
