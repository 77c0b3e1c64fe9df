"""The controls that a model brings: a directory each, with a classifier, lists of words, or both.

A classifier may have others beside it, a directory each under `panel`, and a text must convince all of them: guidance
finds what a network takes for its label by mistake, and networks that learnt otherwise make other mistakes.

    score(text) = sum_k log p_k(y | text),    reported is  p = exp( mean_k log p_k(y | text) )

Each is pushed as a control of its own would be, so that one that is sure does not silence one that is not.
"""

from __future__ import annotations

from pathlib import Path

from tta_diffusion.common.atomic import read_object

CONFIG, WORDS, PANEL = "config.json", "words.json", "panel"


def bundled(directory: Path | None) -> dict[str, Path]:
    """Name -> directory of the controls under `directory`, which need not be there."""
    if directory is None or not directory.is_dir():
        return {}
    found = (path for path in sorted(directory.iterdir()) if any((path / name).is_file() for name in (CONFIG, WORDS)))
    return {path.name: path for path in found}


def panel_of(directory: str | Path) -> list[Path]:
    """The directories of the classifiers that judge beside the one of a control, by name."""
    return list(bundled(Path(directory) / PANEL).values())


def labels_of(directory: Path) -> list[str]:
    """The labels of a control in their order: of its classifier, or else of its lists of words."""
    file = directory / CONFIG if (directory / CONFIG).is_file() else directory / WORDS
    raw = read_object(file)
    try:
        if file.name == WORDS:
            return list(raw["words"])
        names = raw.get("id2label", {})
        return [str(names[key]) for key in sorted(names, key=int)]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ValueError(f"'{file}' does not say what labels its control has: mend it, or remove the control") from None
