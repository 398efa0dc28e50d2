"""Requests to the engines, and their results."""

from dataclasses import dataclass, field
from enum import Enum

from dragoman_server.core.search_options import SearchOptions


class FinishReason(Enum):
    """Reason why a hypothesis ended; the values are label values of metrics."""

    EOS = "eos"
    LENGTH = "length"
    STOP_SEQUENCE = "stop_sequence"
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"
    DEAD_END = "dead_end"


class Priority(Enum):
    """Whether somebody waits for the result, or a program that can wait."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


@dataclass(slots=True)
class Stages:
    """Times at which a request reached its stages, as time.monotonic(); 0.0 if it has not.

    Attributes:
        submitted: The request entered the queue.
        encoding: Its encoder run began.
        encoded: Its encoder run ended.
        decoded: Its search was over.
        answered: Its response was written.
    """

    submitted: float = 0.0
    encoding: float = 0.0
    encoded: float = 0.0
    decoded: float = 0.0
    answered: float = 0.0


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a source that the model can't read.

    Attributes:
        text: The part.
        position: Where it stood, as an index into what is left of the source.
        space_before, space_after: Whether it was set off from what was there.
    """

    text: str
    position: int
    space_before: bool
    space_after: bool


@dataclass(frozen=True, slots=True)
class CarriedText:
    """What skips the model, to be put back into its answer.

    Attributes:
        left: The rest of the source, which the model reads; empty if no word is left, and the only piece is all of it.
        pieces: What skips the model, in order.
    """

    left: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A validated request.

    Attributes:
        source_ids: Source token ids, the end token included; 1 to max_source_tokens of them.
        search: Search options.
        deadline: time.monotonic() after which the request fails, None for no deadline.
        time_limit: time.monotonic() after which the request ends with what it has generated, None for no limit.
        streaming: Whether to deliver tokens as they are decided.
        priority: Priority in the queue, see Scheduler.
        stages: Times to fill in, None for none.
        carried: What of the source skips the model, None for nothing.
    """

    source_ids: list[int]
    search: SearchOptions
    deadline: float | None = None
    time_limit: float | None = None
    streaming: bool = False
    priority: Priority = Priority.INTERACTIVE
    stages: Stages | None = field(default=None, compare=False)
    carried: CarriedText | None = None


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """A token that was possible at a position, and its log-probability."""

    id: int
    log_probability: float


@dataclass(frozen=True, slots=True)
class HypothesisResult:
    """One finished hypothesis.

    Attributes:
        ids: Token ids, the prefix first, without the end token.
        log_probabilities: Log-probabilities of the generated tokens in `ids`, and of the end token if the reason is
            EOS. With constraints applied, before temperature and truncation.
        reason: Why the hypothesis ended.
        score: Value by which hypotheses are ordered.
        prefix: Number of tokens in `ids` that belong to the prefix.
        alternatives: Most probable tokens at the position of each entry of `log_probabilities`, best first; empty
            unless requested.
        characters: Length to which a stop sequence cuts the text, None for all of it.
    """

    ids: list[int]
    log_probabilities: list[float]
    reason: FinishReason
    score: float = 0.0
    prefix: int = 0
    alternatives: list[list[TokenChoice]] = field(default_factory=list)
    characters: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Tokens decided since the last event of a streaming request, never the end token.

    Attributes:
        ids: Token ids. Those of a prefix come in an event of their own, without the other lists.
        log_probabilities: Log-probabilities, as in HypothesisResult.
        alternatives: Alternatives, as in HypothesisResult.
        hypothesis: Index of the hypothesis, where several samples are drawn.
    """

    ids: list[int]
    log_probabilities: list[float]
    alternatives: list[list[TokenChoice]] = field(default_factory=list)
    hypothesis: int = 0


@dataclass(frozen=True, slots=True)
class BeamProgress:
    """State of a beam search: tokens of its running hypotheses without the prefix, and the numbers of hypotheses."""

    tokens: int
    running: int
    finished: int


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """The hypotheses of a request, best first, with all tokens, those delivered as Progress included."""

    hypotheses: list[HypothesisResult] = field(default_factory=list)
