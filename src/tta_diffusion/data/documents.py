"""From a source's raw texts to clean documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tta_diffusion.data.clean import CLEANERS
from tta_diffusion.data.config import SourceConfig
from tta_diffusion.data.dedupe import SeenParagraphs
from tta_diffusion.data.sources import Text, find_files, iterate_file, iterate_texts

SHORTEST_REMEMBERED = 80  # characters; shorter paragraphs repeat by chance


def passages(text: str, size: int) -> Iterator[str]:
    """Break a long text at paragraph ends into parts of about `size` characters."""
    part: list[str] = []
    length = 0
    for paragraph in text.split("\n"):
        if part and length + len(paragraph) > size:
            yield "\n".join(part)
            part, length = [], 0
        part.append(paragraph)
        length += len(paragraph)
    if part:
        yield "\n".join(part)


def without_seen(text: str, seen: SeenParagraphs) -> str:
    """The paragraphs that did not go by before."""
    kept = (p for p in text.split("\n") if len(p) < SHORTEST_REMEMBERED or not seen.add(p))
    return "\n".join(kept)


def remember_held_out(source: SourceConfig, data_dir: Path, seen: SeenParagraphs) -> None:
    """Mark the paragraphs of the held-out files as seen, so that none enters the corpus."""
    if source.hold_out:
        clean = CLEANERS.get(source.kind)
        for path in find_files(source.hold_out, data_dir, source.name):
            for text, _ in iterate_file(path, source):
                without_seen(clean(text) or "", seen)


def iterate_documents(
    source: SourceConfig, data_dir: Path, seen: SeenParagraphs | None, counts: Counter[str]
) -> Iterator[Text]:
    """Clean documents of a source: paragraphs joined by line breaks; each part of a text has its label.

    `counts` receives "read" (texts), "cleaned_away", "repeated" (passages with nothing new) and "kept".
    """
    clean = CLEANERS.get(source.kind)
    for text, label in iterate_texts(source, data_dir):
        counts["read"] += 1
        cleaned = clean(text)
        if cleaned is None:
            counts["cleaned_away"] += 1
            continue
        for passage in passages(cleaned, source.passage):
            document = without_seen(passage, seen) if seen is not None else passage
            counts["kept" if document else "repeated"] += 1
            if document:
                yield Text(document, label)
