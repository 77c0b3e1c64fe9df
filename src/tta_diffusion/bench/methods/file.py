"""Texts that somebody else wrote, from a .jsonl or .parquet file, so that a peer is judged by the same scorers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tta_diffusion.bench.methods.base import METHODS, Method, MethodOptions
from tta_diffusion.bench.plan import Plan
from tta_diffusion.bench.task import Task, plain, read_rows


class FileMethod(Method):
    """Sample k of a prompt under a label is the k-th row with both."""

    batch_size = 10_000

    def __init__(self, texts: dict[tuple[str, str], list[str]], plan: Plan, path: Path) -> None:
        self._texts, self._plan, self._path = texts, plan, path

    def prepare(
        self, prompts: Sequence[str], controls: Sequence[str | None], settings: dict[str, Any]
    ) -> dict[str, Any]:
        for label in self._plan.labels:
            for prompt in prompts:
                found = len(self._texts.get((prompt, label), []))
                if found < self._plan.samples:
                    raise ValueError(
                        f"'{self._path}' holds {found} texts for the prompt '{prompt}' and the label '{label}', "
                        f"{self._plan.samples} are wanted: give --limit, or another file"
                    )
        return {}  # they were written with settings that we do not know

    def generate(
        self, prompts: Sequence[str], control: str | None, num_samples: int, seed: int, **settings: Any
    ) -> list[str]:
        label, first = self._plan.place(seed)
        return [text for prompt in prompts for text in self._texts[prompt, label][first : first + num_samples]]


@METHODS.register("file")
def make(options: MethodOptions) -> Method:
    if options.file is None:
        raise ValueError("the method 'file' reads texts from a file: add --file FILE")
    texts = arrange(read_rows(options.file), options.task, options.plan.prompts, options.file)
    return FileMethod(texts, options.plan, options.file)


def arrange(
    rows: list[dict[str, Any]], task: Task, prompts: Sequence[str], path: Path
) -> dict[tuple[str, str], list[str]]:
    """Texts by prompt and label. Rows of other tasks and labels are left out.

    A row has `text`, and `label` or `target` (where the task has several labels). Without `prompt`, its text must
    begin with one of the task's; a text that does not begin with its prompt is what follows it, unless the prompt is a
    source or a target, which is no part of any text.
    """
    texts: dict[tuple[str, str], list[str]] = {}
    longest_first = sorted(prompts, key=len, reverse=True)
    for row in rows:
        if not isinstance(row.get("text"), str):
            raise ValueError(f"a row of '{path}' has no 'text' (it has: {', '.join(map(str, row))})")
        if "task" in row and plain(str(row["task"])) != plain(task.name):
            continue
        text = row["text"]
        label = _label(row, task, path)
        prompt = row.get("prompt") or next((p for p in longest_first if text.startswith(p)), None)
        if label is None or prompt is None:
            continue
        texts.setdefault((prompt, label), []).append(_joined(task.beginning(prompt), text))
    return texts


def _label(row: dict[str, Any], task: Task, path: Path) -> str | None:
    name = row.get("label", row.get("target"))
    if name is None and len(task.labels) == 1:
        return task.labels[0]
    if name is None:
        raise ValueError(f"a row of '{path}' has no 'label', and '{task.name}' has several ({', '.join(task.labels)})")
    return task.label(str(name))


def _joined(prompt: str, text: str) -> str:
    if not text.strip() or text.startswith(prompt):
        return text
    return prompt + text if text[0].isspace() or not text[0].isalnum() else f"{prompt} {text}"
