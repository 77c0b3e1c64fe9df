"""Models with the shapes of trained ones, for a table of speed: what a text costs does not depend on what was learnt.

A baseline is trained for one step on made-up rows, by its own trainer, so that it has every part a trained one has. The
masked model of Mix and Match and the denoiser of Diffusion-LM have random weights.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tta_diffusion.assets import find_model
from tta_diffusion.bench.record import fingerprint
from tta_diffusion.common.atomic import finished

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from tta_diffusion.bench.task import Task

GPT2 = "gpt2-sized"  # as a base: random weights in the shape of GPT-2 base
ROWS = 400
ONE_STEP = {"steps": 1, "batch": 4, "warmup": 1}
MORE = {"ld4lg": {"denoiser_steps": 1, "denoiser_batch": 4}}


def gpt2_sized(directory: Path, vocab: int = 50257, layers: int = 12, width: int = 768) -> Path:
    """GPT-2 base with the tokenizer of our model.

    The last norm is wide, so that a nucleus has as few tokens as a trained model's: flat ones take longer to draw from.
    Tokens that the tokenizer does not know have no embedding, and are hardly drawn.
    """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    if not (directory / "config.json").is_file():
        tokenizer = our_tokenizer()
        torch.manual_seed(0)
        ends: dict[str, Any] = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=vocab, n_embd=width, n_layer=layers, n_head=width // 64, **ends))
        model.transformer.ln_f.weight.data.fill_(8.0)
        model.transformer.wte.weight.data[len(tokenizer) :] = 0.0
        with finished(directory, overwrite=False, mark="config.json") as temporary:
            model.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
    return directory


def untrained(method: str, task: Task, base: str, folder: Path, device: str) -> Path:
    """A directory that `--method` reads as what `tta train-baseline` wrote; made once."""
    from tta_diffusion.baselines.store import RECORD
    from tta_diffusion.baselines.train import Request, train
    from tta_diffusion.training.classifier.tasks import build_task

    out = folder / f"{method}-{task.control}"
    if not (out / RECORD).is_file():
        made_up_rows(task, folder / "rows.jsonl")
        source = {"name": "made-up", "path": "rows.jsonl", "hold_out": 0.2}
        control = build_task(task.control, {"labels": list(task.labels), "sources": [source]})
        settings = ONE_STEP | MORE.get(method, {})
        train(Request(method, control, folder, out, base, settings, task.length or 64, device), fingerprint(base))
    return out


def made_up_rows(task: Task, path: Path) -> None:
    """Writes labelled rows that make no sense: random words of the task's prompts, the labels in turns."""
    words, rng = sorted({word for prompt in task.prompts for word in prompt.split()}), random.Random(0)
    rows = [{"text": " ".join(rng.choices(words, k=12)), "label": i % len(task.labels)} for i in range(ROWS)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def masked_model(folder: Path) -> Path:
    """A masked model in the shape of MiniLM-L6, from which `tta train-baseline mix-match` starts."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    out = folder / "masked"
    if not (out / "config.json").is_file():
        tokenizer = our_tokenizer()
        torch.manual_seed(0)
        sizes: dict[str, Any] = {
            "hidden_size": 384,
            "num_hidden_layers": 6,
            "num_attention_heads": 12,
            "intermediate_size": 1536,
        }
        with finished(out, overwrite=False, mark="config.json") as temporary:
            BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), pad_token_id=0, **sizes)).save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
    return out


def gaussian_model(folder: Path) -> Path:
    """A model of Diffusion-LM, untrained."""
    return untrained_denoiser("gaussian", folder / "gaussian", self_conditioning="concat")


def untrained_denoiser(regime: str, out: Path, **settings: Any) -> Path:
    """A model of another regime with the backbone, the tokenizer and the classifiers of our model; made once."""
    import torch

    from tta_diffusion.denoiser.config import DenoiserConfig
    from tta_diffusion.denoiser.embedding_model import EmbeddingDenoiser
    from tta_diffusion.denoiser.token_model import TokenDenoiser
    from tta_diffusion.pipeline import CONTROLS, TTAPipeline

    ours, tokenizer = Path(find_model(None)), our_tokenizer()
    if not (out / "denoiser.json").is_file():
        own = json.loads((ours / "denoiser.json").read_text())
        shape = {"backbone": own["backbone"], "length": own["length"], "regime": regime} | settings
        torch.manual_seed(0)
        made: EmbeddingDenoiser | TokenDenoiser
        if regime == "gaussian":
            made = EmbeddingDenoiser(DenoiserConfig(**shape, schedule="sqrt", embedding_width=128))
        else:
            mask = tokenizer.mask_token_id if regime == "masked" else None
            made = TokenDenoiser(DenoiserConfig(**shape, schedule="linear", mask_token=mask))
        with finished(out, overwrite=False, mark="denoiser.json") as temporary:
            TTAPipeline(made, tokenizer).save_pretrained(temporary)
            if (ours / CONTROLS).is_dir():
                shutil.copytree(ours / CONTROLS, temporary / CONTROLS)
    return out


def our_tokenizer() -> PreTrainedTokenizerFast:
    from tta_diffusion.data.tokenizer import load_tokenizer

    return load_tokenizer(find_model(None))
