"""Counts at one time, and their differences."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from operator import add, sub
from typing import get_args

from dragoman_server.core.engine_metrics import DeviceErrorKind, DropReason
from dragoman_server.core.requests import FinishReason
from dragoman_server.metrics import CallMetrics, ModelMetrics

Numbers = tuple[float, ...]
FINISHES = tuple(reason.value for reason in FinishReason)
DROPS: tuple[DropReason, ...] = get_args(DropReason)
DEVICE_ERRORS: tuple[DeviceErrorKind, ...] = get_args(DeviceErrorKind)
# Machines call these every few seconds; they would hide the calls of clients.
NOT_COUNTED = ("grpc.", "inference.GRPCInferenceService/ServerLive", "inference.GRPCInferenceService/ServerReady")


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of one version of a model, or of several together.

    Attributes:
        first_token, inter_token, generation: Seconds, counted by bucket.
        steps: Number of steps, and the sum of their rows.
        tokens: Encoded source tokens, and target tokens of responses.
        finishes, drops, device_errors: Counts in the order of FINISHES, DROPS and DEVICE_ERRORS.
    """

    first_token: Numbers
    inter_token: Numbers
    generation: Numbers
    steps: Numbers
    tokens: Numbers
    finishes: Numbers
    drops: Numbers
    device_errors: Numbers

    @classmethod
    def of(cls, metrics: ModelMetrics) -> "Totals":
        with metrics.lock:
            drops = metrics.drops
            return cls(
                tuple(metrics.first_token_seconds.counts),
                tuple(metrics.inter_token_seconds.counts),
                tuple(metrics.generation_seconds.counts),
                (sum(metrics.step_seconds.counts), metrics.step_rows.sum),
                (metrics.encoded_tokens, metrics.target_length.sum),
                tuple(metrics.finishes.values()),
                tuple(drops[reason, "waiting"] + drops[reason, "running"] for reason in DROPS),
                tuple(metrics.device_errors[kind] for kind in DEVICE_ERRORS),
            )

    def since(self, before: "Totals") -> "Totals":
        """Returns what was counted after `before`."""
        return Totals(*(tuple(map(sub, now, then)) for now, then in _pairs(self, before)))

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(*(tuple(map(add, mine, theirs)) for mine, theirs in _pairs(self, other)))


@dataclass(frozen=True, slots=True)
class CallTotals:
    """Counts of calls of the whole server, without health checks.

    Attributes:
        codes: Finished calls, by status code.
        rejections: Refused requests, by reason.
    """

    codes: dict[str, int]
    rejections: dict[str, int]

    @classmethod
    def of(cls, calls: CallMetrics) -> "CallTotals":
        codes: dict[str, int] = {}
        for (method, code), count in list(calls.requests.items()):
            if not method.startswith(NOT_COUNTED):
                codes[code] = codes.get(code, 0) + count
        return cls(codes, {reason.value: count for reason, count in calls.rejections.items()})


def nothing() -> Totals:
    """Returns the totals of a model that has done nothing yet."""
    return Totals.of(ModelMetrics())


def total(totals: Iterable[Totals]) -> Totals:
    return sum(totals, start=nothing())


def _pairs(first: Totals, second: Totals) -> list[tuple[Numbers, Numbers]]:
    return [(getattr(first, field.name), getattr(second, field.name)) for field in fields(Totals)]
