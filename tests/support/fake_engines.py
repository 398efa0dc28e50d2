"""The gRPC server over fake engines: an answer is the reversed source, with a token per letter."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
from grpc_health.v1 import health_pb2_grpc
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from dragoman.inference import open_inference_pb2_grpc
from dragoman.v1 import generation_pb2_grpc
from dragoman_server.api.generation_service import SERVICE, GenerationService
from dragoman_server.api.health_service import Health
from dragoman_server.api.inference.inference_service import InferenceService
from dragoman_server.api.interceptor import CallInterceptor
from dragoman_server.bundle.load import Bundle
from dragoman_server.bundle.manifest import Graph, Graphs, Limits, Manifest, Shape, SpecialTokens, Tokenizers
from dragoman_server.config import ServerConfig
from dragoman_server.core.errors import EngineUnavailableError, QueueFullError
from dragoman_server.core.requests import (
    BeamProgress,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    HypothesisResult,
    Progress,
    TokenChoice,
)
from dragoman_server.decoding.stop_sequences import StopTracker
from dragoman_server.decoding.text_stream import TargetDecoder
from dragoman_server.engine.job import CallQueue
from dragoman_server.engine.pool import EnginePool
from dragoman_server.engine.scorer import Scorer
from dragoman_server.messages.limits import request_limits
from dragoman_server.messages.served_model import ServedModel
from dragoman_server.metrics import ServerMetrics
from dragoman_server.models.registry import ModelRegistry
from dragoman_server.runtime.scorer_session import TargetScores
from dragoman_server.telemetry.observer import Observer
from tests.support.waiting import until_async

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
LETTERS = "abcdefghijklmnopqrstuvwxyz' é"
MAX_SOURCE, MAX_TARGET = 16, 12
MODEL = "backwards"


def letters() -> Tokenizer:
    """Returns a tokenizer of lower-cased letters. Other characters are unknown; spaces at the ends are stripped."""
    made = Tokenizer(models.WordLevel({token: i for i, token in enumerate([*SPECIAL, *LETTERS])}, "<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase(), normalizers.Strip()])
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens(SPECIAL)
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 3)])
    return made


def letters_bundle(unseen: Sequence[int] = ()) -> Bundle:
    graph = Graph(file="none.onnx", inputs=[], outputs=[])
    size = letters().get_vocab_size()
    manifest = Manifest(
        name=MODEL,
        description="turns words around",
        license="Apache-2.0",
        attention="standard",
        shape=Shape(
            d_model=8,
            heads=2,
            d_head=4,
            d_ff=8,
            encoder_layers=1,
            decoder_layers=2,
            source_vocabulary=size,
            target_vocabulary=size,
            parameters=123,
        ),
        tokens=SpecialTokens(pad=0, unknown=1, begin=2, end=3),
        limits=Limits(max_source_tokens=MAX_SOURCE, max_target_tokens=MAX_TARGET),
        graphs=Graphs(encoder=graph, decoder=graph, scorer=graph),
        tokenizers=Tokenizers(source="source.json", target="target.json"),
        files={},
        unseen_source_tokens=list(unseen),
        examples=["drawer"],
        quality={"test accuracy (%)": 99.5},
    )
    return Bundle(Path("nowhere"), manifest, letters(), letters())


DECODER = TargetDecoder(letters())


def backwards(request: GenerationRequest) -> list[HypothesisResult]:
    """Returns the reversed source after the prefix; each further hypothesis lacks one more of the last letters.

    Every token has the log-probability -0.5 and the end token -0.25. The score of a hypothesis is its negative index.
    The alternatives of a token are the token itself and the next ones in the vocabulary.
    """
    search = request.search
    constraints = search.constraints
    results = []
    for index in range(search.num_hypotheses):
        stops = StopTracker(DECODER, constraints) if constraints.stop_sequences else None
        if stops:
            for token in constraints.prefix:
                stops.push(token)
        letters_left = request.source_ids[-2 - index :: -1] if index < len(request.source_ids) - 1 else []
        reason, characters, ids = FinishReason.EOS, None, list(constraints.prefix)
        for count, token in enumerate(letters_left, 1):
            ids.append(token)
            if stops and (characters := stops.push(token)) is not None:
                reason = FinishReason.STOP_SEQUENCE
                break
            if count == search.max_new_tokens < len(letters_left):
                reason = FinishReason.LENGTH
                break
        prefix = len(constraints.prefix)
        log_probabilities = [-0.5] * (len(ids) - prefix) + [-0.25] * (reason is FinishReason.EOS)
        others = [[TokenChoice(id_ + n, -0.5 - n) for n in range(search.top_tokens)] for id_ in [*ids[prefix:], 3]]
        alternatives = others[: len(log_probabilities)] if search.top_tokens else []
        results.append(
            HypothesisResult(ids, log_probabilities, reason, -float(index), prefix, alternatives, characters)
        )
    return results


def events(request: GenerationRequest, results: list[HypothesisResult]) -> list[Progress | BeamProgress]:
    """Returns the progress of a streaming request: token by token, the hypotheses in turn."""
    if beam := request.search.beam:
        return [BeamProgress(step, beam.beam_size, 0) for step in range(1, len(results[0].ids) + 1)]
    progress: list[Progress | BeamProgress] = []
    for place in range(max(len(result.ids) for result in results)):
        for index, result in enumerate(results):
            at = place - result.prefix
            if place == 0 and result.prefix:
                progress.append(Progress(result.ids[: result.prefix], [], [], index))
            if at >= 0 and place < len(result.ids):
                scores = result.log_probabilities[at : at + 1], result.alternatives[at : at + 1]
                progress.append(Progress([result.ids[place]], *scores, index))
    return progress


class FakeGeneration:
    """A request to the fake engines."""

    def __init__(self, engines: "FakeEngines", request: GenerationRequest) -> None:
        self.request = request
        self.cancelled = False
        self._engines = engines
        self._answer: asyncio.Future[GenerationResult] = asyncio.get_running_loop().create_future()
        self._progress: asyncio.Queue[Progress | BeamProgress | None] = asyncio.Queue()
        self._listener: Callable[[Any], None] = lambda event: None

    def notify(self, listener: Callable[[Any], None]) -> None:
        self._listener = listener

    async def result(self) -> GenerationResult:
        return await asyncio.shield(self._answer)

    async def events(self) -> AsyncIterator[Progress | BeamProgress | GenerationResult]:
        while (progress := await self._progress.get()) is not None:
            yield progress
        yield await self._answer

    def cancel(self) -> None:
        if not self._answer.done():
            self.cancelled = True
            self._answer.cancel()
            self._engines.running.remove(self)

    def finish(self, error: Exception | None = None) -> None:
        """Ends the request with its result, or with an error."""
        if self._answer.done():
            return
        self._engines.running.remove(self)
        if error is not None:
            self._answer.set_exception(error)
            self._answer.exception()
            self._listener(error)
        else:
            if (stages := self.request.stages) is not None:
                stages.encoding = stages.encoded = stages.decoded = time.monotonic()
            results = self._engines.results(self.request)
            for event in events(self.request, results):
                self._progress.put_nowait(event)
            self._answer.set_result(GenerationResult(results))
            self._listener(GenerationResult(results))
        self._progress.put_nowait(None)


class FakeEngines:
    """A fake EnginePool.

    Attributes:
        automatic: Whether requests end by themselves, in the next turn of the event loop.
        room: Number of requests that may be open; one more finds the queue full, unless its batch call is accepted.
        batch_window: Open requests of one batch call, see EnginePool.
        accepted: All accepted requests.
        running: Open requests.
        most: Maximum number of open requests so far.
        stopped: Whether to refuse everything.
        results: Returns the hypotheses for a request.
    """

    def __init__(
        self,
        automatic: bool = True,
        room: int = 1000,
        results: Callable[[GenerationRequest], list[HypothesisResult]] = backwards,
    ) -> None:
        self.automatic = automatic
        self.room = room
        self.results = results
        self.accepted: list[FakeGeneration] = []
        self.running: list[FakeGeneration] = []
        self.most = 0
        self.stopped = False
        self.batch_window = 8

    @contextmanager
    def open_call(self, *, alike: bool = True) -> Iterator[CallQueue]:
        yield CallQueue(alike=alike)

    def submit(self, request: GenerationRequest, call: CallQueue | None = None) -> FakeGeneration:
        if self.stopped:
            raise EngineUnavailableError("the model is stopping")
        if len(self.running) >= self.room and not (call and call.accepted):
            raise QueueFullError(0.25)
        if call is not None:
            call.accepted = True
        generation = FakeGeneration(self, request)
        self.accepted.append(generation)
        self.running.append(generation)
        self.most = max(self.most, len(self.running))
        if self.automatic:
            asyncio.get_running_loop().call_soon(generation.finish)
        return generation

    async def until(self, running: int) -> None:
        """Waits until the given number of requests is open."""
        await until_async(lambda: len(self.running) == running)


class FakeScorerSession:
    """A fake ScorerSession: token j has log-probability -(j + 1) / 4. In the layer but last it attends to the source
    token that it would be if the target were the reversed source; in the last layer it attends to all alike.

    Attributes:
        gate: Event that every run waits for.
        started: Set when a run has reached the gate.
        runs: Source and target lengths of each run's rows, and whether attention was requested.
        loads: Number of times it was loaded.
        error: Error that the next run raises.
        most_rows: Rows that fit the memory, None for any number.
    """

    def __init__(self) -> None:
        self.gate, self.started = threading.Event(), threading.Event()
        self.gate.set()
        self.runs: list[tuple[list[tuple[int, int]], bool]] = []
        self.loads = 0
        self.error: Exception | None = None
        self.most_rows: int | None = None

    def load(self) -> "FakeScorerSession":
        self.loads += 1
        return self

    def run(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], attention: bool) -> TargetScores:
        self.started.set()
        assert self.gate.wait(10)
        lengths = [(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
        if self.most_rows is not None and len(lengths) > self.most_rows:
            raise MemoryError
        self.runs.append((lengths, attention))
        error, self.error = self.error, None
        if error is not None:
            raise error
        source, target = max(s for s, _ in lengths), max(t for _, t in lengths) + 1
        places = np.arange(target, dtype=np.float32)
        log_probabilities = np.tile(-(places + 1) / np.float32(4), (len(lengths), 1))
        weights = np.zeros((len(lengths), 2, 2, target, source), np.float32)
        for row, (length, _) in enumerate(lengths):
            for place in range(target):
                weights[row, 0, :, place, max(length - 2 - place, 0)] = 1
            weights[row, 1, :, :, :length] = 1 / length
        return log_probabilities, weights if attention else None


@dataclass
class FakeServer:
    """A running gRPC server over fake engines, and a client's view of it."""

    address: str
    engines: FakeEngines
    scoring: FakeScorerSession
    scorer: Scorer
    service: GenerationService
    inference: InferenceService
    registry: ModelRegistry
    health: Health
    metrics: ServerMetrics
    channel: grpc.aio.Channel
    stub: Any
    health_stub: Any
    inference_stub: Any

    async def send_bytes(self, method: str, data: bytes) -> Any:
        """Calls a method of the service with raw bytes."""
        call: Any = self.channel.unary_unary(f"/{SERVICE}/{method}")
        return await call(data)

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def serve_fake(
    engines: FakeEngines | None = None,
    *,
    pool: EnginePool | None = None,
    ready: bool = True,
    score_queue: int = 100,
    administration: Any = None,
    observer: Observer | None = None,
    unseen: Sequence[int] = (),
) -> AsyncIterator[FakeServer]:
    """Runs a server on a free port of the loopback interface.

    Args:
        engines: Fake engines; new ones by default.
        pool: A real engine pool instead of fake engines.
        ready: Whether the model is served.
        score_queue: Queue size of the scorer.
        administration: Model administration of the Open Inference service.
        observer: Observer of calls.
        unseen: Source tokens that the model was not trained on.
    """
    engines, scoring = engines or FakeEngines(), FakeScorerSession()
    metrics, health = ServerMetrics(), Health([SERVICE])
    registry = ModelRegistry()
    service = GenerationService(metrics, registry)
    inference = InferenceService(service, registry, metrics, lambda: health.serving, administration)
    server = grpc.aio.server(interceptors=[CallInterceptor(metrics, observer=observer)])
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(service, server)
    open_inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(inference, server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    bundle = letters_bundle(unseen)
    scorer = Scorer(scoring.load, bundle.manifest.shape, score_queue, metrics.model(MODEL))
    if ready:
        limits = request_limits(ServerConfig(max_beam_size=6, max_hypotheses=8), 64, bundle.manifest.shape)
        served = ServedModel(
            bundle, pool or cast(EnginePool, engines), scorer, "cpu", limits, metrics.model(MODEL).unseen
        )
        registry.serve(served)
        health.set_serving(True)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        health_stub = health_pb2_grpc.HealthStub(channel)
        yield FakeServer(
            address=f"127.0.0.1:{port}",
            engines=engines,
            scoring=scoring,
            scorer=scorer,
            service=service,
            inference=inference,
            registry=registry,
            health=health,
            metrics=metrics,
            channel=channel,
            stub=stub,
            health_stub=health_stub,
            inference_stub=open_inference_pb2_grpc.GRPCInferenceServiceStub(channel),
        )
    await server.stop(None)
    scoring.gate.set()
    await scorer.close()
