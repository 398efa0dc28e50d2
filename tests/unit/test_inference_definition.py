"""The Open Inference Protocol is defined here as in tritonclient, and both definitions go into one process."""

import subprocess
import sys
from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2, service_pb2

from dragoman.inference import open_inference_pb2 as oip

SERVICE = "GRPCInferenceService"
OURS, THEIRS = oip.DESCRIPTOR, service_pb2.DESCRIPTOR


def shape(message: Any) -> dict[int, tuple[Any, ...]]:
    """Returns all that decides how a message is encoded, and the names of its fields."""
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


def with_nested(file_or_message: Any) -> dict[str, Any]:
    """Returns all messages of a file by name, including nested ones."""
    found: dict[str, Any] = {}
    nested = getattr(file_or_message, "nested_types", None)
    for message in file_or_message.message_types_by_name.values() if nested is None else nested:
        found |= {message.full_name: message, **with_nested(message)}
    return found


def test_messages_are_defined_as_in_tritonclient() -> None:
    ours, theirs = with_nested(OURS), with_nested(THEIRS)
    assert theirs.keys() <= ours.keys()
    for name, message in theirs.items():
        assert shape(ours[name]) == shape(message), name
    # We define only a part of the configuration.
    configuration = with_nested(model_config_pb2.DESCRIPTOR)
    own = ours.keys() - theirs.keys()
    assert {"inference.ModelConfig", "inference.ModelInput", "inference.ModelOutput"} <= own
    for name in own:
        assert shape(ours[name]).items() <= shape(configuration[name]).items()
    [kinds] = OURS.enum_types_by_name.values()
    expected = model_config_pb2.DESCRIPTOR.enum_types_by_name["DataType"].values_by_name
    assert {name: kind.number for name, kind in kinds.values_by_name.items()} == {
        name: kind.number for name, kind in expected.items()
    }


def test_methods_are_defined_as_in_tritonclient() -> None:
    def methods(file: Any) -> dict[str, tuple[Any, ...]]:
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

    assert methods(OURS) == methods(THEIRS)


@pytest.mark.parametrize(
    "imports",
    [
        ("dragoman.inference.open_inference_pb2", "tritonclient.grpc"),
        ("tritonclient.grpc", "dragoman.inference.open_inference_pb2"),
        ("tritonclient.grpc", "dragoman_server.api.inference.inference_service"),
    ],
    ids=["ours first", "theirs first", "with the server"],
)
def test_both_definitions_can_be_imported_in_one_process(imports: tuple[str, str]) -> None:
    command = [sys.executable, "-c", f"import {imports[0]}, {imports[1]}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
