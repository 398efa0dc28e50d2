"""The Dragoman client, and the generated stubs of its API in `dragoman.v1`.

    from dragoman import Client

    with Client("127.0.0.1:50051") as client:
        print(client.generate("dragoman").text)

The public names are imported on first use, so that a program that needs only the stubs does not load the client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.aio import AsyncClient, AsyncGenerationStream
    from dragoman.channel import Tls
    from dragoman.client import Client, GenerationStream
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
    from dragoman.models import (
        HealthStatus,
        Language,
        Limits,
        ModelInfo,
        ModelState,
        RepositoryStatus,
        VersionStatus,
    )
    from dragoman.requests import GenerateOptions, InLanguage, Source, Target
    from dragoman.results import (
        Attention,
        BeamProgress,
        FinishReason,
        Hypothesis,
        Piece,
        Result,
        ScoreResult,
        TargetScore,
        Token,
    )
    from dragoman.retry import RetryPolicy

_MODULES = ("aio", "channel", "client", "errors", "models", "requests", "results", "retry")

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
    "InLanguage",
    "InvalidArgumentError",
    "ItemError",
    "Language",
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
    if name in __all__:
        for module in _MODULES:
            if hasattr(found := import_module(f"{__name__}.{module}"), name):
                return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
