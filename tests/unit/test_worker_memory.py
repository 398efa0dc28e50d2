"""A worker without memory for an answer says so, rather than leave the server waiting."""

import threading
from multiprocessing import Pipe
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


def test_a_channel_that_breaks_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    ours, its = Pipe()
    ours.send_bytes(b"not a call")
    worker_main._serve_channel(its)
    assert ended == [1]
