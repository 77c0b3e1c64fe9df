"""What a server is made of, in plain values: one process builds the application from it, or each of many replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tta_diffusion.serve.auth import Access
from tta_diffusion.serve.limits import Limits

if TYPE_CHECKING:
    from fastapi import FastAPI


@dataclass(frozen=True)
class Recipe:
    """Directories of models, the first of which is the default, and how they are served."""

    models: tuple[str, ...]
    device: str = "auto"
    dtype: str | None = None
    limits: Limits = Limits()
    access: Access = Access()
    batch_size: int = 8  # texts written at once, candidates counted
    policies: Mapping[str, str] = field(default_factory=dict)  # a line about each, for the page

    def application(self) -> FastAPI:
        """Loads the models, and puts the application around them."""
        from tta_diffusion.pipeline import load_pipeline
        from tta_diffusion.serve.app import create_app
        from tta_diffusion.serve.models import Served, names_of

        loaded = [load_pipeline(directory, self.device, self.dtype) for directory in self.models]
        models = {name: Served(name, pipe) for name, pipe in zip(names_of(self.models), loaded, strict=True)}
        return create_app(
            models, self.limits, self.access, max(self.batch_size, self.limits.candidates), dict(self.policies)
        )
