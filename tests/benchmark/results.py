"""The results of the latest run of each benchmark, as JSON files in the folder `results`."""

import json
import re
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

Parsed = TypeVar("Parsed", bound=BaseModel)
RESULTS = Path(__file__).parent / "results"
ROW = re.compile(r"[\[{](?:[^\[\]{}]|\[[^\[\]{}]*\])*[\]}]")  # what holds no more than lists of values


class Row(BaseModel):
    """One system at one load, in its best setting.

    Attributes:
        system: "raw", "unary", "batch", "ctranslate2" or "transformers".
        load: Inputs in flight; None for all of them at once.
        rates: Tokens per second, one per round.
        p50, p99: Seconds per call.
        core_ms: CPU time per input, in milliseconds.
    """

    system: str
    load: int | None
    setting: str
    rates: list[float]
    p50: float | None = None
    p99: float | None = None
    core_ms: float | None = None

    @property
    def rate(self) -> float:
        return median(self.rates)


class Arrivals(BaseModel):
    """Calls with random arrivals: their rate per second, and seconds per call."""

    calls_per_second: float
    p50: float
    p99: float
    failed: int


class Bulk(BaseModel):
    """Interactive calls beside batches.

    Attributes:
        slower: The calls' p99 latency relative to that without batches.
        kept: The batches' tokens per second relative to those without the calls.
    """

    slower: float
    kept: float


class Served(BaseModel):
    """The server on one model in one precision, with its raw step loop and CTranslate2.

    Attributes:
        machine: Machine and date, see tests.benchmark.machine.
        model, inputs: Descriptions.
        tokens_per_answer: Mean, end tokens included.
        same_answers: Number of inputs with the same tokens from the server and CTranslate2, and number of inputs.
        greedy, beam: Rows by system and load.
        peak_mb: Peak memory of a process after greedy search, by system; CTranslate2's in its best setting at 64.
        start_seconds: Time from the start of the server's process until it serves.
    """

    machine: dict[str, Any]
    model: str
    inputs: str
    tokens_per_answer: float
    same_answers: tuple[int, int]
    greedy: list[Row]
    beam: list[Row]
    arrivals: Arrivals | None = None
    bulk: Bulk | None = None
    peak_mb: dict[str, float]
    start_seconds: float

    def at(self, system: str, load: int | None, *, beam: bool = False) -> Row | None:
        return _at(self.beam if beam else self.greedy, system, load)


class Imported(BaseModel):
    """The server on an imported model in one precision, with CTranslate2 and transformers.

    Attributes:
        machine: Machine and date, see tests.benchmark.machine.
        model, inputs: Descriptions.
        answers: Number of inputs.
        same_answers: Number of inputs with the same tokens as from the server, by system.
        greedy, beam: Rows by system and load.
        peak_mb: Peak memory of a process after greedy search, by system; CTranslate2's in its best setting at 64.
    """

    machine: dict[str, Any]
    model: str
    inputs: str
    answers: int
    same_answers: dict[str, int]
    greedy: list[Row]
    beam: list[Row]
    peak_mb: dict[str, float]

    def at(self, system: str, load: int, *, beam: bool = False) -> Row | None:
        return _at(self.beam if beam else self.greedy, system, load)


def _at(rows: list[Row], system: str, load: int | None) -> Row | None:
    return next((row for row in rows if (row.system, row.load) == (system, load)), None)


def read(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """Reads the results of a benchmark; empty if it has never run."""
    path = folder / f"{name}.json"
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return document


def serving(folder: Path = RESULTS) -> dict[str, Served]:
    """Returns results by model and precision, such as "g2p-en int8"."""
    return _parsed(Served, "serving", folder)


def imports(folder: Path = RESULTS) -> dict[str, Imported]:
    """Returns results by model and precision, such as "t5-small int8"."""
    return _parsed(Imported, "imports", folder)


def _parsed(kind: type[Parsed], name: str, folder: Path) -> dict[str, Parsed]:
    try:
        return {label: kind.model_validate(each) for label, each in read(name, folder).items()}
    except ValidationError:
        raise SystemExit(
            f"{folder / name}.json has the format of another version; remove it and measure again"
        ) from None


def write(name: str, document: dict[str, Any], folder: Path = RESULTS) -> None:
    """Writes results as JSON, numbers rounded to five digits, with one table row per line."""
    folder.mkdir(parents=True, exist_ok=True)
    text = ROW.sub(lambda row: re.sub(r"\n\s*", " ", row[0]), json.dumps(_rounded(document), indent=1))
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
