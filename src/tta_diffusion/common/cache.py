"""Where what can be made again is kept."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_directory() -> Path:
    """`$TTA_CACHE`, or `~/.cache/tta-diffusion`; under the system's temporary files for a user without a home."""
    if chosen := os.environ.get("TTA_CACHE"):
        return Path(chosen)
    try:
        home = Path.home()
    except RuntimeError:
        return _temporary()
    return home / ".cache" / "tta-diffusion" if os.access(home, os.W_OK) else _temporary()


def _temporary() -> Path:
    return Path(tempfile.gettempdir()) / f"tta-diffusion-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


def private_directory(path: Path) -> Path:
    """The directory, which its owner alone may write to; one that somebody else owns is an OSError."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = path.stat()
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise OSError(f"'{path}' belongs to another user: remove it, or set TTA_CACHE to a directory of yours")
    if status.st_mode & 0o022:
        path.chmod(status.st_mode & 0o755)
    return path


def is_private(path: Path) -> bool:
    """Whether this user owns a file and nobody else may write to it: what is loaded from it runs."""
    status = path.stat()
    return not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & 0o022)
