"""Fuzzed requests to every method get a response or a refusal, never an internal error.

With FUZZ_EXAMPLES=5000 each method gets that many requests, different ones in every run.
"""

import os
from collections.abc import Iterator
from typing import Any, cast

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman import Client
from dragoman.inference import open_inference_pb2 as oip
from dragoman.local import LocalServer
from dragoman.v1 import admin_pb2
from dragoman.v1 import generation_pb2 as pb
from tests.soak.findings import error_lines
from tests.support.bundles import SHIPPED_G2P
from tests.support.fuzzing import payloads
from tests.support.servers import G2PServer

FUZZ_EXAMPLES = os.environ.get("FUZZ_EXAMPLES")
PATIENCE = 60.0  # seconds
WATCH_SECONDS = 0.02  # duration of a call that never ends
FAULTS = {"INTERNAL", "UNKNOWN", "UNAVAILABLE", "DATA_LOSS", "CANCELLED"}
FAULTY_ITEMS = {grpc.StatusCode.INTERNAL.value[0], grpc.StatusCode.UNKNOWN.value[0]}
INFERENCE = oip.DESCRIPTOR.services_by_name["GRPCInferenceService"]
GENERATION = pb.DESCRIPTOR.services_by_name["GenerationService"]
ADMINISTRATION = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]
REFLECTION = cast("ServiceDescriptor", reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"])

WORD = pb.Input(text="dragoman")
IDS = pb.Input(token_ids=pb.TokenIds(ids=[5, 6, 7]))
ALL_DETAILS = pb.Details(log_probabilities=True, top_tokens=2, alignment=True, attention=True)
OPTIONS = [
    pb.GenerationOptions(max_new_tokens=5, time_limit=Duration(seconds=5)),
    pb.GenerationOptions(beam_size=4, num_hypotheses=2, beam_groups=2, diversity_penalty=0.4, coverage_penalty=0.2),
    pb.GenerationOptions(beam_size=3, early_stopping=True, patience=1.5, length_penalty=0.6, suppressed_tokens=[7]),
    pb.GenerationOptions(sample=True, seed=3, num_hypotheses=2, temperature=0.7, top_k=5, top_p=0.9, min_p=0.01),
    pb.GenerationOptions(prefix=pb.Input(text="D R"), prefix_bias=0.5, repetition_penalty=1.2, no_repeat_ngram_size=2),
    pb.GenerationOptions(
        stop_sequences=["AE G"], include_stop_sequence=True, suppressed_sequences=[pb.Input(text="M AH")]
    ),
    pb.GenerationOptions(alternatives=True, num_hypotheses=3, vocabulary=pb.TokenIds(ids=[5, 6, 7, 8, 9])),
]


def infer_request(text: bytes = b"dragoman", raw: bool = False, **parameters: Any) -> oip.ModelInferRequest:
    tensor = oip.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1])
    request = oip.ModelInferRequest(model_name="g2p-en", id="7", inputs=[tensor])
    if raw:
        request.raw_input_contents.append(len(text).to_bytes(4, "little") + text)
    else:
        request.inputs[0].contents.bytes_contents.append(text)
    for name, value in parameters.items():
        kind = {bool: "bool", int: "int64", str: "string", float: "double"}[type(value)]
        setattr(request.parameters[name], f"{kind}_param", value)
    return request


INFER_REQUESTS: list[Message] = [
    infer_request(beam_size=4, num_hypotheses=2, log_probabilities=True),
    infer_request(raw=True, sample=True, seed=5, timeout=5_000_000, priority="batch", stop_sequences='["AE"]'),
    infer_request(max_new_tokens=4, tokens=True, top_tokens=2, suppressed_tokens="[5]", time_limit=2.5),
]
# Valid requests to start from; for other methods an empty one.
VALID: dict[str, list[Message]] = {
    "dragoman.v1.GenerateRequest": [
        pb.GenerateRequest(input=WORD, options=options, details=ALL_DETAILS) for options in OPTIONS
    ],
    "dragoman.v1.GenerateBatchRequest": [
        pb.GenerateBatchRequest(inputs=[WORD, IDS], options=options) for options in OPTIONS
    ],
    "dragoman.v1.ScoreRequest": [
        pb.ScoreRequest(input=WORD, targets=[pb.Input(text="D R AE G"), IDS], alignment=True, attention=True)
    ],
    "dragoman.v1.TokenizeRequest": [pb.TokenizeRequest(text="dragoman", side=pb.SIDE_TARGET)],
    "dragoman.v1.DetokenizeRequest": [pb.DetokenizeRequest(token_ids=pb.TokenIds(ids=[5, 6]), side=pb.SIDE_TARGET)],
    "dragoman.v1.LoadModelRequest": [admin_pb2.LoadModelRequest(model=name) for name in ("g2p", "g2p@2", "@", "none")],
    "dragoman.v1.UnloadModelRequest": [admin_pb2.UnloadModelRequest(model=name) for name in ("g2p@2", "none")],
    "inference.ModelInferRequest": INFER_REQUESTS,
    "inference.RepositoryModelLoadRequest": [oip.RepositoryModelLoadRequest(model_name="g2p")],
    "inference.RepositoryModelUnloadRequest": [oip.RepositoryModelUnloadRequest(model_name="none")],
    "grpc.reflection.v1alpha.ServerReflectionRequest": [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=GENERATION.full_name),
        reflection_pb2.ServerReflectionRequest(file_by_filename="google/rpc/status.proto"),
        reflection_pb2.ServerReflectionRequest(all_extension_numbers_of_type="dragoman.v1.Input"),
        reflection_pb2.ServerReflectionRequest(
            file_containing_extension=reflection_pb2.ExtensionRequest(containing_type="dragoman.v1.Input")
        ),
    ],
}
# Methods that get more requests than those that read at most a name.
DEEP = {"Generate": 12, "GenerateStream": 8, "GenerateBatch": 6, "Score": 6, "ModelInfer": 10, "ModelStreamInfer": 8}
SHALLOW_EXAMPLES = 15
MAX_REQUESTS = 4  # of a stream
UNIMPLEMENTED = {"SystemSharedMemoryRegister", "CudaSharedMemoryRegister", "TraceSetting", "LogSettings"}


def methods(*services: ServiceDescriptor) -> list[Any]:
    return [pytest.param(method, id=method.full_name) for service in services for method in service.methods]


def examples(method: MethodDescriptor) -> settings:
    count = int(FUZZ_EXAMPLES) if FUZZ_EXAMPLES else SHALLOW_EXAMPLES * DEEP.get(method.name, 1)
    return settings(
        max_examples=count,
        derandomize=FUZZ_EXAMPLES is None,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


class Target:
    """A server, and a channel to it that sends raw bytes."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        self.channel = grpc.insecure_channel(server.address, [("grpc.max_receive_message_length", -1)])
        self._read = 0  # bytes of the log that were read

    def send(self, method: MethodDescriptor, requests: list[bytes]) -> tuple[str, list[bytes]]:
        """Calls a method. Returns the name of the status and the responses."""
        path = f"/{method.containing_service.full_name}/{method.name}"
        responses: list[bytes] = []
        endless = method.name == "Watch"
        kind: Any = {
            (False, False): self.channel.unary_unary,
            (False, True): self.channel.unary_stream,
            (True, True): self.channel.stream_stream,
        }[method.client_streaming, method.server_streaming]
        request = iter(requests) if method.client_streaming else requests[0]
        try:
            response = kind(path)(request, timeout=WATCH_SECONDS if endless else PATIENCE)
            if not method.server_streaming:
                return "OK", [response]
            responses.extend(response)
        except grpc.RpcError as error:
            code = str(error.code().name)
            return "OK" if endless and code == "DEADLINE_EXCEEDED" else code, responses
        return "OK", responses

    def new_log(self) -> str:
        """Returns what was logged since the last call."""
        with self.server.log.open("rb") as log:
            log.seek(self._read)
            new = log.read()
        self._read += len(new)
        return new.decode(errors="replace")


def check(target: Target, method: MethodDescriptor, requests: list[bytes]) -> str:
    code, responses = target.send(method, requests)
    assert code not in FAULTS
    parse = GetMessageClass(method.output_type).FromString
    for response in map(parse, responses):
        if isinstance(response, pb.GenerateBatchResponse):
            assert not {item.error.code for item in response.items} & FAULTY_ITEMS
        elif isinstance(response, oip.ModelStreamInferResponse):
            assert response.error_message.partition(":")[0] not in FAULTS
    return code


def fuzz(target: Target, method: MethodDescriptor) -> None:
    valid = VALID.get(method.input_type.full_name) or [GetMessageClass(method.input_type)()]
    codes = {check(target, method, [valid[0].SerializeToString()])}
    assert ("UNIMPLEMENTED" in codes) is (method.name in UNIMPLEMENTED)

    @examples(method)
    @given(st.lists(payloads(valid), min_size=1, max_size=MAX_REQUESTS if method.client_streaming else 1))
    def send_all(requests: list[bytes]) -> None:
        codes.add(check(target, method, requests))

    send_all()
    if method.name in DEEP:
        assert {"OK", "INVALID_ARGUMENT"} <= codes
    assert error_lines(target.new_log()) == []


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server without administration, so that the model stays loaded."""
    with G2PServer("--no-admin", log=tmp_path_factory.mktemp("fuzzed") / "server.log") as server:
        target = Target(server)
        yield target
        target.channel.close()
        assert server.stop() == 0, server.log_tail()


@pytest.mark.parametrize("method", methods(GENERATION, INFERENCE, HEALTH, REFLECTION))
def test_any_request_gets_a_response_or_a_refusal(target: Target, method: MethodDescriptor) -> None:
    fuzz(target, method)
    with Client(target.server.address) as client:
        assert client.generate("dragoman").text == "D R AE G OW M AH N"


@pytest.fixture(scope="module")
def administered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server of a repository with two versions of a model, which may be loaded and unloaded."""
    repository = tmp_path_factory.mktemp("repository")
    for version in ("1", "2"):
        folder = repository / "g2p" / version
        folder.parent.mkdir(exist_ok=True)
        folder.symlink_to(SHIPPED_G2P)
    arguments = ["--model-repository", str(repository), "--engines", "1", "--max-rows", "4"]
    with G2PServer(*arguments, log=tmp_path_factory.mktemp("administered") / "server.log") as server:
        target = Target(server)
        yield target
        target.channel.close()
        assert server.stop() == 0, server.log_tail()


@pytest.mark.parametrize(
    "method",
    [
        *methods(ADMINISTRATION),
        *(method for method in methods(INFERENCE) if method.values[0].name.startswith("Repository")),
    ],
)
def test_models_are_loaded_and_unloaded_by_any_name(administered: Target, method: MethodDescriptor) -> None:
    fuzz(administered, method)
    with Client(administered.server.address) as client:
        client.load_model("g2p")
        assert client.generate("dragoman", model="g2p").text == "D R AE G OW M AH N"
