"""Texts written under a classifier's guidance, for a teacher to read: what fools the classifier stands in them.

Openings are the first words of a training corpus's sequences, so no prompt of a benchmark is among them. Each is gone
on from under one label of the control, in turn, with the model's own settings. `label --texts FILE` gives the texts the
teacher's labels, whatever they were meant to be: a text that only the classifier takes for positive becomes undecided.

`python -m tta_diffusion.training.classifier.written MODEL CONTROL OUT --corpus DIR` needs no command line package.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from tta_diffusion.assets import find_model
from tta_diffusion.common.atomic import replace_text
from tta_diffusion.common.command import run_command
from tta_diffusion.common.writable import check_writable
from tta_diffusion.control import bundled
from tta_diffusion.data.store import TokenStore
from tta_diffusion.data.tokenizer import backend, load_tokenizer
from tta_diffusion.data.writer import fingerprint, hash_directory
from tta_diffusion.pipeline import CONTROLS, TTAPipeline, load_pipeline
from tta_diffusion.training.classifier.unfinished import Unfinished
from tta_diffusion.training.classifier.unlabelled import drawn_rows, parse_weights

AT_A_TIME = 512  # texts


@dataclass(frozen=True)
class Request:
    """How many texts, of which control, behind which openings."""

    model: str
    control: str
    out: Path
    corpus: Path
    texts: int = 4000
    weights: str = ""  # of the corpus's sources; empty: by their size
    words: tuple[int, int] = (2, 6)  # of an opening
    seed: int = 0
    device: str = "auto"
    dtype: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)  # of the sampler, over the model's own

    def __post_init__(self) -> None:
        if self.texts < 1:
            raise ValueError(f"--texts must be 1 or more, got {self.texts}")
        if not 1 <= self.words[0] <= self.words[1]:
            raise ValueError(f"an opening has 1 word or more, and the two numbers rise: got {list(self.words)}")


def write(request: Request) -> int:
    """Writes `request.out`, a line {prompt, label, text} for each text, and returns how many there are. Stopped, it
    goes on where it was."""
    check_writable(request.out)
    directory = find_model(request.model)
    pipe = load_pipeline(directory, request.device, request.dtype)
    labels, prompts = labels_of(pipe, request.control), openings(request)
    settings = {"batch_size": AT_A_TIME, **request.settings}
    asked = [(label, i, prompt) for k, label in enumerate(labels) for i, prompt in enumerate(prompts[k :: len(labels)])]
    unfinished = Unfinished(request.out)
    rows = unfinished.begin(made_with(request, directory, prompts))
    if [(row.get("label"), row.get("prompt")) for row in rows] != [(label, p) for label, _, p in asked[: len(rows)]]:
        raise ValueError(f"'{unfinished.path}' holds other texts than it was begun for: remove it, and begin again")
    with tqdm(total=len(asked), initial=len(rows), desc="writing", unit="text", disable=None) as bar:
        while len(rows) < len(asked):
            label = asked[len(rows)][0]
            part = [one for one in asked[len(rows) : len(rows) + AT_A_TIME] if one[0] == label]
            seeds = [request.seed + i for _, i, _ in part]  # two equal openings are two texts
            texts = pipe([p for *_, p in part], f"{request.control}={label}", seed=seeds, **settings).texts
            new = [{"prompt": p, "label": label, "text": text} for (*_, p), text in zip(part, texts, strict=True)]
            unfinished.add(new)
            rows += new
            bar.update(len(new))
    replace_text(request.out, "".join(f"{json.dumps(row)}\n" for row in rows))
    unfinished.finish()
    return len(rows)


def made_with(request: Request, directory: str, prompts: list[str]) -> dict[str, Any]:
    """All that the texts depend on."""
    own = {name: getattr(request, name) for name in ("control", "texts", "weights", "seed", "settings")}
    return own | {
        "words": list(request.words),
        "dtype": request.dtype or "float32",
        "model": hash_directory(Path(directory))[:16] if Path(directory).is_dir() else directory,
        "corpus": fingerprint({"openings": prompts})[:16],
    }


def labels_of(pipe: TTAPipeline, control: str) -> list[str]:
    """The labels of a classifier that the model brings."""
    if control not in pipe.library.bundled:
        raise ValueError(f"the model has no classifier '{control}' under {CONTROLS}/")
    return bundled.labels_of(pipe.library.bundled[control])


def openings(request: Request) -> list[str]:
    """The first words of sequences drawn from the corpus."""
    corpus = TokenStore.open(request.corpus)
    inner = backend(load_tokenizer(corpus.tokenizer_dir))
    parts = drawn_rows(corpus, request.texts, parse_weights(request.weights), request.seed)
    texts = [text for _, ids in parts for text in inner.decode_batch(ids.tolist(), skip_special_tokens=True)]
    generator = np.random.default_rng(request.seed)
    counts = generator.integers(request.words[0], request.words[1] + 1, size=len(texts))
    order = generator.permutation(len(texts))  # every label gets every source
    found = [" ".join(texts[i].split()[: counts[i]]) for i in order]
    return [opening for opening in found if opening]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="directory of a model with classifiers, or its name")
    parser.add_argument("control", help="name of the classifier, such as sentiment")
    parser.add_argument("out", type=Path, help="jsonl file to write")
    parser.add_argument("--corpus", type=Path, required=True, help="prepared training corpus")
    parser.add_argument("--texts", type=int, default=Request.texts, help="how many")
    parser.add_argument("--weights", default="", help="shares of its sources, wikipedia=0.5,imdb=0.2; else by size")
    parser.add_argument("--seed", type=int, default=Request.seed, help="of the openings and of the texts")
    parser.add_argument("--device", default=Request.device, help="auto, cpu or cuda")
    parser.add_argument("--dtype", help="float32 or bfloat16")
    request = Request(**vars(parser.parse_args(arguments)))
    print(f"{write(request)} texts in {request.out}")


if __name__ == "__main__":
    run_command(main)
