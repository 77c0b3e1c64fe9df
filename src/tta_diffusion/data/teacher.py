"""Texts of an auto-regressive teacher as training data: sequence-level distillation (Kim and Rush, 2016).

A parallel writer draws all tokens at once, so it suffers where one opening has many continuations. A teacher's samples
have fewer: it continues the first tokens of real sequences, and what it writes becomes one more source of the corpus.

    python -m tta_diffusion.data.teacher CORPUS TEACHER OUT --texts 800000

TEACHER is any causal language model with a tokenizer; OUT holds the sources of CORPUS, and the source `teacher`. It can
be a corpus again, for a second source under another name (`--name`); openings are always people's.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from tta_diffusion.common.command import run_command
from tta_diffusion.common.progress import Progress
from tta_diffusion.data.extension import Extension
from tta_diffusion.data.store import MixtureSampler, TokenStore
from tta_diffusion.data.tokenizer import backend, load_tokenizer

Rows = NDArray[Any]


@dataclass(frozen=True)
class Teaching:
    """How much the teacher writes, and how it draws."""

    texts: int = 800_000  # openings that are continued; what repeats itself or is too short is left out
    opening: tuple[int, int] = (4, 16)  # teacher's tokens of an opening, from .. to
    tokens: int = 76  # that the teacher adds; a text that fills no sequence must have ended by itself
    temperature: float = 0.8
    top_k: int = 100
    top_p: float = 0.95
    repetition: float = 0.1  # largest share of 4-grams that a text already had
    filled: float = 0.5  # share of long texts that go on to the last token; the others stop at a sentence end
    weight: float = 1.0  # of the new source, beside those of the corpus
    batch: int = 8192
    seed: int = 0
    source: str = "teacher"  # name of the new source


def draw(logits: Tensor, teaching: Teaching, generator: torch.Generator) -> Tensor:
    """(B,) tokens from logits (B, V): the `top_k` likeliest, of these the fewest that hold `top_p`."""
    values, ids = logits.topk(min(teaching.top_k, logits.shape[-1]), -1)  # in their own type: half the bytes to sort
    chances = (values.float() / teaching.temperature).softmax(-1)
    chances = chances.masked_fill(chances.cumsum(-1) - chances >= teaching.top_p, 0.0)
    return ids.gather(-1, torch.multinomial(chances, 1, generator=generator)).squeeze(-1)


@torch.no_grad()
def continued(
    model: PreTrainedModel, opening: Tensor, ends: Sequence[int], teaching: Teaching, generator: torch.Generator
) -> Tensor:
    """Openings (B, P) -> (B, P + tokens), all of it `ends[0]` behind a text that ended."""
    stop = torch.tensor(list(ends), device=opening.device)
    text, cache, shown = opening, None, opening
    over = torch.zeros(len(opening), dtype=torch.bool, device=opening.device)
    for _ in range(teaching.tokens):
        output = model(input_ids=shown, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = output.past_key_values
        token = draw(output.logits[:, -1], teaching, generator)
        over |= torch.isin(token, stop)
        shown = torch.where(over, stop[0], token)[:, None]
        text = torch.cat([text, shown], 1)
        if bool(over.all()):
            break
    return text


def repetition(rows: Rows, lengths: Rows, n: int = 4) -> Rows:
    """(B,) share of the n-grams of each row (B, L) that stood in it before; `lengths` (B,) count its tokens."""
    grams = np.lib.stride_tricks.sliding_window_view(rows, n, axis=1).astype(np.int64)  # (B, L - n + 1, n)
    codes = (grams * np.array([1_000_003**k % (1 << 31) for k in range(n)])).sum(-1)
    inside = np.arange(codes.shape[1]) < (lengths - n + 1)[:, None]
    order = np.sort(np.where(inside, codes, -1 - np.arange(codes.shape[1])), 1)
    again = (np.diff(order, axis=1) == 0).sum(1)
    return np.asarray(again / np.maximum(inside.sum(1), 1))


def sentence_ends(tokenizer: PreTrainedTokenizerFast) -> Rows:
    """(V,) whether a sentence may end with the token."""
    texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
    return np.array([t.rstrip("\"')”’").endswith((".", "!", "?")) for t in texts])


@dataclass(frozen=True)
class Layout:
    """Lays texts out as sequences of the corpus: `<s> text </s> <pad> ...`, as `data.pack` does."""

    tokenizer: PreTrainedTokenizerFast
    special: dict[str, int]
    length: int
    ends: Rows  # (V,)

    def rows(self, texts: Sequence[str], ended: Sequence[bool], teaching: Teaching, rng: random.Random) -> list[Rows]:
        found: list[Rows] = []
        room = self.length - ("bos" in self.special)
        for encoded, done in zip(
            backend(self.tokenizer).encode_batch_fast(list(texts), add_special_tokens=False), ended, strict=True
        ):
            ids = np.array(encoded.ids[:room])
            if len(encoded.ids) < room and not done:
                continue  # cut by the teacher's own limit, in the middle of a sentence
            if len(encoded.ids) > room and rng.random() >= teaching.filled:
                stops = self.ends[ids].nonzero()[0]
                if not len(stops):
                    continue
                ids = ids[: stops[-1] + 1]
            if len(ids) < room // 4:
                continue
            row = np.full(self.length, self.special["pad"])
            row[self.length - room : self.length - room + len(ids)] = ids
            if "bos" in self.special:
                row[0] = self.special["bos"]
            if len(ids) < room:
                row[self.length - room + len(ids)] = self.special["eos"]
            found.append(row)
        if not found:
            return []
        table = np.stack(found)
        kept = repetition(table, (table != self.special["pad"]).sum(1)) <= teaching.repetition
        return list(table[kept])


def taught_rows(
    store: TokenStore, model: PreTrainedModel, teacher: PreTrainedTokenizerFast, teaching: Teaching
) -> Iterator[list[Rows]]:
    """Sequences (L,) by the teacher, a batch of openings at a time. Openings follow the corpus' own weights.

    While the teacher writes a batch, another thread lays out the one before.
    """
    tokenizer = load_tokenizer(store.tokenizer_dir)
    layout = Layout(tokenizer, store.special_ids, store.length, sentence_ends(tokenizer))
    widths, cuts = random.Random(teaching.seed), random.Random(teaching.seed + 2)
    taught = store.meta.get("teachers", {})
    people = {source["name"]: source["weight"] for source in store.meta["sources"] if source["name"] not in taught}
    sampler = MixtureSampler(store, "train", seed=teaching.seed, weights=people)
    generator = torch.Generator(model.device).manual_seed(teaching.seed)
    first = 0 if teacher.bos_token_id is None else 1
    ends = sorted({i for i in (teacher.eos_token_id, teacher.bos_token_id) if i is not None})

    def laid_out(written: list[list[int]]) -> list[Rows]:
        return layout.rows(*paragraphs(written, teacher, ends), teaching, cuts)

    waiting: deque[Future[list[Rows]]] = deque()
    with ThreadPoolExecutor(1) as other:
        for start in range(0, teaching.texts, teaching.batch):
            count = min(teaching.batch, teaching.texts - start)
            width = widths.randint(*teaching.opening)
            texts = tokenizer.batch_decode(sampler.rows(start, count), skip_special_tokens=True)
            openings = [e.ids[:width] for e in backend(teacher).encode_batch_fast(texts, add_special_tokens=False)]
            prefix = [teacher.bos_token_id] * first
            opening = torch.tensor([prefix + ids for ids in openings if len(ids) == width], device=model.device)
            if len(opening):
                written = continued(model, opening, ends, teaching, generator)[:, first:]
                waiting.append(other.submit(laid_out, written.tolist()))
            if len(waiting) > 1:
                yield waiting.popleft().result()
        for job in waiting:
            yield job.result()


def paragraphs(
    written: Sequence[Sequence[int]], teacher: PreTrainedTokenizerFast, ends: Sequence[int]
) -> tuple[list[str], list[bool]]:
    """The first paragraph of every text, since sequences of a corpus have no lines, and whether it ended by itself."""
    bodies = teacher.batch_decode([[i for i in ids if i not in ends] for ids in written])
    texts = [text.strip().partition("\n")[0].strip() for text in bodies]
    ended = [ids[-1] in ends or len(p) < len(b.strip()) for ids, p, b in zip(written, texts, bodies, strict=True)]
    return texts, ended


def teach(
    corpus: str | Path,
    teacher: str | Path,
    out: str | Path,
    teaching: Teaching,
    device: str,
    minutes: float | None = None,
) -> dict[str, Any]:
    """Writes the extended corpus; returns its meta.json. After `minutes` it finishes with what it has."""
    store = TokenStore.open(corpus)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        teacher, use_safetensors=True, dtype=dtype, trust_remote_code=False
    )
    model.to(torch.device(device)).eval()  # type: ignore[arg-type]
    extension = Extension(store, out, teaching.source)
    rng = random.Random(teaching.seed + 1)
    began = time.monotonic()
    with Progress("the teacher writes", teaching.texts, sys.stderr.isatty()) as progress:
        for number, rows in enumerate(taught_rows(store, model, load_tokenizer(teacher), teaching), start=1):
            for row in rows:
                extension.add(row.tolist(), "validation" if rng.random() < 0.005 else "train")
            progress.reach(min(number * teaching.batch, teaching.texts))
            if minutes is not None and time.monotonic() - began > 60 * minutes:
                break
    return extension.finish(teaching.weight, {"name": Path(teacher).name, **asdict(teaching)})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="a prepared corpus, whose sequences give the openings")
    parser.add_argument("teacher", help="a causal language model: directory or hub name")
    parser.add_argument("out", type=Path, help="folder for the extended corpus")
    parser.add_argument("--texts", type=int, default=Teaching.texts, help="openings to continue")
    parser.add_argument("--temperature", type=float, default=Teaching.temperature)
    parser.add_argument("--top-p", type=float, default=Teaching.top_p)
    parser.add_argument("--weight", type=float, default=Teaching.weight, help="of the new source in training")
    parser.add_argument("--batch", type=int, default=Teaching.batch, help="texts that are written at once")
    parser.add_argument("--seed", type=int, default=Teaching.seed)
    parser.add_argument("--name", dest="source", metavar="NAME", default=Teaching.source, help="of the new source")
    parser.add_argument("--minutes", type=float, help="finish after so many minutes with what is written")
    given = parser.parse_args(arguments)
    teaching = Teaching(**{field.name: getattr(given, field.name) for field in fields(Teaching) if field.name in given})
    device = "cuda" if torch.cuda.is_available() else "cpu"
    meta = teach(given.corpus, given.teacher, given.out, teaching, device, given.minutes)
    new = meta["sources"][-1]["splits"]["train"]
    print(f"{new['sequences']:,} sequences and {new['tokens']:,} tokens by the teacher in {given.out}")


if __name__ == "__main__":
    run_command(main, (ValueError, OSError))
