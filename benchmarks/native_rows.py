"""Rows of logits read and drawn from in C beside torch, on one CPU thread: milliseconds, and whether they agree.

python benchmarks/native_rows.py [--rows 488] [--vocab 50265] [--repeat 3]
"""

from __future__ import annotations

import argparse
import time

import torch

from tta_diffusion.fast import native
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens
from tta_diffusion.tokens.projection import ProjectionConfig, project
from tta_diffusion.tokens.top_logits import FreeRows, TopLogits, top_logits

LENGTH = 61  # of a text, all of it to be written
SPREAD = 1.5  # of the logits, beside a bias like Zipf's law: most nuclei are wide


def main() -> None:
    own = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own.add_argument("--rows", type=int, default=8 * LENGTH, help="a multiple of 61")
    own.add_argument("--vocab", type=int, default=50_265)
    own.add_argument("--repeat", type=int, default=3)
    words = own.parse_args()
    torch.set_num_threads(1)
    free = FreeRows.of(Canvas.blank(words.rows // LENGTH, LENGTH, SpecialTokens(pad=1, end=2, start=0, banned=(0, 3))))
    bias = -torch.arange(1, words.vocab + 1).float().log()
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(free.shape, dtype=torch.float64, generator=generator)
    for dtype in (torch.float32, torch.bfloat16):
        logits = (SPREAD * torch.randn(len(free.places), words.vocab, generator=generator)).to(dtype)
        tops: list[TopLogits] = []
        tokens = []
        for native.ENABLED in (False, True):
            copies = [logits.clone() for _ in range(words.repeat)]
            began = time.thread_time()
            for copy in copies:
                top = top_logits(copy, free, bias=bias)
            between = time.thread_time()
            for _ in copies:
                drawn = project(top, uniform, ProjectionConfig())
            ended = time.thread_time()
            reading, drawing = (seconds / words.repeat * 1e3 for seconds in (between - began, ended - between))
            print(f"{dtype}, {'C' if native.ENABLED else 'torch'}: reading {reading:.0f} ms, drawing {drawing:.0f} ms")
            tops.append(top)
            tokens.append(drawn)
        same = torch.equal(tops[0].ids, tops[1].ids) and torch.equal(tops[0].logits, tops[1].logits)
        apart = float((tops[0].rest - tops[1].rest).abs().max())
        equal = float((tokens[0] == tokens[1]).float().mean())
        print(f"  the same largest: {same}; log sum exp of the others apart by {apart:.1e}; equal tokens {equal:.1%}")


if __name__ == "__main__":
    main()
