"""General text, labelled by a teacher: what a guidance classifier must know beside its own data set.

A classifier that has seen news only is sure of anything, and guidance finds texts that it takes for sports although
they are nothing of the kind. A teacher, a larger classifier of the same labels, reads general text (and texts written
under guidance, where the mistakes are) and gives each the label

    argmax_c p(c)     if max_c p(c) >= sure
    -1, undecided     if max_c p(c) < unsure: to be given the even distribution

What lies between is left out: the teacher's doubt about a label is no knowledge. Of several teachers, from different
seeds, the mean of p counts: one alone may be sure of what none has learnt, but then they disagree. A teacher knows the
classes alone and may be sure of a novel's "topic" too: sources under `other` belong to no class and are undecided
unread. The rows are added to those of a labelled data set, whose validation rows stay as they are.

`python -m tta_diffusion.training.classifier.label TEACHER OUT --data DIR --corpus DIR` needs no command line package.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from tta_diffusion.common.atomic import finished, write_json
from tta_diffusion.common.command import run_command
from tta_diffusion.data.tokenizer import backend, load_tokenizer
from tta_diffusion.data.writer import fingerprint
from tta_diffusion.training.classifier.loop import pick_device
from tta_diffusion.training.classifier.store import (
    GIVEN,
    META,
    SPLITS,
    TAUGHT,
    TOKENIZER,
    UNDECIDED,
    LabelledStore,
    Split,
)
from tta_diffusion.training.classifier.teacher import Teacher
from tta_diffusion.training.classifier.unlabelled import (
    Sequences,
    draw,
    lengths_of,
    open_corpus,
    parse_weights,
    read_texts,
)

LEFT_OUT = -2
AT_A_TIME = 8192  # texts decoded and read together: sorting them by length saves padding, and memory stays small
Reader = Callable[[Sequence[str]], NDArray[Any]]  # texts -> probabilities (N, C)


@dataclass(frozen=True)
class Request:
    """What to label, and how sure the teacher must be."""

    teacher: Path
    out: Path
    data: Path
    corpus: Path
    texts: tuple[Path, ...] = ()
    rows: int = 300_000
    weights: str = ""  # of the corpus's sources; empty: by their size
    other: str = ""  # sources of the corpus that belong to no class
    sure: float = 0.9
    unsure: float = 0.6
    seed: int = 0
    device: str = "auto"
    batch: int = 512
    overwrite: bool = False
    also: tuple[Path, ...] = ()  # other teachers

    def __post_init__(self) -> None:
        if not 0 <= self.unsure <= self.sure <= 1:
            raise ValueError(f"--unsure and --sure must rise from 0 to 1, got {self.unsure} and {self.sure}")
        if self.rows < 0 or not (self.rows or self.texts):
            raise ValueError(f"nothing to label: give --rows of 1 or more, or --texts (got {self.rows} rows)")
        if self.batch < 1:
            raise ValueError(f"--batch must be 1 or more, got {self.batch}")
        if self.out.resolve() == self.data.resolve():
            raise ValueError(f"'{self.out}' is the data itself: choose another directory to write to")


def label(request: Request, reader: Reader | None = None) -> dict[str, Any]:
    """Writes `request.out` and returns the content of its meta.json; `reader` stands in for the teacher."""
    with finished(request.out, request.overwrite, META) as directory:
        data = open_data(request.data)
        tokenizer = load_tokenizer(data.tokenizer_dir)
        found = gather(request, data, tokenizer)
        if reader is None:
            reader = mean_of(request, data.labels)
        names = list(dict.fromkeys(f"taught:{part.source}" for part in found))
        source = np.concatenate([np.full(len(part.ids), names.index(f"taught:{part.source}")) for part in found])
        ids = np.concatenate([part.ids for part in found])
        new = unseen(ids, data)
        ids, source = ids[new], source[new]
        unread = np.isin(source, [names.index(f"taught:{name}") for name in other_sources(request, found)])
        labels = np.full(len(ids), UNDECIDED, dtype=np.int16)
        labels[~unread] = label_rows(ids[~unread], tokenizer, reader, request.sure, request.unsure)
        kept = labels != LEFT_OUT
        if not kept.any():
            raise ValueError("the teacher was neither sure nor unsure of any text: lower --sure, or raise --unsure")
        train = added(data, ids[kept], labels[kept], len(data.meta["sources"]) + source[kept])
        for split, rows in zip(SPLITS, (train, data.validation), strict=True):
            rows.save(directory / f"{split}.npz")
        shutil.copytree(data.tokenizer_dir, directory / TOKENIZER)
        read = np.bincount(source, minlength=len(names)).tolist()
        meta = describe(request, data, train, dict(zip(names, read, strict=True)))
        write_json(directory / META, meta)
    return meta


def mean_of(request: Request, labels: Sequence[str]) -> Reader:
    """The mean of what the teachers say."""
    device = pick_device(request.device)
    teachers = [Teacher.load(path, labels, device, request.batch) for path in (request.teacher, *request.also)]
    return lambda texts: np.mean([teacher(texts) for teacher in teachers], axis=0)


def open_data(directory: Path) -> LabelledStore:
    data = LabelledStore.open(directory)
    if data.meta["pairs"]:
        raise ValueError(f"'{directory}' holds pairs of texts, which a corpus does not have")
    if data.train.origin is not None:
        raise ValueError(f"'{directory}' was labelled by a teacher already: name the prepared data it was made from")
    return data


def gather(request: Request, data: LabelledStore, tokenizer: PreTrainedTokenizerFast) -> list[Sequences]:
    """The sequences of the corpus, then those of every file."""
    weights = parse_weights(request.weights)
    corpus = open_corpus(request.corpus, data)
    drawn = draw(corpus, request.rows, weights, request.seed, data) if request.rows else []
    return drawn + [read_texts(path, tokenizer, data) for path in request.texts]


def other_sources(request: Request, found: list[Sequences]) -> list[str]:
    names = [name.strip() for name in request.other.split(",") if name.strip()]
    known = {part.source for part in found}
    for name in names:
        if name not in known:
            raise ValueError(f"--other names '{name}', which is not among the sources read: {', '.join(sorted(known))}")
    return names


def unseen(ids: NDArray[Any], data: LabelledStore) -> NDArray[np.bool_]:
    """(N,) which sequences are new: neither the data's, in any split, nor there before."""
    seen = {row.tobytes() for split in (data.train, data.validation) for row in split.ids}
    new = np.zeros(len(ids), dtype=bool)
    for i, row in enumerate(ids):
        key = row.tobytes()
        if key not in seen:
            seen.add(key)
            new[i] = True
    return new


def label_rows(
    ids: NDArray[Any], tokenizer: PreTrainedTokenizerFast, reader: Reader, sure: float, unsure: float
) -> NDArray[np.int16]:
    """(N,) a class, undecided or left out for sequences (N, L), which the reader sees as text."""
    inner, terminal = backend(tokenizer), sys.stderr.isatty()
    labels = np.full(len(ids), LEFT_OUT, dtype=np.int16)
    with tqdm(total=len(ids), desc="labelling", unit="text", mininterval=0.2 if terminal else 10.0) as bar:
        for low in range(0, len(ids), AT_A_TIME):
            texts = inner.decode_batch(ids[low : low + AT_A_TIME].tolist(), skip_special_tokens=True)
            labels[low : low + len(texts)] = decide(reader(texts), sure, unsure)
            bar.update(len(texts))
    return labels


def decide(probabilities: NDArray[Any], sure: float, unsure: float) -> NDArray[np.int16]:
    """(N, C) -> (N,) the class of which the teacher is sure, undecided (-1) or left out (-2)."""
    largest = probabilities.max(-1)
    doubtful = np.where(largest < unsure, UNDECIDED, LEFT_OUT)
    return np.where(largest >= sure, probabilities.argmax(-1), doubtful).astype(np.int16)


def added(data: LabelledStore, ids: NDArray[Any], labels: NDArray[Any], sources: NDArray[Any]) -> Split:
    """The data's training rows, then the taught ones."""
    rows = data.train
    return Split(
        np.concatenate([rows.ids, ids]),
        np.concatenate([rows.lengths, lengths_of(ids, data.special["eos"])]),
        np.concatenate([rows.labels.astype(np.int16), labels]),
        np.concatenate([rows.sources, sources]).astype(np.uint16),
        np.repeat(np.array([GIVEN, TAUGHT], dtype=np.uint8), [len(rows), len(ids)]),
    )


def describe(request: Request, data: LabelledStore, train: Split, read: dict[str, int]) -> dict[str, Any]:
    """meta.json: the data's, with the new sources and how they came about."""
    sources = dict(data.meta["sources"])
    for number, name in enumerate(read, start=len(sources)):
        mine = train.labels[train.sources == number]
        counts = {text: int((mine == i).sum()) for i, text in enumerate(data.labels)}
        sources[name] = {
            "train": {**counts, "undecided": int((mine == UNDECIDED).sum())},
            "validation": dict.fromkeys(counts, 0),
        }
    teacher = {
        "name": request.teacher.resolve().name,
        "also": [path.resolve().name for path in request.also],
        "sure": request.sure,
        "unsure": request.unsure,
        "seed": request.seed,
        "rows": request.rows,
        "weights": parse_weights(request.weights),
        "other": request.other,
        "read": read,  # sequences read, by source; those not among its counts were left out
        "data_fingerprint": data.meta["fingerprint"],
    }
    meta = {**data.meta, "sources": sources, "teacher": teacher}
    meta["arrays_sha256"] = {s: rows.digest() for s, rows in zip(SPLITS, (train, data.validation), strict=True)}
    meta["fingerprint"] = fingerprint({k: v for k, v in meta.items() if k != "fingerprint"})
    return meta


def summary(meta: dict[str, Any]) -> list[str]:
    """A line for each new source."""
    lines = []
    for name, read in meta["teacher"]["read"].items():
        counts = meta["sources"][name]["train"]
        shown = {**counts, "left out": read - sum(counts.values())}
        lines.append(f"{name}: " + ", ".join(f"{n:,} {what}" for what, n in shown.items()))
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path, help="directory of a trained classifier with its tokenizer")
    parser.add_argument("out", type=Path, help="directory for the arrays")
    parser.add_argument("--data", type=Path, required=True, help="prepared labelled data; all its rows are kept")
    parser.add_argument("--corpus", type=Path, required=True, help="prepared training corpus on the same vocabulary")
    parser.add_argument("--also", type=Path, nargs="+", action="extend", default=[], help="other teachers: their mean")
    parser.add_argument("--texts", type=Path, nargs="+", action="extend", default=[], help="jsonl files of texts")
    parser.add_argument("--rows", type=int, default=Request.rows, help="sequences drawn from the corpus")
    parser.add_argument("--weights", default="", help="shares of its sources, wikipedia=0.5,imdb=0.2; else by size")
    parser.add_argument("--other", default="", help="sources that belong to no class, like imdb,gutenberg: undecided")
    parser.add_argument("--sure", type=float, default=Request.sure, help="a class needs this probability")
    parser.add_argument("--unsure", type=float, default=Request.unsure, help="undecided where none has this one")
    parser.add_argument("--seed", type=int, default=Request.seed, help="seed of the sequences drawn")
    parser.add_argument("--device", default=Request.device, help="where the teacher runs")
    parser.add_argument("--batch", type=int, default=Request.batch, help="texts that the teacher reads at once")
    parser.add_argument("--overwrite", action="store_true", help="replace finished arrays in OUT")
    options = vars(parser.parse_args(arguments))
    request = Request(**{**options, **{name: tuple(options[name]) for name in ("texts", "also")}})
    print("\n".join([*summary(label(request)), str(request.out)]))


if __name__ == "__main__":
    run_command(main)
