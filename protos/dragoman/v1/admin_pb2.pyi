from dragoman.v1 import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LoadModelRequest(_message.Message):
    __slots__ = ("model", "again")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    model: str
    again: bool
    def __init__(self, model: _Optional[str] = ..., again: _Optional[bool] = ...) -> None: ...

class LoadModelResponse(_message.Message):
    __slots__ = ("versions",)
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[VersionStatus]
    def __init__(self, versions: _Optional[_Iterable[_Union[VersionStatus, _Mapping]]] = ...) -> None: ...

class UnloadModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class UnloadModelResponse(_message.Message):
    __slots__ = ("versions",)
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[VersionStatus]
    def __init__(self, versions: _Optional[_Iterable[_Union[VersionStatus, _Mapping]]] = ...) -> None: ...

class ReloadRepositoryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReloadRepositoryResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: RepositoryStatus
    def __init__(self, status: _Optional[_Union[RepositoryStatus, _Mapping]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: RepositoryStatus
    def __init__(self, status: _Optional[_Union[RepositoryStatus, _Mapping]] = ...) -> None: ...

class RepositoryStatus(_message.Message):
    __slots__ = ("path", "problem", "versions")
    PATH_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    path: str
    problem: str
    versions: _containers.RepeatedCompositeFieldContainer[VersionStatus]
    def __init__(self, path: _Optional[str] = ..., problem: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[VersionStatus, _Mapping]]] = ...) -> None: ...

class VersionStatus(_message.Message):
    __slots__ = ("model", "version", "state", "problem", "aliases", "current", "default", "held", "calls", "load_seconds", "cache_bytes", "engines", "threads_per_engine", "device")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    LOAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    THREADS_PER_ENGINE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    state: _generation_pb2.ModelState
    problem: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    current: bool
    default: bool
    held: bool
    calls: int
    load_seconds: float
    cache_bytes: int
    engines: int
    threads_per_engine: int
    device: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., state: _Optional[_Union[_generation_pb2.ModelState, str]] = ..., problem: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., current: _Optional[bool] = ..., default: _Optional[bool] = ..., held: _Optional[bool] = ..., calls: _Optional[int] = ..., load_seconds: _Optional[float] = ..., cache_bytes: _Optional[int] = ..., engines: _Optional[int] = ..., threads_per_engine: _Optional[int] = ..., device: _Optional[str] = ...) -> None: ...
