"""The Dragoman client, and the stubs of its API in `dragoman.v1`.

    from dragoman import Client

    with Client("127.0.0.1:50051") as client:
        print(client.generate("dragoman").text)

The names below are loaded at their first use, so that whoever wants the stubs alone does not pay for the client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.aio import AsyncClient, AsyncGenerationStream
    from dragoman.client import Client, GenerationStream
    from dragoman.credentials import Tls
    from dragoman.errors import (
        CallCancelledError,
        DeadlineExceededError,
        DragomanError,
        FieldViolation,
        InvalidArgumentError,
        ItemError,
        NotFoundError,
        ResourceExhaustedError,
        ServerError,
        UnauthenticatedError,
        UnavailableError,
    )
    from dragoman.fields import Source, Target
    from dragoman.options import GenerateOptions
    from dragoman.results import (
        Attention,
        BeamProgress,
        FinishReason,
        HealthStatus,
        Hypothesis,
        Limits,
        ModelInfo,
        ModelState,
        Piece,
        RepositoryStatus,
        Result,
        ScoreResult,
        TargetScore,
        Token,
        VersionStatus,
    )
    from dragoman.retry import RetryPolicy

_HOMES = {
    "dragoman.aio": ("AsyncClient", "AsyncGenerationStream"),
    "dragoman.client": ("Client", "GenerationStream"),
    "dragoman.credentials": ("Tls",),
    "dragoman.errors": (
        "CallCancelledError",
        "DeadlineExceededError",
        "DragomanError",
        "FieldViolation",
        "InvalidArgumentError",
        "ItemError",
        "NotFoundError",
        "ResourceExhaustedError",
        "ServerError",
        "UnauthenticatedError",
        "UnavailableError",
    ),
    "dragoman.fields": ("Source", "Target"),
    "dragoman.options": ("GenerateOptions",),
    "dragoman.results": (
        "Attention",
        "BeamProgress",
        "FinishReason",
        "HealthStatus",
        "Hypothesis",
        "Limits",
        "ModelInfo",
        "ModelState",
        "Piece",
        "RepositoryStatus",
        "Result",
        "ScoreResult",
        "TargetScore",
        "Token",
        "VersionStatus",
    ),
    "dragoman.retry": ("RetryPolicy",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AsyncClient",
    "AsyncGenerationStream",
    "Attention",
    "BeamProgress",
    "CallCancelledError",
    "Client",
    "DeadlineExceededError",
    "DragomanError",
    "FieldViolation",
    "FinishReason",
    "GenerateOptions",
    "GenerationStream",
    "HealthStatus",
    "Hypothesis",
    "InvalidArgumentError",
    "ItemError",
    "Limits",
    "ModelInfo",
    "ModelState",
    "NotFoundError",
    "Piece",
    "RepositoryStatus",
    "ResourceExhaustedError",
    "Result",
    "RetryPolicy",
    "ScoreResult",
    "ServerError",
    "Source",
    "Target",
    "TargetScore",
    "Tls",
    "Token",
    "UnauthenticatedError",
    "UnavailableError",
    "VersionStatus",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
