"""dragoman.v1.AdminService."""

from typing import Any

import grpc
from google.rpc import error_details_pb2

from dragoman.v1 import admin_pb2 as pb
from dragoman.v1 import admin_pb2_grpc
from dragoman_server.core.errors import Rejection
from dragoman_server.messages.api_error import ApiError, invalid
from dragoman_server.messages.error_text import shorten
from dragoman_server.models.manager import ModelManager, NotLoadedError, UnknownModelError
from dragoman_server.models.state import VersionReport
from dragoman_server.models.versions import split

SERVICE = "dragoman.v1.AdminService"

Context = grpc.aio.ServicerContext[Any, Any]


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Loads and unloads models. CallInterceptor turns its errors into statuses."""

    def __init__(self, manager: ModelManager) -> None:
        self._manager = manager

    async def LoadModel(self, request: pb.LoadModelRequest, context: Context) -> pb.LoadModelResponse:
        _check_name(request.model)
        try:
            await self._manager.load(request.model, request.again)
        except UnknownModelError as error:
            raise _not_found(request.model, error) from None
        except NotLoadedError as error:
            raise _not_loaded(error) from None
        return pb.LoadModelResponse(versions=self._versions(request.model))

    async def UnloadModel(self, request: pb.UnloadModelRequest, context: Context) -> pb.UnloadModelResponse:
        _check_name(request.model)
        try:
            await self._manager.unload(request.model)
        except UnknownModelError as error:
            raise _not_found(request.model, error) from None
        return pb.UnloadModelResponse(versions=self._versions(request.model))

    async def ReloadRepository(
        self, request: pb.ReloadRepositoryRequest, context: Context
    ) -> pb.ReloadRepositoryResponse:
        try:
            await self._manager.reload()
        except NotLoadedError as error:
            raise _not_loaded(error) from None
        return pb.ReloadRepositoryResponse(status=self._status())

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        return pb.GetStatusResponse(status=self._status())

    def _status(self) -> pb.RepositoryStatus:
        manager = self._manager
        versions = map(_describe, manager.reports())
        return pb.RepositoryStatus(path=str(manager.source.path), problem=manager.problem, versions=versions)

    def _versions(self, name: str) -> list[pb.VersionStatus]:
        model, _ = split(name)
        return [_describe(report) for report in self._manager.reports() if report.model == model]


def _describe(report: VersionReport) -> pb.VersionStatus:
    """Converts a report to a message."""
    status = pb.VersionStatus(
        model=report.model,
        version=report.version,
        state=report.state,
        problem=report.problem,
        aliases=report.aliases,
        current=report.current,
        default=report.default,
        held=report.held,
    )
    if loaded := report.loaded:
        status.calls = loaded.served.calls
        status.load_seconds = loaded.seconds
        status.cache_bytes = loaded.cache_bytes
        status.engines, status.threads_per_engine = loaded.pool.engines, loaded.pool.threads
        status.device = loaded.device
    return status


def _check_name(name: str) -> None:
    if not name:
        raise invalid("model", "is empty, but must name a model")


def _not_found(name: str, error: UnknownModelError) -> ApiError:
    detail = error_details_pb2.ResourceInfo(
        resource_type="dragoman.v1.Model", resource_name=shorten(name), description=str(error)
    )
    return ApiError(grpc.StatusCode.NOT_FOUND, str(error), detail, Rejection.UNKNOWN_MODEL)


def _not_loaded(error: NotLoadedError) -> ApiError:
    return ApiError(grpc.StatusCode.FAILED_PRECONDITION, str(error))
