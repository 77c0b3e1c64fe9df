"""`python -m tta_diffusion.training.classifier CONFIG.yaml [key=value ...]`: training where the command line is not
installed. The same as `tta train-classifier train`."""

from __future__ import annotations

from tta_diffusion.common.command import run_command
from tta_diffusion.common.configuration import build, load_yaml, override
from tta_diffusion.training.classifier.config import ClassifierConfig
from tta_diffusion.training.classifier.train import train


def main(arguments: list[str]) -> None:
    if not arguments:
        raise ValueError("name a recipe: python -m tta_diffusion.training.classifier CONFIG.yaml [key=value ...]")
    config = build(ClassifierConfig, override(load_yaml(arguments[0]), arguments[1:]))
    report = train(config)
    for task, result in report["tasks"].items():
        clean = result["after"]["clean"]
        print(f"{task}: accuracy {clean['accuracy']:.3f}, NLL {clean['nll']:.3f}, ECE {clean['ece']:.3f}")
    print(config.out)


if __name__ == "__main__":
    run_command(main)
