"""Labelled arrays to a directory that `store` opens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tta_diffusion.common.atomic import finished, write_json
from tta_diffusion.data.tokenizer import special_ids
from tta_diffusion.data.writer import fingerprint, hash_directory
from tta_diffusion.training.classifier.store import FORMAT, META, TOKENIZER, VERSION, Split

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def write_labelled(
    out: str | Path,
    splits: Mapping[str, Split],
    tokenizer: PreTrainedTokenizerFast,
    about: dict[str, Any],
    overwrite: bool,
    hashed: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Writes the arrays by split, the tokenizer and meta.json; returns the content of meta.json.

    Args:
        about: what meta.json says of the task, beside what the arrays and the tokenizer tell.
        hashed: values that the fingerprint is made of, in place of those of `about` under the same names.
    """
    with finished(Path(out), overwrite, META) as directory:
        for split, rows in splits.items():
            rows.save(directory / f"{split}.npz")
        tokenizer.save_pretrained(directory / TOKENIZER)
        meta = {
            "format": FORMAT,
            "version": VERSION,
            **about,
            "length": splits["train"].ids.shape[1],
            "vocab_size": len(tokenizer),
            "special_ids": special_ids(tokenizer),
            "arrays_sha256": {split: rows.digest() for split, rows in splits.items()},
            "tokenizer_sha256": hash_directory(directory / TOKENIZER),
        }
        meta["fingerprint"] = fingerprint({**meta, **(hashed or {})})
        write_json(directory / META, meta)
    return meta
