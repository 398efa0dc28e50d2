"""Health, descriptions, statistics and administration of models in the Open Inference Protocol."""

from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import admin_pb2
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.core.requests import FinishReason
from dragoman_server.messages.api_error import ApiError
from tests.support.fake_engines import MODEL, FakeServer, serve_fake
from tests.support.refusals import refused


@pytest.mark.parametrize("serving", [False, True])
async def test_liveness_and_readiness(serving: bool) -> None:
    async with serve_fake(ready=serving) as server:
        stub = server.inference_stub
        assert (await stub.ServerLive(oip.ServerLiveRequest())).live
        assert (await stub.ServerReady(oip.ServerReadyRequest())).ready is serving
        for name, version, exists in [
            (MODEL, "", True),
            (MODEL, "1", True),
            ("", "", True),
            (MODEL, "2", False),
            ("no", "", False),
        ]:
            ready = (await stub.ModelReady(oip.ModelReadyRequest(name=name, version=version))).ready
            assert ready is (serving and exists)
        if not serving:
            for call in (
                stub.ModelInfer(oip.ModelInferRequest(model_name=MODEL)),
                stub.RepositoryIndex(oip.RepositoryIndexRequest()),
            ):
                assert (await refused(call)).code() is grpc.StatusCode.UNAVAILABLE


async def test_the_model_is_described(server: FakeServer) -> None:
    stub = server.inference_stub
    metadata = await stub.ModelMetadata(oip.ModelMetadataRequest(name=MODEL))
    assert (metadata.name, list(metadata.versions)) == (MODEL, ["1"])
    inputs = [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in metadata.inputs]
    assert inputs == [("text", "BYTES", [-1, 1])]
    assert [tensor.name for tensor in metadata.outputs] == ["text", "finish_reason"]
    config = (await stub.ModelConfig(oip.ModelConfigRequest(name=MODEL))).config
    assert config.max_batch_size == 10_000
    assert not config.model_transaction_policy.decoupled
    assert config.parameters["max_beam_size"].string_value == "6"
    [entry] = (await stub.RepositoryIndex(oip.RepositoryIndexRequest())).models
    assert (entry.name, entry.version, entry.state, entry.reason) == (MODEL, "1", "READY", "")


async def test_statistics_are_those_of_the_engines(server: FakeServer) -> None:
    metrics = server.metrics.model(MODEL)
    metrics.encoded(0.01, 2, 12, 0)
    for _ in range(3):
        metrics.admitted(0.25)
        metrics.finished(FinishReason.EOS, 4, 5, 1.0)
    metrics.dropped("cancelled", "running")
    metrics.cache(0, 1000)
    metrics.cache(1, 1000)
    for name in (MODEL, ""):
        [stats] = (await server.inference_stub.ModelStatistics(oip.ModelStatisticsRequest(name=name))).model_stats
        assert (stats.name, stats.version, stats.inference_count, stats.execution_count) == (MODEL, "1", 3, 1)
        inference = stats.inference_stats
        assert (inference.success.count, inference.success.ns) == (3, 3_000_000_000)
        assert (inference.queue.count, inference.queue.ns) == (3, 750_000_000)
        assert (inference.compute_infer.count, inference.compute_infer.ns) == (3, 2_250_000_000)
        assert inference.fail.count == 1
        [memory] = stats.memory_usage
        assert (memory.type, memory.byte_size) == ("CPU", 2000)


class Administration:
    """An AdminService that records its requests.

    Attributes:
        error: Raised by LoadModel.
    """

    def __init__(self) -> None:
        self.requests: list[Message] = []
        self.error: ApiError | None = None

    async def LoadModel(self, request: admin_pb2.LoadModelRequest, context: Any) -> None:
        self.requests.append(request)
        if self.error:
            raise self.error

    async def UnloadModel(self, request: admin_pb2.UnloadModelRequest, context: Any) -> None:
        self.requests.append(request)

    async def GetStatus(self, request: admin_pb2.GetStatusRequest, context: Any) -> admin_pb2.GetStatusResponse:
        versions = [
            admin_pb2.VersionStatus(model="a", version="1", state=pb.MODEL_STATE_UNLOADED, held=True),
            admin_pb2.VersionStatus(model="a", version="2", state=pb.MODEL_STATE_READY),
            admin_pb2.VersionStatus(model="b", version="1", state=pb.MODEL_STATE_FAILED, problem="it is broken"),
            admin_pb2.VersionStatus(model="b", version="2", state=pb.MODEL_STATE_LOADING),
            admin_pb2.VersionStatus(model="b", version="3", state=pb.MODEL_STATE_RETIRING),
        ]
        return admin_pb2.GetStatusResponse(status=admin_pb2.RepositoryStatus(versions=versions))


async def test_the_index_lists_versions_that_are_not_served() -> None:
    async with serve_fake(administration=Administration()) as server:
        index = (await server.inference_stub.RepositoryIndex(oip.RepositoryIndexRequest())).models
        assert [(entry.name, entry.version, entry.state, entry.reason) for entry in index] == [
            ("a", "1", "UNAVAILABLE", "unloaded"),
            ("a", "2", "READY", ""),
            ("b", "1", "UNAVAILABLE", "it is broken"),
            ("b", "2", "LOADING", ""),
            ("b", "3", "UNLOADING", ""),
        ]
        index = (await server.inference_stub.RepositoryIndex(oip.RepositoryIndexRequest(ready=True))).models
        assert [(entry.name, entry.version) for entry in index] == [("a", "2")]


async def test_models_are_loaded_and_unloaded_by_the_admin_service() -> None:
    administration = Administration()
    async with serve_fake(administration=administration) as server:
        stub = server.inference_stub
        load = oip.RepositoryModelLoadRequest(model_name="some")
        unload = oip.RepositoryModelUnloadRequest(model_name="some")
        unload.parameters["unload_dependents"].bool_param = True
        await stub.RepositoryModelLoad(load)
        await stub.RepositoryModelUnload(unload)
        expected = [admin_pb2.LoadModelRequest(model="some"), admin_pb2.UnloadModelRequest(model="some")]
        assert administration.requests == expected
        administration.error = ApiError(grpc.StatusCode.FAILED_PRECONDITION, "it is broken")
        error = await refused(stub.RepositoryModelLoad(load))
        assert (error.code(), error.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "it is broken")
        load.parameters["config"].string_param = "{}"
        for call in (
            stub.RepositoryModelLoad(load),
            stub.RepositoryModelLoad(oip.RepositoryModelLoadRequest()),
            stub.RepositoryModelUnload(oip.RepositoryModelUnloadRequest()),
        ):
            assert (await refused(call)).code() is grpc.StatusCode.INVALID_ARGUMENT
        assert len(administration.requests) == 3


async def test_unsupported_methods_fail(server: FakeServer) -> None:
    stub = server.inference_stub
    for call in (
        stub.RepositoryModelLoad(oip.RepositoryModelLoadRequest(model_name=MODEL)),
        stub.RepositoryModelUnload(oip.RepositoryModelUnloadRequest(model_name=MODEL)),
    ):
        error = await refused(call)
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert error.details() == "models can't be loaded or unloaded: the server was started with --no-admin"
    for call in (
        stub.TraceSetting(oip.TraceSettingRequest()),
        stub.LogSettings(oip.LogSettingsRequest()),
        stub.SystemSharedMemoryRegister(oip.SystemSharedMemoryRegisterRequest(name="a")),
        stub.CudaSharedMemoryRegister(oip.CudaSharedMemoryRegisterRequest(name="a")),
    ):
        error = await refused(call)
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert str(error.details()).startswith("this server does not support ")
    for name in ("System", "Cuda"):
        status = getattr(stub, f"{name}SharedMemoryStatus")
        assert not (await status(getattr(oip, f"{name}SharedMemoryStatusRequest")())).regions
        await getattr(stub, f"{name}SharedMemoryUnregister")(getattr(oip, f"{name}SharedMemoryUnregisterRequest")())
