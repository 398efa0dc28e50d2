"""What a replica's work costs, as measured: the input of the simulation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tests.benchmark.results import read

Parsed = TypeVar("Parsed", bound=BaseModel)
RESULTS = Path(__file__).parent / "results"

Lengths = list[tuple[int, int]]
"""Source and target tokens of requests, end tokens included."""


class Service(BaseModel):
    """CPU time that a replica spends, and what it has for it.

    A step of n rows takes step_seconds + n * row_seconds, an encoder run of t source tokens encode_seconds +
    t * token_seconds; both include what the engine does around them.

    Attributes:
        cores: Cores of the replica.
        engines: Engines, each a thread.
        rows: Cache rows of each engine.
        call_seconds: CPU time of the event loop for a call.
        min_rows_per_engine, min_single_rows_per_engine: See SchedulerOptions.
    """

    cores: int
    engines: int
    rows: int
    step_seconds: float
    row_seconds: float
    encode_seconds: float
    token_seconds: float
    call_seconds: float
    min_rows_per_engine: int
    min_single_rows_per_engine: int


class Observed(BaseModel):
    """Latency of a real server, in seconds.

    Attributes:
        callers: Concurrent callers, each of which waits for its answer; None with random arrivals.
        rate: Random arrivals per second; None with callers.
        calls_per_second: Answers per second.
        p50, p99: Of all rounds together.
        p99s: Of each round.
    """

    callers: int | None
    rate: float | None
    calls_per_second: float
    p50: float
    p99: float
    p99s: list[float]


class Measured(BaseModel):
    """One served model.

    Attributes:
        machine: Machine and date, see tests.benchmark.machine.
        inputs: Description of the texts.
        characters: Mean characters of a text.
        lengths: Source and target tokens of the requests, "S:T S:T ...".
        bundle_bytes: Size of the model.
        series: Series that the server's metrics have.
        service: Fitted costs.
        client_seconds: CPU time of the load generator for a call.
        closed, opened: Latency with concurrent callers, and with random arrivals.
    """

    machine: dict[str, Any]
    inputs: str
    characters: float
    lengths: str
    bundle_bytes: int
    series: int
    service: Service
    client_seconds: float
    closed: list[Observed]
    opened: list[Observed]

    @property
    def pairs(self) -> Lengths:
        return [(int(source), int(target)) for source, _, target in (p.partition(":") for p in self.lengths.split())]


def pack(lengths: Sequence[tuple[int, int]]) -> str:
    return " ".join(f"{source}:{target}" for source, target in lengths)


def parsed(kind: type[Parsed], content: Any, path: Path) -> Parsed:
    """Returns the content of a file of results.

    Raises:
        SystemExit: It has another format.
    """
    try:
        return kind.model_validate(content)
    except ValidationError:
        raise SystemExit(f"{path} is missing or of another version; run what writes it again") from None


def load(folder: Path = RESULTS) -> dict[str, Measured]:
    """Returns the measured models by name."""
    path = folder / "service.json"
    return {name: parsed(Measured, each, path) for name, each in read("service", folder).items()}
