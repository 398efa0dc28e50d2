"""Our definition of the Open Inference Protocol against the one that tritonclient brings."""

import subprocess
import sys
from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2, service_pb2

from dragoman.inference import open_inference_pb2 as oip

SERVICE = "GRPCInferenceService"
OURS, THEIRS = oip.DESCRIPTOR, service_pb2.DESCRIPTOR
# Of these we fill only a part.
PARTIAL = {"ModelConfig", "ModelInput", "ModelOutput"}

IMPORTS = {
    "ours first": "from dragoman.inference import open_inference_pb2\nimport tritonclient.grpc",
    "theirs first": "import tritonclient.grpc\nfrom dragoman.inference import open_inference_pb2",
    "with the server": "import tritonclient.grpc\nimport dragoman_server.api.inference.inference_service",
}


def shape(message: Any) -> dict[int, tuple[Any, ...]]:
    """All that decides how a message is encoded, and what its fields are called."""
    return {
        field.number: (
            field.name,
            field.type,
            field.is_repeated,
            field.message_type.full_name if field.message_type else None,
            field.enum_type.full_name if field.enum_type else None,
            field.containing_oneof.name if field.containing_oneof else None,
        )
        for field in message.fields
    }


def with_nested(messages: Any) -> dict[str, Any]:
    found = {}
    for message in messages:
        found[message.full_name] = message
        found |= with_nested(message.nested_types)
    return found


def test_every_message_of_a_call_is_encoded_alike() -> None:
    ours = with_nested(OURS.message_types_by_name.values())
    theirs = with_nested(THEIRS.message_types_by_name.values())
    assert theirs.keys() <= ours.keys()
    for name, message in theirs.items():
        assert shape(ours[name]) == shape(message), name


def test_what_we_have_of_the_configuration_is_encoded_alike() -> None:
    theirs = with_nested(model_config_pb2.DESCRIPTOR.message_types_by_name.values())
    own = with_nested(OURS.message_types_by_name.values()).keys() - with_nested(THEIRS.message_types_by_name.values())
    assert {f"inference.{name}" for name in PARTIAL} <= own
    for name in own:
        assert shape(with_nested(OURS.message_types_by_name.values())[name]).items() <= shape(theirs[name]).items()
    [kinds] = OURS.enum_types_by_name.values()
    expected = model_config_pb2.DESCRIPTOR.enum_types_by_name["DataType"]
    assert kinds.values_by_name.keys() == expected.values_by_name.keys()
    assert all(value.number == expected.values_by_name[name].number for name, value in kinds.values_by_name.items())


def test_every_call_is_made_alike() -> None:
    def calls(file: Any) -> dict[str, tuple[Any, ...]]:
        service = file.services_by_name[SERVICE]
        assert service.full_name == f"inference.{SERVICE}"
        return {
            method.name: (
                method.input_type.full_name,
                method.output_type.full_name,
                method.client_streaming,
                method.server_streaming,
            )
            for method in service.methods
        }

    assert calls(OURS) == calls(THEIRS)


@pytest.mark.parametrize("imports", IMPORTS.values(), ids=IMPORTS.keys())
def test_both_definitions_can_be_in_one_process(imports: str) -> None:
    done = subprocess.run([sys.executable, "-c", imports], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
