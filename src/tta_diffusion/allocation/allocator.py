"""From a string such as `adaptive:0.6+monotone` to per-token times.

A specification is a policy with an optional argument, then wrappers: `warmup:0.2` keeps every token at the global
time until a fifth of the trajectory is done, `monotone` never raises a token's time again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tta_diffusion.allocation.policies import POLICIES, check_unit
from tta_diffusion.common.registry import closest
from tta_diffusion.diffusion.schedule import AlphaBar

WRAPPERS = ("warmup", "monotone")


@dataclass(frozen=True)
class Allocation:
    """A parsed specification."""

    policy: str = "constant"
    argument: float | None = None
    warmup: float = 0.0
    monotone: bool = False

    def __post_init__(self) -> None:
        entry = POLICIES.get(self.policy)
        if self.argument is not None and entry.argument is None:
            raise ValueError(f"the allocation policy '{self.policy}' takes no argument, got {self.argument}")
        check_unit("warmup", self.warmup)
        # A bad argument should fail here, not in the middle of a trajectory.
        probe = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
        entry.function(torch.ones(1, 1, dtype=torch.float64), probe, probe, probe >= 0, **self._arguments())

    @property
    def signal(self) -> str | None:
        """What the policy reads: None, "importance", "confidence", "entropy" or "random"."""
        return POLICIES.get(self.policy).signal

    @property
    def falls(self) -> bool:
        """False for a policy that may raise a token's time although the global one falls."""
        late_fixed = self.policy == "fixed" and self.warmup > 0 and bool(self.argument)
        return self.monotone or not (self.policy == "random" or late_fixed)

    def _arguments(self) -> dict[str, Any]:
        entry = POLICIES.get(self.policy)
        if entry.argument is None:
            return {}
        return {entry.argument: entry.default if self.argument is None else self.argument}

    def times(
        self,
        u: float,
        signal: Tensor | None,
        free: Tensor,
        counted: Tensor,
        before: Tensor | None = None,
        alpha_bar: AlphaBar | None = None,
    ) -> Tensor:
        """u_i (B, L) float64; 0 at pinned positions.

        Args:
            u: the global time.
            signal: (B, L) what the policy reads; None (no guidance at this step) gives the constant policy.
            free: (B, L) True where tokens are generated, not pinned.
            counted: (B, L) free positions inside the text: padding after its end is not normalised over.
            before: (B, L) the times of the last step, for `monotone`.
            alpha_bar: the noise schedule, for `budgeted`.
        """
        entry = POLICIES.get(self.policy)
        wanted = entry.signal is None or signal is not None
        name = self.policy if wanted and u <= 1 - self.warmup else "constant"
        function = POLICIES.get(name).function
        arguments = self._arguments() if name == self.policy else {}
        if name == "budgeted" and alpha_bar is not None:
            arguments["alpha_bar"] = alpha_bar
        global_time = torch.full((len(free), 1), u, dtype=torch.float64, device=free.device)
        read = torch.zeros(free.shape, dtype=torch.float64, device=free.device)
        if signal is not None:
            read = signal.double()
        mask = free if entry.signal is None else counted
        times = function(global_time, read, free.cumsum(-1) - 1, mask, **arguments)
        if self.monotone and before is not None:
            times = torch.minimum(times, before)
        return times.masked_fill(~free, 0.0)

    def __str__(self) -> str:
        text = self.policy if self.argument is None else f"{self.policy}:{_number(self.argument)}"
        text += f"+warmup:{_number(self.warmup)}" if self.warmup else ""
        return text + ("+monotone" if self.monotone else "")


def parse_allocation(spec: str | Allocation) -> Allocation:
    """`policy[:argument][+warmup:w][+monotone]`; what is wrong with it is said in one sentence."""
    if isinstance(spec, Allocation):
        return spec
    head, *wrappers = [part.strip() for part in spec.split("+")]
    policy, argument = _split(head)
    settings: dict[str, Any] = {}
    for wrapper in wrappers:
        name, value = _split(wrapper)
        if name == "warmup" and value is not None:
            settings["warmup"] = value
        elif name == "monotone" and value is None:
            settings["monotone"] = True
        else:
            raise ValueError(
                f"'{wrapper}' is not an allocation wrapper: write +warmup:0.2 or +monotone."
                f"{closest(name, list(WRAPPERS))}"
            )
    return Allocation(policy, argument, **settings)


def _number(value: float) -> str:
    """As short as it can be and still read back as the same number."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _split(part: str) -> tuple[str, float | None]:
    name, colon, value = part.partition(":")
    if not colon:
        return name, None
    if name == "fixed" and value == "T":
        return name, 1.0
    try:
        return name, float(value)
    except ValueError:
        raise ValueError(f"'{part}': '{value}' is not a number (write it like adaptive:0.6)") from None
