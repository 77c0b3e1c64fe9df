"""Twelve commands whose texts must not change when the code is only moved.

    python benchmarks/same_texts.py write before      # with the version before
    python benchmarks/same_texts.py write after       # with the version after
    python benchmarks/same_texts.py compare before after

They cover policies, controls, constraints, rewriting, candidates and both ways to read predictions, on the shipped
model, on a CPU, from fixed seeds. Texts of two machines may differ: products are rounded differently.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

COMMANDS = """
generate "The pizza" --control sentiment=negative --allocation adaptive:0.6 -n 3
generate "The lake" "The book" --control sentiment=positive --allocation constant --strength 2000 --grid uniform
generate "The road" "Once upon a time" --allocation linear -n 2 --grid uniform --snap
generate "The issue focused on" --control topic=business --allocation random -n 2
generate "The city" --control toxicity=non-toxic --allocation confidence:0.5+monotone --grid decided -n 2
generate "The movie" --control sentiment=positive --control length=24 --control keywords=boat --allocation budgeted
generate "" --control "infill=The pizza [4] but the service [6]." --allocation entropy:0.4 -n 2
rewrite "The food was terrible." --control sentiment=positive --time 0.4 -n 2
rewrite "The food was terrible and we left." --control sentiment=positive --keep "The food" --time 0.5 -n 2
generate "The horse" --control sentiment=negative --variety 1 --stutter 2 -n 3 --allocation top-k:5+warmup:0.2
generate "The painting" --control sentiment=positive@0.5 --candidates 2 --top-p 0.99 --penalty 0.02 --guidance-stop 0.2
generate "The country" --control sentiment=negative --support 0 --engine dense --temperature 0.8 --top-k 50
""".strip().splitlines()
SHARED = ["--json", "--seed", "7", "--steps", "20", "--device", "cpu"]


def write(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for number, command in enumerate(COMMANDS, start=1):
        words = [sys.executable, "-m", "tta_diffusion.cli.main", *shlex.split(command), *SHARED]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        (directory / f"{number:02d}.jsonl").write_text(done.stdout)
        print(f"{number:02d}: {len(done.stdout.splitlines())} texts", flush=True)


def compare(before: Path, after: Path) -> int:
    """The number of commands whose output differs."""
    different = 0
    for number, command in enumerate(COMMANDS, start=1):
        old, new = ((folder / f"{number:02d}.jsonl").read_text() for folder in (before, after))
        different += old != new
        print(f"{number:02d} {'the same' if old == new else 'DIFFERENT'}: tta {command}")
        if old != new:
            print(f"  before: {old}  after:  {new}")
    return different


if __name__ == "__main__":
    verb, *folders = sys.argv[1:]
    sys.exit(write(Path(folders[0])) if verb == "write" else compare(*map(Path, folders)))
