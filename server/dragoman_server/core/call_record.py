"""What is noted of a call while it runs: when it got how far, and how large it is, but nothing of what it says."""

import os
import re
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from time import monotonic

from dragoman_server.core.requests import GenerationRequest, GenerationResult, Stages

REQUEST_ID = "x-request-id"
# Any other text might be the client's, rather than a name for its call.
_ACCEPTED = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}").fullmatch
_START, _NUMBERS = os.urandom(6).hex(), count(1)

Metadata = Iterable[tuple[str, str | bytes]]


class CallRecord:
    """One call, or one request of a call whose requests stream. For the event loop alone.

    Times are time.monotonic(), 0.0 where it did not get so far.

    Attributes:
        method: "package.Service/Method".
        id: the call's, as the client or this server has named it.
        traceparent, tracestate: as the client has sent them; "" where it has not.
        received: when the call arrived,
        started: when its request had been read,
        tokenizing, tokenized: when its inputs were,
        ended: when its last message was handed to gRPC.
        model, version: that it uses, as the server names them.
        inputs: how many it has, 0 where it has none to generate or score from; failed: those that have no answer.
        source_tokens, target_tokens, hypotheses: of all of its inputs; those of targets to score count end tokens.
        finishes: why the best hypothesis of each input ended, as values of FinishReason, and how many did so.
        stages: of its input, or of the one in a batch that took longest.
        code: name of the status that it ended with.
        key: name of the API key that it came with.
        parts: requests that it had, where they stream, each with a record of its own.
        report: takes the records of those.
    """

    __slots__ = (
        "code",
        "ended",
        "failed",
        "finishes",
        "hypotheses",
        "id",
        "inputs",
        "key",
        "method",
        "model",
        "parts",
        "received",
        "report",
        "source_tokens",
        "stages",
        "started",
        "target_tokens",
        "tokenized",
        "tokenizing",
        "traceparent",
        "tracestate",
        "version",
    )

    def __init__(self, method: str, id_: str, received: float = 0.0) -> None:
        self.method, self.id = method, id_
        self.traceparent = self.tracestate = ""
        self.started = monotonic()
        self.received = received or self.started
        self.tokenizing = self.tokenized = self.ended = 0.0
        self.model = self.version = ""
        self.inputs = self.failed = self.source_tokens = self.target_tokens = self.hypotheses = 0
        self.finishes: dict[str, int] = {}
        self.stages: Stages | None = None
        self.code = "OK"
        self.key: str | None = None
        self.parts = 0
        self.report: Callable[[CallRecord], None] | None = None

    @property
    def seconds(self) -> float:
        return self.ended - self.started

    def begin_tokenizing(self, inputs: int) -> None:
        """Its inputs are being tokenized."""
        self.tokenizing = monotonic()
        self.inputs = inputs

    def end_tokenizing(self, source_tokens: int) -> Stages:
        """They have been. Gives where the engines note how far they get with the only one."""
        self.tokenized = monotonic()
        self.source_tokens = source_tokens
        self.stages = Stages(self.tokenized)
        return self.stages

    def add_scores(self, source_tokens: int, target_tokens: int, targets: int) -> None:
        """Its targets have been scored."""
        self.source_tokens, self.target_tokens, self.hypotheses = source_tokens, target_tokens, targets

    def add_answer(self, request: GenerationRequest, finished: GenerationResult) -> None:
        """One of its inputs has its answer."""
        hypotheses = finished.hypotheses
        self.hypotheses += len(hypotheses)
        self.target_tokens += sum(len(hypothesis.ids) for hypothesis in hypotheses)
        if hypotheses:
            reason = hypotheses[0].reason.value
            self.finishes[reason] = self.finishes.get(reason, 0) + 1
        if (stages := request.stages) is not None:
            stages.answered = monotonic()
            slowest = self.stages
            if slowest is None or stages.answered - stages.submitted > slowest.answered - slowest.submitted:
                self.stages = stages


# The call, or request of a stream, that the present task is about.
RECORD: ContextVar[CallRecord | None] = ContextVar("record", default=None)


def record_call(method: str, metadata: Metadata | None, received: float = 0.0) -> CallRecord:
    """A record by what the client says of the call: a name, and a trace that it is part of."""
    id_ = traceparent = tracestate = ""
    for name, value in metadata or ():
        if isinstance(value, bytes):
            continue
        if name == REQUEST_ID:
            id_ = value
        elif name == "traceparent":
            traceparent = value
        elif name == "tracestate":
            tracestate = value
    record = CallRecord(method, id_ if id_ and _ACCEPTED(id_) else new_id(), received)
    record.traceparent, record.tracestate = traceparent, tracestate
    return record


def new_id() -> str:
    """A name that no other call has, of this server or another."""
    return f"{_START}-{next(_NUMBERS):x}"


@contextmanager
def record_stream_request() -> Iterator[CallRecord]:
    """One of the requests of a call whose requests stream, as long as it is worked at in a task of its own."""
    whole = RECORD.get() or CallRecord("", "")
    whole.parts += 1
    part = CallRecord(whole.method, f"{whole.id}/{whole.parts}")
    part.traceparent, part.tracestate, part.key = whole.traceparent, whole.tracestate, whole.key
    RECORD.set(part)
    try:
        yield part
    except (CancelledError, GeneratorExit):
        part.code = "CANCELLED"
        raise
    finally:
        part.ended = monotonic()
        if whole.report is not None:
            whole.report(part)
