"""Lets calls in by their API keys, and counts what each key uses."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import grpc
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from dragoman.v1 import generation_pb2 as pb
from server.api.errors import key_limit, unauthenticated
from server.security.keys import ApiKeys, OverLimitError

# Load balancers and the kubelet have no key, and learn from these only whether to send requests.
OPEN = (
    "grpc.health.v1.Health/",
    "inference.GRPCInferenceService/ServerLive",
    "inference.GRPCInferenceService/ServerReady",
)
METADATA, BEARER = "authorization", "bearer "

Context = grpc.aio.ServicerContext[Any, Any]

# The name of the key that the present call came with.
CALLER: ContextVar[str | None] = ContextVar("caller", default=None)


class Gate(Collector):
    """What every call goes through.

    Args:
        keys: None to let everyone in.

    Its metrics have the names of keys as labels; those come from the operator's file.
    """

    def __init__(self, keys: ApiKeys | None = None) -> None:
        self._keys = keys
        self._calls: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()

    def call(self, method: str, request: object, context: Context) -> AbstractContextManager[None]:
        """A call, while it runs.

        Args:
            method: "package.Service/Method".

        Raises:
            ApiError: it may not, or not now.
        """
        if self._keys is None or method.startswith(OPEN):
            return nullcontext()
        return self._call(self._keys, request, context)

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
    def _call(self, keys: ApiKeys, request: object, context: Context) -> Iterator[None]:
        key = _key(context)
        caller = None if key is None else keys.caller(key)
        if caller is None:
            raise unauthenticated("this API key is not known here" if key else "this server wants an API key")
        name = caller.entry.name
        CALLER.set(name)
        requests = len(request.inputs) if isinstance(request, pb.GenerateBatchRequest) else 1
        try:
            caller.begin(requests)
        except OverLimitError as error:
            self._refusals[name] += 1
            raise key_limit(str(error), error.retry_after) from None
        self._calls[name] += 1
        try:
            yield
        finally:
            caller.end()


def _key(context: Context) -> str | None:
    for name, value in context.invocation_metadata() or ():
        if name == METADATA:
            text = value.decode("latin-1") if isinstance(value, bytes) else value
            return text[len(BEARER) :].strip() if text[: len(BEARER)].lower() == BEARER else None
    return None
