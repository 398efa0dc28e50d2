"""A gRPC server that does what a test tells it to: the other end of the client's tests."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc as pb_grpc

THREADS = 64


@dataclass(frozen=True)
class Fail:
    """Refuse the call; with `after`, break a stream once that many messages have been sent."""

    code: grpc.StatusCode
    message: str = "scripted"
    retry_after: float | None = None
    field: str | None = None
    after: int = 0

    def status(self) -> status_pb2.Status:
        details = []
        if self.retry_after is not None:
            delay = duration_pb2.Duration()
            delay.FromNanoseconds(round(self.retry_after * 1e9))
            details.append(error_details_pb2.RetryInfo(retry_delay=delay))
        if self.field is not None:
            violation = error_details_pb2.BadRequest.FieldViolation(field=self.field, description=self.message)
            details.append(error_details_pb2.BadRequest(field_violations=[violation]))
        packed = []
        for detail in details:
            packed.append(any_pb2.Any())
            packed[-1].Pack(detail)
        message = f"{self.field} {self.message}" if self.field else self.message
        return status_pb2.Status(code=self.code.value[0], message=message, details=packed)

    def abort(self, context: Any) -> None:
        context.abort_with_status(rpc_status.to_status(self.status()))


@dataclass(frozen=True)
class Slow:
    """Wait before answering."""

    seconds: float


UNAVAILABLE = Fail(grpc.StatusCode.UNAVAILABLE, "the server is draining")


class ScriptedServer(pb_grpc.GenerationServiceServicer):
    """Answers a text with its capitals, one token for each character, after doing what `script` has next.

    A text that starts with "bad" is refused; one that starts with "slow" takes 50 ms; the answer to one that
    starts with "long" lacks its last character. With `capacity`, calls beyond so
    many at once are refused with a retry delay.
    """

    def __init__(self) -> None:
        self.script: deque[Fail | Slow] = deque()
        self.calls: list[tuple[str, Any]] = []
        self.timeouts: list[float | None] = []
        self.capacity = THREADS
        self.finals = True
        self.busy = self.busiest = self.refused = 0
        self.stream_ended = threading.Event()
        self._lock = threading.Lock()
        self._grpc = grpc.server(ThreadPoolExecutor(THREADS))
        pb_grpc.add_GenerationServiceServicer_to_server(self, self._grpc)
        self.health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._grpc)
        self.serving(True)
        self.address = f"127.0.0.1:{self._grpc.add_insecure_port('127.0.0.1:0')}"

    def serving(self, yes: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if yes else health_pb2.HealthCheckResponse.NOT_SERVING
        self.health.set("", status)

    def Generate(self, request: pb.GenerateRequest, context: Any) -> pb.GenerateResponse:
        with self._lock:
            refused = self.busy >= self.capacity
            self.refused += refused
            self.busy += not refused
            self.busiest = max(self.busiest, self.busy)
        if refused:
            Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", retry_after=0.01).abort(context)
        try:
            self._follow("Generate", request, context)
            return self._answer(request.input, request, context)
        finally:
            with self._lock:
                self.busy -= 1

    def GenerateStream(self, request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateStreamResponse]:
        context.add_callback(self.stream_ended.set)
        broken = self._follow("GenerateStream", request, context)
        answer = self._answer(request.input, request, context)
        for count, character in enumerate(answer.hypotheses[0].text):
            if broken and count == broken.after:
                broken.abort(context)
            yield pb.GenerateStreamResponse(text=character)
        if self.finals:
            yield pb.GenerateStreamResponse(final=answer)

    def GenerateBatch(self, request: pb.GenerateBatchRequest, context: Any) -> pb.GenerateBatchResponse:
        self._follow("GenerateBatch", request, context)
        items = []
        for index, each in enumerate(request.inputs):
            if each.text.startswith("bad"):
                refusal = Fail(grpc.StatusCode.INVALID_ARGUMENT, "is bad", field=f"inputs[{index}].text")
                items.append(pb.BatchItem(error=refusal.status()))
            else:
                items.append(pb.BatchItem(response=self._answer(each, request, context)))
        return pb.GenerateBatchResponse(items=items)

    def Tokenize(self, request: pb.TokenizeRequest, context: Any) -> pb.TokenizeResponse:
        self._follow("Tokenize", request, context)
        return pb.TokenizeResponse(tokens=[pb.Token(id=ord(each), text=each) for each in request.text])

    def Detokenize(self, request: pb.DetokenizeRequest, context: Any) -> pb.DetokenizeResponse:
        self._follow("Detokenize", request, context)
        return pb.DetokenizeResponse(text="".join(map(chr, request.token_ids.ids)))

    def ListModels(self, request: pb.ListModelsRequest, context: Any) -> pb.ListModelsResponse:
        self._follow("ListModels", request, context)
        return pb.ListModelsResponse(models=[self._model()])

    def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.GetModelResponse:
        self._follow("GetModel", request, context)
        if request.model not in ("", "capitals"):
            Fail(grpc.StatusCode.NOT_FOUND, f"there is no model {request.model!r}").abort(context)
        return pb.GetModelResponse(model=self._model())

    def _follow(self, method: str, request: Any, context: Any) -> Fail | None:
        with self._lock:
            self.calls.append((method, request))
            self.timeouts.append(context.time_remaining())
            action = self.script.popleft() if self.script else None
        if isinstance(action, Slow):
            time.sleep(action.seconds)
        elif action is not None and not action.after:
            action.abort(context)
        return action if isinstance(action, Fail) else None

    def _answer(self, source: pb.Input, request: Any, context: Any) -> pb.GenerateResponse:
        text = source.text if source.HasField("text") else "".join(map(chr, source.token_ids.ids))
        if text.startswith("bad"):
            Fail(grpc.StatusCode.INVALID_ARGUMENT, "is bad", field="input.text").abort(context)
        if text.startswith("slow"):
            time.sleep(0.05)
        limit = len(text) - text.startswith("long")
        if request.options.HasField("max_new_tokens"):
            limit = request.options.max_new_tokens
        answer = text.upper()[:limit]
        hypothesis = pb.Hypothesis(text=answer, finish_reason=pb.FINISH_REASON_EOS, target_tokens=len(answer))
        if limit < len(text):
            hypothesis.finish_reason = pb.FINISH_REASON_LENGTH
        if request.details.tokens or request.details.log_probabilities:
            hypothesis.tokens.extend(pb.Token(id=ord(each), text=each) for each in answer)
        if request.details.log_probabilities:
            hypothesis.log_probability = -0.5 * len(answer)
            for token in hypothesis.tokens:
                token.log_probability = -0.5
        return pb.GenerateResponse(hypotheses=[hypothesis], source_tokens=len(text) + 1, model="capitals")

    def _model(self) -> pb.Model:
        return pb.Model(
            name="capitals",
            precision="fp32",
            device="cpu",
            max_source_tokens=48,
            max_target_tokens=47,
            quality={"test word error rate (%)": 20.5},
            examples=["dragoman"],
        )

    def __enter__(self) -> Self:
        self._grpc.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._grpc.stop(grace=0).wait()
