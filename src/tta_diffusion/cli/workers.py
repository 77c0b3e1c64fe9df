"""Processes that write shards of prompts: this one, or workers under Ray.

Workers get prompts and give back texts: files are read and written by the command alone, so machines need to share
nothing but the model. A worker that dies is started again and its shard is written again; the texts are the same,
since they depend on prompt, seed and settings alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tta_diffusion.cli.request import Request
from tta_diffusion.cli.shards import Shard
from tta_diffusion.serve.cluster import cluster, find_ray

RETRIES = 3  # of a shard whose worker died
Rows = list[dict[str, Any]]
Save = Callable[[Shard, Rows], None]


@dataclass
class ShardWriter:
    """Loads the model with the first shard."""

    model: str
    device: str
    dtype: str | None
    request: Request
    seed: int
    _loaded: list[Any] = field(default_factory=list, init=False)

    @property
    def pipeline(self) -> Any:
        if not self._loaded:
            from tta_diffusion.pipeline import load_pipeline

            self._loaded.append(load_pipeline(self.model, self.device, self.dtype))
        return self._loaded[0]

    def write(self, prompts: list[str]) -> Rows:
        from tta_diffusion.cli.molecules import molecule_facts
        from tta_diffusion.cli.output import objects
        from tta_diffusion.cli.run import outputs

        describe = molecule_facts(self.pipeline.tokenizer)
        found = outputs(self.pipeline, prompts, self.request, self.seed)
        return [row for output in found for row in objects(output, self.request.control, describe)]


def write_here(writer: ShardWriter, shards: Iterable[Shard], save: Save) -> None:
    for shard in shards:
        save(shard, writer.write(shard.prompts))


def write_with_ray(writer: ShardWriter, shards: Iterable[Shard], save: Save, workers: int) -> None:
    """Each worker has one shard at a time; they are saved as they come."""
    writer._loaded.clear()  # only its workers need the model
    ray = find_ray()
    with cluster(workers) as resources:
        remote = ray.remote(max_restarts=-1, max_task_retries=RETRIES, **resources)(ShardWriter)
        parts = (writer.model, writer.device, writer.dtype, writer.request, writer.seed)
        free = [remote.remote(*parts) for _ in range(workers)]
        running: dict[Any, tuple[Any, Shard]] = {}
        waiting = iter(shards)
        while True:
            while free and (shard := next(waiting, None)) is not None:
                actor = free.pop()
                running[actor.write.remote(shard.prompts)] = actor, shard
            if not running:
                return
            (ready,), _ = ray.wait(list(running), num_returns=1)
            actor, shard = running.pop(ready)
            save(shard, _rows(ready, shard))
            free.append(actor)


def _rows(ready: Any, shard: Shard) -> Rows:
    """What a worker wrote; what it found wrong is an error of the command, in its own words."""
    ray = find_ray()
    try:
        return list(ray.get(ready))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayActorError as error:
        raise ValueError(
            f"a worker died {RETRIES + 1} times over the {len(shard.prompts)} prompts from line {shard.line} on "
            "(out of memory?): lower --batch-size or --workers, and give the command again"
        ) from error
