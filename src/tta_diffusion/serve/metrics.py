"""What Prometheus may ask."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Counters of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        labels = ("route", "status")
        self._requests = Counter("tta_requests", "Requests answered.", labels, registry=registry)
        self._seconds = Histogram(
            "tta_request_seconds", "From request to answer.", ("route",), buckets=_SECONDS, registry=registry
        )
        self._waited = Histogram("tta_wait_seconds", "Time in the queue.", buckets=_SECONDS, registry=registry)
        self._batch = Histogram(
            "tta_batch_texts", "Texts written together.", buckets=(1, 2, 4, 8, 16, 32, 64), registry=registry
        )
        self._texts = Counter("tta_texts", "Texts written.", registry=registry)
        self._steps = Counter("tta_steps", "Denoising steps, summed over texts.", registry=registry)
        self._busy = Counter("tta_busy_seconds", "Time spent writing.", registry=registry)
        self._left = Counter("tta_left", "Requests whose client left before the answer.", registry=registry)
        self._waiting = Gauge("tta_waiting", "Requests in the queue.", registry=registry)

    def watch_queue(self, waiting: Callable[[], float]) -> None:
        self._waiting.set_function(waiting)

    def request(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, texts: int, waited: list[float]) -> None:
        self._batch.observe(texts)
        for seconds in waited:
            self._waited.observe(seconds)

    def wrote(self, texts: int, steps: int, seconds: float) -> None:
        self._texts.inc(texts)
        self._steps.inc(steps)
        self._busy.inc(seconds)

    def left(self) -> None:
        self._left.inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)
