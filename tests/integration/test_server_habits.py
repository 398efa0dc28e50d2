"""What a serving process does internally, recorded by a module that is injected into it."""

import json
import os
import signal
from pathlib import Path

import pytest

from dragoman import Client
from dragoman.local import ServerStartError
from tests.conftest import StartServer
from tests.support.bundles import SHIPPED_FP32, SHIPPED_G2P

# Python imports a module of this name when it starts. NOTE: on SIGUSR1 it reports the event loop and confirms receipt.
SITE = """
import os, signal, sys

def tell(line):
    with open(os.environ["TOLD"], "a") as file:
        file.write(line + "\\n")

def hear(event, arguments):
    if event in {"os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn", "subprocess.Popen"}:
        tell(event)

def ask(number, frame):
    import asyncio
    tell(type(asyncio.get_running_loop()).__module__)
    sys.audit("os.fork")

sys.addaudithook(hear)
signal.signal(signal.SIGUSR1, ask)
"""
# As ONNX Runtime for GPUs does it on a machine whose driver does not work: it names CUDA, and makes sessions without.
BROKEN_GPU = """
import onnxruntime
onnxruntime.get_available_providers = lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
onnxruntime.preload_dlls = lambda: None
"""


def put_first(folder: Path, name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes new processes import a module at startup."""
    (folder / name).write_text(code)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    )


def test_it_runs_on_uvloop_and_never_forks(
    start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork of a process that uses gRPC may hang."""
    told = tmp_path / "told"
    monkeypatch.setenv("TOLD", str(told))
    put_first(tmp_path, "sitecustomize.py", SITE, monkeypatch)
    repository = tmp_path / "models"
    (repository / "g2p-en").mkdir(parents=True)
    (repository / "g2p-en" / "1").symlink_to(SHIPPED_G2P)
    server = start_server("--model-repository", str(repository), "--engines", "1", "--drain-delay-seconds", "0.2")
    with Client(server.address) as client:
        assert client.generate("court").text == "K AO R T"
        assert client.score("court", ["K AO R T"]).scores
        server.process.send_signal(signal.SIGUSR1)
        assert client.load_model("g2p-en", again=True)
        client.reload_repository()
        assert client.generate("court").text == "K AO R T"
    assert server.metrics()
    assert server.stop() == 0
    loop, *heard = told.read_text().splitlines()
    assert loop.partition(".")[0] == "uvloop"
    assert heard == ["os.fork"], "the one that tells that it hears"


def test_a_broken_gpu_is_logged_as_an_error_or_stops_the_start(
    start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_first(tmp_path, "sitecustomize.py", BROKEN_GPU, monkeypatch)
    server = start_server("--bundle", str(SHIPPED_FP32), "--engines", "1", "--log-format", "json")
    with Client(server.address) as client:
        assert client.generate("court").text == "K AO R T"
    [fallback] = [value for name, value in server.metrics().items() if name.startswith("dragoman_device_fallback")]
    assert fallback == 1
    [line] = [json.loads(line) for line in server.log.read_text().splitlines() if "no GPU" in line]
    assert line["level"] == "error"
    assert "CUDA" in line["reason"]
    with pytest.raises(ServerStartError, match="exited with 1") as refused:
        start_server("--bundle", str(SHIPPED_FP32), "--device", "cuda")
    assert "CUDA" in str(refused.value)


def test_the_shipped_bundle_is_refused_on_a_gpu(start_server: StartServer) -> None:
    with pytest.raises(ServerStartError, match="exited with 1") as refused:
        start_server("--device", "cuda")
    assert "the model is int8, which is for CPUs" in str(refused.value)
