"""What has been counted so far, taken at one moment, and what was counted between two."""

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
# Asked by machines every few seconds: they would hide what people and programs ask for.
NOT_COUNTED = ("grpc.", "inference.GRPCInferenceService/ServerLive", "inference.GRPCInferenceService/ServerReady")


@dataclass(frozen=True, slots=True)
class Totals:
    """Of one version of a model, or of several together.

    Attributes:
        first_token, inter_token, generation: seconds, counted by bucket.
        steps: how many, and the rows of all.
        tokens: of sources that were encoded, and of answers.
        finishes, drops, device_errors: in the order of the names above.
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
        """What came after `before`."""
        return Totals(*(tuple(map(sub, now, then)) for now, then in _pairs(self, before)))

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(*(tuple(map(add, one, two)) for one, two in _pairs(self, other)))


@dataclass(frozen=True, slots=True)
class CallTotals:
    """Of the whole server, health checks not counted.

    Attributes:
        codes: calls that ended, by status code.
        rejections: refused requests, by reason.
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
    """Totals of a model that has done nothing yet."""
    return Totals.of(ModelMetrics())


def total(each: Iterable[Totals]) -> Totals:
    return sum(each, start=nothing())


def _pairs(one: Totals, two: Totals) -> list[tuple[Numbers, Numbers]]:
    return [(getattr(one, field.name), getattr(two, field.name)) for field in fields(Totals)]
