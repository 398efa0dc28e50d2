"""Reflection of services whose definitions lie in different descriptor pools."""

from collections.abc import Iterable

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection

from dragoman.inference.pool import Default as inference_pool


def enable_reflection(services: Iterable[str], server: grpc.aio.Server) -> None:
    """Lets clients ask what the services look like.

    Args:
        services: full names; reflection itself is added.
    """
    names = [*services, reflection.SERVICE_NAME]
    pool = DescriptorPool()
    known: set[str] = set()
    for name in names:
        _copy(_file(name), pool, known)
    reflection.enable_server_reflection(names, server, pool=pool)


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
