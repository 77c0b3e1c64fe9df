"""What there is to choose from, for the page and for whoever asks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tta_diffusion.allocation import POLICIES
from tta_diffusion.control.parse import HARD_CONTROLS
from tta_diffusion.data.smiles import writes_smiles
from tta_diffusion.serve.limits import Limits
from tta_diffusion.serve.models import Served


def options(models: dict[str, Served], limits: Limits, policies: Mapping[str, str]) -> dict[str, Any]:
    """Plain values for JSON; the first model is the default. `policies` has a line about those it knows."""
    return {
        "models": [_model(served, limits) for served in models.values()],
        "policies": [{"name": name, "about": policies.get(name, "")} for name in POLICIES],
        "constraints": list(HARD_CONTROLS),
        "limits": dataclasses.asdict(limits),
    }


def _model(served: Served, limits: Limits) -> dict[str, Any]:
    molecules = writes_smiles(served.pipeline.tokenizer)
    own, defaults = served.pipeline.denoiser.config, served.pipeline.defaults
    return {
        "name": served.name,
        "regime": own.regime,
        "length": own.length,
        "longest": own.length if molecules or served.pipeline.from_source else limits.tokens,
        "molecules": molecules,
        "feedback": getattr(own, "self_conditioning", "none") != "none",
        "controls": served.labels,
        "defaults": {
            name: getattr(defaults, name)
            for name in ("steps", "strength", "feedback", "temperature", "top_p", "revise")
        }
        | {"allocation": str(defaults.allocation)},
    }
