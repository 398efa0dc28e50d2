"""What goes into an engine and what comes out of it."""

from dataclasses import dataclass, field
from enum import Enum


class FinishReason(Enum):
    """Why a hypothesis ended; the values are label values of metrics."""

    EOS = "eos"
    LENGTH = "length"
    STOP_SEQUENCE = "stop_sequence"
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A validated request.

    Attributes:
        source_ids: source token ids, the end token included; 1 to max_source_tokens of them.
        max_new_tokens: tokens to generate at most, the end token not counted; 1 to max_target_tokens.
        deadline: time.monotonic() after which nobody waits for the answer: the request fails. None for no deadline.
        time_limit: time.monotonic() after which what was generated so far is the answer. None for no limit.
        streaming: whether tokens are wanted as they are decided, or all at the end.
    """

    source_ids: list[int]
    max_new_tokens: int
    deadline: float | None = None
    time_limit: float | None = None
    streaming: bool = False


@dataclass(frozen=True, slots=True)
class HypothesisResult:
    """One finished hypothesis.

    Attributes:
        ids: generated token ids, without the end token.
        log_probabilities: of `ids`, and of the end token as one more entry where the reason is EOS.
    """

    ids: list[int]
    log_probabilities: list[float]
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Progress:
    """Tokens decided since the last event of a streaming request (never the end token)."""

    ids: list[int]
    log_probabilities: list[float]


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer: hypotheses, best first. It holds all tokens, those that came as Progress before as well."""

    hypotheses: list[HypothesisResult] = field(default_factory=list)


class QueueFullError(Exception):
    """Too many requests wait.

    Attributes:
        retry_after: seconds after which there will likely be room.
    """

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"the queue is full; retry in {retry_after:.1f} s")
        self.retry_after = retry_after


class DeadlineExpiredError(Exception):
    """The request's deadline passed while it waited or ran."""


class EngineUnavailableError(Exception):
    """The engine is stopping, or failed; the message says which."""
