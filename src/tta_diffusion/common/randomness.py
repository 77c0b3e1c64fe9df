"""Counter-based random numbers: every draw is a hash of (sequence seed, step, purpose, position, index).

So a text depends on its own seed alone, not on the other texts in its batch, on the order of calls or on the
device. What limits this in practice is the arithmetic of the denoiser: matrix products may round differently for
another batch shape or device, and a token whose draw falls within that rounding of a boundary can differ.

The hash is the finaliser of splitmix64 applied to a keyed Weyl sequence; 52 bits of it make a float64 uniform.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX2 = -7723592293110705685  # 0x94D049BB133111EB
_BLOCK = 32  # steps whose keys are made at once: a launch for a few hundred numbers costs as much as for many


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's `>>` on int64 copies the sign bit."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """A bijection of 64-bit integers whose output bits all depend on all input bits."""
    x = _shift_right(x, 30).bitwise_xor_(x).mul_(_MIX1)
    x = _shift_right(x, 27).bitwise_xor_(x).mul_(_MIX2)
    return _shift_right(x, 31).bitwise_xor_(x)


def _stride(count: int) -> int:
    """count * _GOLDEN as a signed 64-bit integer (Python's own integers do not wrap)."""
    return (count * _GOLDEN + 2**63) % 2**64 - 2**63


def uniform_from_bits(bits: Tensor) -> Tensor:
    """(0, 1) float64, never 0 or 1: the middle of one of 2^52 equal cells (of 2^53 the last would round to 1)."""
    return (_shift_right(bits, 12).double() + 0.5) * 2.0**-52


def spread(keys: Tensor, width: int) -> Tensor:
    """(..., width) int64: the first `width` hashes of each key; more of them do not change the first."""
    return mix(keys[..., None] + _GOLDEN * (1 + torch.arange(width, device=keys.device)))


# The purpose of a draw keeps the streams apart.
NOISE, PROJECTION, ALLOCATION, TRANSITION, ENDING, REVISION = 1, 2, 3, 4, 5, 6


@dataclass(frozen=True)
class Randomness:
    """The random numbers of a batch of sequences with seeds (B,)."""

    seeds: Tensor
    _kept: dict[tuple[str, int, int], tuple[int, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_seeds(cls, seeds: list[int], device: torch.device | str = "cpu") -> Randomness:
        return cls(torch.tensor([s & 0x7FFFFFFFFFFFFFFF for s in seeds], dtype=torch.int64, device=device))

    def picked(self, rows: Tensor) -> Randomness:
        """The sequences of these numbers (n,)."""
        return Randomness(self.seeds[rows])

    def of_block(self, number: int) -> Randomness:
        """Other numbers of the same sequences; block 0 has their own."""
        return Randomness(mix(mix(self.seeds) + _stride(number))) if number else self

    def row_keys(self, step: int, purpose: int) -> Tensor:
        """(B,) int64: one key for each sequence at this step and for this purpose."""
        return mix(mix(self.seeds + _stride(1 + step)) + _stride(purpose))

    def cells(self, step: int, purpose: int, length: int) -> Tensor:
        """(B, length) int64: one key for each position."""
        return self._of_step("cells", step, purpose, length)

    def draws(self, step: int, purpose: int, length: int) -> Tensor:
        """(B, length) float64 in (0, 1): one number for each position, `uniform` of width 1."""
        return self._of_step("draws", step, purpose, length)

    def _of_step(self, kind: str, step: int, purpose: int, length: int) -> Tensor:
        """One step of a block of steps made together and kept until another block is asked for."""
        number = step // _BLOCK
        kept = self._kept.get((kind, purpose, length))
        if kept is None or kept[0] != number:
            device = self.seeds.device
            steps = torch.arange(number * _BLOCK, (number + 1) * _BLOCK, device=device)
            rows = mix(mix(self.seeds + _GOLDEN * (1 + steps)[:, None]) + _stride(purpose))
            block = mix(rows[..., None] + _GOLDEN * (1 + torch.arange(length, device=device)))  # (steps, B, length)
            if kind == "draws":
                block = uniform_from_bits(spread(block, 1)).squeeze(-1)
            kept = self._kept[kind, purpose, length] = (number, block)
        return kept[1][step % _BLOCK]

    def bits(self, step: int, purpose: int, length: int, width: int) -> Tensor:
        """(B, length, width) int64, each a hash of its coordinates."""
        return spread(self.cells(step, purpose, length), width)

    def uniform(self, step: int, purpose: int, length: int, width: int) -> Tensor:
        """(B, length, width) float64 in (0, 1)."""
        return uniform_from_bits(self.bits(step, purpose, length, width))

    def normal(self, step: int, purpose: int, length: int, width: int) -> Tensor:
        """(B, length, width) float32 standard normal, for draws as wide as the vocabulary.

        Hashing that many numbers costs eight times torch's own generator, so each sequence seeds one: still
        independent of the batch, but not the same on another kind of device.
        """
        device = self.seeds.device
        out = torch.empty(len(self.seeds), length, width, device=device)
        for row, seed in zip(out, self.row_keys(step, purpose).tolist(), strict=True):
            row.normal_(generator=torch.Generator(device).manual_seed(seed & 0x7FFFFFFFFFFFFFFF))
        return out
