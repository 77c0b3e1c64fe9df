"""The queue and the thread that empties it: the only one that touches a pipeline.

Requests wait in the order in which they came. The first one says which texts are written next, and as many others of
the same manner (`work.Manner`) join them as a batch holds, from whatever requests. Between two steps the thread tells
those who watch, and stops if nobody waits for the batch any more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.sampling.sampler import StepInfo
from tta_diffusion.serve.events import drafts
from tta_diffusion.serve.judge import Judge
from tta_diffusion.serve.logs import log
from tta_diffusion.serve.metrics import Metrics
from tta_diffusion.serve.models import Served
from tta_diffusion.serve.results import finished
from tta_diffusion.serve.work import Piece, Rewriting, Text, Varied, Written, write

LINGER = 0.01  # seconds that a batch waits for company


@dataclass(frozen=True)
class Drafts:
    """The drafts of one step: place of the text in the request, and `events.drafts`."""

    texts: list[tuple[int, dict[str, Any]]]


@dataclass(frozen=True)
class Done:
    texts: list[Written]


@dataclass(frozen=True)
class Failed:
    status: int
    message: str


Event = Drafts | Done | Failed


class Refused(Exception):
    """A request that is not taken in: the queue is full, or the server stops."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class _Left(Exception):
    """Nobody waits for the batch any more."""


STOPPING = Refused(503, "the server is stopping: try another one, or again later")


@dataclass(eq=False)
class Job:
    """A request on its way. `emit` is called from the worker's thread."""

    pieces: list[Piece]
    emit: Callable[[Event], None]
    watched: bool = False  # drafts are wanted
    begun: int = 0  # pieces that were handed to a batch
    gone: bool = False  # nobody waits for it any more
    written: dict[int, Written] = field(default_factory=dict)  # by place in the request
    asked: float = field(default_factory=time.monotonic)

    @property
    def texts(self) -> int:
        return sum(piece.texts for piece in self.pieces)

    def place(self, number: int) -> int:
        """Where the texts of a piece begin."""
        return sum(piece.texts for piece in self.pieces[:number])


@dataclass(frozen=True)
class Member:
    """A piece of a job, in a batch."""

    job: Job
    number: int

    @property
    def piece(self) -> Piece:
        return self.job.pieces[self.number]

    @property
    def places(self) -> range:
        first = self.job.place(self.number)
        return range(first, first + self.piece.texts)


class Worker(threading.Thread):
    """Writes what waits, batch by batch."""

    def __init__(self, models: Mapping[str, Served], metrics: Metrics, batch_size: int = 8, most: int = 256) -> None:
        super().__init__(name="writer", daemon=True)
        self.models, self.metrics, self.batch_size, self.most = models, metrics, batch_size, most
        self.stopping = False
        self._waiting: list[Job] = []  # with pieces that no batch has begun
        self._unfinished: set[Job] = set()  # begun, and not yet answered
        self._changed = threading.Condition()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        with self._changed:
            return not self._waiting and not self._unfinished

    def submit(self, job: Job) -> None:
        with self._changed:
            if self.stopping:
                raise STOPPING
            if len(self._waiting) >= self.most:
                raise Refused(429, f"{self.most} requests wait already: try again later")
            self._waiting.append(job)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """For a job that nobody waits for any more: what it has begun stops when its whole batch is so."""
        with self._changed:
            job.gone = True
            self._forget(job)

    def stop(self) -> None:
        """Takes nothing in any more, refuses what has not begun, and ends the thread when the rest is written."""
        with self._changed:
            self.stopping = True
            for job in [job for job in self._waiting if not job.begun]:
                self._waiting.remove(job)
                job.emit(Failed(STOPPING.status, STOPPING.message))
            self._changed.notify()

    def run(self) -> None:
        while batch := self._next():
            self._write(batch)

    def _forget(self, job: Job) -> None:
        if job in self._waiting:
            self._waiting.remove(job)
        self._unfinished.discard(job)

    def _next(self) -> list[Member]:
        """The next batch; empty when the server has stopped."""
        with self._changed:
            while not (batch := self._company()):
                if self.stopping:
                    return []
                self._changed.wait()
            for member in batch:
                job = member.job
                job.begun = member.number + 1
                self._unfinished.add(job)
                if job.begun == len(job.pieces):
                    self._waiting.remove(job)
        return batch

    def _company(self) -> list[Member]:
        """A batch that has waited a moment for others to join, if it has room for them."""
        if self._waiting and sum(job.texts for job in self._waiting) < self.batch_size:
            self._changed.wait_for(lambda: self.stopping, LINGER)
        return list(self._gather())

    def _gather(self) -> Iterator[Member]:
        """Pieces of the manner of the first, as many as a batch holds; one that is written apart, alone."""
        if not self._waiting:
            return
        head = Member(self._waiting[0], self._waiting[0].begun)
        if not isinstance(head.piece, Text):
            yield head
            return
        manner = head.piece.manner
        room = max(1, self.batch_size // manner.candidates)
        for job in self._waiting:
            for number in range(job.begun, len(job.pieces)):
                piece = job.pieces[number]
                if not room or not isinstance(piece, Text) or piece.manner != manner:
                    break
                room -= 1
                yield Member(job, number)

    def _write(self, batch: list[Member]) -> None:
        try:
            self._write_together(batch)
        except _Left:
            log.info("left", extra={"fields": {"texts": len(batch)}})
        except ValueError as error:
            jobs = dict.fromkeys(member.job for member in batch)
            if len(jobs) == 1:
                self._fail(batch, Failed(400, str(error)))
                return
            for job in jobs:  # one request must not spoil the others
                self._write([member for member in batch if member.job is job])
        except Exception:
            log.exception("failed", extra={"fields": {"texts": len(batch)}})
            self._fail(batch, Failed(500, "the server failed to write this: its log says why"))

    def _write_together(self, batch: list[Member]) -> None:
        manner = batch[0].piece.manner
        served = self.models[manner.model]
        pipeline = served.pipeline
        judge = Judge(pipeline, served.judging(manner.control))
        places = [(member.job, place) for member in batch for place in member.places]
        began = time.monotonic()
        self.metrics.batch(len(places), [began - member.job.asked for member in batch])
        watch = _Watcher(places, manner.candidates, judge)
        output = write([member.piece for member in batch], pipeline, watch, **self._machine(batch[0].piece, pipeline))
        texts = finished(pipeline, output, judge, isinstance(batch[0].piece, Rewriting))
        self.metrics.wrote(len(texts), sum(output.steps), time.monotonic() - began)
        for (job, place), text in zip(places, texts, strict=True):
            job.written[place] = text
        for job in dict.fromkeys(member.job for member in batch):
            if len(job.written) == job.texts:
                self._finish(job, Done([job.written[place] for place in range(job.texts)]))

    def _machine(self, piece: Piece, pipeline: TTAPipeline) -> dict[str, Any]:
        """Settings that change no text but for rounding: on a CPU each text is judged by itself, so that products have
        the same shape whatever is in the batch. Varied texts depend on the size of the model's own batches."""
        alone = {"score_batch": 1} if pipeline.denoiser.device.type == "cpu" else {}
        return alone if isinstance(piece, Varied) else alone | {"batch_size": self.batch_size}

    def _fail(self, batch: list[Member], event: Failed) -> None:
        for job in dict.fromkeys(member.job for member in batch):
            self._finish(job, event)

    def _finish(self, job: Job, event: Event) -> None:
        with self._changed:
            self._forget(job)
        if not job.gone:
            job.emit(event)


class _Watcher:
    """Called after every step of a batch: tells who watches, and stops a batch that nobody waits for.

    A call may write its rows in several batches, one after the other: each begins with step 0.
    """

    def __init__(self, places: list[tuple[Job, int]], candidates: int, judge: Judge) -> None:
        self._places, self._candidates, self._judge = places, candidates, judge
        self._done = self._rows = 0

    def __call__(self, pipeline: TTAPipeline, step: int, u: float, info: StepInfo) -> None:
        if all(job.gone for job, _ in self._places):
            raise _Left
        if step == 0:
            self._done += self._rows
        self._rows = len(info.ids)
        # Of several candidates the first is shown.
        shown = {row: self._places[number // self._candidates] for row, number in self._numbered()}
        rows = [row for row, (job, _) in shown.items() if job.watched and not job.gone]
        if not rows:
            return
        told: dict[Job, list[tuple[int, dict[str, Any]]]] = {}
        for row, draft in zip(rows, drafts(pipeline, info, rows, self._judge), strict=True):
            job, place = shown[row]
            told.setdefault(job, []).append((place, draft))
        for job, texts in told.items():
            job.emit(Drafts(texts))

    def _numbered(self) -> Iterator[tuple[int, int]]:
        """The rows of this batch that are first candidates, and their numbers among all rows of the call."""
        for row in range(self._rows):
            if (self._done + row) % self._candidates == 0:
                yield row, self._done + row
