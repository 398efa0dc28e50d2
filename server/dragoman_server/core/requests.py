"""What goes into an engine and what comes out of it."""

from dataclasses import dataclass, field
from enum import Enum

from dragoman_server.core.search_options import SearchOptions


class FinishReason(Enum):
    """Why a hypothesis ended; the values are label values of metrics."""

    EOS = "eos"
    LENGTH = "length"
    STOP_SEQUENCE = "stop_sequence"
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"
    DEAD_END = "dead_end"


class Priority(Enum):
    """Who waits for an answer: somebody, or a program that has time."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


@dataclass(slots=True)
class Stages:
    """When a request got how far, as time.monotonic(); 0.0 where it did not.

    Attributes:
        submitted: it was put into the queue.
        encoding, encoded: the encoder run in which it got its row began and ended.
        decoded: its search was over.
        answered: its answer was written.
    """

    submitted: float = 0.0
    encoding: float = 0.0
    encoded: float = 0.0
    decoded: float = 0.0
    answered: float = 0.0


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A validated request.

    Attributes:
        source_ids: source token ids, the end token included; 1 to max_source_tokens of them.
        search: how to search for the answer.
        deadline: time.monotonic() after which nobody waits for the answer: the request fails. None for no deadline.
        time_limit: time.monotonic() after which what was generated so far is the answer. None for no limit.
        streaming: whether tokens are wanted as they are decided, or all at the end.
        priority: see Scheduler.
        stages: where to note how far it got; None for nowhere.
    """

    source_ids: list[int]
    search: SearchOptions
    deadline: float | None = None
    time_limit: float | None = None
    streaming: bool = False
    priority: Priority = Priority.INTERACTIVE
    stages: Stages | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """A token that could stand in a place, and its log-probability."""

    id: int
    log_probability: float


@dataclass(frozen=True, slots=True)
class HypothesisResult:
    """One finished hypothesis.

    Attributes:
        ids: token ids, those of a forced prefix first, without the end token.
        log_probabilities: of the generated ones among `ids`, and of the end token as one more entry where the reason is
            EOS. After the constraints, before temperature and truncation.
        reason: why it ended.
        score: what hypotheses are ordered by.
        prefix: how many of `ids` were forced.
        alternatives: for each of `log_probabilities` the most probable tokens of its place, best first; empty unless
            asked for.
        characters: how many of the text's characters count, where a stop sequence cuts it; None for all.
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
    """Tokens decided since the last event of a streaming request (never the end token).

    Attributes:
        ids, log_probabilities, alternatives: as in HypothesisResult. Those of a prefix come without the latter two, in
            an event of their own.
        hypothesis: which of the answer's, where several samples are drawn.
    """

    ids: list[int]
    log_probabilities: list[float]
    alternatives: list[list[TokenChoice]] = field(default_factory=list)
    hypothesis: int = 0


@dataclass(frozen=True, slots=True)
class BeamProgress:
    """How far a beam search is: tokens that running hypotheses have, the prefix not counted, and how many there are."""

    tokens: int
    running: int
    finished: int


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """The answer: hypotheses, best first. It holds all tokens, those that came as Progress before as well."""

    hypotheses: list[HypothesisResult] = field(default_factory=list)
