"""Training steps of the baselines replayed from a CUDA graph, beside the same steps launched op by op.

    python benchmarks/recorded_fit.py [--steps 40] [--methods gedi,ld4lg]

A base of the shapes of SmolLM2-135M with random weights learns random rows twice from the same seeds. Printed are
milliseconds a step behind the first ones, and how far apart the losses are.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tta_diffusion.training.fit as fitting
from tta_diffusion.assets import shipped_model
from tta_diffusion.baselines.causal import CausalLM
from tta_diffusion.baselines.recipes import load_recipe
from tta_diffusion.baselines.registry import find_trainer
from tta_diffusion.common.configuration import build
from tta_diffusion.common.devices import find_device
from tta_diffusion.data.tokenizer import load_tokenizer
from tta_diffusion.training.classifier.store import Split

METHODS = "gedi,dexperts,air-decoding,lm-steer,pplm,ld4lg"
ROWS, LENGTH, VOCABULARY, FIRST = 2048, 64, 49152, 10  # FIRST: steps that are not timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--batch", type=int, default=0, help="0: the recipe's")
    parser.add_argument("--layers", type=int, default=30)
    given = parser.parse_args()
    device = find_device("auto")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=576, intermediate_size=1536, num_hidden_layers=given.layers,
        num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    base = CausalLM(LlamaForCausalLM(config).to(device).eval().requires_grad_(False), load_tokenizer(shipped_model()))
    print(f"| method | op by op, ms a step | recorded | largest difference of a loss |  {device}\n|---|---:|---:|---:|")
    for method in given.methods.split(","):
        taken = [measure(base, method, given.steps, given.batch, graphs) for graphs in (False, True)]
        apart = max(abs(a - b) for a, b in zip(taken[0][1], taken[1][1], strict=True))
        print(f"| {method} | {taken[0][0]:.1f} | {taken[1][0]:.1f} | {apart:.4f} |", flush=True)


def measure(base: CausalLM, method: str, steps: int, batch: int, graphs: bool) -> tuple[float, list[float]]:
    """Milliseconds a step, of all networks that the method trains, and the losses."""
    trainer = find_trainer(method)
    changed = {"steps": steps, "graphs": graphs, "warmup": 5} | ({"batch": batch} if batch else {})
    if method == "ld4lg":
        changed |= {"denoiser_steps": steps} | ({"denoiser_batch": batch} if batch else {})
    if method == "pplm":
        changed |= {"validation_rows": 4, "words": 4}
    settings = build(trainer.settings, load_recipe(method).train | changed)
    clock, losses = Clock(base.device), []
    plain = fitting.learning_rate
    fitting.learning_rate = lambda step, *rest: clock.tick(step) or plain(step, *rest)  # type: ignore[assignment]
    mean = fitting.fmean
    fitting.fmean = lambda values: losses.extend(values) or mean(values)  # type: ignore[assignment]
    try:
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as directory:
            trainer.train(base, store(), settings, Path(directory))  # type: ignore[arg-type]
    finally:
        fitting.learning_rate, fitting.fmean = plain, mean
    return 1000 * clock.mean(), losses


class Clock:
    """When each step began."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.spans, self._began = device, [], 0.0

    def tick(self, step: int) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        if step > FIRST:
            self.spans.append(now - self._began)
        self._began = now

    def mean(self) -> float:
        return sum(self.spans) / len(self.spans)


def store() -> SimpleNamespace:
    """Rows of two labels, random tokens and lengths."""
    drawn = np.random.default_rng(0)
    ids, lengths = drawn.integers(5, 4000, (ROWS, LENGTH)), drawn.integers(20, LENGTH + 1, ROWS)
    split = Split(ids, lengths, np.arange(ROWS) % 2, np.zeros(ROWS, dtype=np.int64))
    return SimpleNamespace(
        train=split, validation=split, labels=("negative", "positive"), vocab_size=VOCABULARY,
        special={"pad": 0, "eos": 2}, meta={"robust": False, "pairs": False},
    )  # fmt: skip


if __name__ == "__main__":
    main()
