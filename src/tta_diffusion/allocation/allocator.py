"""From a string such as `adaptive:0.6+monotone` to per-token times.

A specification is a policy with optional arguments (`random:0.2,0.8`), optionally another signal for it to read
(`adaptive:0.4@confidence`), then wrappers: `warmup:0.2` keeps every token at the global time until a fifth of the
trajectory is done, `monotone` never raises a token's time again, `once` keeps the draws of a random signal along the
trajectory. `matched(SPEC)` is the control of a policy: all of its tokens at its own mean time, at every step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tta_diffusion.allocation.policies import POLICIES, check_unit
from tta_diffusion.allocation.signals import SIGNALS, Moment
from tta_diffusion.common.registry import closest
from tta_diffusion.diffusion.schedule import AlphaBar

WRAPPERS = ("warmup", "monotone", "once", "matched")
_DRAWN = ("random", "spread", "parity")  # signals that change from step to step although nothing else does


@dataclass(frozen=True)
class Allocation:
    """A parsed specification."""

    policy: str = "constant"
    arguments: tuple[float, ...] = ()
    reads: str | None = None  # a signal in place of the policy's own
    warmup: float = 0.0
    monotone: bool = False
    once: bool = False  # draws are those of the first step
    matched: bool = False  # all tokens at the mean time of the policy

    def __post_init__(self) -> None:
        entry = POLICIES.get(self.policy)
        if len(self.arguments) > len(entry.defaults):
            names = f"takes {len(entry.defaults)} ({', '.join(entry.defaults)})" if entry.defaults else "takes none"
            raise ValueError(f"the allocation policy '{self.policy}' {names} of the {len(self.arguments)} arguments")
        if self.reads is not None:
            SIGNALS.get(self.reads)
            if entry.signal is None:
                raise ValueError(f"the allocation policy '{self.policy}' reads no signal: leave '@{self.reads}' out")
        check_unit("warmup", self.warmup)
        # A bad argument should fail here, not in the middle of a trajectory.
        probe = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
        entry.function(torch.ones(1, 1, dtype=torch.float64), probe, probe, probe >= 0, **self._named())

    @property
    def signal(self) -> str | None:
        """What is read, by its name in `signals`; None: nothing."""
        return self.reads or POLICIES.get(self.policy).signal

    @property
    def needs_guidance(self) -> bool:
        """True where without a judging objective there is nothing to read."""
        return self.signal in ("importance", "sure-importance")

    @property
    def falls(self) -> bool:
        """False for a policy that may raise a token's time although the global one falls."""
        late_fixed = self.policy == "fixed" and self.warmup > 0 and bool(self.arguments and self.arguments[0])
        rises = self.policy in ("random", "centred", "settle") or self.signal in _DRAWN
        return self.monotone or not (rises or late_fixed)

    def read(self, now: Moment) -> Tensor | None:
        """(B, L) the signal at a step; None where there is none."""
        if self.signal is None:
            return None
        return SIGNALS.get(self.signal)(replace(now, step=0) if self.once else now)

    def _named(self) -> dict[str, Any]:
        defaults = POLICIES.get(self.policy).defaults
        return defaults | dict(zip(defaults, self.arguments, strict=False))

    def times(
        self,
        u: float,
        signal: Tensor | None,
        free: Tensor,
        counted: Tensor,
        before: Tensor | None = None,
        alpha_bar: AlphaBar | None = None,
        steps: int = 50,
    ) -> Tensor:
        """What the policy itself chooses, (B, L) float64; 0 at pinned positions. See `shared` for `matched`.

        Args:
            u: the global time.
            signal: (B, L) what the policy reads; None (no guidance at this step) gives the constant policy.
            free: (B, L) True where tokens are generated, not pinned.
            counted: (B, L) free positions inside the text: padding after its end is not normalised over.
            before: (B, L) what it chose at the last step, for `monotone`.
            alpha_bar: the noise schedule, for policies that need it.
            steps: T, for policies that need it.
        """
        entry = POLICIES.get(self.policy)
        wanted = entry.signal is None or signal is not None
        name = self.policy if wanted and u <= 1 - self.warmup else "constant"
        function = POLICIES.get(name).function
        arguments = self._named() if name == self.policy else {}
        if POLICIES.get(name).scheduled and alpha_bar is not None:
            arguments |= {"alpha_bar": alpha_bar, "steps": steps}
        global_time = torch.full((len(free), 1), u, dtype=torch.float64, device=free.device)
        read = torch.zeros(free.shape, dtype=torch.float64, device=free.device)
        if signal is not None:
            read = signal.double()
        times = function(global_time, read, free.cumsum(-1) - 1, self._decided(free, counted), **arguments)
        if self.monotone and before is not None:
            times = torch.minimum(times, before)
        return times.masked_fill(~free, 0.0)

    def shared(self, times: Tensor, free: Tensor, counted: Tensor) -> Tensor:
        """u_i (B, L): the times that the policy chose; of `matched` their mean, at every token that it decides on."""
        if not self.matched:
            return times
        mask = self._decided(free, counted)
        mean = times.masked_fill(~mask, 0.0).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp_min(1)
        return torch.where(mask, mean, times)

    def _decided(self, free: Tensor, counted: Tensor) -> Tensor:
        """(B, L) True for the tokens that the policy decides on."""
        return free if POLICIES.get(self.policy).signal is None else counted

    def __str__(self) -> str:
        text = self.policy + (":" + ",".join(map(_number, self.arguments)) if self.arguments else "")
        text += f"@{self.reads}" if self.reads else ""
        text += f"+warmup:{_number(self.warmup)}" if self.warmup else ""
        text += ("+monotone" if self.monotone else "") + ("+once" if self.once else "")
        return f"matched({text})" if self.matched else text


def parse_allocation(spec: str | Allocation) -> Allocation:
    """`policy[:argument,...][@signal][+warmup:w][+monotone][+once]`, or matched(...) of such; what is wrong with it is
    said in one sentence."""
    if isinstance(spec, Allocation):
        return spec
    text = spec.strip()
    if text.startswith("matched(") and text.endswith(")"):
        inner = parse_allocation(text.removeprefix("matched(")[:-1])
        if inner.matched:
            raise ValueError(f"'{spec}': the control of a control is itself")
        return replace(inner, matched=True)
    head, *wrappers = [part.strip() for part in text.split("+")]
    head, at, reads = head.partition("@")
    policy, arguments = _split(head.strip())
    settings: dict[str, Any] = {}
    for wrapper in wrappers:
        name, values = _split(wrapper)
        if name == "warmup" and len(values) == 1:
            settings["warmup"] = values[0]
        elif name in ("monotone", "once") and not values:
            settings[name] = True
        else:
            raise ValueError(
                f"'{wrapper}' is not an allocation wrapper: write +warmup:0.2, +monotone or +once."
                f"{closest(name, [w for w in WRAPPERS if w != 'matched'])}"
            )
    return Allocation(policy, arguments, reads.strip() if at else None, **settings)


def _number(value: float) -> str:
    """As short as it can be and still read back as the same number."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _split(part: str) -> tuple[str, tuple[float, ...]]:
    name, colon, values = part.partition(":")
    if not colon:
        return name, ()
    if name == "fixed" and values == "T":
        return name, (1.0,)
    try:
        return name, tuple(float(value) for value in values.split(","))
    except ValueError:
        raise ValueError(f"'{part}': '{values}' is not a number (write it like adaptive:0.6)") from None
