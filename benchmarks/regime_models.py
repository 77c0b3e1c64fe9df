"""Model directories of random weights, one a regime, of the size of the package's model, for `tta bench speed --model`.

    python benchmarks/regime_models.py --out runs/random
    tta bench speed --model runs/random/masked --attribute sentiment=positive --set guidance_form=first-order --batch 4

They have the tokenizer and the classifiers of the package's model. What they write is noise.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tta_diffusion.bench.methods_untrained import untrained_denoiser


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/random"))
    out = parser.parse_args().out
    for regime in ("masked", "uniform", "gaussian"):
        print(untrained_denoiser(regime, out / regime, self_conditioning="none", time_conditioning="token"))


if __name__ == "__main__":
    main()
