"""`tta analyze`: collect and draw, each by itself or one after the other."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tta_diffusion.analysis.collect import collect
from tta_diffusion.analysis.options import collection, make_parser, more_settings, stages
from tta_diffusion.analysis.sweeps import SWEEPS, collect_sweep, stages_sweep, sweep_request
from tta_diffusion.bench.sweep import Sweep, load_sweep


def analyze(arguments: list[str], prog: str = "python -m tta_diffusion.analysis") -> None:
    options = make_parser(prog).parse_args(arguments)
    both = options.collect == options.draw
    if options.collect or both:
        sweeps = _sweeps(options)  # what is wrong with them should not show after the trajectories
        for path in [*collect(collection(options)), *(_collect_sweep(sweep, options) for sweep in sweeps)]:
            print(path)
    if options.draw or both:
        from tta_diffusion.analysis.draw import draw

        print(draw(options))


def _sweeps(options: argparse.Namespace) -> list[Sweep]:
    """The stages and the named sweeps; a directory is only read, by the other half."""
    found = [stages_sweep(options.stage_steps)] if stages(options) else []
    return found + [load_sweep(name) for name in options.sweep if not Path(name).is_dir()]


def _collect_sweep(sweep: Sweep, options: argparse.Namespace) -> Path:
    print(f"sweep {sweep.name}", file=sys.stderr, flush=True)
    settings = more_settings(options) | {"batch_size": options.batch_size}
    shared = {"seed": options.seed, "limit": options.sweep_samples, "device": options.device, "dtype": options.dtype}
    base = sweep_request(sweep, options.model, settings, **shared)
    return collect_sweep(sweep, base, stages(options), options.out / SWEEPS / sweep.name)
