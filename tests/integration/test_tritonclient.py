"""The Open Inference Protocol of a real server, called with NVIDIA's tritonclient."""

import json
import queue
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from google.protobuf.json_format import MessageToJson
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tritonclient.utils import InferenceServerException

from dragoman import Client
from dragoman.inference import open_inference_pb2 as oip
from dragoman.inference import open_inference_pb2_grpc
from dragoman.local import LocalServer
from dragoman_server.new_key import add
from tests.conftest import StartServer
from tests.support.bundles import SHIPPED_G2P
from tests.support.certificates import Authority
from tests.support.servers import G2PServer

MODEL = "g2p-en"
WORDS = ["court", "between", "two", "dragoman", "serendipity", "transformer", "a", "read"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server of the shipped bundle."""
    with G2PServer(log=tmp_path_factory.mktemp("server") / "server.log") as server:
        yield server
        assert server.stop() == 0, server.log_tail()


@pytest.fixture
def client(server: LocalServer) -> Iterator[Any]:
    with triton.InferenceServerClient(server.address) as client:
        yield client


@pytest.fixture
def own(server: LocalServer) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


def texts(*words: str) -> list[Any]:
    tensor = triton.InferInput("text", [len(words), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([word.encode() for word in words], dtype=object).reshape(-1, 1))
    return [tensor]


def strings(result: Any, name: str) -> list[list[str]]:
    return [[element.decode() for element in row] for row in result.as_numpy(name)]


class Listener:
    """Collects the results of a client's stream."""

    def __init__(self, client: Any, headers: dict[str, str] | None = None) -> None:
        self._results: queue.Queue[tuple[Any, Any]] = queue.Queue()
        client.start_stream(lambda result, error: self._results.put((result, error)), headers=headers)

    def until_final(self, count: int = 1) -> dict[str, list[Any]]:
        """Returns the results by the id of their request, once `count` requests have their final result."""
        results: dict[str, list[Any]] = {}
        while count:
            result, error = self._results.get(timeout=30)
            assert error is None, error
            response = result.get_response()
            results.setdefault(response.id, []).append(result)
            count -= response.parameters["triton_final_response"].bool_param
        return results

    def error(self) -> Any:
        result, error = self._results.get(timeout=30)
        assert result is None
        return error


def joined(results: list[Any]) -> str:
    return "".join(strings(result, "text")[0][0] for result in results)


def test_the_server_and_its_model_are_described(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(MODEL)
    assert client.is_model_ready(MODEL, "1")
    assert not client.is_model_ready(MODEL, "2")
    assert not client.is_model_ready("none")
    server = client.get_server_metadata(as_json=True)
    assert server["name"] == "dragoman"
    assert server["extensions"] == ["model_repository", "model_configuration", "statistics"]
    model = client.get_model_metadata(MODEL, as_json=True)
    assert model["name"] == MODEL
    assert model["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": ["-1", "1"]}]
    assert [output["name"] for output in model["outputs"]] == ["text", "finish_reason"]
    config = client.get_model_config(MODEL, as_json=True)["config"]
    assert config["max_batch_size"] == 10_000
    assert [tensor["data_type"] for tensor in (*config["input"], *config["output"])] == ["TYPE_STRING"] * 3


def test_texts_get_the_same_responses_as_from_our_client(client: Any, own: Client) -> None:
    result = client.infer(MODEL, texts(*WORDS), request_id="some")
    assert strings(result, "text") == [[own.generate(word).text] for word in WORDS]
    assert strings(result, "finish_reason") == [["EOS"]] * len(WORDS)
    response = result.get_response()
    assert (response.id, response.model_name, response.model_version) == ("some", MODEL, "1")


def test_options_and_outputs(client: Any, own: Client) -> None:
    options: dict[str, Any] = {"beam_size": 4, "num_hypotheses": 3, "length_penalty": 0.5}
    names = ["text", "score", "log_probability", "tokens"]
    outputs = [triton.InferRequestedOutput(name) for name in names]
    result = client.infer(MODEL, texts("read", "court"), outputs=outputs, parameters=options)
    assert [output.name for output in result.get_response().outputs] == names
    for row, word in enumerate(["read", "court"]):
        hypotheses = own.generate(word, **options, log_probabilities=True).hypotheses
        assert strings(result, "text")[row] == [hypothesis.text for hypothesis in hypotheses]
        assert result.as_numpy("score")[row].tolist() == [hypothesis.score for hypothesis in hypotheses]
        log_probabilities = result.as_numpy("log_probability")[row].tolist()
        assert log_probabilities == [hypothesis.log_probability for hypothesis in hypotheses]
        for tokens, hypothesis in zip(strings(result, "tokens")[row], hypotheses, strict=True):
            assert [token["text"] for token in json.loads(tokens)] == [token.text for token in hypothesis.tokens]


def test_samples_are_reproducible_with_their_seed(client: Any) -> None:
    options = {"sample": True, "temperature": 1.5, "num_hypotheses": 4}
    first = client.infer(MODEL, texts("dragoman"), parameters=options)
    seed = int(first.as_numpy("seed")[0, 0])
    seeded = {"seed": seed if seed < 2**63 else str(seed)}
    again = client.infer(MODEL, texts("dragoman"), parameters=options | seeded)
    assert strings(again, "text") == strings(first, "text")
    assert len(set(strings(first, "text")[0])) > 1


def test_constraints_are_sent_as_json(client: Any) -> None:
    options = {"prefix": "R", "stop_sequences": '["D"]', "include_stop_sequence": True}
    result = client.infer(MODEL, texts("read"), parameters=options)
    [[text]] = strings(result, "text")
    assert text.startswith("R ")
    assert text.endswith("D")
    assert strings(result, "finish_reason") == [["STOP_SEQUENCE"]]


def test_asynchronous_calls(client: Any, own: Client) -> None:
    results: queue.Queue[tuple[Any, Any]] = queue.Queue()
    for word in WORDS:
        client.async_infer(MODEL, texts(word), lambda result, error: results.put((result, error)), request_id=word)
    for _ in WORDS:
        result, error = results.get(timeout=30)
        assert error is None
        assert strings(result, "text") == [[own.generate(result.get_response().id).text]]


def test_pieces_of_a_stream_add_up_to_the_text(client: Any, own: Client) -> None:
    listener = Listener(client)
    for word in WORDS:
        client.async_stream_infer(MODEL, texts(word), request_id=word, enable_empty_final_response=True)
    streams = listener.until_final(len(WORDS))
    client.stop_stream()
    assert streams.keys() == set(WORDS)
    assert any(len(results) > 1 for results in streams.values())  # the number depends on the speed of the reader
    for word, results in streams.items():
        answer = own.generate(word)
        assert joined(results) == answer.text
        assert strings(results[-1], "finish_reason") == [["EOS"]]


def test_a_stream_continues_after_failed_requests(client: Any, own: Client) -> None:
    listener = Listener(client)
    client.async_stream_infer(MODEL, texts(""))
    assert listener.error().message() == "INVALID_ARGUMENT: text[0] is empty"
    client.async_stream_infer("none", texts("court"))
    assert listener.error().message().startswith("NOT_FOUND: ")
    client.async_stream_infer(MODEL, texts("court"), parameters={"beam_size": 400})
    assert listener.error().message().startswith("INVALID_ARGUMENT: parameters.beam_size is 400")
    client.async_stream_infer(MODEL, texts("court"), request_id="last")
    [results] = listener.until_final().values()
    assert joined(results) == own.generate("court").text
    client.stop_stream()


def test_errors_have_their_codes_and_name_the_field(client: Any) -> None:
    for inputs, options, code, message in [
        (texts("court", ""), {}, "INVALID_ARGUMENT", "text[1] is empty"),
        (texts("court"), {"beam_size": 0}, "INVALID_ARGUMENT", "parameters.beam_size is 0"),
        (texts("court"), {"beam": 4}, "INVALID_ARGUMENT", "parameters.beam is not a parameter of this server"),
        (texts("court"), {"top_p": 0.5}, "INVALID_ARGUMENT", "parameters.top_p needs sample"),
    ]:
        with pytest.raises(InferenceServerException) as refused:
            client.infer(MODEL, inputs, parameters=options)
        assert refused.value.status() == f"StatusCode.{code}"
        assert refused.value.message().startswith(message)
    with pytest.raises(InferenceServerException) as refused:
        client.infer("none", texts("court"))
    assert refused.value.status() == "StatusCode.NOT_FOUND"
    with pytest.raises(InferenceServerException) as refused:
        client.infer(MODEL, texts("court"), timeout=1)
    assert refused.value.status() == "StatusCode.DEADLINE_EXCEEDED"


def test_statistics_count_requests_of_both_protocols(client: Any, own: Client) -> None:
    def count() -> int:
        [stats] = client.get_inference_statistics(MODEL).model_stats
        inference = stats.inference_stats
        assert inference.success.count == inference.compute_infer.count == stats.inference_count
        assert inference.queue.count >= inference.success.count  # more if a request ended while it ran
        assert inference.success.ns >= inference.compute_infer.ns
        assert (inference.compute_infer.ns > 0) == (stats.inference_count > 0)
        return int(stats.inference_count)

    before = count()
    client.infer(MODEL, texts(*WORDS))
    own.generate("court")
    assert count() == before + len(WORDS) + 1


def test_models_are_loaded_and_unloaded(tmp_path: Path, start_server: StartServer) -> None:
    repository = tmp_path / "repository"
    for version in ("1", "2"):
        shutil.copytree(SHIPPED_G2P, repository / MODEL / version)
    server = start_server("--model-repository", str(repository), "--repository-poll-seconds", "0")
    with triton.InferenceServerClient(server.address) as client:

        def served(word: str = "court", version: str = "") -> str:
            result = client.infer(MODEL, texts(word), model_version=version)
            return str(result.get_response().model_version)

        def index() -> dict[str, str]:
            return {entry.version: entry.state for entry in client.get_model_repository_index().models}

        assert served() == "2"
        assert client.get_model_metadata(MODEL).versions == ["2"]
        assert index() == {"1": "UNAVAILABLE", "2": "READY"}
        client.load_model(f"{MODEL}@1")
        assert [served(version="1"), served(version="2"), served()] == ["1", "2", "2"]
        assert sorted(client.get_model_metadata(MODEL).versions) == ["1", "2"]
        assert sorted(stats.version for stats in client.get_inference_statistics().model_stats) == ["1", "2"]
        client.unload_model(MODEL, unload_dependents=True)
        assert not client.is_model_ready(MODEL)
        assert set(index().values()) <= {"UNAVAILABLE", "UNLOADING"}
        with pytest.raises(InferenceServerException) as refused:
            served()
        assert refused.value.status() in ("StatusCode.NOT_FOUND", "StatusCode.UNAVAILABLE")
        client.load_model(MODEL)
        assert client.is_model_ready(MODEL)
        assert served() == "2"
        with pytest.raises(InferenceServerException) as refused:
            client.load_model("none")
        assert refused.value.status() == "StatusCode.NOT_FOUND"


def test_without_administration_only_the_index_is_available(start_server: StartServer) -> None:
    with triton.InferenceServerClient(start_server("--no-admin").address) as client:
        [entry] = client.get_model_repository_index().models
        assert (entry.name, entry.version, entry.state) == (MODEL, "1", "READY")
        for change in (client.load_model, client.unload_model):
            with pytest.raises(InferenceServerException) as refused:
                change(MODEL)
            assert refused.value.status() == "StatusCode.FAILED_PRECONDITION"


def test_the_calls_of_perf_analyzer_succeed(client: Any) -> None:
    """In its order and its form; it stops at the first call that fails."""
    metadata = client.get_model_metadata(MODEL)
    config = json.loads(MessageToJson(client.get_model_config(MODEL).config, preserving_proto_field_name=True))
    assert "ensemble_scheduling" not in config
    assert "sequence_batching" not in config
    assert not config["model_transaction_policy"].get("decoupled", False)
    assert config["max_batch_size"] > 0
    # It generates inputs by the shape after the first dimension, which must be fixed.
    assert [list(tensor.shape[1:]) for tensor in metadata.inputs] == [[1]]
    assert "statistics" in client.get_server_metadata().extensions
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    outputs = [triton.InferRequestedOutput(tensor.name) for tensor in metadata.outputs]
    before = client.get_inference_statistics(MODEL)
    for size in (1, 3):
        result = client.infer(MODEL, texts(*WORDS[:size]), outputs=outputs, request_id="1")
        assert result.as_numpy("text").shape == (size, 1)
    listener = Listener(client)
    client.async_stream_infer(MODEL, texts("court"), outputs=outputs, request_id="281474976710656")
    assert listener.until_final().keys() == {"281474976710656"}
    client.stop_stream()
    after = client.get_inference_statistics(MODEL)
    assert after.model_stats[0].inference_count == before.model_stats[0].inference_count + 5


def test_generated_stubs_and_typed_contents(server: LocalServer, own: Client) -> None:
    """They work together with NVIDIA's stubs in one process."""
    contents = oip.InferTensorContents(bytes_contents=[word.encode() for word in WORDS])
    tensor = oip.ModelInferRequest.InferInputTensor(
        name="text", datatype="BYTES", shape=[len(WORDS)], contents=contents
    )
    request = oip.ModelInferRequest(model_name=MODEL, id="some", inputs=[tensor])
    with grpc.insecure_channel(server.address) as channel:
        stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ModelReady(oip.ModelReadyRequest(name=MODEL)).ready
        text, reason = stub.ModelInfer(request).outputs
        assert (text.name, list(text.shape)) == ("text", [len(WORDS), 1])
        answers = [own.generate(word).text for word in WORDS]
        assert [element.decode() for element in text.contents.bytes_contents] == answers
        assert set(reason.contents.bytes_contents) == {b"EOS"}
        del request.inputs[0].contents.bytes_contents[1:]
        request.inputs[0].shape[:] = [1]
        pieces = [response.infer_response for response in stub.ModelStreamInfer(iter([request]))]
        assert b"".join(piece.outputs[0].contents.bytes_contents[0] for piece in pieces).decode() == answers[0]
        assert [piece.parameters["triton_final_response"].bool_param for piece in pieces].index(True) == len(pieces) - 1


def test_reflection_describes_both_protocols(server: LocalServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        services = set(database.get_services())
        assert services >= {"dragoman.v1.GenerationService", "inference.GRPCInferenceService", "grpc.health.v1.Health"}
        for service in services:
            file = database.FindFileContainingSymbol(service)
            assert any(f"{file.package}.{each.name}" == service for each in file.service)


def test_tls_and_api_keys(tmp_path: Path, start_server: StartServer) -> None:
    authority, keys = Authority(tmp_path, "ours"), tmp_path / "keys.txt"
    headers = {"authorization": f"Bearer {add(keys, 'speech')}"}
    pair = authority.sign("server")
    server = start_server("--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--api-keys", str(keys))
    address = server.address.replace("127.0.0.1", "localhost")
    with triton.InferenceServerClient(address, ssl=True, root_certificates=str(authority.ca)) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        with pytest.raises(InferenceServerException) as refused:
            client.infer(MODEL, texts("court"))
        assert refused.value.status() == "StatusCode.UNAUTHENTICATED"
        assert strings(client.infer(MODEL, texts("court"), headers=headers), "text") == [["K AO R T"]]
        with pytest.raises(InferenceServerException) as refused:  # not an administrator's key
            client.unload_model(MODEL, headers=headers)
        assert refused.value.status() == "StatusCode.PERMISSION_DENIED"
        listener = Listener(client, headers)
        client.async_stream_infer(MODEL, texts("court"), request_id="some")
        assert joined(listener.until_final()["some"]) == "K AO R T"
        client.stop_stream()


def test_an_idle_stream_does_not_delay_the_shutdown(tmp_path: Path, start_server: StartServer) -> None:
    server = start_server("--drain-seconds", "60")
    with triton.InferenceServerClient(server.address) as client:
        listener = Listener(client)
        client.async_stream_infer(MODEL, texts("court"), request_id="some")
        listener.until_final()
        ended: queue.Queue[float] = queue.Queue()
        started = time.monotonic()
        threading.Thread(target=lambda: ended.put(server.stop(50)), daemon=True).start()
        error = listener.error()
        assert error.status() == "StatusCode.UNAVAILABLE"
        assert ended.get(timeout=30) == 0
        assert time.monotonic() - started < 30
        client.stop_stream()
