"""Attribute control by a Hugging Face sequence classifier over the denoiser's vocabulary."""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from safetensors import SafetensorError
from torch import Tensor

from tta_diffusion.common.registry import closest
from tta_diffusion.control.alike import alike_ids, tie
from tta_diffusion.control.bundled import CONFIG, panel_of
from tta_diffusion.control.chunked import judge_in_chunks
from tta_diffusion.control.objective import Judgement, SoftText
from tta_diffusion.control.words import WordExperts, WordLists
from tta_diffusion.denoiser import quantised
from tta_diffusion.denoiser.checkpoint import WEIGHTS, Unfilled, load_weights
from tta_diffusion.fast.cuda_graphs import places_of
from tta_diffusion.fast.light import modernbert
from tta_diffusion.tokens.canvas import Canvas

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WHOLE_SHEET = "whole_sheet"  # a classifier's config says so where it was trained to read padding, too
ALIKE = "alike"  # and which tokens should not speak for a label (see `alike`)
_WHOLE_MASK = ("bert", "roberta", "xlm-roberta", "camembert")
# Tokens of a score batch on a CPU; on a GPU half of the batch, of no fewer tokens than keep it busy.
_CPU_TOKENS, _GPU_TOKENS = 256, 2048


@dataclass
class AttributeObjective:
    """log p(label | text), with the gradient flowing through the expected input embeddings.

    score = log p(y) - penalty * sum_{c != y} log p(c). The public TTA code uses penalty = 1 / batch size; here the
    weight does not depend on the batch, and 0 is the paper's equation. Where p(y) >= `enough` the score is
    constant: a text that is sure of its label is left alone, and none of its tokens is important.
    """

    name: str
    model: torch.nn.Module
    label: int
    penalty: float = 0.0
    score_batch: int = 0  # texts scored at once; 0: as many as keep memory small
    enough: float = 1.0  # 1: every text is pushed
    weight: float = 1.0  # beside other controls, and in their sum, where a call gives none
    embeds_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.score_batch < 0:
            raise ValueError(f"score_batch must be at least 0 (0: automatic), got {self.score_batch}")
        if not 0 < self.enough <= 1:
            raise ValueError(f"enough is a probability above 0, at most 1 (1: never enough), got {self.enough}")
        self.model.requires_grad_(False).eval()

    def prepare(self, canvas: Canvas) -> Canvas:
        return canvas

    @property
    def table(self) -> Tensor:
        """(V, H): its input embeddings."""
        return self.model.get_input_embeddings().weight  # type: ignore[operator]

    def judge(self, text: SoftText) -> Judgement:
        embeds = text.embed(self.table)
        size = self.score_batch or texts_at_once(len(embeds), embeds.shape[1], embeds.device.type)
        return Judgement(*judge_in_chunks(self._score, embeds, self._attention_mask(text.mask), size))

    @property
    def capture_key(self) -> Hashable | None:
        """A subclass may judge by other rules, and is not captured unless it says so itself."""
        if type(self) is not AttributeObjective:
            return None
        network = (weakref.ref(self.model), places_of(self.model), self.model.training)
        return (*network, self.name, self.label, self.penalty, self.score_batch, self.enough)

    def _score(self, embeds: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The score and log p(label), (n,) each, of n texts."""
        logits = self.model(inputs_embeds=embeds, attention_mask=mask).logits
        log_probs = logits.float().log_softmax(-1)
        log_prob = log_probs[:, self.label]
        score = log_prob - self.penalty * self._others(log_probs)
        if self.enough < 1:
            score = torch.where(log_prob.detach() >= math.log(self.enough), score.detach(), score)
        return score, log_prob

    def _attention_mask(self, mask: Tensor) -> Tensor:
        """transformers asks a (B, L) mask whether it masks anything, for which a GPU must be waited for: there, the
        families that take masks of all pairs (B, 1, L, L) get one."""
        config: Any = getattr(self.model, "config", None)
        if getattr(config, WHOLE_SHEET, False):
            mask = torch.ones_like(mask)
        takes = getattr(config, "model_type", None) in _WHOLE_MASK and config._attn_implementation == "sdpa"
        if not (mask.is_cuda and takes):
            return mask.long()
        return mask[:, None, None].expand(-1, 1, mask.shape[1], -1)

    def _others(self, log_probs: Tensor) -> Tensor:
        return log_probs.sum(-1) - log_probs[:, self.label]


def texts_at_once(batch: int, length: int, device: str) -> int:
    """How many of a batch are judged together: what a network keeps for its backward pass grows with them."""
    if device == "cpu":
        return max(1, _CPU_TOKENS // length)
    return max(1, _GPU_TOKENS // length, -(-batch // 2))


def label_index(model: torch.nn.Module, label: str, name: str) -> int:
    """The index of a label by its name (any case), or of `0`, `1`, ... by number."""
    labels: dict[int, str] = model.config.id2label  # type: ignore[union-attr, assignment]
    by_name = {text.lower(): index for index, text in labels.items()}
    if label.lower() in by_name:
        return by_name[label.lower()]
    if label.isdecimal() and int(label) in labels:
        return int(label)
    raise ValueError(f"The control '{name}' has no label '{label}'.{closest(label.lower(), list(by_name))}")


def check_vocabulary(classifier: PreTrainedTokenizerBase, denoiser: PreTrainedTokenizerBase, name: str) -> None:
    """Guidance mixes the classifier's embeddings with the denoiser's probabilities: the ids must mean the same."""
    if classifier.get_vocab() != denoiser.get_vocab():
        raise ValueError(
            f"the vocabulary of the classifier '{name}' ({type(classifier).__name__}, {len(classifier)} tokens) is "
            f"not the denoiser's ({type(denoiser).__name__}, {len(denoiser)} tokens): train a classifier on the "
            "denoiser's tokenizer, or choose a denoiser that shares the classifier's"
        )


def load_classifier(
    name_or_dir: str | Path, label: str, name: str, tokenizer: PreTrainedTokenizerBase, beside: bool = False
) -> AttributeObjective:
    """A classifier by hub name or directory (safetensors only), checked against the denoiser's tokenizer.

    One that lies `beside` the denoiser needs no tokenizer of its own: a packed model has one for all. Where it has
    lists of words (`control.words`), they judge with it, or alone if there is no network.
    """
    lists = WordLists.read(name_or_dir)
    if lists is not None and not (Path(name_or_dir) / CONFIG).is_file():
        labels = list(lists.words)
        alone = WordExperts(lists, lists.table(labels, tokenizer), labels=labels)
        return AttributeObjective(name, alone, label_index(alone, label, name), weight=lists.weight)
    try:
        shared = beside and not any(Path(name_or_dir).glob("tokenizer*"))
        own = tokenizer if shared else _tokenizer(name_or_dir)
        model = _load_model(name_or_dir)
    except (OSError, ValueError, SafetensorError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(f"the classifier '{name_or_dir}' cannot be loaded: {first}") from error
    check_vocabulary(own, tokenizer, str(name_or_dir))
    if shared and model.config.vocab_size < len(tokenizer):
        raise ValueError(
            f"the classifier '{name_or_dir}' knows {model.config.vocab_size} tokens, the tokenizer of the model has "
            f"{len(tokenizer)}: they do not belong together"
        )
    if kinds := getattr(model.config, ALIKE, ()):
        tie(model.get_input_embeddings().weight, *alike_ids(tokenizer, kinds))
    if lists is not None:
        labels = [model.config.id2label[i] for i in range(len(model.config.id2label))]
        model = WordExperts(lists, lists.table(labels, tokenizer), model)
    return AttributeObjective(name, model, label_index(model, label, name), weight=lists.weight if lists else 1.0)


def load_panel(
    name_or_dir: str | Path, label: str, name: str, tokenizer: PreTrainedTokenizerBase, beside: bool = False
) -> list[AttributeObjective]:
    """The classifier of a control, and those that judge with it under its name (`control.bundled`)."""
    return [load_classifier(path, label, name, tokenizer, beside) for path in (name_or_dir, *panel_of(name_or_dir))]


def _tokenizer(name_or_dir: str | Path) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name_or_dir, trust_remote_code=False)


def _load_model(name_or_dir: str | Path) -> Any:
    path = Path(name_or_dir)
    packed = not (path / WEIGHTS).is_file() and quantised.shards(path)
    raw = json.loads((path / CONFIG).read_text(encoding="utf-8")) if packed else {}
    with Unfilled():
        model: Any = modernbert.LightModernBert(raw) if modernbert.supports(raw) else None
    if model is None:
        from transformers import AutoConfig, AutoModelForSequenceClassification

        if not packed:
            return AutoModelForSequenceClassification.from_pretrained(
                name_or_dir, use_safetensors=True, trust_remote_code=False
            )
        config = AutoConfig.from_pretrained(name_or_dir, trust_remote_code=False)
        with Unfilled():
            model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
    load_weights(model, name_or_dir)
    return model
