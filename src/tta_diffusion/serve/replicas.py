"""The application of `tta serve` as replicas under Ray Serve: the same answers, from several processes.

Every replica has the models, a queue and a worker of its own; Ray's proxy listens, hands each request to one of them,
and starts another where one has died. A request that died with its replica is answered with 500: send it again.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from tta_diffusion.serve.cluster import cluster, find_ray
from tta_diffusion.serve.logs import log, log_json
from tta_diffusion.serve.recipe import Recipe

NAME = "tta"


def application(recipe: Recipe, replicas: int, resources: dict[str, float]) -> Any:
    """What `ray.serve.run` takes."""
    serve = find_ray("ray.serve")

    def build() -> Any:  # in the process of each replica
        log_json()
        return recipe.application()

    class Replica:
        app: Any

        def check_health(self) -> None:
            """Raises where the worker's thread has died: Ray then replaces the replica."""
            if not self.app.state.worker.is_alive():
                raise RuntimeError("the worker has ended")

    deployment = serve.deployment(
        name=NAME,
        num_replicas=replicas,
        max_ongoing_requests=recipe.limits.queue + recipe.batch_size,  # each replica has a queue of its own
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=recipe.limits.seconds + 1,
        health_check_period_s=5,
        ray_actor_options=resources,
    )
    return deployment(serve.ingress(build)(Replica)).bind()


def serve_replicas(recipe: Recipe, replicas: int, host: str, port: int, ready: Callable[[], None]) -> None:
    """Serves until a signal; what was taken in is then finished, unless a second one comes. Calls `ready` when all
    replicas are there."""
    told = threading.Event()
    with cluster(replicas) as resources:
        serve = find_ray("ray.serve")

        def tell(*_: object) -> None:
            if told.is_set():
                raise KeyboardInterrupt
            told.set()

        for number in (signal.SIGTERM, signal.SIGINT):  # in the place of Ray's own
            signal.signal(number, tell)
        serve.start(proxy_location="HeadOnly", http_options={"host": host, "port": port})
        try:
            serve.run(application(recipe, replicas, resources), name=NAME, route_prefix="/")
            ready()
            told.wait()
            log.info("stopping")
            serve.delete(NAME, _blocking=False)  # what runs or waits is finished, what comes is refused
            while NAME in serve.status().applications:
                time.sleep(0.2)
        finally:
            serve.shutdown()
    log.info("stopped")
