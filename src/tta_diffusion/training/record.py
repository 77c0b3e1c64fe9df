"""What the output directory says about a run: config, versions, data, revision, and the model's card."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tta_diffusion import __version__
from tta_diffusion.common.atomic import read_object
from tta_diffusion.data.store import TokenStore
from tta_diffusion.denoiser.network import NetworkDenoiser
from tta_diffusion.training.config import TrainConfig

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "accelerate")
RECORD = "run.json"
FREE = ("start", "sampling", "backbone")  # settings of the model that a run may change on its way; see `_backbone`


def versions() -> dict[str, str]:
    found = {"tta-diffusion": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def revision() -> str:
    """The git commit of the code, where it runs from a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def describe(config: TrainConfig, store: TokenStore, world_size: int) -> dict[str, Any]:
    return {
        "config": config.to_dict(),
        "versions": versions(),
        "revision": revision(),
        "data_fingerprint": store.meta["fingerprint"],
        "vocab_size": store.vocab_size,
        "processes": world_size,
    }


def check_same_data(saved: dict[str, Any], store: TokenStore) -> None:
    """A resumed run must go on with the corpus it began with."""
    if saved["vocab_size"] != store.vocab_size:
        raise ValueError(
            f"the run began with a vocabulary of {saved['vocab_size']} tokens, the corpus now has {store.vocab_size}: "
            "choose another output directory, or the corpus it began with"
        )
    if saved["data_fingerprint"] != store.meta["fingerprint"]:
        raise ValueError(
            "the corpus is not the one this run began with (another fingerprint): choose another output directory, or "
            "the corpus it began with"
        )


def check_same_model(out: Path, config: TrainConfig) -> None:
    """A run goes on with the model that it began with, or is finished for it: weights of the same shape may belong to
    another diffusion."""
    path = out / RECORD
    if not path.is_file():
        return
    saved, asked = read_object(path).get("config", {}).get("model", {}), asdict(config.model)
    pairs = {name: (saved.get(name, now), now) for name, now in asked.items() if name not in FREE}
    for name, (before, now) in {**pairs, **_backbone(saved.get("backbone"), asked["backbone"])}.items():
        if before != now:
            raise ValueError(
                f"'{out}' holds a run with model.{name}={before}, not {now}: choose another output directory, or "
                "delete it with --fresh --yes"
            )


def _backbone(saved: dict[str, Any] | None, asked: dict[str, Any] | None) -> dict[str, tuple[Any, Any]]:
    """What two backbones say under each name, where both are given: the shapes of weights do not tell their heads."""
    if not saved or not asked:
        return {}
    asked = json.loads(json.dumps(asked, default=str))  # as it was saved
    return {f"backbone.{name}": (saved.get(name), asked.get(name)) for name in sorted(saved.keys() | asked.keys())}


def write_record(out: Path, record: dict[str, Any]) -> None:
    (out / RECORD).write_text(json.dumps(record, indent=2, default=str) + "\n")


def model_card(
    config: TrainConfig, store: TokenStore, denoiser: NetworkDenoiser, step: int, result: dict[str, Any]
) -> str:
    """A short README for the weights."""
    millions = sum(p.numel() for p in denoiser.parameters()) / 1e6
    given = config.weights or {s["name"]: s["weight"] for s in store.meta["sources"]}
    sources = "\n".join(
        f"| {s['name']} | {s['splits']['train']['sequences']:,} | {given.get(s['name'], 0):g} |"
        for s in store.meta["sources"]
    )
    grids = " and ".join(map(str, config.time.grids))
    grid = f"the {config.time.spacing} grid of {grids} times" if grids else "continuous time"
    losses = "\n".join(f"| {name.split('/')[-1]} | {value:.3f} |" for name, value in result.items())
    regime = config.model.regime
    unit = "cross-entropy (nats a token, self-conditioned)" if regime == "simplex" else "loss (a token)"
    return f"""# {regime.capitalize()} diffusion denoiser

{millions:.1f}M parameters, {denoiser.backbone.config.model_type} backbone, vocabulary {store.vocab_size:,}, length
{denoiser.config.length}. Trained with tta-diffusion {__version__} for {step:,} steps of {config.optim.batch} sequences
on {grid}; weights are the moving average (decay {config.optim.ema}).

| source | training sequences | weight |
|---|---|---|
{sources}

Validation {unit} by time:

| | |
|---|---|
{losses}

The language model repeats what its sources say, mistakes and prejudices included. It was trained on English only.
"""
