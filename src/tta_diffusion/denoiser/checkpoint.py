"""Saving and loading denoisers: `denoiser.json` and `model.safetensors` (or its 8-bit form, see `quantised`), nothing
that can run code.

The config is not called `config.json`, because transformers would take the directory for a model of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_model
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tta_diffusion.common.atomic import read_object
from tta_diffusion.denoiser import quantised
from tta_diffusion.denoiser.config import DenoiserConfig

if TYPE_CHECKING:
    from transformers import PretrainedConfig

CONFIG, WEIGHTS = "denoiser.json", "model.safetensors"


class Unfilled(TorchFunctionMode):
    """`with Unfilled():` modules get zeros for random weights, which would take longer to draw than real ones to load.

    Buffers, biases and norms are made as ever, and the global random state is left alone. Zeros, not what was in
    memory: truncated normals are drawn again until all lie within their bounds.
    """

    # By name: transformers puts initialisers of its own in the place of torch's.
    _DRAWS = ("normal_", "uniform_", "kaiming_uniform_")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") not in self._DRAWS:
            return func(*args, **kwargs)
        with torch.no_grad():
            return (args[0] if args else kwargs["tensor"]).zero_()


def plain_config(config: PretrainedConfig) -> dict[str, Any]:
    """A Hugging Face config as plain JSON values, without traces of where and with what it was saved."""
    raw = json.loads(config.to_json_string(use_diff=True))
    for noise in (
        "transformers_version",
        "_name_or_path",
        "architectures",
        "dtype",
        "torch_dtype",
        "is_causal",
    ):
        raw.pop(noise, None)
    return {"model_type": config.model_type, "vocab_size": config.vocab_size, **raw}


def save(model: nn.Module, config: DenoiserConfig, directory: str | Path) -> None:
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    save_model(model, str(directory / WEIGHTS), metadata={"format": "pt"})
    (directory / CONFIG).write_text(json.dumps(config.to_dict(), indent=2, sort_keys=True) + "\n")


def read_regime(directory: str | Path) -> str:
    """The diffusion regime that a model directory names."""
    return str(read_settings(directory).get("regime", "simplex"))


def load_config(directory: str | Path) -> DenoiserConfig:
    return DenoiserConfig.from_dict(read_settings(directory))


def read_settings(directory: str | Path) -> dict[str, Any]:
    """What the `denoiser.json` of a model directory says."""
    path = Path(directory) / CONFIG
    if not path.is_file():
        hint = ""
        if (path.parent / "config.json").is_file():
            hint = (
                " (it holds a Hugging Face model: make a denoiser of it with SimplexDenoiser.from_backbone; or use a "
                f'masked one as it is, with {{"regime": "masked", "length": 128}} as its {CONFIG})'
            )
        raise ValueError(f"no denoiser at '{directory}': {CONFIG} is missing{hint}")
    return read_object(path)


def load_weights(model: nn.Module, directory: str | Path) -> None:
    """Fills `model` from the directory; a missing, truncated or foreign file is one clear sentence."""
    load_state(model, read_weights(directory), str(directory))


def read_weights(directory: str | Path) -> dict[str, Tensor]:
    """The weights of a model directory, whichever way they are stored."""
    path = Path(directory) / WEIGHTS
    if not path.is_file() and quantised.shards(directory):
        return quantised.read(directory)
    if not path.is_file():
        raise ValueError(f"no weights at '{directory}': {WEIGHTS} is missing")
    try:
        return load_file(str(path))
    except SafetensorError as error:
        raise ValueError(f"'{path}' cannot be read ({error}): the file is truncated or damaged") from error


def load_state(model: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """`load_state_dict` that knows tied weights and reports what does not fit in one sentence."""
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise ValueError(f"the weights of '{source}' do not fit this config: {error}") from error
    tied = _tied_names(model)
    missing = [name for name in missing if not (tied.get(name, set()) & state.keys())]
    if missing or unexpected:
        raise ValueError(
            f"the weights of '{source}' do not fit this config: "
            f"missing {missing[:3] or 'none'}, unexpected {list(unexpected)[:3] or 'none'}"
        )


def _tied_names(model: nn.Module) -> dict[str, set[str]]:
    """For every parameter name, the names that share its storage."""
    groups: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), set()).add(name)
    return {name: group for group in groups.values() for name in group}
