"""Lets calls in by their API keys, and counts what each key uses."""

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

# Load balancers and the kubelet have no key, and learn from these only whether to send requests.
OPEN = (
    "grpc.health.v1.Health/",
    "inference.GRPCInferenceService/ServerLive",
    "inference.GRPCInferenceService/ServerReady",
)
ADMINISTRATION = (
    "dragoman.v1.AdminService/",
    "inference.GRPCInferenceService/RepositoryModelLoad",
    "inference.GRPCInferenceService/RepositoryModelUnload",
)
METADATA, BEARER = "authorization", "bearer "
# A tensor may claim any shape; it is looked at, and refused, after authentication.
MOST_COUNTED, MOST_DIMENSIONS = 1_000_000, 2

Context = grpc.aio.ServicerContext[Any, Any]

# The name of the key that the present call came with.
CALLER: ContextVar[str | None] = ContextVar("caller", default=None)


class Authenticator(Collector):
    """What every call goes through.

    Args:
        keys: None to let everyone in.

    Its metrics have the names of keys as labels; those come from the operator's file.
    """

    def __init__(self, keys: ApiKeys | None = None) -> None:
        self._keys = keys
        self._calls: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()

    def call(self, method: str, request: Any, context: Context) -> AbstractContextManager[Any]:
        """A call, while it runs; what is entered is the request, or a stream of them that comes no faster than it may.

        Args:
            method: "package.Service/Method".

        Raises:
            ApiError: it may not, or not now.
        """
        if self._keys is None or method.startswith(OPEN):
            return nullcontext(request)
        return self._call(self._keys, method, request, context)

    def collect(self) -> Iterable[Metric]:
        if self._keys is not None:
            for name, text, counts in (
                ("dragoman_key_calls", "Calls that were let in.", self._calls),
                ("dragoman_key_refusals", "Calls over a limit of their API key.", self._refusals),
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
            raise unauthenticated("this API key is not known here" if key else "this server wants an API key")
        name = caller.entry.name
        CALLER.set(name)
        if method.startswith(ADMINISTRATION) and not caller.entry.admin:
            raise forbidden("this API key is not one of an administrator")
        streams = isinstance(request, AsyncIterable)
        try:
            caller.begin(0 if streams else _requests(request))
        except OverLimitError as error:
            self._refusals[name] += 1
            raise key_limit(error) from None
        self._calls[name] += 1
        try:
            yield _paced(request, caller) if streams else request
        finally:
            caller.end()


async def _paced(messages: AsyncIterable[Any], caller: Caller) -> AsyncIterator[Any]:
    """The messages of a call whose requests stream, each when the key's rate allows it."""
    async for message in messages:
        while wait := caller.charge(_requests(message)):  # noqa: ASYNC110  # it is time that is waited for
            await asyncio.sleep(wait)
        yield message


def _requests(message: object) -> int:
    """How many requests a message stands for."""
    if isinstance(message, pb.GenerateBatchRequest):
        return max(1, len(message.inputs))
    if isinstance(message, oip.ModelInferRequest) and message.inputs:
        shape = message.inputs[0].shape
        # One of more dimensions is refused; and the product of very many would keep the event loop for minutes.
        return max(1, min(math.prod(shape), MOST_COUNTED)) if len(shape) <= MOST_DIMENSIONS else 1
    return 1


def _key(context: Context) -> str | None:
    for name, value in context.invocation_metadata() or ():
        if name == METADATA:
            text = value.decode("latin-1") if isinstance(value, bytes) else value
            return text[len(BEARER) :].strip() if text[: len(BEARER)].lower() == BEARER else None
    return None
