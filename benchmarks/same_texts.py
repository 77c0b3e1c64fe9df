"""Twelve commands whose texts must not change when the code is only moved.

    python benchmarks/same_texts.py write before      # with the version before
    python benchmarks/same_texts.py write after       # with the version after
    python benchmarks/same_texts.py compare before after

They cover policies, controls, constraints, rewriting, candidates and both ways to read predictions, on the shipped
model, on a CPU, from fixed seeds. Texts of two machines may differ: products are rounded differently.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

COMMANDS = {
    "01-adaptive": ["generate", "The pizza", "--control", "sentiment=negative", "--allocation", "adaptive:0.6", "-n", "3"],
    "02-constant": ["generate", "The lake", "The book", "--control", "sentiment=positive", "--allocation", "constant",
                    "--strength", "2000", "--grid", "uniform"],
    "03-linear": ["generate", "The road", "Once upon a time", "--allocation", "linear", "-n", "2"],
    "04-random": ["generate", "The issue focused on", "--control", "topic=business", "--allocation", "random", "-n", "2"],
    "05-confidence": ["generate", "The city", "--control", "toxicity=non-toxic", "--allocation", "confidence:0.5+monotone",
                      "--grid", "decided", "-n", "2"],
    "06-constraints": ["generate", "The movie", "--control", "sentiment=positive", "--control", "length=24", "--control",
                       "keywords=boat,morning", "--allocation", "budgeted:0.8", "-n", "2"],
    "07-infill": ["generate", "", "--control", "infill=The pizza [4] but the service [6].", "--allocation", "entropy:0.4",
                  "-n", "2"],
    "08-rewrite": ["rewrite", "The food was terrible.", "--control", "sentiment=positive", "--time", "0.4", "-n", "2"],
    "09-rewrite-keep": ["rewrite", "The food was terrible and we left early.", "--control", "sentiment=positive",
                        "--keep", "The food", "--time", "0.5", "--allocation", "constant", "-n", "2"],
    "10-repetition": ["generate", "The horse", "--control", "sentiment=negative", "--variety", "1", "--stutter", "2",
                      "-n", "3", "--allocation", "top-k:5+warmup:0.2"],
    "11-candidates": ["generate", "The painting", "--control", "sentiment=positive@0.5", "--candidates", "2", "--top-p",
                      "0.99", "--penalty", "0.02", "--guidance-stop", "0.2", "--strength-schedule", "falling"],
    "12-whole": ["generate", "The country", "--control", "sentiment=negative", "--support", "0", "--engine", "dense",
                 "--time-conditioning", "token", "--temperature", "0.8", "--top-k", "50", "--snap"],
}  # fmt: skip
SHARED = ["--json", "--seed", "7", "--steps", "20", "--device", "cpu"]


def write(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, words in COMMANDS.items():
        done = subprocess.run(
            [sys.executable, "-m", "tta_diffusion.cli.main", *words, *SHARED],
            capture_output=True,
            text=True,
            check=True,
        )
        (directory / f"{name}.jsonl").write_text(done.stdout)
        print(f"{name}: {len(done.stdout.splitlines())} texts", flush=True)


def compare(before: Path, after: Path) -> int:
    """The number of commands whose output differs."""
    different = 0
    for name in COMMANDS:
        old, new = ((folder / f"{name}.jsonl").read_text() for folder in (before, after))
        different += old != new
        print(f"{name}: {'the same' if old == new else 'DIFFERENT'}")
        if old != new:
            print(f"  before: {old}  after:  {new}")
    return different


if __name__ == "__main__":
    verb, *folders = sys.argv[1:]
    sys.exit(write(Path(folders[0])) if verb == "write" else compare(*map(Path, folders)))
