"""Server reflection for services whose definitions are in different descriptor pools.

grpcio-reflection implements only v1alpha. Its messages are byte for byte those of v1, so one servicer serves both.
"""

from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.rpc import error_details_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from dragoman.inference.pool import Default as inference_pool

ALPHA, STABLE = "v1alpha", "v1"
V1 = reflection.SERVICE_NAME.replace(ALPHA, STABLE)


class PoolWithMethods:
    """A descriptor pool that also finds methods: in the protocol, they are symbols like services and messages.

    NOTE: not a subclass of DescriptorPool, whose constructor returns a plain pool.
    """

    def __init__(self, pool: DescriptorPool) -> None:
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            return self._pool.FindMethodByName(symbol).containing_service.file


def enable_reflection(services: Iterable[str], server: grpc.aio.Server) -> None:
    """Adds server reflection to a server, for its services and for the details of their errors.

    Args:
        services: Full names of the services. Reflection itself is added.
    """
    pool = DescriptorPool()
    known: set[str] = set()
    names = [*services, reflection.SERVICE_NAME]
    for name in names:
        _copy(_file(name), pool, known)
    _copy(error_details_pb2.DESCRIPTOR, pool, known)
    pool.Add(_v1_definition())
    servicer = reflection.aio.ReflectionServicer([*names, V1], pool=PoolWithMethods(pool))
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(V1, {"ServerReflectionInfo": handler})])


def _v1_definition() -> FileDescriptorProto:
    """Returns the definition of grpc.reflection.v1."""
    alpha, stable = FileDescriptorProto(), FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(alpha)
    return text_format.Parse(text_format.MessageToString(alpha).replace(ALPHA, STABLE), stable)


def _file(service: str) -> FileDescriptor:
    """Returns the file that defines a service."""
    try:
        return inference_pool().FindFileContainingSymbol(service)
    except KeyError:
        return descriptor_pool.Default().FindFileContainingSymbol(service)


def _copy(file: FileDescriptor, pool: DescriptorPool, known: set[str]) -> None:
    """Adds a file to a pool, after the files that it imports."""
    if file.name in known:
        return
    known.add(file.name)
    for dependency in file.dependencies:
        _copy(dependency, pool, known)
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    pool.Add(proto)
