"""Loops in C for a CPU, where one torch operation after the other waits for memory; elsewhere torch does the same.

They are compiled at first use with the machine's own compiler (or `$CC`), which takes a second, and kept under
`cache_directory()`, from where only a library is loaded that this user owns and nobody else can write. Without a
compiler, or with `TTA_NATIVE=0`, everything runs on torch.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import warnings
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from tta_diffusion.common.cache import cache_directory, is_private, private_directory

ENABLED = os.environ.get("TTA_NATIVE") != "0"  # False: torch everywhere, for comparisons
SOURCE = Path(__file__).with_name("rows.c")
DTYPES = (torch.float32, torch.bfloat16)
_COMPILERS = ("cc", "gcc", "clang")  # unless CC names one
_FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
_PROCESSOR = (("-march=native",), ("-mcpu=native",), ())  # compilers know one of these, or none
_SECONDS = 60


def available(logits: Tensor) -> bool:
    plain = logits.device.type == "cpu" and logits.dtype in DTYPES and logits.stride(-1) == 1
    return ENABLED and plain and library() is not None


@lru_cache
def library() -> ctypes.CDLL | None:
    """The compiled loops; None where that is not possible."""
    compiler = find_compiler(os.environ.get("CC"))
    if compiler is None or os.name != "posix":
        return None
    try:
        return ctypes.CDLL(str(compiled(compiler, cache_directory() / "native")))
    except (OSError, subprocess.SubprocessError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        warnings.warn(f"loops in C are off, sampling is slower: {first}", stacklevel=2)
        return None


def find_compiler(named: str | None) -> tuple[str, ...] | None:
    """The words that call it, such as `ccache gcc`; None where there is none."""
    for words in [shlex.split(named)] if named else [[name] for name in _COMPILERS]:
        if words and (path := shutil.which(words[0])):
            return (path, *words[1:])
    return None


def compiled(compiler: tuple[str, ...], directory: Path) -> Path:
    """The library of this source for this processor, which is made unless it is there.

    Its name holds the hash of the source, and that of all else it depends on.
    """
    source = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    others = repr((compiler, _FLAGS, platform.machine(), _abilities()))
    private_directory(directory.parent)
    found = private_directory(directory) / f"rows-{source}-{hashlib.sha256(others.encode()).hexdigest()[:16]}.so"
    if not found.exists() or not is_private(found):
        with tempfile.TemporaryDirectory(dir=directory) as temporary:  # others may be compiling, too
            made = Path(temporary) / found.name
            _compile(compiler, made)
            made.chmod(0o700)
            os.replace(made, found)
    return found


def _compile(compiler: tuple[str, ...], out: Path) -> None:
    for processor in _PROCESSOR:
        command = [*compiler, *_FLAGS, *processor, "-o", str(out), str(SOURCE), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if done.returncode == 0:
            return
    raise OSError(f"{Path(compiler[0]).name} cannot compile {SOURCE.name}: {done.stderr.strip()}")


def _abilities() -> str:
    """What this processor can do, as the system names it: a home directory may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
