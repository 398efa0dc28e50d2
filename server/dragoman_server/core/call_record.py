"""Records of calls: the times of their stages and their sizes, but nothing of their content."""

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
# Any other text could be user data rather than an id.
_ACCEPTED = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}").fullmatch
_START, _NUMBERS = os.urandom(6).hex(), count(1)

Metadata = Iterable[tuple[str, str | bytes]]


class CallRecord:
    """The record of one call, or of one request of a call that streams requests. For the event loop only.

    Times are time.monotonic(), 0.0 if the call did not get that far.

    Attributes:
        method: "package.Service/Method".
        id: Id of the call, chosen by the client or by this server.
        traceparent: Trace context that the client sent, or "".
        tracestate: Vendor-specific trace context that the client sent, or "".
        received: When the call arrived.
        started: When its request was read.
        tokenizing: When tokenizing of its inputs started.
        tokenized: When its inputs were tokenized.
        ended: When its last message was passed to gRPC.
        model: Name of the model that it uses.
        version: Version of the model that it uses.
        inputs: Number of inputs to generate or score from.
        failed: Number of inputs without a response.
        source_tokens: Source tokens of all inputs.
        target_tokens: Target tokens of all inputs. Targets to score count their end tokens.
        hypotheses: Hypotheses, or targets to score, of all inputs.
        finishes: Number of inputs by the finish reason of their best hypothesis, as values of FinishReason.
        stages: Stages of its input, or of the slowest input of a batch.
        code: Name of the status code.
        key: Name of the API key.
        parts: Number of requests of a stream; each has a record of its own.
        report: Called with the record of each request of a stream.
        report_item: Called for each answered item of a GenerateMany call: with its source and target tokens, its
            duration in seconds, and whether it failed.
        items_reported: Whether the items have been reported one by one.
    """

    __slots__ = (
        "code",
        "ended",
        "failed",
        "finishes",
        "hypotheses",
        "id",
        "inputs",
        "items_reported",
        "key",
        "method",
        "model",
        "parts",
        "received",
        "report",
        "report_item",
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
        self.report_item: Callable[[int, int, float, bool], None] | None = None
        self.items_reported = False

    @property
    def seconds(self) -> float:
        """Duration of the call."""
        return self.ended - self.started

    def begin_tokenizing(self, inputs: int) -> None:
        """Records that tokenizing of the inputs starts."""
        self.tokenizing = monotonic()
        self.inputs = inputs

    def end_tokenizing(self, source_tokens: int) -> Stages:
        """Records that the inputs are tokenized. Returns the stages for the engines to fill in, for a single input."""
        self.tokenized = monotonic()
        self.source_tokens = source_tokens
        self.stages = Stages(self.tokenized)
        return self.stages

    def add_scores(self, source_tokens: int, target_tokens: int, targets: int) -> None:
        """Records that targets were scored."""
        self.source_tokens, self.target_tokens, self.hypotheses = source_tokens, target_tokens, targets

    def add_answer(self, request: GenerationRequest, finished: GenerationResult) -> None:
        """Records the response to one input."""
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


# The record of the call, or of the request of a stream, that the current task works on.
RECORD: ContextVar[CallRecord | None] = ContextVar("record", default=None)


def record_call(method: str, metadata: Metadata | None, received: float = 0.0) -> CallRecord:
    """Creates a record with the id and the trace context from the client's metadata."""
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
    """Returns an id that no other call has, on this server or another."""
    return f"{_START}-{next(_NUMBERS):x}"


@contextmanager
def record_stream_request() -> Iterator[CallRecord]:
    """Records one request of a stream, in a task of its own. Enters with the record of the request."""
    call = RECORD.get() or CallRecord("", "")
    call.parts += 1
    part = CallRecord(call.method, f"{call.id}/{call.parts}")
    part.traceparent, part.tracestate, part.key = call.traceparent, call.tracestate, call.key
    RECORD.set(part)
    try:
        yield part
    except (CancelledError, GeneratorExit):
        part.code = "CANCELLED"
        raise
    finally:
        part.ended = monotonic()
        if call.report is not None:
            call.report(part)
