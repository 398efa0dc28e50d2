"""inference.GRPCInferenceService, which translates every call into one of dragoman.v1.GenerationService.

protos/open-inference.md describes the calls.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import grpc

from dragoman.inference import open_inference_pb2 as oip
from dragoman.inference import open_inference_pb2_grpc
from dragoman.v1 import admin_pb2
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.api.admin_service import AdminService
from dragoman_server.api.generation_service import GenerationService
from dragoman_server.api.inference.metadata import (
    index_entry,
    model_config,
    model_metadata,
    model_statistics,
    server_metadata,
)
from dragoman_server.api.inference.outputs import FINAL, OutputWriter
from dragoman_server.api.inference.parameters import Parameters, translate_field_names
from dragoman_server.api.inference.stream import RequestStream
from dragoman_server.api.inference.tensors import read_texts
from dragoman_server.api.time_slice import TimeSlice
from dragoman_server.core.call_record import record_stream_request
from dragoman_server.core.errors import DeadlineExpiredError, Rejection
from dragoman_server.messages.api_error import ApiError, from_exception, invalid
from dragoman_server.metrics import ServerMetrics
from dragoman_server.models.registry import ModelRegistry

SERVICE = "inference.GRPCInferenceService"

Context = grpc.aio.ServicerContext[Any, Any]


class InferenceService(open_inference_pb2_grpc.GRPCInferenceServiceServicer):
    """The Open Inference Protocol. CallInterceptor turns its errors into statuses.

    Args:
        generation: The service that answers the translated requests.
        models: The models that are served.
        metrics: Metrics of the server.
        ready: Whether the server takes requests.
        administration: Service that loads and unloads models; None if the server was started with --no-admin.
    """

    def __init__(
        self,
        generation: GenerationService,
        models: ModelRegistry,
        metrics: ServerMetrics,
        ready: Callable[[], bool],
        administration: AdminService | None = None,
    ) -> None:
        self._generation = generation
        self._models = models
        self._metrics = metrics
        self._ready = ready
        self._administration = administration

    async def ServerLive(self, request: oip.ServerLiveRequest, context: Context) -> oip.ServerLiveResponse:
        return oip.ServerLiveResponse(live=True)

    async def ServerReady(self, request: oip.ServerReadyRequest, context: Context) -> oip.ServerReadyResponse:
        return oip.ServerReadyResponse(ready=self._ready())

    async def ModelReady(self, request: oip.ModelReadyRequest, context: Context) -> oip.ModelReadyResponse:
        try:
            self._models.find(_name(request.name, request.version))
        except ApiError:
            return oip.ModelReadyResponse(ready=False)
        return oip.ModelReadyResponse(ready=self._ready())

    async def ServerMetadata(self, request: oip.ServerMetadataRequest, context: Context) -> oip.ServerMetadataResponse:
        return server_metadata()

    async def ModelMetadata(self, request: oip.ModelMetadataRequest, context: Context) -> oip.ModelMetadataResponse:
        model = self._describe(request.name, request.version)
        return model_metadata(model, [each.version for each in self._ready_models() if each.name == model.name])

    async def ModelConfig(self, request: oip.ModelConfigRequest, context: Context) -> oip.ModelConfigResponse:
        return oip.ModelConfigResponse(config=model_config(self._describe(request.name, request.version)))

    async def ModelStatistics(
        self, request: oip.ModelStatisticsRequest, context: Context
    ) -> oip.ModelStatisticsResponse:
        models = [self._describe(request.name, request.version)] if request.name else self._ready_models()
        return oip.ModelStatisticsResponse(
            model_stats=[model_statistics(model, self._metrics.model(model.name, model.version)) for model in models]
        )

    async def ModelInfer(self, request: oip.ModelInferRequest, context: Context) -> oip.ModelInferResponse:
        texts, parameters, writer = self._read(request)
        inputs, time_slice = [], TimeSlice()
        for text in texts:
            inputs.append(parameters.source(text))
            await time_slice.yield_if_over()
        batch = pb.GenerateBatchRequest(
            model=_name(request.model_name, request.model_version),
            inputs=inputs,
            options=parameters.options,
            details=parameters.details,
            # For a single text somebody is waiting; many texts at once can take their time.
            priority=parameters.priority or (pb.PRIORITY_INTERACTIVE if len(texts) == 1 else pb.PRIORITY_BATCH),
        )
        with translate_field_names(), _deadline(parameters.timeout):
            async with asyncio.timeout(parameters.timeout):
                answers = await self._generation.answer_all(batch, context)
        return await writer.response(answers)

    async def ModelStreamInfer(
        self, requests: AsyncIterator[oip.ModelInferRequest], context: Context
    ) -> AsyncGenerator[oip.ModelStreamInferResponse, None]:
        stream = RequestStream(lambda request: self._responses(request, context))
        with self._generation.streams.open(stream):
            async with aclosing(stream.run(requests)) as responses:
                async for response in responses:
                    yield response

    async def RepositoryIndex(
        self, request: oip.RepositoryIndexRequest, context: Context
    ) -> oip.RepositoryIndexResponse:
        if self._administration is None:
            entries = [index_entry(model.name, model) for model in self._models.list()]
        else:  # includes versions that are not loaded
            status = (await self._administration.GetStatus(admin_pb2.GetStatusRequest(), context)).status
            entries = [index_entry(version.model, version) for version in status.versions]
        return oip.RepositoryIndexResponse(
            models=[entry for entry in entries if entry.state == "READY" or not request.ready]
        )

    async def RepositoryModelLoad(
        self, request: oip.RepositoryModelLoadRequest, context: Context
    ) -> oip.RepositoryModelLoadResponse:
        administration = self._administrator(request)
        if request.parameters:
            raise invalid("parameters", "must be empty: a model's configuration and files come from the repository")
        await administration.LoadModel(admin_pb2.LoadModelRequest(model=request.model_name), context)
        return oip.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(
        self, request: oip.RepositoryModelUnloadRequest, context: Context
    ) -> oip.RepositoryModelUnloadResponse:
        administration = self._administrator(request)
        if not request.parameters.keys() <= {"unload_dependents"}:  # no model here depends on another
            raise invalid("parameters", "contains an unknown parameter")
        await administration.UnloadModel(admin_pb2.UnloadModelRequest(model=request.model_name), context)
        return oip.RepositoryModelUnloadResponse()

    async def SystemSharedMemoryStatus(
        self, request: oip.SystemSharedMemoryStatusRequest, context: Context
    ) -> oip.SystemSharedMemoryStatusResponse:
        return oip.SystemSharedMemoryStatusResponse()

    async def SystemSharedMemoryRegister(
        self, request: oip.SystemSharedMemoryRegisterRequest, context: Context
    ) -> oip.SystemSharedMemoryRegisterResponse:
        raise _unsupported("shared memory")

    async def SystemSharedMemoryUnregister(
        self, request: oip.SystemSharedMemoryUnregisterRequest, context: Context
    ) -> oip.SystemSharedMemoryUnregisterResponse:
        return oip.SystemSharedMemoryUnregisterResponse()

    async def CudaSharedMemoryStatus(
        self, request: oip.CudaSharedMemoryStatusRequest, context: Context
    ) -> oip.CudaSharedMemoryStatusResponse:
        return oip.CudaSharedMemoryStatusResponse()

    async def CudaSharedMemoryRegister(
        self, request: oip.CudaSharedMemoryRegisterRequest, context: Context
    ) -> oip.CudaSharedMemoryRegisterResponse:
        raise _unsupported("shared memory")

    async def CudaSharedMemoryUnregister(
        self, request: oip.CudaSharedMemoryUnregisterRequest, context: Context
    ) -> oip.CudaSharedMemoryUnregisterResponse:
        return oip.CudaSharedMemoryUnregisterResponse()

    async def TraceSetting(self, request: oip.TraceSettingRequest, context: Context) -> oip.TraceSettingResponse:
        raise _unsupported("trace settings")

    async def LogSettings(self, request: oip.LogSettingsRequest, context: Context) -> oip.LogSettingsResponse:
        raise _unsupported("log settings")

    def _read(self, request: oip.ModelInferRequest) -> tuple[list[str], Parameters, OutputWriter]:
        """Returns the texts of a request, its parameters, and the writer for its outputs.

        Raises:
            ApiError: the request is invalid, or the model is unknown.
        """
        with translate_field_names():
            model = self._models.find(_name(request.model_name, request.model_version)).model
        texts = read_texts(request, model.limits.batch_items)
        parameters = Parameters(request.parameters)
        return texts, parameters, OutputWriter(request, parameters, model.name, model.version)

    async def _responses(
        self, request: oip.ModelInferRequest, context: Context
    ) -> AsyncGenerator[oip.ModelStreamInferResponse, None]:
        """Yields the responses to one request of a stream: pieces of its outputs, or an error."""
        with record_stream_request() as record:
            try:
                texts, parameters, writer = self._read(request)
                if len(texts) > 1:
                    raise invalid("text", f"has {len(texts)} elements, but each request of a stream must have one")
                generate_request = pb.GenerateRequest(
                    model=_name(request.model_name, request.model_version),
                    input=parameters.source(texts[0]),
                    options=parameters.options,
                    details=parameters.details,
                    priority=parameters.priority,
                )
                with translate_field_names(), _deadline(parameters.timeout):
                    async with aclosing(self._generation.GenerateStream(generate_request, context)) as messages:
                        async for message in _within(messages, parameters.timeout):
                            if response := await writer.message(message):
                                yield oip.ModelStreamInferResponse(infer_response=response)
            except Exception as error:
                api_error = from_exception(error, "request of a stream failed", request_id=record.id)
                record.code = api_error.code.name
                if api_error.rejection:
                    self._metrics.rejected(api_error.rejection)
                failed = oip.ModelInferResponse(id=request.id, model_name=request.model_name)
                failed.parameters[FINAL].bool_param = True
                problem = f"{api_error.code.name}: {api_error.message}"
                yield oip.ModelStreamInferResponse(error_message=problem, infer_response=failed)

    def _describe(self, name: str, version: str) -> pb.Model:
        with translate_field_names():
            return self._models.describe(_name(name, version))

    def _ready_models(self) -> list[pb.Model]:
        return [model for model in self._models.list() if model.state == pb.MODEL_STATE_READY]

    def _administrator(
        self, request: oip.RepositoryModelLoadRequest | oip.RepositoryModelUnloadRequest
    ) -> AdminService:
        if self._administration is None:
            problem = "models can't be loaded or unloaded: the server was started with --no-admin"
            raise ApiError(grpc.StatusCode.FAILED_PRECONDITION, problem)
        if not request.model_name:
            raise invalid("model_name", "is empty")
        return self._administration


async def _within(
    messages: AsyncIterator[pb.GenerateStreamResponse], timeout: float | None
) -> AsyncIterator[pb.GenerateStreamResponse]:
    """Yields the messages of a stream, and raises TimeoutError when the time is over.

    NOTE: a timeout around a `yield` would interrupt the consumer while it processes a message.
    """
    end = None if timeout is None else asyncio.get_running_loop().time() + timeout
    while True:
        async with asyncio.timeout_at(end):
            try:
                message = await anext(messages)
            except StopAsyncIteration:
                return
        yield message


@contextmanager
def _deadline(timeout: float | None) -> Iterator[None]:
    """Turns the TimeoutError of a request's own timeout into a DeadlineExpiredError."""
    try:
        yield
    except TimeoutError:
        if timeout is None:
            raise
        raise DeadlineExpiredError from None


def _name(model: str, version: str) -> str:
    """Returns the name of a model version in dragoman.v1."""
    return f"{model}@{version}" if version else model


def _unsupported(feature: str) -> ApiError:
    return ApiError(
        grpc.StatusCode.UNIMPLEMENTED, f"this server does not support {feature}", rejection=Rejection.INVALID
    )
