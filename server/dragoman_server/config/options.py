"""The server's options. Each field is a flag, a key of the YAML file and an environment variable.

`max_rows` is --max-rows, max_rows: and DRAGOMAN_MAX_ROWS. The description of a field is its line in --help; server.yaml
in the directory above is the manual, which explains every field. None means that the server decides at start.
"""

from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ByteSize, ConfigDict, Field, model_validator

from dragoman_server.config.devices import split_devices

LogFormat = Literal["auto", "console", "json"]

MOST_THREADS, MOST_WORKERS = 256, 64  # more are a typo, and would overload the machine
MOST_CONNECTIONS = MOST_STREAMS = 1_000_000
MOST = 2**31 - 1  # of numbers that gRPC gets or clients are told
# gRPC counts milliseconds in a C int, which holds up to 24 days, and adds up to 10 % to an age.
LEAST_AGE_SECONDS, MOST_AGE_SECONDS = 0.001, 20 * 24 * 60 * 60


def _devices(value: str) -> str:
    return ",".join(split_devices(value))


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelOptions(_Options, title="Model"):
    """What to serve, and on which hardware."""

    bundle: Path | None = Field(
        default=None, description="Directory of the bundle to serve; by default the shipped models are served."
    )
    model_repository: Path | None = Field(
        default=None, description="Directory of models to serve, with a bundle in each NAME/VERSION/."
    )
    repository_poll_seconds: float = Field(
        default=5.0, ge=0, description="Interval between scans of the repository; 0 scans only on request."
    )
    retire_seconds: float = Field(
        default=300.0, ge=0, description="Time for the calls of a replaced version to finish."
    )
    device: Annotated[str, AfterValidator(_devices)] = Field(
        default="auto",
        description="cpu, cuda, a GPU such as cuda:1, or several such as cuda:0,cuda:1; auto uses a GPU if one works.",
    )
    workers: int | None = Field(
        default=None,
        ge=1,
        le=MOST_WORKERS,
        description="Worker processes that compute; by default none, or one per GPU with several GPUs.",
    )
    engines: int | None = Field(
        default=None,
        ge=1,
        le=MOST_THREADS,
        description="Engines, which run step loops in parallel; the default depends on the device.",
    )
    threads_per_engine: int | None = Field(
        default=None,
        ge=1,
        le=MOST_THREADS,
        description="CPU threads of each engine; the default depends on the device.",
    )
    cuda_graphs: int = Field(
        default=128,
        ge=0,
        description="Maximum number of step shapes recorded as CUDA graphs, on a GPU; 0 disables them.",
    )
    max_rows: int | None = Field(
        default=None,
        ge=1,
        description="Cache rows of an engine, one for each hypothesis that it decodes at once; by default 80, or as "
        "many as fit into memory.",
    )
    memory_budget: ByteSize | None = Field(
        default=None,
        gt=0,
        description="Memory for the server, weights included: of the GPU if one is used; by default what is free.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.model_repository is not None and self.bundle is not None:
            raise ValueError("--bundle and --model-repository are mutually exclusive")
        return self

    @model_validator(mode="after")
    def _one_worker_for_each_gpu(self) -> Self:
        gpus = len(split_devices(self.device)) if self.device.startswith("cuda") else 0
        if gpus and self.workers not in (None, gpus):
            raise ValueError(
                f"--device {self.device} needs one worker per GPU, which contradicts --workers {self.workers}"
            )
        return self


class NetworkOptions(_Options, title="Network"):
    """Where the server listens."""

    host: str = Field(default="127.0.0.1", description="Address to listen on; 0.0.0.0 for all IPv4 addresses.")
    port: int = Field(default=50051, ge=0, le=65535, description="gRPC port; 0 chooses a free one.")
    metrics_port: int = Field(
        default=9090, ge=0, le=65535, description="HTTP port of /metrics and the live page; 0 chooses a free one."
    )
    health_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="gRPC port for health checks only, which are answered at once under any load; by default none.",
    )

    @model_validator(mode="after")
    def _a_port_each(self) -> Self:
        ports = {"--port": self.port, "--metrics-port": self.metrics_port, "--health-port": self.health_port}
        for (option, port), (other_option, other_port) in combinations(ports.items(), 2):
            if port == other_port and port:
                raise ValueError(f"{option} and {other_option} can't both be {port}")
        return self


class RequestOptions(_Options, title="Requests"):
    """Limits of requests and of the queue."""

    max_beam_size: int = Field(
        default=16, ge=1, description="Maximum beam size of a request; --max-rows if that is smaller."
    )
    max_hypotheses: int = Field(
        default=32, ge=1, description="Maximum samples or alternatives of a request; --max-rows if that is smaller."
    )
    max_source_tokens: int | None = Field(
        default=None,
        ge=2,
        description="Maximum tokens of an input, including the end token; by default the model's limit.",
    )
    max_target_tokens: int | None = Field(
        default=None, ge=1, description="Maximum tokens of a target; by default the model's limit."
    )
    max_stop_sequences: int = Field(default=16, ge=0, le=MOST, description="Maximum stop sequences of a request.")
    max_batch_items: int = Field(default=10_000, ge=1, le=MOST, description="Maximum inputs of a GenerateBatch call.")
    max_message_bytes: int = Field(default=4 * 1024 * 1024, ge=1024, le=MOST, description="Maximum size of a request.")
    max_answer_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=2**16,
        le=MOST,
        description="Maximum size of a response; a request that could exceed it is refused before it is computed.",
    )
    queue_size: int = Field(
        default=1024, ge=1, description="Maximum waiting single calls of each priority; further calls are refused."
    )
    queue_tokens: int = Field(
        default=262_144, ge=1, description="Maximum source tokens of the waiting single calls of each priority."
    )
    batch_slowdown: float = Field(
        default=3.5,
        ge=1,
        le=1000,
        allow_inf_nan=False,
        description="Factor by which batches may lengthen the steps of interactive calls.",
    )


class ConnectionOptions(_Options, title="Connections"):
    """Limits of client connections."""

    max_connections: int = Field(
        default=4096,
        ge=1,
        le=MOST_CONNECTIONS,
        description="Maximum open connections; further ones are closed at once.",
    )
    max_concurrent_streams: int = Field(
        default=10_000,
        ge=1,
        le=MOST_STREAMS,
        description="Maximum concurrent calls on a connection; further ones wait in the client.",
    )
    max_connection_age_seconds: float | None = Field(
        default=None,
        ge=LEAST_AGE_SECONDS,
        le=MOST_AGE_SECONDS,
        description="Age at which a client must reconnect; by default never.",
    )
    connection_age_grace_seconds: float = Field(
        default=300.0,
        ge=LEAST_AGE_SECONDS,
        le=MOST_AGE_SECONDS,
        description="Time for the calls on such a connection to finish.",
    )


class AccessOptions(_Options, title="Access"):
    """Encryption and access."""

    tls_cert: Path | None = Field(
        default=None, description="PEM file of the certificate, followed by its chain; makes gRPC use TLS only."
    )
    tls_key: Path | None = Field(default=None, description="PEM file of the certificate's private key.")
    tls_client_ca: Path | None = Field(
        default=None, description="PEM file of the CA of client certificates; clients then need one."
    )
    api_keys: Path | None = Field(
        default=None,
        description="File of API keys, made by python -m dragoman_server.new_key; by default no key is needed.",
    )
    admin: bool = Field(default=True, description="Let clients load and unload models, as `dragoman admin` does.")
    reflection: bool = Field(default=True, description="Offer gRPC reflection, which grpcurl uses.")

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key must be set together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("--tls-client-ca needs --tls-cert and --tls-key")
        return self


class LifeOptions(_Options, title="Stopping"):
    """When and how the server stops."""

    hang_seconds: float = Field(
        default=60.0,
        ge=0.01,
        description="A step that takes longer counts as hung, and ends the process that computes it. An event loop "
        "that hangs for longer makes the server unready.",
    )
    max_device_errors: int = Field(
        default=3, ge=1, description="Consecutive errors of a device that end the process that computes on it."
    )
    drain_delay_seconds: float = Field(
        default=0.0, ge=0, description="Time to keep serving after SIGTERM, unready, until clients have noticed."
    )
    drain_seconds: float = Field(default=30.0, ge=0, description="Time to finish running calls after that.")


class LogOptions(_Options, title="Logs"):
    """Logs and traces."""

    log_format: LogFormat = Field(default="auto", description="auto is console on a terminal, and JSON elsewhere.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Lowest level to log.")
    log_requests: Literal["all", "failed", "none"] = Field(
        default="all", description="Which calls to log, with sizes, times and status."
    )
    summary_seconds: float = Field(
        default=10.0,
        ge=0,
        description="Interval of log lines with rates and percentiles, unless idle; 0 disables them.",
    )
    tracing: bool = Field(
        default=False,
        description="Send OpenTelemetry traces as configured by the OTEL_ variables; needs the extra tracing.",
    )
    log_text: bool = Field(
        default=False, description="Log what clients send, and exceptions in full. For debugging only."
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
    """All options of `dragoman-serve`."""


# In the order of --help and of server.yaml.
PANELS: tuple[type[BaseModel], ...] = ServerConfig.__bases__
