"""One process or many: the same code under plain python, torchrun and `accelerate launch`."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from tta_diffusion.common.world import World


@dataclass(frozen=True)
class Group(World):
    """This process among several that train together, and the device it works on."""

    device: torch.device = torch.device("cpu")

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def mean(self, value: Tensor) -> Tensor:
        """The mean over processes; the value itself where there is one."""
        if self.size > 1:
            value = value.clone()
            dist.all_reduce(value)
            value /= self.size
        return value

    def agree(self, flag: bool) -> bool:
        """True on every process where it is on one of them."""
        if self.size == 1:
            return flag  # no question to the device: it would stop the queue of work
        return bool(self.mean(torch.tensor(float(flag), device=self.device)) > 0)


def setup() -> Group:
    """Joins the group that the launcher describes in the environment; alone where there is none."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if size > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if cuda else "gloo")
    return Group(rank, size, device)


def teardown() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def parallelise(model: nn.Module, group: Group, sharding: str) -> nn.Module:
    """The model for this group: itself, replicated (DDP), or with every layer's weights sharded (FSDP2)."""
    if group.size == 1:
        return model
    if sharding == "ddp":
        ids = [group.device.index] if group.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids)
    mesh = init_device_mesh(group.device.type, (group.size,))
    for layer in transformer_layers(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def transformer_layers(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a backbone: the members of its longest module list."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList)]
    return max(([*modules] for modules in lists), key=len, default=[])


def skip_sync(model: nn.Module, skip: bool) -> Any:
    """A context in which a backward pass leaves the exchange of gradients to a later one."""
    if isinstance(model, DistributedDataParallel) and skip:
        return model.no_sync()
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(not skip)
    return contextlib.nullcontext()


def forget_gathered(model: nn.Module) -> None:
    """Frees the gathered weights that FSDP keeps after a pass without gradient: they may be changed afterwards."""
    if isinstance(model, FSDPModule):
        model.reshard()


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor gathered (every process must call this), on the CPU."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()


def fill(target: Tensor, value: Tensor) -> None:
    """Copies a whole tensor into a plain or sharded one."""
    with torch.no_grad():
        if isinstance(target, DTensor):
            value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements)
        target.copy_(value.to(target.device) if not isinstance(value, DTensor) else value)
