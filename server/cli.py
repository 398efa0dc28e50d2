"""`dragoman-serve`."""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from server.config import ServerConfig
from server.logs import LogFormat, configure_logs
from server.runtime.device import DeviceChoice

MOST_THREADS = 256  # more are a slip of the finger, and would keep the machine busy making them
DEFAULT = ServerConfig()

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def serve(
    bundle: Annotated[
        Path, typer.Option(help="Directory of the bundle to serve.", show_default="the g2p-en bundle that ships")
    ] = DEFAULT.bundle,
    device: Annotated[DeviceChoice, typer.Option(help="auto takes a GPU where one works.")] = DEFAULT.device,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all of IPv4.")] = DEFAULT.host,
    port: Annotated[int, typer.Option(min=0, max=65535, help="gRPC port; 0 takes a free one.")] = DEFAULT.port,
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65535, help="HTTP port of /metrics; 0 takes a free one.")
    ] = DEFAULT.metrics_port,
    engines: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_THREADS, help="Step loops side by side.", show_default="what suits the device"),
    ] = DEFAULT.engines,
    threads_per_engine: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_THREADS, help="CPU threads of each.", show_default="what suits the device"),
    ] = DEFAULT.threads_per_engine,
    max_rows: Annotated[
        int, typer.Option(min=1, help="Hypotheses that an engine decodes at once; each has a row of its cache.")
    ] = DEFAULT.max_rows,
    max_beam_size: Annotated[
        int, typer.Option(min=1, help="Widest beam of a request, or --max-rows where that is less.")
    ] = DEFAULT.max_beam_size,
    max_hypotheses: Annotated[
        int, typer.Option(min=1, help="Most samples or alternatives of a request, or --max-rows where that is less.")
    ] = DEFAULT.max_hypotheses,
    queue_size: Annotated[
        int, typer.Option(min=1, help="Requests that may wait; one more is refused.")
    ] = DEFAULT.queue_size,
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="After SIGTERM, time to finish what runs.")
    ] = DEFAULT.drain_seconds,
    log_format: Annotated[
        LogFormat, typer.Option(help="auto is console on a terminal, else JSON.")
    ] = DEFAULT.log_format,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="Least level that is logged.")
    ] = DEFAULT.log_level,
) -> None:
    """Serve a bundle over gRPC, with metrics over HTTP."""
    config = ServerConfig(
        bundle=bundle,
        device=device,
        host=host,
        port=port,
        metrics_port=metrics_port,
        engines=engines,
        threads_per_engine=threads_per_engine,
        max_rows=max_rows,
        max_beam_size=max_beam_size,
        max_hypotheses=max_hypotheses,
        queue_size=queue_size,
        drain_seconds=drain_seconds,
        log_format=log_format,
        log_level=log_level,
    )
    configure_logs(log_format, log_level)
    # NOTE: both are read when the libraries are first used. The tokenizer's own threads would take the engines' cores,
    # and what gRPC's core writes about a port that it can't have is said here in one sentence.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import uvloop

    from server.app import StartError, run

    try:
        status = uvloop.run(run(config))
    except StartError as error:
        print(f"dragoman-serve: {error}", file=sys.stderr)
        status = 1
    raise SystemExit(status)
