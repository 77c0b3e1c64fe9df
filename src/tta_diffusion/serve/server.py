"""The process: it binds, serves, and stops when told to, after what it has begun."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from tta_diffusion.serve.auth import LOOPBACK
from tta_diffusion.serve.logs import log

if TYPE_CHECKING:
    from fastapi import FastAPI

    from tta_diffusion.serve.queue import Worker


class Server(uvicorn.Server):
    """On the first signal nothing new is taken in (503), and the process ends when what runs is answered. On the next
    it ends at once."""

    def __init__(self, config: uvicorn.Config, worker: Worker, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._worker, self._ready = worker, ready
        self._told = False  # by a signal, in whose handler no lock may be taken

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.should_exit = self.force_exit = self._told  # the second one
        self._told = True

    async def on_tick(self, counter: int) -> bool:
        if self._told and not self._worker.stopping:
            log.info("stopping", extra={"fields": {"waiting": self._worker.waiting}})
            self._worker.stop()
        if self._told and self._worker.idle:
            self.should_exit = True
        return await super().on_tick(counter)


def bind(host: str, port: int) -> socket.socket:
    """A listening address, before minutes are spent on a model."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except (OSError, UnicodeError) as error:
        bound.close()
        if isinstance(error, UnicodeError | socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise ValueError(f"cannot listen on '{host}': no address of this machine. Choose another --host") from error
        raise ValueError(f"cannot listen on {host}:{port}: {error.strerror}. Choose another --port") from error
    return bound


def address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_local(host: str) -> bool:
    """True where only this machine can reach the address."""
    return host in LOOPBACK or host.startswith("127.")


def serve(app: FastAPI, bound: socket.socket, seconds: float, ready: Callable[[], None]) -> None:
    """Serves until a signal; answers that are being sent get so many seconds more. Calls `ready` when it listens."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(seconds) + 1,
    )
    Server(config, app.state.worker, ready).run(sockets=[bound])
    log.info("stopped")
