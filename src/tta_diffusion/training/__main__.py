"""`python -m tta_diffusion.training CONFIG.yaml [key=value ...]`: training where the command line is not installed.

The same as `tta train`; also for launchers: `torchrun --nproc-per-node 8 -m tta_diffusion.training ...`.
"""

from __future__ import annotations

import os

from tta_diffusion.common.command import run_command
from tta_diffusion.common.configuration import build, load_yaml, override
from tta_diffusion.training.config import TrainConfig
from tta_diffusion.training.distributed import teardown
from tta_diffusion.training.stages import train_all


def main(arguments: list[str]) -> None:
    if not arguments:
        raise ValueError("name a recipe: python -m tta_diffusion.training configs/train/base.yaml [key=value ...]")
    config = build(TrainConfig, override(load_yaml(arguments[0]), arguments[1:]))
    try:
        model = train_all(config)
        if os.environ.get("RANK", "0") == "0":
            print(model)
    finally:
        teardown()


if __name__ == "__main__":
    run_command(main, (ValueError, OSError))
