"""From the worker's thread to a client, in one piece or as events; and what happens when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tta_diffusion.serve.events import message
from tta_diffusion.serve.metrics import Metrics
from tta_diffusion.serve.openai import Shape, problem, refuse
from tta_diffusion.serve.queue import Done, Drafts, Event, Failed, Job, Worker
from tta_diffusion.serve.work import Piece

_DRAFTS_AHEAD = 32  # a client that reads slowly misses drafts, never the text


class Visit:
    """One request that waits for the worker, for so many seconds."""

    def __init__(self, pieces: list[Piece], watched: bool, worker: Worker, metrics: Metrics, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._deadline, self._seconds = self._loop.time() + seconds, seconds
        self._worker, self._metrics = worker, metrics
        self._over = False
        self.job = Job(pieces, self._emit, watched)
        worker.submit(self.job)

    def _emit(self, event: Event) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens
            self._loop.call_soon_threadsafe(self._put, event)

    def _put(self, event: Event) -> None:
        if not isinstance(event, Drafts) or self._events.qsize() < _DRAFTS_AHEAD:
            self._events.put_nowait(event)

    async def event(self) -> Event:
        """The next one; too late, it is a failure."""
        try:
            found = await asyncio.wait_for(self._events.get(), max(0.0, self._deadline - self._loop.time()))
        except TimeoutError:
            self._worker.cancel(self.job)
            found = Failed(504, f"not finished within {self._seconds:g} seconds: ask for less, or later")
        self._over = not isinstance(found, Drafts)
        return found

    async def first(self, request: Request) -> Event | None:
        """The first event, before anything is sent; None if the client has left meanwhile."""
        waits = [asyncio.create_task(self.event()), asyncio.create_task(_gone(request))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return waits[0].result() if waits[0].done() else None
        finally:
            for task in waits:
                task.cancel()
            if not waits[0].done() or waits[0].cancelled():
                self.leave()

    def leave(self) -> None:
        """Work that nobody waits for any more is not done."""
        if not self._over:
            self._over = True
            self._worker.cancel(self.job)
            self._metrics.left()

    async def lines(self, first: Event, shape: Shape) -> AsyncIterator[str]:
        """Server-sent events, from the first on."""
        event = first
        while isinstance(event, Drafts):
            yield shape.drafts(event.texts)
            event = await self.event()
        if isinstance(event, Done):
            for line in shape.end(event.texts):
                yield line
        else:
            yield message(problem(event.status, event.message))


class Stream(StreamingResponse):
    """A stream that tells the worker when it ends early, even before its first line."""

    def __init__(self, visit: Visit, first: Event, shape: Shape) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(visit.lines(first, shape), headers=headers, media_type="text/event-stream")
        self._visit = visit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._visit.leave()


async def respond(request: Request, visit: Visit, shape: Shape) -> Response:
    """The answer. A stream begins with its first draft, so that what is refused has a status of its own."""
    event = await visit.first(request)
    if event is None:
        return Response(status_code=499)  # read by the log alone
    if isinstance(event, Failed):
        return refuse(event.status, event.message)
    if shape.asked.stream:
        return Stream(visit, event, shape)
    assert isinstance(event, Done)
    return JSONResponse(shape.answer(event.texts))


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
