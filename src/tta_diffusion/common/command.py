"""Modules that are commands: `python -m tta_diffusion.MODULE`."""

from __future__ import annotations

import sys
from collections.abc import Callable


def run_command(main: Callable[[list[str]], None], errors: tuple[type[Exception], ...] = (ValueError,)) -> None:
    """Calls `main` with the arguments; a mistake of the user's is one line on standard error, not a traceback."""
    try:
        main(sys.argv[1:])
    except errors as error:
        sys.exit(f"Error: {error}")
