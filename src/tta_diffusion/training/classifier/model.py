"""Plain Hugging Face sequence classifiers: fresh, from an encoder, or from a denoiser's backbone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
)

from tta_diffusion.data.tokenizer import load_tokenizer
from tta_diffusion.denoiser.backbone import FAMILIES, reason
from tta_diffusion.denoiser.checkpoint import CONFIG
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.training.classifier.config import ModelSettings
from tta_diffusion.training.classifier.store import LabelledStore


def build_classifier(settings: ModelSettings, store: LabelledStore) -> PreTrainedModel:
    """A classifier with the labels of the data, checked against its vocabulary and length."""
    if settings.start is None:
        model = AutoModelForSequenceClassification.from_config(_config(settings.backbone, store))
    elif (Path(settings.start) / CONFIG).is_file():
        model = _from_denoiser(settings, store)
    else:
        model = _from_encoder(settings, store)
    config = model.config
    if config.vocab_size < store.vocab_size or (settings.start is None and config.vocab_size != store.vocab_size):
        raise ValueError(
            f"the backbone has {config.vocab_size} tokens, the tokenizer of '{store.directory}' {store.vocab_size}: "
            "leave out model.backbone.vocab_size, or prepare the data with the backbone's tokenizer"
        )
    room = max_length(config)
    if store.meta["length"] > room:
        raise ValueError(
            f"sequences of {store.meta['length']} tokens are beyond the {room} positions of the backbone: prepare "
            "shorter ones, or raise model.backbone.max_position_embeddings"
        )
    return model


def max_length(config: PretrainedConfig) -> int:
    offset = FAMILIES.get(config.model_type).position_offset if config.model_type in FAMILIES else 0
    return int(getattr(config, "max_position_embeddings", 1 << 30)) - offset


def _names(store: LabelledStore) -> dict[str, Any]:
    labels = store.labels
    return {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}


def _config(raw: dict[str, Any], store: LabelledStore) -> PretrainedConfig:
    model_type = raw["model_type"]
    family = FAMILIES.get(model_type) if model_type in FAMILIES else None
    if family is not None and family.causal:
        raise ValueError(f"'{model_type}' reads from left to right: take a bidirectional encoder for a classifier")
    special = store.special
    defaults: dict[str, Any] = {
        "vocab_size": store.vocab_size,
        "max_position_embeddings": store.meta["length"] + (family.position_offset if family else 0),
        **{f"{name}_token_id": special.get(name) for name in ("pad", "bos", "eos")},
    }
    if model_type == "modernbert":
        defaults |= {"cls_token_id": special.get("bos"), "sep_token_id": special["eos"]}
        defaults["classifier_pooling"] = "mean"  # every token has its say, and its gradient
    try:
        return AutoConfig.for_model(**(defaults | raw), **_names(store))
    except (TypeError, ValueError, StrictDataclassError) as error:
        raise ValueError(f"model.backbone does not describe a model: {reason(error)}") from error


def _from_denoiser(settings: ModelSettings, store: LabelledStore) -> PreTrainedModel:
    """The encoder of a denoiser under a new head."""
    assert settings.start is not None
    _check_tokenizer(settings.start, store)
    denoiser = SimplexDenoiser.from_pretrained(settings.start)
    _check_kind(settings, denoiser.config.backbone["model_type"])
    config = _config({**denoiser.config.backbone, **settings.backbone}, store)
    model = AutoModelForSequenceClassification.from_config(config)
    weights = denoiser.backbone.model.base_model.state_dict()
    _, unexpected = model.base_model.load_state_dict(weights, strict=False)  # a pooler may be missing: it is new
    if unexpected:
        raise ValueError(f"the backbone of '{settings.start}' does not fit a classifier: {unexpected[0]} has no place")
    return model


def _from_encoder(settings: ModelSettings, store: LabelledStore) -> PreTrainedModel:
    assert settings.start is not None
    _check_tokenizer(settings.start, store)
    try:
        own = AutoConfig.from_pretrained(settings.start, trust_remote_code=False).model_type
    except (OSError, ValueError) as error:
        raise ValueError(f"the encoder '{settings.start}' cannot be loaded: {str(error).splitlines()[0]}") from error
    _check_kind(settings, own)
    try:
        return AutoModelForSequenceClassification.from_pretrained(
            settings.start,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            dtype=torch.float32,  # not what the file has: training needs all digits
            **settings.backbone,
            **_names(store),
            trust_remote_code=False,
        )
    except StrictDataclassError as error:
        raise ValueError(f"model.backbone does not fit '{settings.start}': {reason(error)}") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"the encoder '{settings.start}' cannot be loaded: {str(error).splitlines()[0]}") from error


def _check_kind(settings: ModelSettings, own: str) -> None:
    """With `start` the backbone names changes to its config, which cannot make it a model of another kind."""
    asked = settings.backbone.get("model_type", own)
    if asked != own:
        raise ValueError(
            f"'{settings.start}' is of the kind {own}, but model.backbone of the kind {asked}: leave it out "
            "(model.backbone={}), or name there what differs alone"
        )


def _check_tokenizer(start: str, store: LabelledStore) -> None:
    try:
        own = AutoTokenizer.from_pretrained(start, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"no tokenizer in '{start}': {str(error).splitlines()[0]}") from error
    check = load_tokenizer(store.tokenizer_dir)
    if own.get_vocab() != check.get_vocab():
        raise ValueError(
            f"the vocabulary of '{start}' ({len(own)} tokens) is not that of the data '{store.directory}' "
            f"({len(check)} tokens): prepare the data with --tokenizer {start}"
        )


def table_of(model: PreTrainedModel) -> Tensor:
    """(V, H): the input embeddings."""
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    return embedding.weight


def last_layer(model: PreTrainedModel) -> nn.Linear:
    """The linear layer that makes the logits."""
    encoder = {id(module) for module in model.base_model.modules()}
    layers = [m for m in model.modules() if isinstance(m, nn.Linear) and id(m) not in encoder]
    if not layers or layers[-1].out_features != model.config.num_labels:
        raise ValueError(f"the head of a {model.config.model_type} classifier does not end in a linear layer")
    return layers[-1]


def fold_temperature(model: PreTrainedModel, temperature: float) -> None:
    """logits / T, as part of the weights: W / T and b / T."""
    layer = last_layer(model)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.div_(temperature)
