"""Model directories of random weights, one a regime, of the size of the package's model, for `tta bench speed --model`.

    python benchmarks/regime_models.py --out runs/random
    tta bench speed --model runs/random/masked --attribute sentiment=positive --set guidance_form=first-order --batch 4

They have the tokenizer and the sentiment classifier of the package's model. What they write is noise.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch

from tta_diffusion.assets import shipped_model
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.embedding_model import EmbeddingDenoiser
from tta_diffusion.denoiser.token_model import TokenDenoiser
from tta_diffusion.pipeline import load_tokenizer


def denoiser(regime: str, **common: Any) -> TokenDenoiser | EmbeddingDenoiser:
    if regime == "gaussian":
        return EmbeddingDenoiser(DenoiserConfig(**common, regime=regime, schedule="sqrt", embedding_width=128))
    mask = load_tokenizer(shipped_model()).mask_token_id if regime == "masked" else None
    return TokenDenoiser(DenoiserConfig(**common, regime=regime, schedule="linear", mask_token=mask))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/random"))
    out = parser.parse_args().out
    shipped = shipped_model()
    own = json.loads((shipped / "denoiser.json").read_text(encoding="utf-8"))
    for regime in ("masked", "uniform", "gaussian"):
        torch.manual_seed(0)
        made = denoiser(
            regime,
            backbone=own["backbone"],
            length=own["length"],
            self_conditioning="none",
            time_conditioning="token",
        )
        made.save_pretrained(out / regime)
        for file in shipped.glob("tokenizer*"):
            shutil.copy(file, out / regime)
        shutil.copytree(shipped / "controls" / "sentiment", out / regime / "controls" / "sentiment", dirs_exist_ok=True)
        print(out / regime)


if __name__ == "__main__":
    main()
