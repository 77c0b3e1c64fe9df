"""This process among several."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    """Its number and how many there are, as a launcher such as torchrun describes them in the environment."""

    rank: int = 0
    size: int = 1

    @classmethod
    def from_environment(cls) -> World:
        return World(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))

    @property
    def main(self) -> bool:
        return self.rank == 0
