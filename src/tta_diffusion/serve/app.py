"""The application: routes, and what they share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

import tta_diffusion
from tta_diffusion.common.registry import closest
from tta_diffusion.serve.auth import Access
from tta_diffusion.serve.gate import Gate
from tta_diffusion.serve.limits import Limits
from tta_diffusion.serve.logs import log
from tta_diffusion.serve.metrics import Metrics
from tta_diffusion.serve.models import Served
from tta_diffusion.serve.openai import Shape, refuse
from tta_diffusion.serve.options import options
from tta_diffusion.serve.plan import plan
from tta_diffusion.serve.queue import STOPPING, Refused, Worker
from tta_diffusion.serve.schema import Asked, Completion, Infill, Rewrite
from tta_diffusion.serve.stream import Visit, respond

TYPES = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
# The page runs its own scripts alone, talks to this server alone, and is shown in no other page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def create_app(
    models: dict[str, Served],
    limits: Limits | None = None,
    access: Access | None = None,
    batch_size: int = 8,
    policies: Mapping[str, str] | None = None,
) -> FastAPI:
    """An ASGI application that serves models by name; its worker starts and ends with it.

    `policies` is a line of help for each allocation policy, for the page.
    """
    limits, access, metrics = limits or Limits(), access or Access(), Metrics()
    worker = Worker(models, metrics, batch_size, limits.queue)
    metrics.watch_queue(lambda: worker.waiting)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker.start()
        yield
        worker.stop()
        await asyncio.to_thread(worker.join)

    app = FastAPI(
        title="tta-diffusion",
        version=tta_diffusion.__version__,
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.worker = worker
    _add_errors(app)
    _add_writing(app, models, limits, worker, metrics)
    _add_facts(app, models, options(models, limits, policies or {}), worker, metrics)
    page = _add_page(app)
    routes = frozenset(getattr(route, "path", "") for route in app.routes)
    app.add_middleware(
        Gate,
        access=access,
        metrics=metrics,
        body=limits.body,
        public=frozenset({*page, "/healthz"}),
        routes=routes,
    )
    return app


def _add_writing(app: FastAPI, models: dict[str, Served], limits: Limits, worker: Worker, metrics: Metrics) -> None:
    async def write(request: Request, asked: Asked) -> Response:
        served = _find(models, asked.model)
        if worker.stopping:
            raise STOPPING
        pieces = await asyncio.to_thread(plan, asked, served, limits)
        request.state.facts = {"model": served.name, "texts": sum(piece.texts for piece in pieces)}
        visit = Visit(pieces, asked.stream, worker, metrics, limits.seconds)
        return await respond(request, visit, Shape(asked, served.name, request.state.request_id))

    @app.post("/v1/completions")
    async def completions(request: Request, asked: Completion) -> Response:
        """Continue prompts."""
        return await write(request, asked)

    @app.post("/v1/rewrite")
    async def rewrite(request: Request, asked: Rewrite) -> Response:
        """Go on from a text that is there."""
        return await write(request, asked)

    @app.post("/v1/infill")
    async def infill(request: Request, asked: Infill) -> Response:
        """Fill the gaps of a template."""
        return await write(request, asked)


def _add_facts(
    app: FastAPI, models: dict[str, Served], choices: dict[str, Any], worker: Worker, metrics: Metrics
) -> None:
    def listed(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": 0, "owned_by": "tta-diffusion"}

    @app.get("/v1/models")
    async def all_models() -> dict[str, Any]:
        return {"object": "list", "data": [listed(name) for name in models]}

    @app.get("/v1/models/{name}")
    async def one_model(name: str) -> dict[str, Any]:
        return listed(_find(models, name).name)

    @app.get("/v1/options")
    async def all_options() -> dict[str, Any]:
        """What a request may choose from."""
        return choices

    @app.get("/healthz")
    async def health() -> Response:
        if worker.stopping or not worker.is_alive():
            return JSONResponse({"status": "stopping"}, 503)
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    async def counters() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_page(app: FastAPI) -> list[str]:
    """The files of the page, read once: a request never names a file on the disk. Returns their paths."""
    folder = files("tta_diffusion.serve").joinpath("page")
    found = {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in TYPES}
    headers = {
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }

    def give(name: str) -> Response:
        return Response(found[name], media_type=TYPES[name.rpartition(".")[2]], headers=headers)

    def add(path: str, name: str) -> str:
        app.add_api_route(path, lambda: give(name), include_in_schema=False, response_class=Response)
        return path

    return [add("/" if name == "index.html" else f"/page/{name}", name) for name in found]


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def wrong(request: Request, error: RequestValidationError) -> Response:
        return refuse(400, _sentence(error, request.headers.get("content-type", "")))

    @app.exception_handler(ValueError)
    async def refused_by_the_pipeline(request: Request, error: ValueError) -> Response:
        return refuse(400, str(error))

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return refuse(error.status, error.message)

    @app.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> Response:
        unknown = error.status_code == 404 and error.detail == "Not Found"
        return refuse(error.status_code, _places(app) if unknown else str(error.detail))

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        log.error("bug", exc_info=error)
        return refuse(500, "the server failed: its log says why")


def _find(models: dict[str, Served], name: str | None) -> Served:
    if name is None:
        return next(iter(models.values()))
    if name not in models:
        raise HTTPException(404, f"Unknown model '{name}'.{closest(name, list(models))}")
    return models[name]


def _places(app: FastAPI) -> str:
    """For whoever asks for what is not there, such as OpenAI's chats."""
    paths = [getattr(route, "path", "") for route in app.routes]
    return f"nothing is served here: there are {', '.join(path for path in paths if path.startswith('/v1/'))}"


def _sentence(error: RequestValidationError, content_type: str) -> str:
    """The first thing that is wrong, without what was sent."""
    first = error.errors()[0]
    if first["loc"] == ("body",):  # the whole of it
        if first["type"] == "missing":
            return "the body is empty: send a JSON object"
        if "json" not in content_type:
            return "the body is not declared as JSON: send Content-Type: application/json"
    place = ".".join(str(part) for part in first["loc"][1:2])
    what = str(first["msg"]).removeprefix("Value error, ")
    return f"'{place}': {what}" if place and first["type"] != "json_invalid" else what
