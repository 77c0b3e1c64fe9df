"""What fewer bits cost a guidance classifier: its answers, and the direction in which it pushes.

    python benchmarks/packed_classifier.py data/classifiers/sentiment-half1 sentiment [--model DIR] [--rows 200]

For 6, 5 and 4 bits prints the size, the share of labelled rows that it gets right, the total variation from what the
model's own classifier answers, and the cosine of the gradients on the embeddings of a text.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_diffusion.assets import find_model
from tta_diffusion.control.bundled import labels_of
from tta_diffusion.control.classifier import load_classifier
from tta_diffusion.data.tokenizer import load_tokenizer
from tta_diffusion.denoiser import few_bits
from tta_diffusion.packaging.lower import matrices
from tta_diffusion.training.classifier.batches import Batch, take
from tta_diffusion.training.classifier.store import LabelledStore


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="labelled rows in the model's tokens")
    parser.add_argument("control")
    parser.add_argument("--model", help="model directory (default: the one of the package)")
    parser.add_argument("--rows", type=int, default=200)
    given = parser.parse_args()
    model = Path(find_model(given.model))
    rows = LabelledStore.open(given.data).validation
    batch = take(rows, torch.arange(min(given.rows, len(rows))).numpy())
    own, slope, _ = read(model, given.control, 8, batch)
    print(f"8 bits: {right(own, batch):.1f} % right")
    for bits in (6, 5, 4):
        found, other, size = read(model, given.control, bits, batch)
        apart = (found.exp() - own.exp()).abs().sum(-1).mean() / 2
        along = F.cosine_similarity(other, slope).mean()
        print(
            f"{bits} bits: {size / 1e6:.1f} MB, {right(found, batch):.1f} % right, total variation {apart:.4f}, "
            f"cosine of gradients {along:.4f}"
        )


def read(model: Path, control: str, bits: int, batch: Batch) -> tuple[Tensor, Tensor, float]:
    """log p (B, C), the gradient of the first label's on the embeddings (B, L H), and the bytes of the matrices."""
    directory = model / "controls" / control
    found: Any = load_classifier(directory, labels_of(directory)[0], control, load_tokenizer(model), beside=True).model
    network = getattr(found, "network", found)
    state, size = network.state_dict(), 0.0
    for name in matrices(state):
        if bits < 8:
            coded = few_bits.quantise(state[name], bits)
            state[name].copy_(coded.codes * few_bits.by_column(coded.scales, state[name].shape[1], coded.group).float())
        size += state[name].numel() * (bits / 8 + 2 / few_bits.GROUP)
    embeds = network.get_input_embeddings()(batch.ids).detach().requires_grad_(True)
    log_probs = network(inputs_embeds=embeds, attention_mask=batch.mask).logits.float().log_softmax(-1)
    (gradient,) = torch.autograd.grad(log_probs[:, 0].sum(), embeds)
    return log_probs.detach(), gradient.flatten(1), size


def right(log_probs: Tensor, batch: Batch) -> float:
    return 100 * float((log_probs.argmax(-1) == batch.labels).float().mean())


if __name__ == "__main__":
    main()
