"""A gRPC server that follows the script of a test."""

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
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
END = "$"


@dataclass(frozen=True)
class Fail:
    """Fail the call; with `after`, break a stream once that many messages have been sent."""

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


def _text(source: pb.Input) -> str:
    return source.text if source.HasField("text") else "".join(map(chr, source.token_ids.ids))


def _tokens(text: str) -> list[pb.Token]:
    return [pb.Token(id=ord(character), text=character) for character in text]


def _attention(targets: int, sources: int) -> pb.Attention:
    """Returns attention of 2 layers and 3 heads; the h-th head attends to the h-th source token alone."""
    attention = pb.Attention(layers=2, heads=3, target_tokens=targets, source_tokens=sources)
    for head in [*range(3)] * 2:
        row = [float(place == head % sources) for place in range(sources)]
        attention.weights.extend(row * targets)
    return attention


class ItemRefusedError(Exception):
    """An item of GenerateMany is refused."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self.status = status


class ItemContext:
    """The context of an item, in place of a call's."""

    def abort_with_status(self, status: Any) -> None:
        details = dict(status.trailing_metadata)["grpc-status-details-bin"]
        raise ItemRefusedError(status_pb2.Status.FromString(details))

    def time_remaining(self) -> None:
        return None


UNAVAILABLE = Fail(grpc.StatusCode.UNAVAILABLE, "the server is draining")


class ScriptedServer(pb_grpc.GenerationServiceServicer):
    """Answers a text in capitals, one token per character, after the next action of `script`.

    A text that starts with "bad" is refused, "slow" takes 50 ms, and the answer to "long" lacks its last character. The
    n-th further hypothesis has n exclamation marks. If all its tokens are suppressed, the answer is a dead end.

    Attributes:
        script: Actions for the next calls.
        calls: Method and request of every call.
        timeouts: Seconds left of every call.
        capacity: Maximum number of concurrent Generate calls and items; others are refused with a retry delay.
        losses: Number of batch calls in which items that start with "lost" fail with UNAVAILABLE.
        finals: Whether streams end with the result.
        many: Whether it has GenerateMany, which older servers do not.
        breaks: Actions for the next GenerateMany calls, of which each item follows the script.
        many_calls: Number of GenerateMany calls so far.
        cancelled: Ids of items that were cancelled.
        busiest: Maximum number of concurrent Generate calls and items so far.
        refused: Number of Generate calls and items refused for lack of capacity.
        stream_ended: Set when a stream ends.
        streamed: Number of pieces of all streams.
    """

    def __init__(self) -> None:
        self.script: deque[Fail | Slow] = deque()
        self.calls: list[tuple[str, Any]] = []
        self.timeouts: list[float | None] = []
        self.capacity = THREADS
        self.losses = 1
        self.finals = self.many = True
        self.breaks: deque[Fail] = deque()
        self.many_calls = 0
        self.cancelled: list[str] = []
        self.busy = self.busiest = self.refused = 0
        self.stream_ended = threading.Event()
        self.streamed = 0
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

    def GenerateMany(
        self, requests: Iterator[pb.GenerateManyRequest], context: Any
    ) -> Iterator[pb.GenerateManyResponse]:
        """Answers items as Generate would, concurrently, with the answers in messages of their own.

        A Fail of `breaks` ends the call after as many answers as its `after`.
        """
        if not self.many:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        with self._lock:
            self.many_calls += 1
            broken = self.breaks.popleft() if self.breaks else None
        answers: queue.SimpleQueue[pb.ManyAnswer | None] = queue.SimpleQueue()
        if not context.add_callback(lambda: answers.put(None)):
            return  # the client has left
        running = threading.Semaphore(0)

        def answer(item: pb.ManyItem, request: pb.GenerateRequest) -> None:
            try:
                answers.put(pb.ManyAnswer(id=item.id, response=self.Generate(request, ItemContext())))
            except ItemRefusedError as refused:
                answers.put(pb.ManyAnswer(id=item.id, error=refused.status))
            running.release()

        def read() -> None:
            defaults, count = pb.GenerateRequest(), 0
            with suppress(grpc.RpcError), ThreadPoolExecutor(THREADS) as threads:
                for message in requests:
                    if message.HasField("defaults"):
                        defaults = message.defaults
                    self.cancelled += message.cancel
                    for item in message.items:
                        request = pb.GenerateRequest()
                        request.CopyFrom(defaults)
                        request.MergeFrom(item.request)
                        threads.submit(answer, item, request)
                        count += 1
                for _ in range(count):
                    running.acquire()
                answers.put(None)

        if broken is not None and not broken.after:
            broken.abort(context)
        threading.Thread(target=read, daemon=True).start()
        for count, found in enumerate(iter(answers.get, None), 1):
            yield pb.GenerateManyResponse(answers=[found])
            if broken is not None and count == broken.after:
                broken.abort(context)

    def GenerateStream(self, request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateStreamResponse]:
        context.add_callback(self.stream_ended.set)
        broken = self._follow("GenerateStream", request, context)
        answer = self._answer(request.input, request, context)
        tokens = bool(answer.hypotheses[0].tokens)
        if request.options.HasField("beam_size"):
            for count in range(len(answer.hypotheses[0].text)):
                yield pb.GenerateStreamResponse(progress=pb.BeamProgress(tokens=count + 1, running=2, finished=count))
            yield pb.GenerateStreamResponse(text=answer.hypotheses[0].text, final=answer)
            return
        count = 0
        for characters in zip_longest(*(hypothesis.text for hypothesis in answer.hypotheses)):
            for index, character in enumerate(characters):
                if broken and count == broken.after:
                    broken.abort(context)
                if character:
                    yield pb.GenerateStreamResponse(
                        text=character, hypothesis=index, tokens=_tokens(character) if tokens else None
                    )
                count += 1
                self.streamed += 1
        if self.finals:
            yield pb.GenerateStreamResponse(final=answer)

    def GenerateBatch(self, request: pb.GenerateBatchRequest, context: Any) -> pb.GenerateBatchResponse:
        self._follow("GenerateBatch", request, context)
        lossy = self.losses > 0 and any(source.text.startswith("lost") for source in request.inputs)
        self.losses -= lossy
        items = []
        for index, source in enumerate(request.inputs):
            if source.text.startswith("bad"):
                refusal = Fail(grpc.StatusCode.INVALID_ARGUMENT, "is bad", field=f"inputs[{index}].text")
                items.append(pb.BatchItem(error=refusal.status()))
            elif lossy and source.text.startswith("lost"):
                items.append(pb.BatchItem(error=Fail(grpc.StatusCode.UNAVAILABLE, "a worker died").status()))
            else:
                items.append(pb.BatchItem(response=self._answer(source, request, context)))
        return pb.GenerateBatchResponse(items=items)

    def Score(self, request: pb.ScoreRequest, context: Any) -> pb.ScoreResponse:
        """Answers with the log-probability -place / 4 for each token, and attention of 2 layers with 3 heads."""
        self._follow("Score", request, context)
        source = _text(request.input)
        response = pb.ScoreResponse(source=_tokens(source + END), model="capitals")
        for target in request.targets:
            tokens = _tokens(_text(target) + END)
            for place, token in enumerate(tokens):
                token.log_probability = -0.25 * place
            score = response.scores.add(tokens=tokens, log_probability=sum(token.log_probability for token in tokens))
            if request.alignment:
                score.alignment.extend(min(place, len(source)) for place in range(len(tokens)))
            if request.attention:
                score.attention.CopyFrom(_attention(len(tokens), len(source) + 1))
        return response

    def Tokenize(self, request: pb.TokenizeRequest, context: Any) -> pb.TokenizeResponse:
        self._follow("Tokenize", request, context)
        return pb.TokenizeResponse(tokens=_tokens(request.text))

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
        text = _text(source)
        if text.startswith("bad"):
            Fail(grpc.StatusCode.INVALID_ARGUMENT, "is bad", field="input.text").abort(context)
        if text.startswith("slow"):
            time.sleep(0.05)
        limit = len(text) - text.startswith("long")
        if request.options.HasField("max_new_tokens"):
            limit = request.options.max_new_tokens
        response = pb.GenerateResponse(source_tokens=len(text) + 1, model="capitals")
        for index in range(max(1, request.options.num_hypotheses)):
            prefix, answer = _text(request.options.prefix), text.upper()[:limit] + "!" * index
            dead = bool(answer) and all(ord(character) in request.options.suppressed_tokens for character in answer)
            answer = "" if dead else answer
            hypothesis = response.hypotheses.add(text=prefix + answer, target_tokens=len(prefix + answer))
            hypothesis.finish_reason = pb.FINISH_REASON_LENGTH if limit < len(text) else pb.FINISH_REASON_EOS
            if dead:
                hypothesis.finish_reason = pb.FINISH_REASON_DEAD_END
            self._detail(hypothesis, len(prefix), len(text) + 1, request.details)
        if request.options.sample:
            response.seed = request.options.seed if request.options.HasField("seed") else 2**64 - 1
        if request.details.alignment or request.details.attention:
            response.source.extend(_tokens(text + END))
        return response

    def _detail(self, hypothesis: pb.Hypothesis, prefix: int, sources: int, details: pb.Details) -> None:
        """Adds the requested details: each token has the probability e^-0.5, alternatives are the next characters."""
        log_probabilities = details.log_probabilities or details.top_tokens
        if log_probabilities or details.tokens or details.alignment or details.attention:
            hypothesis.tokens.extend(_tokens(hypothesis.text))
        if log_probabilities:
            hypothesis.log_probability = -0.5 * (len(hypothesis.text) - prefix)
            hypothesis.score = -0.5
            for token in hypothesis.tokens[prefix:]:
                token.log_probability = -0.5
                for rank in range(details.top_tokens):
                    token.alternatives.add(id=token.id + rank, text=chr(token.id + rank), log_probability=-0.5 - rank)
        if details.alignment:
            hypothesis.alignment.extend(min(place, sources - 1) for place in range(len(hypothesis.text)))
        if details.attention:
            hypothesis.attention.CopyFrom(_attention(len(hypothesis.text) + 1, sources))

    def _model(self) -> pb.Model:
        return pb.Model(
            name="capitals",
            precision="fp32",
            device="cpu",
            max_source_tokens=48,
            max_target_tokens=47,
            quality={"test sequence error rate (%)": 20.5},
            examples=["dragoman"],
            decoder_layers=2,
            heads=3,
            limits=pb.Limits(beam_size=16, hypotheses=8, top_tokens=20, score_targets=64),
        )

    def __enter__(self) -> Self:
        self._grpc.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._grpc.stop(grace=0).wait()
