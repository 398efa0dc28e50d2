"""Memory that one message can cost the server: compressed requests and large responses."""

import re
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2

from dragoman.inference import open_inference_pb2 as oip
from dragoman.local import LocalServer
from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from tests.support.memory import peak_megabytes
from tests.support.servers import G2PServer

MEBIBYTE = 2**20
# Number of zero bytes to send to each method; 64 MiB are 65 kB of gzip.
UNARY = {"dragoman.v1.GenerationService/Generate": 64 * MEBIBYTE, "grpc.health.v1.Health/Check": 5 * MEBIBYTE}
STREAMS = {
    "inference.GRPCInferenceService/ModelStreamInfer": 64 * MEBIBYTE,
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo": 5 * MEBIBYTE,
}
GZIP = grpc.Compression.Gzip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with G2PServer(log=tmp_path_factory.mktemp("compressed") / "server.log") as started:
        yield started
        assert started.stop() == 0, started.log_tail()


def send(channel: grpc.Channel, method: str, data: bytes) -> None:
    if method in UNARY:
        unary: Any = channel.unary_unary(f"/{method}")
        unary(data, compression=GZIP, timeout=120)
    else:
        call: Any = channel.stream_stream(f"/{method}")
        list(call(iter([data]), compression=GZIP, timeout=120))


def test_a_request_that_unpacks_to_too_much_is_refused_before_it_is_in_memory(server: LocalServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        request = pb.GenerateRequest(input=pb.Input(text="court"))
        stub.Generate(request)
        before = peak_megabytes(server.process.pid)
        for method, size in (UNARY | STREAMS).items():
            with pytest.raises(grpc.RpcError) as refused:
                send(channel, method, bytes(size))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, method
            assert re.search(r"unpacks to more than (4194304 bytes|64 times its size)", refused.value.details() or "")
        assert peak_megabytes(server.process.pid) - before < 32
        assert stub.Generate(request).hypotheses[0].text == "K AO R T"


def test_a_compressed_request_gets_the_same_response(server: LocalServer) -> None:
    texts = [pb.Input(text="court")] * 50
    with grpc.insecure_channel(server.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        request = pb.GenerateBatchRequest(inputs=texts)
        assert stub.GenerateBatch(request, compression=GZIP) == stub.GenerateBatch(request)
        call: Any = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        )
        name = "dragoman.v1.GenerationService" + 100 * "a"  # long enough to be worth compressing
        request_ = reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
        assert list(call(iter([request_]), compression=GZIP)) == list(call(iter([request_])))
        wrong = oip.ModelInferRequest(model_name="a" * 100).SerializeToString()
        infer: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as refused:
            infer(wrong, compression=GZIP)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_other_compression_is_refused(server: LocalServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            stub.Generate(pb.GenerateRequest(input=pb.Input(text="1" * 100)), compression=grpc.Compression.Deflate)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "'deflate' is disabled" in (refused.value.details() or "")


def test_a_response_that_would_be_too_large_is_refused_before_it_is_computed(server: LocalServer) -> None:
    request = pb.GenerateBatchRequest(
        inputs=[pb.Input(text="court")] * 10_000,
        options=pb.GenerationOptions(sample=True, num_hypotheses=32),
        details=pb.Details(top_tokens=20),
    )
    with grpc.insecure_channel(server.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        stub.GenerateBatch(pb.GenerateBatchRequest(inputs=request.inputs[:1]))
        before = peak_megabytes(server.process.pid)
        with pytest.raises(grpc.RpcError, match=r"the server sends at most 67108864 \(--max-answer-bytes\)") as refused:
            stub.GenerateBatch(request, timeout=120)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert peak_megabytes(server.process.pid) - before < 32
