"""`python -m tta_diffusion.analysis`: the same as `tta analyze`, where the command line is not installed."""

from __future__ import annotations

import sys

from tta_diffusion.analysis.run import analyze

if __name__ == "__main__":
    try:
        analyze(sys.argv[1:])
    except (ValueError, OSError) as error:
        sys.exit(f"Error: {error}")
