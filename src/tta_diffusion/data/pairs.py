"""Pairs of texts that say the same, as a corpus: `<s> source <s> text </s> <pad> ...`, a source of any length a row.

A group is a set of texts that are linked by pairs (see `groups`). All pairs of a group fall in one split, so that
neither side of a test pair stands in training: test where a test file has one of its texts, else by a hash of its name.
Beside the arrays lie `test.jsonl` and `validation.jsonl` for `tta bench`, one {"source": ..., "references": [...]} a
line.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tta_diffusion.common.atomic import write_lines
from tta_diffusion.common.configuration import build, load_yaml
from tta_diffusion.data.clean import CLEANERS
from tta_diffusion.data.groups import Groups, normalised
from tta_diffusion.data.held_out import held_out, place
from tta_diffusion.data.sources import find_files, matches, rows_of_file
from tta_diffusion.data.store import SPLITS
from tta_diffusion.data.tokenizer import load_tokenizer, special_ids
from tta_diffusion.data.writer import StoreWriter, token_dtype

TRAIN, VALIDATION, TEST = (*SPLITS, "test")
FILE = "{}.jsonl"


@dataclass(frozen=True)
class PairSource:
    """One data set of pairs; files under the data directory."""

    name: str
    path: str
    first: str  # columns
    second: str
    validation: str = ""  # files of their own for these splits, if there are any
    test: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)  # column -> the value to keep, or a list of them
    kind: str = "plain"  # which cleaner
    weight: float = 1.0  # share of the samples drawn in training


@dataclass(frozen=True)
class PairsConfig:
    """A corpus of pairs."""

    sources: tuple[PairSource, ...]
    length: int = 64  # tokens of both texts and what frames them; longer pairs are left out
    both_ways: bool = True  # in training, each text of a pair is once the source
    validation_fraction: float = 0.0  # of the groups that are in no file of their own
    test_fraction: float = 0.0

    def __post_init__(self) -> None:
        if not self.sources:
            raise ValueError("the configuration lists no sources: add at least one under 'sources'")
        if not 0 <= self.validation_fraction + self.test_fraction < 1:
            raise ValueError("'validation_fraction' and 'test_fraction' are shares that leave something to train on")


class Pair(NamedTuple):
    first: str
    second: str
    source: str  # name of its data set
    split: str  # of the file it was read from; after `divide`, the one it belongs to


def load_pairs_config(path: str | Path) -> PairsConfig:
    return build(PairsConfig, load_yaml(path))


def read_pairs(config: PairsConfig, data_dir: Path) -> Iterator[Pair]:
    """All pairs, cleaned; two texts with the same words are no pair, nor is one without another."""
    for source in config.sources:
        clean = CLEANERS.get(source.kind)
        columns = [source.first, source.second, *source.where]
        for split, files in ((TRAIN, source.path), (VALIDATION, source.validation), (TEST, source.test)):
            for path in find_files((files,), data_dir, source.name) if files else ():
                for row in rows_of_file(path, columns):
                    if not matches(row, source.where) or row[source.first] is None or row[source.second] is None:
                        continue
                    first, second = (clean(str(row[column])) for column in (source.first, source.second))
                    if first and second and normalised(first) != normalised(second):
                        yield Pair(first, second, source.name, split)


def divide(pairs: list[Pair], validation_fraction: float, test_fraction: float) -> list[Pair]:
    """Pairs with the split that their group belongs to; those of a training file whose group is in a file of another
    split are left out."""
    groups = Groups((pair.first, pair.second) for pair in pairs)
    fixed: dict[str, str] = {}
    for split in (VALIDATION, TEST):  # test wins
        fixed |= {groups.of(pair.first): split for pair in pairs if pair.split == split}
    found = []
    for pair in pairs:
        group = groups.of(pair.first)
        if group in fixed:
            if pair.split == fixed[group]:
                found.append(pair)
        elif held_out(group, test_fraction):
            found.append(pair._replace(split=TEST))
        else:
            held = held_out(group, test_fraction + validation_fraction)
            found.append(pair._replace(split=VALIDATION if held else TRAIN))
    return found


def pair_ids(source: list[int], text: list[int], special: Mapping[str, int]) -> list[int]:
    """`<s> source <s> text </s>`; a tokenizer without a start token has its end token between the two."""
    start = [special["bos"]] if "bos" in special else []
    return [*start, *source, *(start or [special["eos"]]), *text, special["eos"]]


def prepare_pairs(
    config: PairsConfig, data_dir: str | Path, tokenizer_dir: str | Path, out: str | Path, overwrite: bool = False
) -> dict[str, Any]:
    """Writes the corpus and its test file to `out`; returns the content of meta.json."""
    data_dir = Path(data_dir)
    if not data_dir.is_dir():
        raise ValueError(f"No data directory {data_dir}: check --data-dir.")
    tokenizer = load_tokenizer(tokenizer_dir)
    special = special_ids(tokenizer)
    if "bos" not in special:
        raise ValueError("The tokenizer has no start token, which stands behind a source: take another one.")
    pairs = divide(list(read_pairs(config, data_dir)), config.validation_fraction, config.test_fraction)
    if not any(pair.split == TRAIN for pair in pairs):
        raise ValueError("No pair is left to train on: check the columns, 'where' and 'kind' of the sources.")
    writer = StoreWriter(out, overwrite)
    try:
        tokenizer.save_pretrained(writer.tokenizer_dir)
        sources = [_write_source(source, config, pairs, tokenizer, special, writer) for source in config.sources]
        if not any(source["splits"][TRAIN]["sequences"] for source in sources):
            raise ValueError(f"No pair fits {config.length} tokens with what frames it: raise 'length'.")
        for split in (VALIDATION, TEST):
            write_lines(writer.scratch / FILE.format(split), with_references(pairs, split))
        return writer.finish(
            {
                "length": config.length,
                "dtype": token_dtype(len(tokenizer)).str,
                "vocab_size": len(tokenizer),
                "special_ids": special,
                "pairs": True,
                "sources": sources,
                "config": json.loads(json.dumps(asdict(config))),
            }
        )
    except BaseException:
        writer.discard()
        raise


def _write_source(
    source: PairSource,
    config: PairsConfig,
    pairs: list[Pair],
    tokenizer: Any,
    special: dict[str, int],
    writer: StoreWriter,
) -> dict[str, Any]:
    """The two arrays of a data set; its entry of meta.json."""
    dtype = token_dtype(len(tokenizer))
    counts: Counter[str] = Counter()
    splits = {}
    for split in SPLITS:
        array = writer.array(split, source.name, config.length, dtype, special["pad"])
        mine = [pair for pair in pairs if pair.source == source.name and pair.split == split]
        texts = [text for pair in mine for text in (pair.first, pair.second)]
        encoded = tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
        for first, second in zip(encoded[::2], encoded[1::2], strict=True):
            for a, b in ((first, second), (second, first))[: 2 if config.both_ways and split == TRAIN else 1]:
                ids = pair_ids(a, b, special)
                counts["read"] += 1
                if len(ids) > config.length:
                    counts["too_long"] += 1
                    continue
                array.add(ids + [special["pad"]] * (config.length - len(ids)))
        counts["utf8_bytes"] += sum(len(text.encode()) for text in texts)
        counts["encoded_tokens"] += sum(map(len, encoded))
        splits[split] = array.close()
    return {"name": source.name, "weight": source.weight, "splits": splits, "counts": dict(counts)}


def with_references(pairs: list[Pair], split: str) -> list[dict[str, Any]]:
    """Every source of a split once, with all its references, in the order of a hash: the first n are a fair sample."""
    found: dict[str, list[str]] = {}
    for pair in pairs:
        if pair.split == split:
            found.setdefault(pair.first, []).append(pair.second)
    rows = [{"source": source, "references": list(dict.fromkeys(texts))} for source, texts in found.items()]
    return sorted(rows, key=lambda row: place(str(row["source"])))
