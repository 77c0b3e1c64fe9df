"""Whether a file can be written, asked before the work that it is to hold."""

from __future__ import annotations

import os
from pathlib import Path


def check_writable(path: Path) -> None:
    """Fails before the work, not after it."""
    if path.is_dir():
        raise ValueError(f"'{path}' is a directory: name a file")
    if not path.parent.is_dir():
        raise ValueError(f"'{path}' cannot be written: the directory '{path.parent}' does not exist")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"'{path}' cannot be written: permission denied")
