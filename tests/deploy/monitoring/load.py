"""Load with all in it that dashboards show: every kind of call, errors, cancels, and more than the queue takes."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

import grpc

from dragoman import AsyncClient, DragomanError, RetryPolicy, Tls
from dragoman.inference import open_inference_pb2 as oip
from dragoman.inference import open_inference_pb2_grpc

MODEL = "g2p-en"
WORDS = ["a", "court", "between", "interpreter", "transformer", "incomprehensibilities"]
LONG = "honorificabilitudinitatibus" * 2
ONCE = RetryPolicy(attempts=1)

Call = Callable[[AsyncClient, str], Awaitable[object]]


async def _streamed(client: AsyncClient, word: str) -> None:
    async for _ in client.generate_stream(word, model=MODEL):
        pass


async def _given_up(client: AsyncClient, word: str) -> None:
    stream = client.generate_stream(LONG, model=MODEL)
    async for _ in stream:
        stream.cancel()
        return


CALLS: list[Call] = [
    lambda client, word: client.generate(word, model=MODEL),
    lambda client, word: client.generate(word, model=MODEL, beam_size=4),
    lambda client, word: client.generate(LONG, model=MODEL, max_new_tokens=3),
    lambda client, word: client.generate(word, model=MODEL, sample=True, num_hypotheses=3),
    lambda client, word: client.generate_batch(WORDS, model=MODEL),
    lambda client, word: client.score(word, ["K AO R T", "T"], model=MODEL),
    _streamed,
    _given_up,
    # Errors, of the caller and of the load.
    lambda client, word: client.generate(word, model=MODEL, max_new_tokens=-1),
    lambda client, word: client.generate(word, model="unheard-of"),
    lambda client, word: client.generate_batch([LONG] * 4, model=MODEL, timeout=0.02),
]


async def load(
    address: str, tls: Tls, api_key: str, over_limit: str, *, seconds: float, at_once: int = 24
) -> Counter[tuple[str, str]]:
    """Makes calls of all kinds in turn.

    Args:
        over_limit: API key with a very low limit.
        seconds: Duration.
        at_once: Number of concurrent calls.

    Returns:
        Number of calls by the client's method and outcome, "OK" or the kind of error.
    """
    ended: Counter[tuple[str, str]] = Counter()
    deadline, turns = time.monotonic() + seconds, count()

    async def ask(client: AsyncClient, number: int) -> None:
        call = CALLS[number % len(CALLS)]
        name = "generate" if number % len(CALLS) in (0, 1, 2, 3) else "other"
        try:
            await asyncio.wait_for(call(client, WORDS[number % len(WORDS)]), 30)
        except DragomanError as error:
            ended[name, type(error).__name__] += 1
            await asyncio.sleep(0.002)  # a refusal comes at once, and must not crowd out the rest
        else:
            ended[name, "OK"] += 1

    async def worker(client: AsyncClient) -> None:
        while time.monotonic() < deadline:
            await ask(client, next(turns))

    async def strangers() -> None:
        async with (
            AsyncClient(address, tls=tls, retry=ONCE) as nobody,
            AsyncClient(address, tls=tls, retry=ONCE, api_key=over_limit) as greedy,
        ):
            while time.monotonic() < deadline:
                for client in (nobody, greedy):
                    try:
                        await client.generate("a", model=MODEL)
                    except DragomanError as error:
                        ended["stranger", type(error).__name__] += 1
                    else:
                        ended["generate", "OK"] += 1
                await asyncio.sleep(0.05)

    async with AsyncClient(address, tls=tls, retry=ONCE, api_key=api_key) as client:
        await asyncio.gather(*(worker(client) for _ in range(at_once)), strangers())
    return ended


def infer(address: str, certificates: Path, api_key: str, times: int) -> None:
    """Calls of the other face."""
    tensor = oip.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1, 1])
    tensor.contents.bytes_contents.append(b"dragoman")
    request = oip.ModelInferRequest(model_name=MODEL, inputs=[tensor])
    credentials = grpc.ssl_channel_credentials(certificates.read_bytes())
    with grpc.secure_channel(address, credentials) as channel:
        stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(times):
            stub.ModelInfer(request, metadata=[("authorization", f"Bearer {api_key}")])
