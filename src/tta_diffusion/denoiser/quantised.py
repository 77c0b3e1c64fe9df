"""Weights in 8 bits or fewer: `model-int8-00001-of-0000N.safetensors`, read back as floats.

A matrix is stored as whole numbers q in [-127, 127] and one scale s (bfloat16) for each group of columns of a row:
w = s q, off by s / 2 at most. Vectors stay as they are. In `model-int4-...` (or 5, 6, 7: the fewest bits in it) some
matrices have fewer bits, see `few_bits`. The files have names of their own, so that no other library takes the numbers
for weights.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tta_diffusion.denoiser import few_bits

GROUP = 64  # columns that share a scale
MAX_BYTES = 48_000_000  # of a file
VERSION = "1"
PATTERN = "model-int?-?????-of-?????.safetensors"
SCALE = ":scale"  # no parameter of a module has such a name
_LARGEST = 127


def quantise(weight: Tensor, group: int = GROUP) -> tuple[Tensor, Tensor]:
    """(R, C) floats as (R, C) int8 and (R, ceil(C / group)) bfloat16 scales."""
    weight = weight.float()
    if not bool(weight.isfinite().all()):
        raise ValueError("the weights hold values that are not finite: they cannot be stored in 8 bits")
    columns = weight.shape[1]
    # Columns of zeros fill the last group; they do not change its largest value.
    groups = torch.nn.functional.pad(weight, (0, -columns % group)).unflatten(1, (-1, group))
    scales = _round_up(groups.abs().amax(-1) / _LARGEST)
    codes = (groups / scales.float().clamp_min(torch.finfo(torch.float32).tiny)[..., None]).round()
    return codes.clamp(-_LARGEST, _LARGEST).to(torch.int8).flatten(1)[:, :columns].contiguous(), scales


def dequantise(codes: Tensor, scales: Tensor, group: int = GROUP, dtype: torch.dtype = torch.float32) -> Tensor:
    """The floats that `quantise` wrote down."""
    rows, columns = codes.shape
    if columns % group == 0:  # no copy of the scales for every column
        return (codes.view(rows, -1, group) * scales.float()[..., None]).view(rows, columns).to(dtype)
    return (codes * scales.float().repeat_interleave(group, 1)[:, :columns]).to(dtype)


def shards(directory: str | Path) -> list[Path]:
    """The files of packed weights in a directory; empty where it has none."""
    return sorted(Path(directory).glob(PATTERN))


def write(
    state: Mapping[str, Tensor],
    directory: str | Path,
    group: int = GROUP,
    max_bytes: int = MAX_BYTES,
    few: Mapping[str, few_bits.Coded] | None = None,
) -> list[Path]:
    """Writes weights in 8 bits, in as many files as `max_bytes` asks for.

    Args:
        few: the matrices that have fewer bits, by name; they are written in place of those in `state`.
    """
    few = few or {}
    packed: list[dict[str, Tensor]] = [{}]
    room = max_bytes
    for name, tensor in sorted(state.items()):
        entry = {name: tensor.contiguous()}
        if coded := few.get(name):
            entry = {name: few_bits.pack_codes(coded.codes, coded.bits), name + SCALE: coded.scales}
        elif tensor.is_floating_point() and tensor.ndim == 2 and tensor.shape[1] > 1:
            entry[name], entry[name + SCALE] = quantise(tensor, group)
        size = sum(part.nbytes for part in entry.values())
        if size > max_bytes:
            raise ValueError(f"'{name}' takes {size / 1e6:.0f} MB, more than a file may ({max_bytes / 1e6:.0f} MB)")
        if size > room:
            packed.append({})
            room = max_bytes
        packed[-1] |= entry
        room -= size
    bits = min((coded.bits for coded in few.values()), default=8)
    paths = []
    for number, part in enumerate(packed, start=1):
        path = Path(directory) / _name(bits, number, len(packed))
        metadata = {"format": f"tta-int{bits}", "version": VERSION, "group": str(group)}
        inside = {name: [few[name].bits, few[name].group, few[name].codes.shape[1]] for name in part if name in few}
        if inside:
            metadata["few"] = json.dumps(inside)
        save_file(part, str(path), metadata | {"crc32": _checksum(part, metadata.get("few", ""))})
        path.chmod(0o644)  # safetensors writes for its owner alone, but packages are installed for all
        paths.append(path)
    return paths


def read(directory: str | Path, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """All weights of a directory as floats; a missing, truncated or damaged file is one clear sentence."""
    found = shards(directory)
    if not found:
        raise ValueError(f"no packed weights at '{directory}'")
    kind, _, count = found[0].stem.removeprefix("model-int").replace("-of-", "-").split("-")
    expected = [found[0].with_name(_name(kind, number, int(count))) for number in range(1, int(count) + 1)]
    for path in expected:
        if path not in found:
            raise ValueError(f"'{path}' is missing: copy or install the model again")
    if len(found) > len(expected):
        raise ValueError(f"'{directory}' mixes the packed files of two models: copy or install the model again")
    state: dict[str, Tensor] = {}
    for path in found:
        state |= _read_shard(path, kind, dtype)
    return state


def _read_shard(path: Path, bits: str, dtype: torch.dtype) -> dict[str, Tensor]:
    try:
        with safe_open(str(path), "pt") as file:
            metadata = file.metadata() or {}
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (the file is no mapping)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"'{path}' cannot be read ({error}): the file is truncated or damaged") from error
    if (metadata.get("format"), metadata.get("version")) != (f"tta-int{bits}", VERSION):
        raise ValueError(
            f"'{path}' is not in the {bits}-bit format of this version: upgrade tta-diffusion, or pack it again"
        )
    if metadata.get("crc32") != _checksum(stored, metadata.get("few", "")):
        raise ValueError(f"'{path}' is damaged (its checksum is wrong): copy or install the model again")
    few, group = json.loads(metadata.get("few", "{}")), int(metadata["group"])
    state = {}
    for name, tensor in stored.items():
        if name in few:
            bits_of, group_of, columns = few[name]
            codes = few_bits.unpack_codes(tensor, bits_of, columns)
            state[name] = dequantise(codes, stored[name + SCALE], group_of, dtype)
        elif name + SCALE in stored:
            state[name] = dequantise(tensor, stored[name + SCALE], group, dtype)
        elif not name.endswith(SCALE):
            state[name] = tensor
    return state


def _name(bits: int | str, number: int, count: int) -> str:
    return f"model-int{bits}-{number:05d}-of-{count:05d}.safetensors"


def _round_up(scales: Tensor) -> Tensor:
    """To bfloat16, never down: no weight may lie beyond 127 scales."""
    rounded = scales.to(torch.bfloat16)
    return torch.where(rounded.float() < scales, torch.nextafter(rounded, torch.full_like(rounded, torch.inf)), rounded)


def _checksum(tensors: dict[str, Tensor], few: str) -> str:
    total = zlib.crc32(few.encode())
    for name, tensor in sorted(tensors.items()):
        content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
        total = zlib.crc32(content, zlib.crc32(name.encode(), total))
    return f"{total:08x}"
