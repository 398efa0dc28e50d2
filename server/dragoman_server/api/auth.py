"""Authenticates calls by their API keys, enforces the limits of each key, and counts its use."""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import grpc
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.messages.api_error import forbidden, key_limit, unauthenticated
from dragoman_server.security.keys import ApiKeys, Caller, OverLimitError

# Methods without authentication: load balancers and the kubelet have no key, and learn only whether to send requests.
OPEN = (
    "grpc.health.v1.Health/",
    "inference.GRPCInferenceService/ServerLive",
    "inference.GRPCInferenceService/ServerReady",
)
# Methods that require an administrator's key.
ADMINISTRATION = (
    "dragoman.v1.AdminService/",
    "inference.GRPCInferenceService/RepositoryModelLoad",
    "inference.GRPCInferenceService/RepositoryModelUnload",
)
METADATA, BEARER = "authorization", "bearer "
# A tensor may claim any shape. It is validated, and refused, after authentication.
MAX_COUNTED, MAX_DIMENSIONS = 1_000_000, 2

Context = grpc.aio.ServicerContext[Any, Any]

# Name of the API key of the current call.
CALLER: ContextVar[str | None] = ContextVar("caller", default=None)


class Authenticator(Collector):
    """Lets calls in or refuses them by their API keys.

    Its metrics have the names of keys as labels, which come from the operator's file.

    Args:
        keys: The known keys; None to let everyone in.
    """

    def __init__(self, keys: ApiKeys | None = None) -> None:
        self._keys = keys
        self._calls: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()

    def call(self, method: str, request: Any, context: Context) -> AbstractContextManager[Any]:
        """Returns a context for the duration of a call.

        Its value is the request, or a stream of requests that is slowed down to the rate of the key.

        Args:
            method: "package.Service/Method".

        Raises:
            ApiError: on entering, the key is missing, unknown, lacks the permission, or is over one of its limits.
        """
        if self._keys is None or method.startswith(OPEN):
            return nullcontext(request)
        return self._call(self._keys, method, request, context)

    def collect(self) -> Iterable[Metric]:
        if self._keys is not None:
            for name, text, counts in (
                ("dragoman_key_calls", "Calls that were let in", self._calls),
                ("dragoman_key_refusals", "Calls over a limit of their API key", self._refusals),
            ):
                family = CounterMetricFamily(name, text, labels=["key"])
                for key, count in counts.copy().items():
                    family.add_metric([key], count)
                yield family

    @contextmanager
    def _call(self, keys: ApiKeys, method: str, request: Any, context: Context) -> Iterator[Any]:
        key = _key(context)
        caller = None if key is None else keys.caller(key)
        if caller is None:
            raise unauthenticated("unknown API key" if key else "this server requires an API key")
        name = caller.entry.name
        CALLER.set(name)
        if method.startswith(ADMINISTRATION) and not caller.entry.admin:
            raise forbidden("this method requires an administrator's API key")
        streams = isinstance(request, AsyncIterable)
        try:
            caller.begin(0 if streams else _request_count(request))
        except OverLimitError as error:
            self._refusals[name] += 1
            raise key_limit(error) from None
        self._calls[name] += 1
        try:
            yield _paced(request, caller) if streams else request
        finally:
            caller.end()


async def _paced(messages: AsyncIterable[Any], caller: Caller) -> AsyncIterator[Any]:
    """Yields the requests of a stream, each when the rate of the key allows it."""
    async for message in messages:
        # A message that only cancels items waits for nothing.
        while (count := _request_count(message)) and (wait := caller.charge(count)):  # noqa: ASYNC110  # not an event
            await asyncio.sleep(wait)
        yield message


def _request_count(message: object) -> int:
    """Returns the number of requests that a message counts as."""
    if isinstance(message, pb.GenerateBatchRequest):
        return max(1, len(message.inputs))
    if isinstance(message, pb.GenerateManyRequest):
        return len(message.items)
    if isinstance(message, oip.ModelInferRequest) and message.inputs:
        shape = message.inputs[0].shape
        # More dimensions are refused later; the product of very many would block the event loop for minutes.
        return max(1, min(math.prod(shape), MAX_COUNTED)) if len(shape) <= MAX_DIMENSIONS else 1
    return 1


def _key(context: Context) -> str | None:
    """Returns the API key in the metadata of a call."""
    for name, value in context.invocation_metadata() or ():
        if name == METADATA:
            text = value.decode("latin-1") if isinstance(value, bytes) else value
            return text[len(BEARER) :].strip() if text[: len(BEARER)].lower() == BEARER else None
    return None
