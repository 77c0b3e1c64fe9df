"""The Triton kernels: in Triton's interpreter, which runs them on a CPU, and where Triton does not work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tta_diffusion.fast import kernels

pytest.importorskip("triton", reason="the package triton is not installed")


def test_in_the_interpreter():
    """In a process of its own: the interpreter must be chosen before triton is imported."""
    cases = Path(__file__).parents[1] / "interpreted_kernels.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cases)]
    run = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_where_triton_fails_torch_goes_on():
    with pytest.warns(UserWarning, match="Triton kernels are off"):
        assert not kernels.works_on(torch.device("cpu"))
