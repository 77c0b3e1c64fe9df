"""What every request passes: who may ask, how large it may be, and the line in the log."""

from __future__ import annotations

import secrets
import time
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tta_diffusion.serve.auth import Access
from tta_diffusion.serve.logs import log
from tta_diffusion.serve.metrics import Metrics
from tta_diffusion.serve.openai import refuse


class Gate:
    """ASGI middleware; `public` are the paths that need no token, `routes` those that metrics name."""

    def __init__(
        self, app: ASGIApp, access: Access, metrics: Metrics, body: int, public: frozenset[str], routes: frozenset[str]
    ) -> None:
        self.app, self.access, self.metrics, self.body = app, access, metrics, body
        self.public, self.routes = public, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, request_id, status = time.monotonic(), secrets.token_hex(8), 499  # 499: the client left before any
        scope.setdefault("state", {})["request_id"] = request_id

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._admit(scope, receive, answer)
        finally:
            route = scope["path"] if scope["path"] in self.routes else "other"
            seconds = time.monotonic() - began
            self.metrics.request(route, status, seconds)
            log.info("request", extra={"fields": self._line(scope, request_id, route, status, seconds)})

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        refusal = self.access.refusal(headers, scope["path"] in self.public)
        if refusal is None and _length(headers) > self.body:
            refusal = 413, self._too_large
        if refusal is not None:
            await refuse(*refusal)(scope, receive, send)
            return
        await self.app(scope, self._counted(receive), send)

    @property
    def _too_large(self) -> str:
        return f"the body must be at most {self.body} bytes"

    def _counted(self, receive: Receive) -> Receive:
        """A body may come without its length, or with a wrong one."""
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.body:
                raise HTTPException(413, self._too_large)
            return message

        return counted

    def _line(self, scope: Scope, request_id: str, route: str, status: int, seconds: float) -> dict[str, Any]:
        client = scope.get("client")
        return {
            "id": request_id,
            "method": scope["method"],
            "route": route,
            "status": status,
            "seconds": round(seconds, 3),
            "client": client[0] if client else None,
            **scope["state"].get("facts", {}),
        }


def _length(headers: dict[bytes, bytes]) -> int:
    raw = headers.get(b"content-length", b"0")
    return int(raw) if raw.isdigit() and len(raw) < 20 else 0
