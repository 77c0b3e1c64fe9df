"""A tiny corpus, a tiny config and a way to run the trainer as users do, for the tests of training."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast

import conftest
from tta_diffusion.common.configuration import build
from tta_diffusion.data.tokenizer import special_ids
from tta_diffusion.data.writer import StoreWriter, token_dtype
from tta_diffusion.training.config import TrainConfig
from tta_diffusion.training.distributed import Group
from tta_diffusion.training.loop import Run

WORDS = [f"{first}{second}" for first in "bdgklmn" for second in "aeiou"]
LENGTH = 12
ALONE = Group(0, 1, torch.device("cpu"))


def make_tokenizer(words: list[str] = WORDS) -> PreTrainedTokenizerFast:
    return conftest.make_tokenizer(words)


def sentences(count: int, seed: int = 0, words: list[str] = WORDS, most: int = LENGTH - 2) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(words, k=rng.randint(6, most))) for _ in range(count)]


def write_corpus(
    directory: Path,
    train: list[str],
    validation: list[str] | None = None,
    tokenizer: PreTrainedTokenizerFast | None = None,
    length: int = LENGTH,
) -> Path:
    """Each sentence one sequence: <s> words </s> <pad>..."""
    texts = {"train": train, "validation": validation or []}
    assert all(len(text.split()) <= length - 2 for split in texts.values() for text in split)
    return write_sources(directory, {"toy": texts}, tokenizer or make_tokenizer(), length)


def write_sources(
    directory: Path, texts: dict[str, dict[str, list[str]]], tokenizer: PreTrainedTokenizerFast, length: int
) -> Path:
    """A corpus of several sources, from their texts by split; what is too long loses its end."""
    special = special_ids(tokenizer)
    writer, sources = StoreWriter(directory), []
    tokenizer.save_pretrained(writer.tokenizer_dir)
    for name, splits in texts.items():
        parts = {}
        for split, own in splits.items():
            array = writer.array(split, name, length, token_dtype(len(tokenizer)), special["pad"])
            for text in own:
                ids = [special["bos"], *tokenizer(text, add_special_tokens=False)["input_ids"], special["eos"]][:length]
                array.add(ids + [special["pad"]] * (length - len(ids)))
            parts[split] = array.close()
        sources.append({"name": name, "weight": 1.0, "splits": parts})
    meta = {"length": length, "dtype": token_dtype(len(tokenizer)).str, "vocab_size": len(tokenizer)}
    writer.finish({**meta, "special_ids": special, "sources": sources, "config": {}})
    return directory


def settings(data: Path, out: Path, **groups: dict[str, Any]) -> dict[str, Any]:
    """The raw settings of a run in milliseconds; `groups` (optim, time, ...) are laid over them."""
    backbone = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    backbone |= {"intermediate_size": 64, "tie_word_embeddings": True}
    raw: dict[str, Any] = {
        "data": str(data),
        "out": str(out),
        "model": {"backbone": backbone},
        "optim": {"steps": 8, "batch": 8, "micro_batch": 4, "lr": 0.003, "warmup": 2, "ema": 0.9},
        "time": {"sampler": "loss-aware"},
        "condition": {"prefix": [1, 3]},
        "run": {
            "precision": "fp32",
            "save_every": 3,
            "eval_every": 100,
            "eval_batches": 1,
            "samples": 0,
            "log_every": 1,
        },
    }
    for name, values in groups.items():
        raw[name] = {**raw.get(name, {}), **values} if isinstance(values, dict) else values
    return raw


def make_config(data: Path, out: Path, **groups: dict[str, Any]) -> TrainConfig:
    return build(TrainConfig, settings(data, out, **groups))


def train(config: TrainConfig) -> Run:
    """Trains here, in this process."""
    run = Run(config, ALONE)
    run.train()
    return run


def metrics(out: Path, *names: str) -> list[tuple[Any, ...]]:
    """(step, values...) of every line of metrics.jsonl that has them."""
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], *(line[name] for name in names)) for line in lines if all(name in line for name in names)]


def losses(out: Path) -> list[tuple[Any, ...]]:
    return metrics(out, "loss", "grad_norm", "lr")


def weights(out: Path, step: int) -> dict[str, Tensor]:
    """Everything that a checkpoint holds, under one name each."""
    found: dict[str, Tensor] = {}
    for file in sorted((out / "checkpoints" / f"step-{step:08d}").glob("*.safetensors")):
        # Copies: what is loaded would change with the file.
        found |= {f"{file.stem}/{name}": tensor.clone() for name, tensor in load_file(str(file)).items()}
    return found


def same_tensors(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def start(raw: dict[str, Any], directory: Path, *overrides: str, processes: int = 1) -> subprocess.Popen[str]:
    """The trainer in processes of its own, through torchrun where there are several."""
    recipe = directory / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(raw))
    command = [sys.executable, "-m", "tta_diffusion.training", str(recipe), *overrides]
    if processes > 1:
        launcher = ["torch.distributed.run", "--nproc-per-node", str(processes), "--master-port", str(_free_port())]
        command = [sys.executable, "-m", *launcher, *command[1:]]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore::DeprecationWarning"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def run_trainer(raw: dict[str, Any], directory: Path, *overrides: str, processes: int = 1) -> tuple[int, str]:
    """Exit code and standard error of the trainer."""
    process = start(raw, directory, *overrides, processes=processes)
    try:
        _, error = process.communicate(timeout=150)
    finally:
        if process.poll() is None:  # it hangs: so would its children
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
