"""The server's options: one typed object, validated once."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from server.bundle.load import shipped_bundle
from server.logs import LogFormat
from server.runtime.device import DeviceChoice


class ServerConfig(BaseModel):
    """What `dragoman-serve` can be told. None for `engines` and `threads_per_engine`: what suits machine and model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bundle: Path = Field(default_factory=shipped_bundle)
    device: DeviceChoice = "auto"
    host: str = "127.0.0.1"
    port: int = Field(default=50051, ge=0, le=65535)
    metrics_port: int = Field(default=9090, ge=0, le=65535)
    engines: int | None = Field(default=None, ge=1)
    threads_per_engine: int | None = Field(default=None, ge=1)
    max_rows: int = Field(default=64, ge=1)
    max_beam_size: int = Field(default=16, ge=1)
    max_hypotheses: int = Field(default=32, ge=1)
    queue_size: int = Field(default=1024, ge=1)
    drain_seconds: float = Field(default=30.0, ge=0)
    log_format: LogFormat = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
