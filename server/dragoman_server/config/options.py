"""The server's options, by concern. Each is a field here, and by that a flag, a key of the YAML file and a variable.

`max_rows` is --max-rows, max_rows: and DRAGOMAN_MAX_ROWS. The description of a field is its line in --help; server.yaml
beside this package is the manual, and explains every field at length. None stands for what is found out at the start.
"""

from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ByteSize, ConfigDict, Field, model_validator

from dragoman_server.bundle.load import shipped_bundle
from dragoman_server.config.devices import split_devices

LogFormat = Literal["auto", "console", "json"]

MOST_THREADS, MOST_WORKERS = 256, 64  # more are a slip of the finger, and would keep the machine busy making them
MOST_CONNECTIONS = MOST_STREAMS = 1_000_000
# gRPC counts in milliseconds, of which an int of C holds no more than 24 days, and adds up to a tenth to an age.
LEAST_AGE_SECONDS, MOST_AGE_SECONDS = 0.001, 20 * 24 * 60 * 60


def _or_shipped(value: Any) -> Any:
    return shipped_bundle() if value is None else value


def _devices(value: str) -> str:
    return ",".join(split_devices(value))


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelOptions(_Options, title="Model"):
    """What is served, and on what."""

    bundle: Annotated[Path, BeforeValidator(_or_shipped)] = Field(
        default_factory=shipped_bundle, description="Directory of the bundle to serve; by default the one that ships."
    )
    model_repository: Path | None = Field(
        default=None, description="Directory of several models, NAME/VERSION/ with a bundle each; instead of --bundle."
    )
    repository_poll_seconds: float = Field(
        default=5.0, ge=0, description="How often to look there for new versions; 0 for only when told to."
    )
    retire_seconds: float = Field(
        default=300.0, ge=0, description="Time that calls of a replaced version have to finish."
    )
    device: Annotated[str, AfterValidator(_devices)] = Field(
        default="auto",
        description="cpu, cuda, cuda:1 and so on, or several GPUs: cuda:0,cuda:1; auto takes a GPU where one works.",
    )
    workers: int | None = Field(
        default=None,
        ge=1,
        le=MOST_WORKERS,
        description="Processes that compute, on a CPU; by default the server's own, and one for each of several GPUs.",
    )
    engines: int | None = Field(
        default=None, ge=1, le=MOST_THREADS, description="Step loops side by side; by default what suits the device."
    )
    threads_per_engine: int | None = Field(
        default=None, ge=1, le=MOST_THREADS, description="CPU threads of each; by default what suits the device."
    )
    cuda_graphs: int = Field(
        default=128, ge=0, description="On a GPU, the most sizes of step that are recorded, to be replayed; 0 for none."
    )
    max_rows: int | None = Field(
        default=None,
        ge=1,
        description="Hypotheses that an engine decodes at once, each in a row of its cache; by default 80, or as many "
        "as there is memory for.",
    )
    memory_budget: ByteSize | None = Field(
        default=None,
        gt=0,
        description="Memory for all of it, weights included, of the GPU where that computes; by default what is free.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.model_repository is not None and self.bundle != shipped_bundle():
            raise ValueError("--bundle and --model-repository can't both be given")
        return self

    @model_validator(mode="after")
    def _one_worker_for_each_gpu(self) -> Self:
        gpus = len(split_devices(self.device)) if self.device.startswith("cuda") else 0
        if gpus and self.workers not in (None, gpus):
            raise ValueError(
                f"--device {self.device} has one worker for each GPU, and can't go with --workers {self.workers}"
            )
        return self


class NetworkOptions(_Options, title="Network"):
    """Where it listens."""

    host: str = Field(default="127.0.0.1", description="Address to listen on; 0.0.0.0 for all of IPv4.")
    port: int = Field(default=50051, ge=0, le=65535, description="gRPC port; 0 takes a free one.")
    metrics_port: int = Field(
        default=9090, ge=0, le=65535, description="HTTP port of /metrics and a live page; 0 takes a free one."
    )
    health_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="gRPC port for health checks alone, answered at once however busy the server is; by default none.",
    )

    @model_validator(mode="after")
    def _a_port_each(self) -> Self:
        ports = {"--port": self.port, "--metrics-port": self.metrics_port, "--health-port": self.health_port}
        for (one, port), (other, same) in combinations(ports.items(), 2):
            if port == same and port:
                raise ValueError(f"{one} and {other} can't both be {port}")
        return self


class RequestOptions(_Options, title="Requests"):
    """What a request may ask for, and how many may wait."""

    max_beam_size: int = Field(
        default=16, ge=1, description="Widest beam of a request, or --max-rows where that is less."
    )
    max_hypotheses: int = Field(
        default=32, ge=1, description="Most samples or alternatives of a request, or --max-rows where that is less."
    )
    max_source_tokens: int | None = Field(
        default=None, ge=2, description="Most tokens of an input, end token included; by default the model's limit."
    )
    max_target_tokens: int | None = Field(
        default=None, ge=1, description="Most tokens of an answer; by default the model's limit."
    )
    max_stop_sequences: int = Field(default=16, ge=0, description="Most stop sequences of a request.")
    max_batch_items: int = Field(default=10_000, ge=1, description="Most inputs of one GenerateBatch call.")
    max_message_bytes: int = Field(default=4 * 1024 * 1024, ge=1024, le=2**31 - 1, description="Largest request.")
    max_answer_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=2**16,
        le=2**31 - 1,
        description="Largest answer; what might have a larger one is refused before it is computed.",
    )
    queue_size: int = Field(
        default=1024, ge=1, description="Requests of each priority that may wait; one more is refused."
    )
    queue_tokens: int = Field(
        default=262_144, ge=1, description="Input tokens of each priority that may wait, likewise."
    )


class ConnectionOptions(_Options, title="Connections"):
    """What clients' connections may do."""

    max_connections: int = Field(
        default=4096, ge=1, le=MOST_CONNECTIONS, description="Connections open at once; one more is closed as it comes."
    )
    max_concurrent_streams: int = Field(
        default=10_000, ge=1, le=MOST_STREAMS, description="Calls at once on one connection; more wait in the client."
    )
    max_connection_age_seconds: float | None = Field(
        default=None,
        ge=LEAST_AGE_SECONDS,
        le=MOST_AGE_SECONDS,
        description="After so long a client must connect anew; by default never.",
    )
    connection_age_grace_seconds: float = Field(
        default=300.0,
        ge=LEAST_AGE_SECONDS,
        le=MOST_AGE_SECONDS,
        description="Time for the calls that such a connection has; then they are cut off.",
    )


class AccessOptions(_Options, title="Access"):
    """Who may come in."""

    tls_cert: Path | None = Field(
        default=None, description="PEM file of the certificate, its chain behind it; gRPC then speaks TLS alone."
    )
    tls_key: Path | None = Field(default=None, description="PEM file of the certificate's private key.")
    tls_client_ca: Path | None = Field(
        default=None, description="PEM file of who signs clients' certificates; without one no client is let in."
    )
    api_keys: Path | None = Field(
        default=None,
        description="File of API keys, made by python -m dragoman_server.new_key; by default none is needed.",
    )
    admin: bool = Field(default=True, description="Let clients load and unload models, as `dragoman admin` does.")
    reflection: bool = Field(default=True, description="Tell clients what services there are, as grpcurl asks.")

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key need each other")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("--tls-client-ca needs --tls-cert and --tls-key")
        return self


class LifeOptions(_Options, title="Stopping"):
    """How it ends."""

    hang_seconds: float = Field(
        default=60.0,
        ge=0.01,
        description="A step that takes so long is one that hangs: what computes it is ended. An event loop that stands "
        "still for so long makes the server unready.",
    )
    max_device_errors: int = Field(
        default=3, ge=1, description="So many errors of a device in a row end what computes there."
    )
    drain_delay_seconds: float = Field(
        default=0.0, ge=0, description="After SIGTERM, time to serve on, unready, until no more calls are sent here."
    )
    drain_seconds: float = Field(default=30.0, ge=0, description="Then, time to finish what runs.")


class LogOptions(_Options, title="Logs"):
    """What it tells."""

    log_format: LogFormat = Field(default="auto", description="auto is console on a terminal, else JSON.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level that is logged."
    )
    log_requests: Literal["all", "failed", "none"] = Field(
        default="all", description="Which calls have a line: sizes, times and how it ended."
    )
    summary_seconds: float = Field(
        default=10.0, ge=0, description="Log rates and percentiles so often, unless idle; 0 for never."
    )
    tracing: bool = Field(
        default=False,
        description="Send OpenTelemetry traces to where the OTEL_ variables say; needs the extra tracing.",
    )
    log_text: bool = Field(
        default=False, description="Log what clients send, and exceptions in full. To find a fault, never for long."
    )


class ServerConfig(
    ModelOptions,
    NetworkOptions,
    RequestOptions,
    ConnectionOptions,
    AccessOptions,
    LifeOptions,
    LogOptions,
    title="Server",
):
    """What `dragoman-serve` can be told."""


# In the order of --help and of server.yaml.
PANELS: tuple[type[BaseModel], ...] = ServerConfig.__bases__
