"""Reflection of services whose definitions lie in different descriptor pools.

grpcio-reflection has v1alpha alone. Its messages are those of v1, byte for byte, so one servicer answers for both.
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
    """A pool that finds the file of a method, too: to the protocol, methods are symbols like services and messages.

    NOTE: no subclass of DescriptorPool: protobuf makes a plain pool of it.
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
    """Lets clients ask what the services look like, and what the details of their errors are.

    Args:
        services: full names; reflection itself is added.
    """
    pool = DescriptorPool()
    known: set[str] = set()
    names = [*services, reflection.SERVICE_NAME]
    for name in names:
        _copy(_file(name), pool, known)
    _copy(error_details_pb2.DESCRIPTOR, pool, known)
    pool.Add(_stable())
    servicer = reflection.aio.ReflectionServicer([*names, V1], pool=PoolWithMethods(pool))
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(V1, {"ServerReflectionInfo": handler})])


def _stable() -> FileDescriptorProto:
    """The definition of grpc.reflection.v1."""
    alpha, stable = FileDescriptorProto(), FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(alpha)
    return text_format.Parse(text_format.MessageToString(alpha).replace(ALPHA, STABLE), stable)


def _file(service: str) -> FileDescriptor:
    try:
        return inference_pool().FindFileContainingSymbol(service)
    except KeyError:
        return descriptor_pool.Default().FindFileContainingSymbol(service)


def _copy(file: FileDescriptor, pool: DescriptorPool, known: set[str]) -> None:
    """Adds a file, behind those that it imports."""
    if file.name in known:
        return
    known.add(file.name)
    for dependency in file.dependencies:
        _copy(dependency, pool, known)
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    pool.Add(proto)
