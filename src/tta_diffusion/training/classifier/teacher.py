"""A trained classifier that reads texts to label them: any Hugging Face one, with a tokenizer of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast

from tta_diffusion.data.tokenizer import backend, load_tokenizer
from tta_diffusion.evaluation.pretrained import padded
from tta_diffusion.training.classifier.model import max_length

LONGEST = 64  # tokens that are read of a text


class Teacher:
    """Texts -> probabilities (N, C), in the order of `labels`.

    A tokenizer that adds nothing to a text, but has a start and another end token, is one of ours: its texts are framed
    as `<s> text </s>`, as in training. Others frame texts themselves.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        labels: Sequence[str],
        device: torch.device,
        batch: int,
    ) -> None:
        names: Any = model.config.id2label
        own = [names[i] for i in range(len(names))]
        if sorted(own) != sorted(labels):
            raise ValueError(f"the teacher tells apart {', '.join(own)}, but the labels are {', '.join(labels)}")
        self.columns = [own.index(label) for label in labels]
        self.model, self.device, self.batch = model.eval().to(device), device, batch
        start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
        self.tokenizer = backend(tokenizer)
        length = min(LONGEST, max_length(model.config))
        ours = start is not None and end is not None and start != end and not self.tokenizer.encode("").ids
        self.frame = ([start], [end]) if ours else ([], [])
        self.tokenizer.enable_truncation(length - 2 if ours else length)
        self.pad = tokenizer.pad_token_id or 0  # masked: any token will do

    @classmethod
    def load(cls, directory: Path, labels: Sequence[str], device: torch.device, batch: int) -> Teacher:
        if not (directory / "config.json").is_file():
            raise ValueError(f"no teacher at '{directory}': give the directory of a trained classifier")
        try:
            model = AutoModelForSequenceClassification.from_pretrained(
                directory, dtype=torch.float32, use_safetensors=True, local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, SafetensorError) as error:
            raise ValueError(f"the teacher '{directory}' cannot be loaded: {str(error).splitlines()[0]}") from error
        return cls(model, load_tokenizer(directory), labels, device, batch)

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        start, end = self.frame
        rows = [[*start, *e.ids, *end] for e in self.tokenizer.encode_batch_fast(list(texts))]
        order = np.argsort([len(row) for row in rows], kind="stable")  # texts of one length together: little padding
        parts = [
            self._read([rows[i] for i in order[low : low + self.batch]]) for low in range(0, len(rows), self.batch)
        ]
        found = np.empty((len(rows), len(self.columns)), dtype=np.float32)
        if parts:
            found[order] = torch.cat(parts)[:, self.columns].cpu().numpy()  # one wait for the device, not one a batch
        return found

    def _read(self, rows: list[list[int]]) -> Tensor:
        ids, mask = (part.to(self.device) for part in padded(rows, self.pad))
        half = self.device.type == "cuda"
        with torch.autocast("cuda", torch.bfloat16) if half else contextlib.nullcontext():
            logits = self.model(input_ids=ids, attention_mask=mask).logits
        return logits.float().softmax(-1)
