"""`python -m tta_diffusion.analysis`: the same as `tta analyze`, where the command line is not installed."""

from __future__ import annotations

from tta_diffusion.analysis.run import analyze
from tta_diffusion.common.command import run_command

if __name__ == "__main__":
    run_command(analyze, (ValueError, OSError))
