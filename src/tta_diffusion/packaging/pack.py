"""A model directory with its controls -> the same in 8 bits or fewer, with one tokenizer for all."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tta_diffusion.common.atomic import finished
from tta_diffusion.control.bundled import CONFIG as CLASSIFIER
from tta_diffusion.control.bundled import PANEL, WORDS, bundled, panel_of
from tta_diffusion.control.classifier import check_vocabulary
from tta_diffusion.control.lexical.network import CONFIG as LEXICAL
from tta_diffusion.denoiser import quantised
from tta_diffusion.denoiser.checkpoint import CONFIG, load_config, read_weights
from tta_diffusion.packaging.calibration import calibrate
from tta_diffusion.packaging.lower import check_bits, lower, matrices, plan
from tta_diffusion.pipeline import CONTROLS

RECORD = "run.json"  # what training says about a model
CARD = "README.md"
TOKENIZER = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "chat_template*")


@dataclass(frozen=True)
class Packed:
    """What was written."""

    directory: Path
    files: dict[str, int]  # path in the directory -> bytes

    @property
    def total(self) -> int:
        return sum(self.files.values())


def pack(
    source: str | Path,
    target: str | Path,
    controls: str | Path | None = None,
    overwrite: bool = False,
    bits: int = 8,
    data: str | Path | None = None,
    control_bits: int = 8,
) -> Packed:
    """Writes `source` to the directory `target`, which appears when it is complete.

    Args:
        controls: the directory of the classifiers, by name; None: `source`/controls.
        bits: of the matrices of the denoiser's layers, more or less (`lower`); all others have 8.
        data: a prepared corpus, for fewer than 8 bits: rounding then minds what the layers read (`compensation`).
        control_bits: of the classifiers' matrices, their tables among them.
    """
    source, target = Path(source), Path(target)
    check_bits(bits, data)
    check_bits(control_bits)
    if source.resolve() == target.resolve():
        raise ValueError(f"'{target}' is the model itself: choose another directory, or its full weights are lost")
    config, tokenizer = load_config(source), _tokenizer(source)
    _require_finished(source)
    found = _controls(source, controls)
    if (target / CONFIG).is_file() and not overwrite:
        raise ValueError(f"'{target}' holds a model already: choose another directory, or ask to overwrite it")
    with finished(target, overwrite, CONFIG) as temporary:
        (temporary / CONFIG).write_text(json.dumps(config.to_dict(), indent=2, sort_keys=True) + "\n")
        _copy(source, temporary, (CARD, *TOKENIZER))
        state = read_weights(source)
        grams = calibrate(source, data) if data is not None else None
        quantised.write(state, temporary, few=lower(state, plan(state, bits), grams) if bits < 8 else None)
        for name, path in found.items():
            _pack_control(path, temporary / CONTROLS / name, tokenizer, control_bits)
    files = {str(path.relative_to(target)): path.stat().st_size for path in sorted(target.rglob("*")) if path.is_file()}
    return Packed(target, files)


def _controls(source: Path, controls: str | Path | None) -> dict[str, Path]:
    """The directories of the controls by name; a place that was given must hold one, the model's own need not."""
    place = Path(controls or source / CONTROLS)
    found = bundled(place) | {path.parent.name: path.parent for path in sorted(place.glob(f"*/{LEXICAL}"))}
    if controls is not None and not found:
        raise ValueError(f"no classifier in '{controls}': name a directory with one directory for each classifier")
    return found


def _pack_control(source: Path, target: Path, tokenizer: PreTrainedTokenizerBase, bits: int) -> None:
    """A control without its tokenizer, once that has turned out to be the denoiser's; words need no network."""
    if any(source.glob("tokenizer*")):
        check_vocabulary(_tokenizer(source), tokenizer, str(source))
    target.mkdir(parents=True)
    _copy(source, target, (CARD, CLASSIFIER, LEXICAL, WORDS))
    if any((source / name).is_file() for name in (CLASSIFIER, LEXICAL)):
        state = read_weights(source)
        quantised.write(state, target, few=lower(state, dict.fromkeys(matrices(state), bits)) if bits < 8 else None)
    for path in panel_of(source):
        _pack_control(path, target / PANEL / path.name, tokenizer, bits)


def _tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"no tokenizer in '{directory}': {str(error).splitlines()[0]}") from error


def _copy(source: Path, target: Path, patterns: tuple[str, ...]) -> None:
    for path in sorted({path for pattern in patterns for path in source.glob(pattern)}):
        shutil.copyfile(path, target / path.name)


def _require_finished(source: Path) -> None:
    """A run that its time limit stopped has written a model too, but not one to ship."""
    try:
        record = json.loads((source / RECORD).read_text())
        done, steps = record["step"], record["config"]["optim"]["steps"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # not from a run of ours, or without a record
    if done < steps:
        raise ValueError(f"'{source}' has {done:,} of {steps:,} training steps: go on with the same training command")
