"""What to write: the config file, overridden by flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tta_diffusion.cli.names import RENAMED, SETTINGS, Setting
from tta_diffusion.common.configuration import override
from tta_diffusion.common.registry import closest

# Keys of a config file that are no field of `GenerationConfig`.
EXTRA = ("prompts", "control", "num_samples", "seed", "model")


@dataclass(frozen=True)
class Request:
    """Everything but the prompts; `settings` holds only what was given, so that the model's defaults show through."""

    control: list[str]
    num_samples: int
    seed: int | None
    model: str | None
    settings: dict[str, Any]


def read_config(path: Path) -> dict[str, Any]:
    """The checked contents of a YAML file."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"'{path}' is not valid YAML: {error}") from error
    if not isinstance(raw, dict):
        raise ValueError(f"'{path}' must hold keys and values, like 'steps: 50'")
    raw = {RENAMED.get(key, key): value for key, value in raw.items()}
    for key in raw:
        if key not in SETTINGS and key not in EXTRA:
            raise ValueError(f"Unknown key '{key}' in '{path}'.{closest(str(key), [*SETTINGS, *EXTRA])}")
    return {key: _checked(key, value) for key, value in raw.items() if value is not None}


def merge(flags: dict[str, Any], config: dict[str, Any]) -> Request:
    """One request; a flag that was given wins over a key."""
    given = config | {RENAMED.get(name, name): flag for name, flag in flags.items() if flag not in (None, [], ())}
    num_samples, batch_size = given.get("num_samples", 1), given.get("batch_size", 1)
    for name, value in (("num_samples", num_samples), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    return Request(
        control=given.get("control", []),
        num_samples=num_samples,
        seed=given.get("seed"),
        model=given.get("model"),
        settings={name: given[name] for name in SETTINGS if name in given},
    )


def chosen_settings(flags: dict[str, Any], assignments: Sequence[str] | None) -> dict[str, Any]:
    """The flags that were given, and what `--set KEY=VALUE` lays over them."""
    return override({name: value for name, value in flags.items() if value is not None}, assignments or ())


def _checked(key: str, value: Any) -> Any:
    if key in ("prompts", "control"):
        texts = value if isinstance(value, list) else [value]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"'{key}' must be a text or a list of texts, got {value!r}")
        return texts
    if key == "grid" and isinstance(value, list):
        return value
    if key == "feedback" and isinstance(value, int | float):
        return float(value)
    kind = SETTINGS.get(key, Setting(str if key == "model" else int, None)).kind
    if kind is float and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 2e3 as a text
        except (TypeError, ValueError):
            pass
    elif type(value) is kind:
        return value
    noun = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}[kind]
    raise ValueError(f"'{key}' must be {noun}, got {value!r}")
