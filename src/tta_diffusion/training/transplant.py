"""A small decoder out of a large one: some of its layers, and its word vectors carried over to another vocabulary.

`python -m tta_diffusion.training.transplant SOURCE TOKENIZER OUT --layers 0,1,2,5` writes a Hugging Face model that
`model.start` can name. Both tokenizers must be byte-level BPE, so that their tokens are written in one alphabet.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from tta_diffusion.common.command import run_command
from tta_diffusion.data.tokenizer import load_tokenizer
from tta_diffusion.training.classifier.model import table_of


def token_vectors(
    table: Tensor, source: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase
) -> tuple[Tensor, int]:
    """Vectors (V_target, H) from `table` (V_source, H), and how many tokens both vocabularies share.

    A shared token keeps its vector; another one gets the mean of the pieces the source would cut it into; start and
    end take the source's end of text; the remaining special tokens lie at the mean of all, a little apart.
    """
    generator = torch.Generator().manual_seed(0)
    known = source.get_vocab()
    special = set(target.all_special_ids)
    vectors = table.mean(0) + 0.1 * table.std(0) * torch.randn(len(target), table.shape[1], generator=generator)
    shared = 0
    for token, index in target.get_vocab().items():
        if index in special:
            continue
        pieces = [known[token]] if token in known else pieces_of(token, known)
        shared += token in known
        if pieces:
            vectors[index] = table[pieces].mean(0)
    end = source.eos_token_id if source.bos_token_id is None else source.bos_token_id
    for index in (target.bos_token_id, target.eos_token_id):
        if index is not None and end is not None:
            vectors[index] = table[end]
    return vectors, shared


def pieces_of(token: str, known: dict[str, int]) -> list[int]:
    """The longest known pieces from left to right; every byte is a piece, so all of the token is covered."""
    pieces, begin = [], 0
    while begin < len(token):
        stop = next((e for e in range(len(token), begin, -1) if token[begin:e] in known), None)
        if stop is None:
            begin += 1
            continue
        pieces.append(known[token[begin:stop]])
        begin = stop
    return pieces


def transplant(
    model: PreTrainedModel,
    source: PreTrainedTokenizerBase,
    target: PreTrainedTokenizerBase,
    layers: Sequence[int],
    length: int,
) -> tuple[PreTrainedModel, int]:
    """The model with some of its layers and the vocabulary of `target`, and the number of shared tokens."""
    count = model.config.num_hidden_layers
    wrong = [i for i in layers if not 0 <= i < count]
    if wrong or len(set(layers)) < len(layers) or not layers:
        raise ValueError(f"layers must be different numbers from 0 to {count - 1}, got {list(layers)}")
    vectors, shared = token_vectors(table_of(model).detach(), source, target)
    config = copy.deepcopy(model.config)
    vars(config).pop("_model_name_or_path", None)  # the trace of a conversion
    config.update(
        {
            "num_hidden_layers": len(layers),
            "vocab_size": len(vectors),
            "max_position_embeddings": length,
            "bos_token_id": target.bos_token_id,
            "eos_token_id": target.eos_token_id,
            "pad_token_id": target.pad_token_id,
            "tie_word_embeddings": True,
        }
    )
    small = type(model)._from_config(config)
    state = {n: p for n, p in model.state_dict().items() if ".layers." not in n and p.shape[:1] != (model.vocab_size,)}
    for new, old in enumerate(layers):
        part = f".layers.{old}."
        state |= {n.replace(part, f".layers.{new}."): p for n, p in model.state_dict().items() if part in n}
    small.load_state_dict(state, strict=False)
    with torch.no_grad():
        table_of(small).copy_(vectors)
    return small, shared


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a causal language model: directory or hub name")
    parser.add_argument("tokenizer", help="directory of the tokenizer whose vocabulary is wanted")
    parser.add_argument("out", type=Path, help="directory to write")
    parser.add_argument("--layers", required=True, help="numbers of the layers to keep, in order: 0,1,2,29")
    parser.add_argument("--length", type=int, default=512, help="longest sequence of the new model")
    options = parser.parse_args(arguments)
    model = AutoModelForCausalLM.from_pretrained(
        options.source, use_safetensors=True, dtype=torch.float32, trust_remote_code=False
    )
    target = load_tokenizer(options.tokenizer)
    layers = [int(i) for i in options.layers.split(",")]
    small, shared = transplant(model, load_tokenizer(options.source), target, layers, options.length)
    small.save_pretrained(options.out)
    target.save_pretrained(options.out)
    total = sum(p.numel() for p in small.parameters()) / 1e6
    print(f"{len(layers)} layers, {total:.1f}M parameters, {shared} of {len(target)} tokens in both vocabularies")


if __name__ == "__main__":
    run_command(main, (ValueError, OSError))
