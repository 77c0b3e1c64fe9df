"""The denoiser a run starts from: fresh, from a language model, or from another run."""

from __future__ import annotations

from pathlib import Path

from tta_diffusion.data.store import TokenStore
from tta_diffusion.denoiser.checkpoint import CONFIG
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.settings import GenerationConfig
from tta_diffusion.training.config import TrainConfig


def build_denoiser(config: TrainConfig, store: TokenStore) -> SimplexDenoiser:
    """The denoiser of `config.model`, checked against the data it will be trained on."""
    model = config.model
    length = model.length or store.length
    if length < store.length:
        raise ValueError(f"model.length is {length}, but the sequences of '{config.data}' have {store.length} tokens")
    trained_steps = min(config.time.grids, default=None)
    if model.start is None:
        assert model.backbone is not None
        denoiser = _fresh(config, store, length)
    elif (Path(model.start) / CONFIG).is_file():
        denoiser = SimplexDenoiser.from_pretrained(model.start)
        denoiser.with_config(time_conditioning=model.time_conditioning, length=length)
    else:
        shift = {} if model.shift is None else {"shift_predictions": model.shift}
        denoiser = SimplexDenoiser.from_backbone(
            model.start,
            length=length,
            schedule=model.schedule,
            scale=model.scale,
            self_conditioning=model.self_conditioning,
            time_conditioning=model.time_conditioning,
            tied_input=model.tied_input,
            **shift,
        )
    if denoiser.config.vocab_size < store.vocab_size:
        raise ValueError(
            f"the corpus '{config.data}' has {store.vocab_size} tokens, the model {denoiser.config.vocab_size}: "
            "prepare the corpus with the model's own tokenizer (tta data prepare --tokenizer)"
        )
    if length > denoiser.backbone.max_length:
        raise ValueError(f"sequences of {length} tokens are beyond the backbone's {denoiser.backbone.max_length}")
    if model.sampling:
        GenerationConfig().override(model.sampling)  # a wrong name is an error now, not when the model is used
        denoiser.with_config(sampling=model.sampling)
    return denoiser.with_config(trained_steps=trained_steps).train()


def _fresh(config: TrainConfig, store: TokenStore, length: int) -> SimplexDenoiser:
    special = store.special_ids
    names = {"pad": "pad_token_id", "eos": "eos_token_id", "bos": "bos_token_id"}
    raw = {name: special[key] for key, name in names.items() if key in special}
    raw |= {"vocab_size": store.vocab_size, "max_position_embeddings": length, **(config.model.backbone or {})}
    if raw["vocab_size"] != store.vocab_size:
        raise ValueError(
            f"model.backbone.vocab_size is {raw['vocab_size']}, but the corpus has {store.vocab_size} tokens"
        )
    return SimplexDenoiser(
        DenoiserConfig(
            backbone=raw,
            length=length,
            schedule=config.model.schedule,
            scale=config.model.scale,
            self_conditioning=config.model.self_conditioning,
            time_conditioning=config.model.time_conditioning,
            tied_input=config.model.tied_input,
        )
    )
