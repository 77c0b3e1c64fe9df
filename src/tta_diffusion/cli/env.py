"""`tta env`: what a bug report should say."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import typer

import tta_diffusion
from tta_diffusion.assets import find_model

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "accelerate")

app = typer.Typer()


@app.command()
def env() -> None:
    """Show versions, the device and the default model: paste it into a bug report."""
    rows = {"python": platform.python_version(), "tta-diffusion": tta_diffusion.__version__}
    rows |= {name: _version(name) for name in PACKAGES}
    rows |= {"device": _device(), "default model": _model()}
    for name, value in rows.items():
        typer.echo(f"{name:<15}{value}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _device() -> str:
    try:
        import torch
    except ImportError as error:
        return f"unknown ({error})"
    if torch.cuda.is_available():
        return ", ".join(f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count()))
    return f"cpu, {torch.get_num_threads()} threads"


def _model() -> str:
    try:
        return find_model(None)
    except ValueError:
        return "none (pass --model, or set TTA_MODEL)"
