"""What the user did wrong is one sentence on stderr and exit code 2; what the program did wrong is a traceback."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import typer

USER_ERROR, INTERRUPTED, BROKEN_PIPE = 2, 130, 1


def guard(command: Callable[[], Any]) -> int:
    """The exit code of a command; TTA_DEBUG=1 shows the tracebacks of user errors too."""
    try:
        result = command()
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return _hang_up()
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # typer's way to ask for help
            print(error.format_message(), file=sys.stderr)  # type: ignore[attr-defined]
            return USER_ERROR
        message = sentence(error)
        if message is None:
            raise
        if os.environ.get("TTA_DEBUG"):
            traceback.print_exc()
        print(f"Error: {message}", file=sys.stderr)
        return USER_ERROR
    return result if isinstance(result, int) else 0


def sentence(error: Exception) -> str | None:
    """One line for an error that the user can mend; None for a bug."""
    if hasattr(error, "format_message"):  # typer's own usage errors, whatever module its version keeps them in
        text = str(error.format_message())
        if type(error).__name__ == "NoSuchOption" and not getattr(error, "possibilities", None) and _takes_texts(error):
            text = f"{text.rstrip('.')}. A text that begins with - goes behind --: ... -- TEXT"
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: '{error.filename}'" if error.filename else error.strerror
    elif isinstance(error, ModuleNotFoundError):
        text = f"the package '{error.name}' is not installed"
    elif type(error).__name__ == "OutOfMemoryError":
        text = "out of GPU memory: lower --batch-size"
    elif isinstance(error, ValueError | OSError):
        text = str(error)
    else:
        return None
    return " ".join(text.split())


def _takes_texts(error: Any) -> bool:
    """Whether the command that was called has texts as arguments."""
    command = getattr(getattr(error, "ctx", None), "command", None)
    return any(param.name in ("prompts", "texts") for param in getattr(command, "params", ()))


def _hang_up() -> int:
    """The reader has left: nothing more can be written, not even by the interpreter's last flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE
