"""The denoiser a run starts from: fresh, from a language model, or from another run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from tta_diffusion.data.store import TokenStore
from tta_diffusion.data.tokenizer import same_words
from tta_diffusion.denoiser.checkpoint import CONFIG, read_regime
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.denoiser.network import NetworkDenoiser
from tta_diffusion.settings import GenerationConfig
from tta_diffusion.training.config import TrainConfig

N = TypeVar("N", bound=NetworkDenoiser)


def build_denoiser(config: TrainConfig, store: TokenStore) -> SimplexDenoiser:
    """The simplex denoiser of `config.model`, checked against the data it will be trained on."""
    model = config.model
    own = {"scale": model.scale, "self_conditioning": model.self_conditioning, "tied_input": model.tied_input}
    return start_from(SimplexDenoiser, config, store, own)


def start_from(kind: type[N], config: TrainConfig, store: TokenStore, own: dict[str, Any]) -> N:
    """A denoiser of a kind with the settings `own` of its regime, and those of `config.model` that all regimes have.

    Going on from a denoiser of another regime keeps its weights alone; they must be the same ones.
    """
    model = config.model
    length = model.length or store.length
    if length < store.length:
        raise ValueError(f"model.length is {length}, but the sequences of '{config.data}' have {store.length} tokens")
    trained_steps = min(config.time.grids, default=None)
    if model.start is None:
        assert model.backbone is not None
        denoiser = _fresh(kind, config, store, length, own)
    elif (Path(model.start) / CONFIG).is_file():
        other = {} if read_regime(model.start) == model.regime else _shared(config) | own
        denoiser = kind.from_pretrained(model.start, **other)
        denoiser.with_config(time_conditioning=model.time_conditioning, length=length)
    else:
        shift = {} if model.shift is None else {"shift_predictions": model.shift}
        denoiser = kind.from_backbone(model.start, length=length, **_shared(config), **own, **shift)
    if denoiser.config.vocab_size < store.vocab_size:
        raise ValueError(
            f"the corpus '{config.data}' has {store.vocab_size} tokens, the model {denoiser.config.vocab_size}: "
            "prepare the corpus with the model's own tokenizer (tta data prepare --tokenizer)"
        )
    if model.start is not None and not same_words(store.tokenizer_dir, model.start):
        raise ValueError(
            f"the tokens of the corpus '{config.data}' are not those of '{model.start}': prepare the corpus with the "
            "model's own tokenizer (tta data prepare --tokenizer)"
        )
    if length > denoiser.backbone.max_length:
        raise ValueError(f"sequences of {length} tokens are beyond the backbone's {denoiser.backbone.max_length}")
    if model.sampling:
        GenerationConfig().override(model.sampling)  # a wrong name is an error now, not when the model is used
        denoiser.with_config(sampling=model.sampling)
    return denoiser.with_config(trained_steps=trained_steps, source=store.source_end is not None).train()


def _shared(config: TrainConfig) -> dict[str, Any]:
    model = config.model
    names = ("regime", "schedule", "time_conditioning", "timed")
    return {name: getattr(model, name) for name in names}


def _fresh(kind: type[N], config: TrainConfig, store: TokenStore, length: int, own: dict[str, Any]) -> N:
    special = store.special_ids
    names = {"pad": "pad_token_id", "eos": "eos_token_id", "bos": "bos_token_id"}
    raw = {name: special[key] for key, name in names.items() if key in special}
    raw |= {"vocab_size": store.vocab_size, "max_position_embeddings": length, **(config.model.backbone or {})}
    if raw["vocab_size"] != store.vocab_size:
        raise ValueError(
            f"model.backbone.vocab_size is {raw['vocab_size']}, but the corpus has {store.vocab_size} tokens"
        )
    return kind(DenoiserConfig(backbone=raw, length=length, **_shared(config), **own))
