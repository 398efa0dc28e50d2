"""What engines did, and where their time went, as their metrics tell."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # contenders that have no engines need not load the server
    from server.metrics import ModelMetrics


class EngineWork(NamedTuple):
    """Counts since the start of an engine, or since another count.

    Attributes:
        row_steps: rows of all steps.
        branch_seconds, branch_rows: copying of rows where hypotheses branch.
        advances, advance_seconds: of searches by a step, one for each request and step; 0 where nobody took the time.
    """

    steps: float
    step_seconds: float
    row_steps: float
    branch_seconds: float
    branch_rows: float
    advances: float = 0
    advance_seconds: float = 0.0

    @classmethod
    def of_metrics(cls, metrics: "ModelMetrics", advance_seconds: list[float]) -> "EngineWork":
        """What engines in this process have done."""
        return cls(
            sum(metrics.step_seconds.counts),
            metrics.step_seconds.sum,
            metrics.step_rows.sum,
            metrics.branch_seconds,
            metrics.branch_rows,
            len(advance_seconds),
            sum(advance_seconds),
        )

    @classmethod
    def of_page(cls, page: Mapping[str, float]) -> "EngineWork":
        """What a server of one model has done, from its metrics page."""
        names = ("step_seconds_count", "step_seconds_sum", "step_rows_sum", "branch_seconds_total", "branch_rows_total")
        return cls(*(sum(v for key, v in page.items() if key.startswith(f"dragoman_{name}{{")) for name in names))

    def since(self, before: "EngineWork") -> "EngineWork":
        return EngineWork(*(now - then for now, then in zip(self, before, strict=True)))

    def __add__(self, other: object) -> "EngineWork":
        assert isinstance(other, EngineWork)
        return EngineWork(*(one + two for one, two in zip(self, other, strict=True)))
