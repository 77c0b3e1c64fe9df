"""Hugging Face models as bidirectional encoders of embeddings with a vocabulary head.

A family of models is one entry in `FAMILIES`, keyed by `model_type`: how to build it, and what its head does before
the product with the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor, nn

from tta_diffusion.common.registry import Registry
from tta_diffusion.denoiser import checkpoint, published
from tta_diffusion.fast import aligned
from tta_diffusion.fast.light import llama
from tta_diffusion.fast.products import lower_products

if TYPE_CHECKING:  # at run time only where a model needs it: its import takes seconds
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Family:
    """What differs between model types."""

    auto_name: str  # of the transformers class that builds it
    before_product: Callable[[Any, Tensor], Tensor]  # (model, hidden) -> what is multiplied by the vocabulary
    causal: bool = False
    position_offset: int = 0  # position embeddings that are never reached (RoBERTa counts from padding_idx + 1)

    @property
    def auto_class(self) -> Any:
        import transformers

        return getattr(transformers, self.auto_name)


FAMILIES: Registry[Family] = Registry("backbone")


def _roberta_transform(model: Any, hidden: Tensor) -> Tensor:
    head = model.lm_head
    return head.layer_norm(F.gelu(head.dense(hidden)))


_roberta = Family("AutoModelForMaskedLM", _roberta_transform, position_offset=2)
for _name in ("roberta", "xlm-roberta", "camembert"):
    FAMILIES.register(_name)(_roberta)
FAMILIES.register("bert")(Family("AutoModelForMaskedLM", lambda m, h: m.cls.predictions.transform(h)))
FAMILIES.register("modernbert")(Family("AutoModelForMaskedLM", lambda m, h: m.head(h)))
_decoder = Family("AutoModelForCausalLM", lambda m, h: h, causal=True)
for _name in ("llama", "mistral", "qwen2", "qwen3"):
    FAMILIES.register(_name)(_decoder)


class Backbone(nn.Module):
    """embeddings (B, L, H) -> hidden (B, L, H) -> logits (B, L, V), every position seeing every other."""

    def __init__(self, model: PreTrainedModel | llama.LightLlama) -> None:
        super().__init__()
        self.family = FAMILIES.get(model.config.model_type)
        self.model: Any = model
        self.shifted = self.family.causal  # as it comes, the hidden state at i predicts the token at i + 1
        if isinstance(model, llama.LightLlama):
            return
        from tta_diffusion.fast.attention import leave_masks_out

        leave_masks_out(model)
        if self.family.causal:
            _remove_causal_mask(model)

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def plain_config(self) -> dict[str, Any]:
        """Its config as plain JSON values."""
        if isinstance(self.model, llama.LightLlama):
            own = vars(self.config)
            return {name: value for name, value in own.items() if name not in ("_attn_implementation", "is_causal")}
        return checkpoint.plain_config(self.config)

    @property
    def table(self) -> nn.Embedding:
        """The input embeddings (V, H)."""
        embedding = self.model.get_input_embeddings()
        assert isinstance(embedding, nn.Embedding)
        return embedding

    @property
    def max_length(self) -> int:
        return int(self.config.max_position_embeddings) - self.family.position_offset

    def without_words(self) -> Backbone:
        """The encoder alone: neither table nor head, for embeddings of another kind."""
        encoder = self.model.base_model
        encoder.set_input_embeddings(None)
        self.model = encoder
        return self

    @property
    def runs_rows(self) -> bool:
        """True where the encoder can run on some positions beside what is kept of the others (`Encoder.run`)."""
        return isinstance(self.model, llama.LightLlama)

    def encode(self, embeds: Tensor) -> Tensor:
        extra = {"use_cache": False} if self.family.causal else {}
        return self.model.base_model(inputs_embeds=embeds, **extra).last_hidden_state

    def head(self, hidden: Tensor) -> Tensor:
        hidden = self.family.before_product(self.model, hidden)
        return aligned.project(hidden, self.decoder) if aligned.wanted(self.decoder) else self.decoder(hidden)

    @property
    def splits(self) -> bool:
        """True where `product` may stand for `head`: on a CPU, where nothing is trained."""
        plain = type(self.decoder) is nn.Linear and self.decoder.weight.device.type == "cpu"
        return plain and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")

    def product(self, hidden: Tensor, out: Tensor) -> Tensor | None:
        """Writes the logits of hidden (R, H) to `out` (R, V) without the last bias (V,), which is returned.

        With it, torch writes the bias to the logits first and then reads them back into the product.
        """
        torch.mm(self.family.before_product(self.model, hidden), self.decoder.weight.T, out=out)
        return self.decoder.bias

    @torch.no_grad()
    def lower(self, typical: Tensor) -> None:
        """Products of the layers in 8 bits from now on, on a CPU, for inputs like the typical embeddings (B, L, H).

        Not the one with the vocabulary: alone it would move the predictions as far as all the others together.
        """
        if self.runs_rows:
            self.model.base_model.merge()
        lower_products(self.model.base_model, lambda: self.encode(typical))

    @property
    def decoder(self) -> nn.Linear:
        """The last matrix of the head (V, H)."""
        decoder = self.model.get_output_embeddings()
        assert isinstance(decoder, nn.Linear)
        return decoder

    @classmethod
    def to_fill(cls, raw: dict[str, Any]) -> Backbone:
        """A backbone whose weights are about to be loaded: without transformers, where that can be done."""
        return cls(llama.LightLlama(raw)) if llama.supports(raw) else cls.from_config(raw)

    @classmethod
    def from_config(cls, raw: dict[str, Any]) -> Backbone:
        """A backbone with fresh weights from a config dictionary with `model_type`."""
        from huggingface_hub.errors import StrictDataclassError
        from transformers import AutoConfig

        raw = dict(raw)
        model_type = raw.pop("model_type", None)
        if model_type is None:
            raise ValueError("the backbone config has no 'model_type'")
        family = FAMILIES.get(model_type)
        try:
            config = AutoConfig.for_model(model_type, **raw)
        except (TypeError, ValueError, StrictDataclassError) as error:
            raise ValueError(f"the backbone config does not describe a {model_type}: {reason(error)}") from error
        return cls(family.auto_class.from_config(config))

    @classmethod
    def from_pretrained(cls, name_or_dir: str | Path) -> Backbone:
        """Pretrained weights by hub name or local directory; safetensors only."""
        layout = published.find(name_or_dir)
        if layout is not None:
            with checkpoint.Unfilled():
                backbone = cls.to_fill(published.backbone_config(layout, name_or_dir))
            with _one_sentence(name_or_dir):
                weights = published.read_weights(layout, name_or_dir)
            checkpoint.load_state(backbone.model, weights, str(name_or_dir))
            backbone.shifted = layout.shifted
            return backbone
        from transformers import AutoConfig

        with _one_sentence(name_or_dir):
            config = AutoConfig.from_pretrained(name_or_dir, trust_remote_code=False)
        family = FAMILIES.get(config.model_type)
        with _one_sentence(name_or_dir):
            # float32, whatever the file has: training in a 16-bit type would lose small updates.
            model = family.auto_class.from_pretrained(
                name_or_dir, config=config, use_safetensors=True, dtype=torch.float32, trust_remote_code=False
            )
        return cls(model)


def reason(error: Exception) -> str:
    """What is wrong with a config, in one line; transformers wraps it in an error of its own."""
    return str(error.__cause__ or error).strip().splitlines()[0]


@contextmanager
def _one_sentence(source: str | Path) -> Iterator[None]:
    """What transformers says about a model that it cannot load, shortened to a ValueError."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(f"the backbone '{source}' cannot be loaded: {first}") from error


def _remove_causal_mask(model: PreTrainedModel) -> None:
    """Lets every position attend to every other one, in the mask builder and in the attention kernels."""
    model.config.is_causal = False
    for module in model.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = False  # type: ignore[assignment]
