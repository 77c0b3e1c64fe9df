"""What training changes: weights, their moving average, the optimizer's moments, and the time sampler."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tta_diffusion.fast.derived import forget
from tta_diffusion.training.config import OptimSettings
from tta_diffusion.training.distributed import fill, whole
from tta_diffusion.training.optimizers import make_optimizers
from tta_diffusion.training.times import TimeSampler


class TrainState:
    """The mutable part of a run. `step` counts finished updates."""

    def __init__(self, model: nn.Module, settings: OptimSettings, times: TimeSampler, device: torch.device) -> None:
        self.step = 0
        self.losses: list[Tensor] = []  # this process's part of each step's loss since the last report
        self.times, self.device = times, device
        self.decay = settings.ema
        self.named = {clean_name(n): p for n, p in model.named_parameters() if p.requires_grad}
        self.ema = [p.detach().clone() for p in self.named.values()] if settings.ema else []
        self.optimizers = make_optimizers(self.named, settings, device)

    def update(self, lr: float, clip: float) -> Tensor:
        """One optimizer step on the accumulated gradients; returns their norm before clipping."""
        parameters = list(self.named.values())
        norm = torch.nn.utils.clip_grad_norm_(parameters, clip)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        forget()
        self.step += 1
        if self.ema:
            # A short memory at first: the average should forget the random start.
            rate = 1 - min(self.decay, (1 + self.step) / (10 + self.step))
            with torch.no_grad():
                torch._foreach_lerp_(self.ema, [p.detach() for p in parameters], rate)
        return norm

    def swap_ema(self) -> None:
        """Exchanges weights and moving average (twice restores them)."""
        for parameter, average in zip(self.named.values(), self.ema, strict=False):
            kept = parameter.detach().clone()
            fill(parameter, average)
            fill(average, kept)
        forget()

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Everything to save, gathered: file name -> tensor name -> tensor. Every process must call this."""
        files = {"weights": {name: whole(p) for name, p in self.named.items()}}
        if self.ema:
            files["ema"] = {name: whole(p) for name, p in zip(self.named, self.ema, strict=True)}
        files["optimizer"] = {}
        for name, parameter in self.named.items():
            for optimizer in self.optimizers:
                for key, value in optimizer.state.get(parameter, {}).items():
                    files["optimizer"][f"{key}:{name}"] = whole(value)
        return files

    def scalars(self) -> dict[str, Any]:
        """All but `losses`, which only the processes together know."""
        return {"step": self.step, "times": self.times.state()}

    def restore(self, files: dict[str, dict[str, Tensor]], scalars: dict[str, Any]) -> None:
        """The exact opposite of `tensors` and `scalars` (with `losses`)."""
        self._check_fit(files)
        self.step = scalars["step"]
        self.times.restore(scalars["times"])
        self.losses = [torch.tensor(loss, device=self.device) for loss in scalars["losses"]]
        for name, parameter in self.named.items():
            fill(parameter, files["weights"][name])
        for name, average in zip(self.named, self.ema, strict=False):
            fill(average, files["ema"][name])
        self._restore_optimizers(files["optimizer"])

    def _check_fit(self, files: dict[str, dict[str, Tensor]]) -> None:
        """A checkpoint of another model, or of one without a moving average, cannot be gone on from."""
        saved = {name: tuple(value.shape) for name, value in files["weights"].items()}
        mine = {name: tuple(p.shape) for name, p in self.named.items()}
        wrong = sorted(n for n in saved.keys() | mine.keys() if saved.get(n) != mine.get(n))
        if wrong or bool(self.ema) != ("ema" in files):
            what = f"'{wrong[0]}' differs" if wrong else "optim.ema was switched on or off"
            raise ValueError(f"the checkpoint does not fit this config ({what}): choose another output directory")

    def _restore_optimizers(self, saved: dict[str, Tensor]) -> None:
        owner = {p: o for o in self.optimizers for group in o.param_groups for p in group["params"]}
        for full_name, value in saved.items():
            key, _, name = full_name.partition(":")
            parameter = self.named[name]
            optimizer = owner[parameter]
            if isinstance(optimizer, torch.optim.AdamW) == (key == "momentum_buffer"):
                raise ValueError("the checkpoint is of another optimizer (optim.name): choose another output directory")
            if value.shape == parameter.shape:
                moment = torch.zeros_like(parameter)
                fill(moment, value)
            else:  # the step counter: on the device for fused kernels only
                moment = value.to(parameter.device) if optimizer.defaults.get("fused") else value.clone()
            optimizer.state[parameter][key] = moment


def clean_name(name: str) -> str:
    """A parameter's name without the wrappers of compilation and data parallelism."""
    for wrapper in ("module.", "_orig_mod."):
        name = name.replace(wrapper, "")
    return name
