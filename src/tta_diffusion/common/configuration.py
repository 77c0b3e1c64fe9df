"""Dataclass configs from YAML files and `key.subkey=value` overrides; what does not fit is one clear sentence."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from tta_diffusion.common.registry import closest

Config = TypeVar("Config")


def build(cls: type[Config], raw: dict[str, Any], where: str = "") -> Config:
    """A dataclass from nested dictionaries; an unknown key names the nearest known one."""
    hints = get_type_hints(cls)
    known = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in known:
            raise ValueError(f"Unknown key '{where}{key}'.{closest(str(key), sorted(known))}")
        values[key] = fit(hints[key], value, f"{where}{key}")
    missing = [
        f.name
        for f in dataclasses.fields(cls)  # type: ignore[arg-type]
        if f.default is f.default_factory is dataclasses.MISSING and f.name not in values
    ]
    if missing:
        raise ValueError(f"Missing key '{where}{missing[0]}': give it in the file or as {where}{missing[0]}=...")
    return cls(**values)


def fit(hint: Any, value: Any, where: str) -> Any:
    """The value as the annotated type, where that is a safe reading (1 as 1.0, 1e-4 which YAML reads as text)."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, dict):
            raise ValueError(f"'{where}' is a group of settings, got {value!r}")
        return build(hint, value, where + ".")
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    for option in options:
        if dataclasses.is_dataclass(option) and isinstance(option, type) and isinstance(value, dict):
            return build(option, value, where + ".")
        origin = get_origin(option) or option
        if origin is tuple and isinstance(value, list | tuple):
            return _fit_tuple(get_args(option), value, where)
        if origin is float and isinstance(value, int | float | str) and not isinstance(value, bool):
            try:
                return float(value)
            except ValueError:
                continue
        if origin is Any or (isinstance(value, origin) and not (origin is int and isinstance(value, bool))):
            return value
    wanted = " or ".join("null" if o is type(None) else getattr(o, "__name__", str(o)) for o in options)
    raise ValueError(f"'{where}' must be {wanted}, got {value!r}")


def _fit_tuple(hints: tuple[Any, ...], values: list[Any] | tuple[Any, ...], where: str) -> tuple[Any, ...]:
    """Every member as its annotated type: `tuple[X, ...]` takes any number of them, `tuple[X, Y]` two."""
    if len(hints) == 2 and hints[1] is Ellipsis:
        hints = (hints[0],) * len(values)
    if not hints:
        return tuple(values)
    if len(hints) != len(values):
        raise ValueError(f"'{where}' must be {len(hints)} values, got {list(values)!r}")
    return tuple(fit(hint, value, f"{where}[{i}]") for i, (hint, value) in enumerate(zip(hints, values, strict=True)))


def load_yaml(path: str | Path) -> dict[str, Any]:
    try:
        raw = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"the config '{path}' cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"the config '{path}' is not a text file in UTF-8") from error
    except yaml.YAMLError as error:
        raise ValueError(f"the config '{path}' is not valid YAML: {str(error).splitlines()[0]}") from error
    if raw is not None and not isinstance(raw, dict):
        raise ValueError(f"the config '{path}' must hold keys and values")
    return raw or {}


def override(raw: dict[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """A copy of nested settings with `a.b=value` applied; values are read as YAML."""
    raw = _copy(raw)
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise ValueError(f"'{assignment}' is not a setting: write key=value, like optim.lr=3e-4")
        *groups, last = path.split(".")
        place = raw
        for group in groups:
            child = place.setdefault(group, {})
            if not isinstance(child, dict):
                raise ValueError(f"'{path}': '{group}' is a value, not a group of settings")
            place = child
        place[last] = read_value(text, assignment) if text else ""
    return raw


def read_value(text: str, assignment: str) -> Any:
    """A value as YAML reads it; what it cannot read is an error that names the assignment it stands in."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # a date that there is not is a ValueError
        raise ValueError(
            f"'{assignment}': the value '{text}' is not valid YAML: close its brackets and quotes"
        ) from error


def _copy(raw: dict[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, dict) else value for key, value in raw.items()}
