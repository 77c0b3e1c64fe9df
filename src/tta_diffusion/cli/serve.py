"""`tta serve`: write for others over HTTP, and show texts settle on a page."""

from __future__ import annotations

from typing import Annotated

import typer

from tta_diffusion.assets import find_model
from tta_diffusion.cli import names
from tta_diffusion.cli.options import Device, NumberType

EPILOG = """\b
POST /v1/completions   OpenAI's shape, our controls beside it; "stream": true sends the draft of every step
POST /v1/rewrite       go on from a text that is there
POST /v1/infill        fill the gaps of a template
GET  /                 the page
GET  /v1/models, /v1/options, /healthz, /metrics

\b
Examples:
  tta serve
  TTA_SERVE_TOKEN=secret tta serve --host 0.0.0.0 --port 8080
  tta serve --replicas 2
  curl localhost:8000/v1/completions -H 'Content-Type: application/json' \\
    -d '{"prompt": "The pizza", "control": ["sentiment=negative"], "seed": 7}'

SIGTERM stops the server: what runs is finished, what waits or comes is refused with 503."""

app = typer.Typer()


@app.command(epilog=EPILOG)
def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            metavar="DIR",
            help="Model directory or hub name, repeatable: a request chooses one by name, the first is the default.",
            show_default="TTA_MODEL, else the model in the package",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every one of this machine.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any that is free.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(envvar="TTA_SERVE_TOKEN", help="Ask for this bearer token. Others see a flag: use the variable."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, max=512, help="Texts written at once, candidates counted.")] = 8,
    queue: Annotated[int, typer.Option(min=1, help="Requests that may wait; more get 429.")] = 256,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for a request, waiting included.")] = 300.0,
    max_n: Annotated[int, typer.Option(min=1, help="Texts of a prompt.")] = 16,
    max_steps: Annotated[int, typer.Option(min=1, help="Steps of a text.")] = 1000,
    max_candidates: Annotated[int, typer.Option(min=1, help="Candidates of a text.")] = 8,
    device: Device = "auto",
    dtype: NumberType = None,
    replicas: Annotated[
        int, typer.Option(min=0, help="Processes under Ray Serve, each with the models; 0 is one process without Ray.")
    ] = 0,
) -> None:
    """Write for others over HTTP, and show texts settle on a page."""
    _require_packages()
    from tta_diffusion.cli.run import loading
    from tta_diffusion.serve.auth import Access
    from tta_diffusion.serve.limits import Limits
    from tta_diffusion.serve.logs import log, log_json
    from tta_diffusion.serve.recipe import Recipe
    from tta_diffusion.serve.server import address, bind, is_local

    if token is not None and not token.strip():
        raise ValueError("the token is empty: leave --token and TTA_SERVE_TOKEN out, or give one")
    bound = bind(host, port)
    directories = tuple(map(find_model, model)) if model else (find_model(None),)
    limits = Limits(n=max_n, steps=max_steps, candidates=max_candidates, queue=queue, seconds=timeout)
    recipe = Recipe(directories, device, dtype, limits, Access(token, is_local(host)), batch_size, names.POLICIES)
    url = address(bound)

    def ready() -> None:
        log.info("listening", extra={"fields": {"url": url, "models": list(directories), "replicas": replicas}})
        typer.echo(f"Open {url}")

    def warn() -> None:
        log_json()
        if token is None and not recipe.access.local:
            note = "no token is set: everyone who reaches this address may write"
            log.warning("open", extra={"fields": {"note": note}})

    if replicas:
        from tta_diffusion.serve.replicas import serve_replicas

        warn()
        own_port = bound.getsockname()[1]
        bound.close()  # Ray's proxy listens there
        serve_replicas(recipe, replicas, host, own_port, ready)
        return
    with loading(", ".join(directories)):
        from tta_diffusion.serve.server import serve as run

        application = recipe.application()
    warn()
    run(application, bound, timeout, ready)


def _require_packages() -> None:
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise ValueError(f"the package '{error.name}' is not installed: pip install 'tta-diffusion[serve]'") from None
