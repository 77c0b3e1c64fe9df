"""Perplexities of texts, each scored once: what was scored before is read from a file beside the traces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tta_diffusion.analysis.confidence_bands import Array
from tta_diffusion.bench.model_scorers import model_config
from tta_diffusion.bench.record import fingerprint
from tta_diffusion.bench.scorers import DEFAULT, NONE
from tta_diffusion.common.atomic import append_lines, drop_half_line, read_lines
from tta_diffusion.common.progress import Progress

MAX_TOKENS = 64
AT_A_TIME = 64  # texts between two writes


def scorer_directory(name: str) -> str:
    """A directory or hub name as it is; nothing for `none`; else the packaged scorer."""
    if name == NONE:
        return ""
    if name and name != DEFAULT:
        model_config(name, "the perplexity scorer")
        return name
    from tta_diffusion.evaluation.scorer_models import default_scorer_directory

    try:
        return str(default_scorer_directory())
    except ModuleNotFoundError as error:
        raise ValueError(f"{error}; or name another scorer with --scorer DIR, or --scorer none") from error


class Perplexities:
    """exp(nll / tokens) of whole texts under one scorer, see `evaluation.perplexity`."""

    def __init__(self, directory: str, file: Path, device: str = "cpu") -> None:
        self.directory, self.device, self._file = directory, device, file
        self._model: Any = None
        drop_half_line(file)
        rows = read_lines(file)
        self._known = {row["text"]: float(row["perplexity"]) for row in rows if row["scorer"] == self.identity}

    @property
    def name(self) -> str:
        return Path(self.directory).name

    @cached_property
    def identity(self) -> str:
        """The name with the weights behind it, which may be others in another directory of that name."""
        return f"{self.name} {fingerprint(self.directory)}".strip()

    def of(self, texts: Sequence[str]) -> Array:
        """One number a text; infinity for an empty one."""
        missing = [t for t in dict.fromkeys(texts) if t.strip() and t not in self._known]
        with Progress(f"perplexity ({self.name})", len(missing)) as bar:
            for low in range(0, len(missing), AT_A_TIME):
                part = missing[low : low + AT_A_TIME]
                values = self._score(part)
                found = dict(zip(part, values, strict=True))
                append_lines(
                    self._file, [{"scorer": self.identity, "text": t, "perplexity": v} for t, v in found.items()]
                )
                self._known |= found
                bar.advance(len(part))
        return np.array([self._known.get(text, np.inf) for text in texts], dtype=np.float64)

    def _score(self, texts: Sequence[str]) -> list[float]:
        from tta_diffusion.evaluation.perplexity import CausalScorer, perplexity_per_text

        if self._model is None:
            self._model = CausalScorer.from_pretrained(self.directory, self.device)
        return perplexity_per_text(self._model.score(texts, max_tokens=MAX_TOKENS))
