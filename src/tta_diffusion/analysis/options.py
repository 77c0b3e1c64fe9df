"""The arguments of `tta analyze`, with argparse alone: the machine with the GPU may have no command-line package."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from tta_diffusion.analysis.collect import POLICIES, Collection
from tta_diffusion.common.configuration import override

EPILOG = """\
examples:
  tta analyze --model DIR --out results/analysis
  tta analyze --collect --model DIR --out OUT                 where the GPU is: traces and texts
  tta analyze --draw --out OUT                                where the scorer is: figures, CSV, summary.md
  tta analyze --collect --model DIR --stage 5000=DIR --stage 50=DIR --stage-steps 20,50,200 --sweep allocation
  tta analyze --draw --out OUT --sweep runs/bench/smoothing   with a sweep of `tta bench sweep`

A command that was stopped goes on when it is given again."""


class Help(argparse.RawDescriptionHelpFormatter):
    """Written as the other commands of `tta` write theirs."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, "Usage: " if prefix is None else prefix)


class Parser(argparse.ArgumentParser):
    """Mistakes are errors of the caller's kind, not an exit."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def make_parser(prog: str = "python -m tta_diffusion.analysis") -> argparse.ArgumentParser:
    parser = Parser(
        prog=prog,
        description="Run the paper's experiment on fluctuation and update-forgetting, and draw its figures.",
        epilog=EPILOG,
        formatter_class=Help,
    )
    add = parser.add_argument
    add("--collect", action="store_true", help="only write the trajectories")
    add("--draw", action="store_true", help="only draw what was collected")
    add("--out", type=Path, default=Path("runs") / "analysis", metavar="DIR", help="where all of it goes (%(default)s)")
    group = parser.add_argument_group("trajectories")
    add = group.add_argument
    add("--model", metavar="DIR", help="model directory (default: the one of the package)")
    add("--policies", type=_words, default=POLICIES, metavar="LIST", help=f"allocation policies ({','.join(POLICIES)})")
    add("--texts", type=int, default=150, metavar="N", help="texts for each policy, over all prompts and labels (150)")
    add("--steps", type=int, default=1000, metavar="T", help="denoising steps (1000)")
    add("--batch-size", type=int, default=150, metavar="N", help="texts written at once, of one label (150)")
    add("--seed", type=int, default=0, metavar="N", help="seed of the first text (0)")
    add("--task", default="sentiment", metavar="NAME", help="whose prompts, labels and settings to take (%(default)s)")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="any other setting, like strength=200")
    add("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or cuda:1")
    add("--dtype", metavar="NAME", help="float32, bfloat16 or float16")
    group = parser.add_argument_group("sweeps")
    add = group.add_argument
    add("--stage", action="append", default=[], metavar="NAME=DIR", help="a training stage, repeatable: step reduction")
    add("--stage-steps", type=_numbers, default=(), metavar="LIST", help="inference steps of the stages (the paper's)")
    add("--sweep", action="append", default=[], metavar="NAME", help="allocation, smoothing, or a directory to draw")
    add("--sweep-samples", type=int, metavar="N", help="texts of each prompt and label (as the sweep says)")
    group = parser.add_argument_group("figures")
    add = group.add_argument
    add("--scorer", default="", metavar="DIR", help="causal model for perplexity (default: Gemma-3-270M)")
    add("--classifier", action="append", default=[], metavar="DIR", help="evaluation classifier, for sweeps' accuracy")
    add("--every", type=int, metavar="N", help="BLEU, BERTScore and cosine at every N-th step (a hundredth of all)")
    add("--drafts", type=int, default=12, metavar="N", help="timesteps at which drafts are scored too; 0: none (12)")
    add("--text", type=int, default=0, metavar="I", help="which text the trajectory map shows (0)")
    return parser


def collection(options: argparse.Namespace) -> Collection:
    own = {field.name: getattr(options, field.name) for field in fields(Collection) if field.name in options}
    return Collection(**own, settings=more_settings(options))


def more_settings(options: argparse.Namespace) -> dict[str, Any]:
    return override({}, options.set)


def stages(options: argparse.Namespace) -> dict[str, str]:
    """Name -> directory, in the order given."""
    found = {}
    for text in options.stage:
        name, equals, directory = text.partition("=")
        if not equals or not name or not directory:
            raise ValueError(f"'{text}' is not a stage: write --stage NAME=DIR, like --stage 50=runs/reduced-50/model")
        found[name] = directory
    return found


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in _words(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"whole numbers with commas between them, got '{text}'") from None
