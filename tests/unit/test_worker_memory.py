"""A worker without memory for an answer says so, rather than leave the server waiting."""

import resource
import threading
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from dragoman_server.workers import worker_main
from dragoman_server.workers.worker_main import RequestHandler


class TooLarge:
    """What can't be pickled for want of memory."""

    def __reduce__(self) -> Any:
        raise MemoryError


def test_an_answer_too_large_for_the_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestHandler, "encode", lambda handler, large: TooLarge() if large else "encoded")
    ours, its = Pipe()
    thread = threading.Thread(target=worker_main._serve_channel, args=(its,))
    thread.start()
    ours.send(("encode", (True,)))
    assert ours.poll(10)
    succeeded, error = ours.recv()
    assert not succeeded
    assert isinstance(error, MemoryError)
    ours.send(("encode", (False,)))
    assert ours.recv() == (True, "encoded")
    ours.close()
    thread.join(10)
    assert not thread.is_alive()


def take_all_memory(handler: RequestHandler, taken: list[bytearray]) -> None:
    for size in (2**16, 2**12):
        try:
            while True:
                taken.append(bytearray(size))
        except MemoryError:
            continue
    raise MemoryError


def serve_with_little_memory(channel: Connection) -> None:
    """Runs a worker's channel in a process that may take 64 MiB more."""
    taken: list[bytearray] = []
    handler: Any = RequestHandler
    handler.encode = lambda self: take_all_memory(self, taken)
    handler.score = lambda self, data: len(data)
    lines = Path("/proc/self/status").read_text().splitlines()
    [held] = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData")]
    resource.setrlimit(resource.RLIMIT_DATA, (held + 2**26, resource.RLIM_INFINITY))
    worker_main._serve_channel(channel)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux limits and tells a process's data")
def test_a_call_that_takes_all_memory_leaves_enough_for_messages() -> None:
    ours, its = Pipe()
    process = get_context("spawn").Process(target=serve_with_little_memory, args=(its,), daemon=True)
    process.start()
    its.close()
    ours.send(("encode", ()))
    assert ours.poll(60)
    succeeded, error = ours.recv()
    assert not succeeded
    assert isinstance(error, MemoryError)
    ours.send(("score", (bytes(2**20),)))
    assert ours.poll(60)
    assert ours.recv() == (True, 2**20)
    ours.close()
    process.join(60)
    assert process.exitcode == 0


def test_a_channel_that_breaks_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    ours, its = Pipe()
    ours.send_bytes(b"not a call")
    worker_main._serve_channel(its)
    assert ended == [1]
