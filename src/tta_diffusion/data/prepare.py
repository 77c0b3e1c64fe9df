"""Text data sets -> a token corpus on disk, in two passes: learn the tokenizer, then encode."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tta_diffusion.common.progress import Progress
from tta_diffusion.data.clean import CLEANERS
from tta_diffusion.data.config import PrepareConfig, SourceConfig
from tta_diffusion.data.dedupe import SeenParagraphs
from tta_diffusion.data.documents import iterate_documents, remember_held_out
from tta_diffusion.data.pack import Packing, SentenceIds, pack
from tta_diffusion.data.sentences import split_sentences
from tta_diffusion.data.smiles import smiles_tokenizer
from tta_diffusion.data.sources import Text, count_rows
from tta_diffusion.data.store import LABEL_DTYPE, SPLITS
from tta_diffusion.data.tokenizer import backend, load_tokenizer, special_ids, train_tokenizer
from tta_diffusion.data.words import word_tokenizer
from tta_diffusion.data.writer import StoreWriter, explain_full_disk, token_dtype

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

CHARACTERS_PER_BATCH = 1_000_000  # encoded at once; bounds the memory


def prepare(
    config: PrepareConfig,
    data_dir: str | Path,
    out: str | Path,
    overwrite: bool = False,
    show_progress: bool = False,
) -> dict[str, Any]:
    """Write the corpus to `out`; returns the content of its meta.json."""
    data_dir = Path(data_dir)
    totals = check_sources(config, data_dir)
    writer = StoreWriter(out, overwrite)
    try:
        return writer.finish(write_corpus(config, data_dir, totals, writer, show_progress))
    except BaseException:
        writer.discard()
        raise


def check_sources(config: PrepareConfig, data_dir: Path) -> dict[str, int | None]:
    """Find mistakes before the long work starts; source name -> how many texts it has, if known."""
    if not data_dir.is_dir() and any(source.path for source in config.sources):
        raise ValueError(f"No data directory {data_dir}: check --data-dir.")
    for source in config.sources:
        CLEANERS.get(source.kind)
    return {source.name: count_rows(source, data_dir) for source in config.sources}


def write_corpus(
    config: PrepareConfig, data_dir: Path, totals: dict[str, int | None], writer: StoreWriter, show: bool
) -> dict[str, Any]:
    """Write the tokenizer and every source; what meta.json says about them."""
    tokenizer = make_tokenizer(config, data_dir, show)
    packing = make_packing(config, special_ids(tokenizer))
    with explain_full_disk(writer.directory):
        tokenizer.save_pretrained(writer.tokenizer_dir)
    seen = held_out_paragraphs(config, data_dir) if config.deduplicate else None
    sources = []
    for source in config.sources:
        with Progress(f"encoding {source.name}", totals[source.name], show) as progress:
            sources.append(write_source(source, config, data_dir, seen, tokenizer, packing, writer, progress))
    if not any(source["splits"]["train"]["sequences"] for source in sources):
        raise ValueError(
            "The corpus is empty: no text was left after cleaning and the 'min_tokens' rule. "
            "Check 'field', 'where', 'kind' and 'min_tokens' of the sources."
        )
    return {
        "length": config.length,
        "dtype": token_dtype(len(tokenizer)).str,
        "vocab_size": len(tokenizer),
        "special_ids": special_ids(tokenizer),
        "sources": sources,
        **({"labels": config.labels} if config.labels else {}),
        "config": config.to_dict(),
    }


def make_tokenizer(config: PrepareConfig, data_dir: Path, show: bool) -> PreTrainedTokenizerFast:
    if config.tokenizer:
        return load_tokenizer(config.tokenizer)
    with Progress("training the tokenizer", config.tokenizer_characters, show) as progress:
        sample = tokenizer_sample(config, data_dir, progress)
        if config.tokenizer_kind == "smiles":
            return smiles_tokenizer(sample)
        if config.tokenizer_kind == "words":
            return word_tokenizer(sample, config.vocab_size)
        return train_tokenizer(sample, config.vocab_size)


def tokenizer_sample(config: PrepareConfig, data_dir: Path, progress: Progress) -> Iterator[str]:
    """Clean text, about `tokenizer_characters` of it, each source in proportion to its weight."""
    total_weight = sum(source.weight for source in config.sources)
    for source in config.sources:
        share = config.tokenizer_characters * source.weight / total_weight
        # A file at a time: the beginning of every file, not only of the first.
        parts = [replace(source, path=(path,)) for path in source.path] or [source]
        for part in parts:
            taken = 0
            for document, _ in iterate_documents(part, data_dir, None, Counter()):
                yield document
                taken += len(document)
                progress.advance(len(document))
                if taken >= share / len(parts):
                    break


def make_packing(config: PrepareConfig, ids: dict[str, int]) -> Packing:
    for name, needed in (("eos", True), ("pad", True), ("bos", config.bos)):
        if needed and name not in ids:
            hint = "set 'bos: false' or take another tokenizer" if name == "bos" else "take another tokenizer"
            raise ValueError(f"The tokenizer has no {name} token: {hint}.")
    return Packing(
        length=config.length,
        pad=ids["pad"],
        eos=ids["eos"],
        bos=ids["bos"] if config.bos else None,
        partial=config.partial,
        filled=config.filled,
        overlong=config.overlong,
        min_tokens=config.min_tokens,
    )


def held_out_paragraphs(config: PrepareConfig, data_dir: Path) -> SeenParagraphs:
    seen = SeenParagraphs()
    for source in config.sources:
        remember_held_out(source, data_dir, seen)
    return seen


def write_source(
    source: SourceConfig,
    config: PrepareConfig,
    data_dir: Path,
    seen: SeenParagraphs | None,
    tokenizer: PreTrainedTokenizerFast,
    packing: Packing,
    writer: StoreWriter,
    progress: Progress,
) -> dict[str, Any]:
    """Encode and pack one source into its two files, and two of labels where it has a rule; its entry of meta.json."""
    dtype = token_dtype(len(tokenizer))
    arrays = {s: writer.array(s, source.name, packing.length, dtype, packing.pad) for s in SPLITS}
    labels = {s: writer.array(s, f"{source.name}.labels", 1, LABEL_DTYPE, 0) for s in SPLITS if source.label}
    counts: Counter[str] = Counter()
    rng = random.Random(f"{config.seed}/{source.name}")
    documents = iterate_documents(source, data_dir, seen, counts)
    for batch in in_batches(documents, CHARACTERS_PER_BATCH):
        for (document, label), sentences in zip(batch, encode([t for t, _ in batch], backend(tokenizer)), strict=True):
            split = "validation" if _share(document, config.seed) < config.validation_fraction else "train"
            for ids in pack(sentences, packing, rng):
                arrays[split].add(ids)
                if labels:
                    labels[split].add([label])
            counts["utf8_bytes"] += len(document.encode())
            counts["encoded_tokens"] += sum(len(s.later) for s in sentences)
        progress.reach(counts["read"])
    splits = {split: array.close() for split, array in arrays.items()}
    for split, array in labels.items():
        splits[split]["labels"] = array.close()
    return {
        "name": source.name,
        "weight": source.weight,
        "splits": splits,
        "counts": dict(counts),
    }


def in_batches(documents: Iterable[Text], characters: int) -> Iterator[list[Text]]:
    batch: list[Text] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def encode(documents: list[str], tokenizer: Tokenizer) -> list[list[SentenceIds]]:
    """Sentences of each document as ids, at the start of a sequence and after a space."""
    sentences = [split_sentences(document) for document in documents]
    flat = [s for group in sentences for s in group]
    later = tokenizer.encode_batch_fast([f" {s}" for s in flat], add_special_tokens=False)
    ids = (SentenceIds(opening_ids(s, e.ids, tokenizer), e.ids) for s, e in zip(flat, later, strict=True))
    return [[next(ids) for _ in group] for group in sentences]


def opening_ids(sentence: str, later: list[int], tokenizer: Tokenizer) -> list[int]:
    """The ids of a sentence without the space before it, given those with: only its first word differs."""
    word = sentence.split(maxsplit=1)[0]
    alone, spaced = _word_ids(word, tokenizer), _word_ids(f" {word}", tokenizer)
    if tuple(later[: len(spaced)]) == spaced:
        return [*alone, *later[len(spaced) :]]
    return list(tokenizer.encode(sentence, add_special_tokens=False).ids)


@lru_cache(maxsize=1 << 16)
def _word_ids(word: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    return tuple(tokenizer.encode(word, add_special_tokens=False).ids)


def _share(document: str, seed: int) -> float:
    """A number in [0, 1) that depends on the text and the seed only: which split it falls in."""
    digest = hashlib.blake2b(document.encode(), digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest, "little") / 2**64
