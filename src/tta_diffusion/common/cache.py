"""Where what can be made again is kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """`$TTA_CACHE`, or `~/.cache/tta-diffusion`."""
    chosen = os.environ.get("TTA_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "tta-diffusion"
