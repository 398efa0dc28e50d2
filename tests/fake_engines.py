"""The server's gRPC face over engines without a model: an answer is the source backwards, a letter a token."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from dragoman.v1 import generation_pb2_grpc
from server.api.health import Health
from server.api.interceptor import CallInterceptor
from server.api.model import ServedModel
from server.api.service import SERVICE, GenerationService
from server.bundle.load import Bundle
from server.bundle.manifest import Graph, Graphs, Limits, Manifest, Shape, SpecialTokens, Tokenizers
from server.engine.requests import (
    EngineUnavailableError,
    Finished,
    FinishReason,
    GenerationRequest,
    HypothesisResult,
    Progress,
    QueueFullError,
)
from server.metrics import ServerMetrics

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
LETTERS = "abcdefghijklmnopqrstuvwxyz' é"
MAX_SOURCE, MAX_TARGET = 16, 12
MODEL = "backwards"


def letters() -> Tokenizer:
    """Lower-cased letters; everything else is unknown. Spaces at the ends do not count."""
    made = Tokenizer(models.WordLevel({token: i for i, token in enumerate([*SPECIAL, *LETTERS])}, "<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase(), normalizers.Strip()])
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens(SPECIAL)
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 3)])
    return made


def letters_bundle() -> Bundle:
    graph = Graph(file="none.onnx", inputs=[], outputs=[])
    size = letters().get_vocab_size()
    manifest = Manifest(
        name=MODEL,
        description="turns words around",
        license="Apache-2.0",
        attention="standard",
        shape=Shape(
            d_model=8,
            heads=1,
            d_head=8,
            d_ff=8,
            encoder_layers=1,
            decoder_layers=1,
            source_vocabulary=size,
            target_vocabulary=size,
            parameters=123,
        ),
        tokens=SpecialTokens(pad=0, unknown=1, begin=2, end=3),
        limits=Limits(max_source_tokens=MAX_SOURCE, max_target_tokens=MAX_TARGET),
        graphs=Graphs(encoder=graph, decoder=graph, scorer=graph),
        tokenizers=Tokenizers(source="source.json", target="target.json"),
        files={},
        examples=["drawer"],
        quality={"test accuracy (%)": 99.5},
    )
    return Bundle(Path("nowhere"), manifest, letters(), letters())


class FakeGeneration:
    """One request at the fake engines."""

    def __init__(self, engines: "FakeEngines", request: GenerationRequest) -> None:
        self.request = request
        self.cancelled = False
        self._engines = engines
        self._answer: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
        self._progress: asyncio.Queue[Progress | None] = asyncio.Queue()

    async def result(self) -> Finished:
        return await asyncio.shield(self._answer)

    async def events(self) -> AsyncIterator[Progress | Finished]:
        while (progress := await self._progress.get()) is not None:
            yield progress
        yield await self._answer

    def cancel(self) -> None:
        if not self._answer.done():
            self.cancelled = True
            self._answer.cancel()
            self._engines.running.remove(self)

    def finish(self, error: Exception | None = None) -> None:
        """Answers, token by token for a stream."""
        if self._answer.done():
            return
        self._engines.running.remove(self)
        if error is not None:
            self._answer.set_exception(error)
            self._answer.exception()
        else:
            backwards = self.request.source_ids[-2::-1]
            ids = backwards[: self.request.max_new_tokens]
            log_probabilities = [-0.5] * len(ids)
            for token in ids:
                self._progress.put_nowait(Progress([token], [-0.5]))
            reason = FinishReason.EOS if len(ids) == len(backwards) else FinishReason.LENGTH
            if reason is FinishReason.EOS:
                log_probabilities.append(-0.25)
            self._answer.set_result(Finished([HypothesisResult(ids, log_probabilities, reason)]))
        self._progress.put_nowait(None)


class FakeEngines:
    """Stands for an EnginePool.

    Attributes:
        automatic: answer by themselves, in the next turn of the event loop.
        room: requests that may be open; one more finds the queue full.
        accepted: every request that was.
        running: those that are not answered.
        most: that were ever open at the same time.
        stopped: refuse everything.
    """

    def __init__(self, automatic: bool = True, room: int = 1000) -> None:
        self.automatic = automatic
        self.room = room
        self.accepted: list[FakeGeneration] = []
        self.running: list[FakeGeneration] = []
        self.most = 0
        self.stopped = False

    def submit(self, request: GenerationRequest) -> FakeGeneration:
        if self.stopped:
            raise EngineUnavailableError("the model is stopping")
        if len(self.running) >= self.room:
            raise QueueFullError(0.25)
        generation = FakeGeneration(self, request)
        self.accepted.append(generation)
        self.running.append(generation)
        self.most = max(self.most, len(self.running))
        if self.automatic:
            asyncio.get_running_loop().call_soon(generation.finish)
        return generation

    async def until(self, running: int) -> None:
        """Waits until so many requests are open."""
        async with asyncio.timeout(5):
            while len(self.running) != running:  # noqa: ASYNC110
                await asyncio.sleep(0.002)


@dataclass
class Face:
    """A running gRPC server over fake engines, and a client's view of it."""

    engines: FakeEngines
    service: GenerationService
    health: Health
    metrics: ServerMetrics
    channel: grpc.aio.Channel
    stub: Any
    health_stub: Any

    async def send_bytes(self, method: str, data: bytes) -> Any:
        """Calls a method of the service with what need not be a message."""
        call: Any = self.channel.unary_unary(f"/{SERVICE}/{method}")
        return await call(data)

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def serve_fake(engines: FakeEngines | None = None, *, window: int = 8, ready: bool = True) -> AsyncIterator[Face]:
    """A server on a free port of the loopback interface."""
    engines = engines or FakeEngines()
    metrics, health = ServerMetrics(), Health([SERVICE])
    service = GenerationService(metrics.rejected)
    server = grpc.aio.server(interceptors=[CallInterceptor(metrics)])
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(service, server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    if ready:
        service.serve([ServedModel(letters_bundle(), engines, "cpu", window)])
        health.set_serving(True)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        health_stub = health_pb2_grpc.HealthStub(channel)
        yield Face(engines, service, health, metrics, channel, stub, health_stub)
    await server.stop(None)
