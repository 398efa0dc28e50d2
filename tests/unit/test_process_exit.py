"""When the process must not exit normally: while a thread may be inside ONNX Runtime."""

import threading

import pytest

from dragoman_server.process.app import computing


@pytest.mark.parametrize(("name", "computes"), [("engine-3", True), ("scorer", True), ("log", False)])
def test_a_thread_that_outlives_its_model_is_noticed(name: str, computes: bool) -> None:
    assert not computing()
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name=name, daemon=True)
    thread.start()
    try:
        assert computing() is computes
    finally:
        release.set()
        thread.join()
    assert not computing()
