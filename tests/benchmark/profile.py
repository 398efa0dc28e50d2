"""`python -m tests.benchmark.profile`: where the threads of a busy server spend their time, and who holds the lock.

py-spy (`pip install py-spy`) samples the server's stacks from outside, once all of them and once only those of the
thread that holds the interpreter's lock.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from dragoman.local import LOOPBACK, LocalServer
from dragoman_server.bundle.load import load_bundle
from tests.benchmark import results
from tests.benchmark.actor import Actor
from tests.benchmark.machine import describe
from tests.benchmark.workload import Workload, real_words
from tests.support.bundles import SHIPPED_G2P
from tests.support.load import LoadGenerator, Sample
from tests.support.many_load import ManyGenerator
from tests.support.servers import G2PServer

IN_FLIGHT = 64
RATE = 400  # samples a second
LOADS = ("64 calls", "a call of 64", "64 items in one call")
FRAME = re.compile(r"(.*) \((.*?)(?::\d+)?\)")
REST, GRAPHS = "engine/shared_queue.py", "onnxruntime/"  # the files of the innermost frames
OTHER = "gRPC, event loop"


class Stack(NamedTuple):
    """Samples of one stack: frames from the outermost to the innermost, without line numbers."""

    frames: list[str]
    samples: int


def main(
    seconds: Annotated[int, typer.Option(min=1, help="Length of each sampling.")] = 6,
    folder: Annotated[Path, typer.Option("--results", help="Folder of the JSON files.")] = results.RESULTS,
) -> None:
    """Samples a server of the shipped g2p-en under three kinds of load."""
    spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if spy is None:
        raise typer.BadParameter("py-spy is not installed: pip install py-spy")
    found: list[dict[str, Any]] = []
    with ExitStack() as stack:
        server = stack.enter_context(G2PServer("--log-requests", "none"))
        for load, generator, calls in _generators(stack, server, real_words(load_bundle(SHIPPED_G2P), 3000)):
            generator.call("closed", calls, 1.0)
            typer.echo(load)
            everything, _ = _sample(spy, server.process.pid, generator, calls, seconds, "--idle")
            holders, sample = _sample(spy, server.process.pid, generator, calls, seconds, "--gil")
            found.append({"load": load, **summarize(everything, holders, seconds, sample.sequences / sample.seconds)})
    results.write(
        "profile",
        {"machine": describe("tests.benchmark.profile"), "loads": found},
        folder,
    )


def _generators(stack: ExitStack, server: LocalServer, work: Workload) -> Iterator[tuple[str, Actor, int]]:
    at, pid = (LOOPBACK, server.port), server.process.pid
    yield LOADS[0], stack.enter_context(closing(Actor(LoadGenerator, at, pid, "Generate", work.unary()))), IN_FLIGHT
    batches = work.batches(IN_FLIGHT)
    yield LOADS[1], stack.enter_context(closing(Actor(LoadGenerator, at, pid, "GenerateBatch", batches))), 1
    many = Actor(ManyGenerator, at, pid, work.defaults(), work.texts)
    yield LOADS[2], stack.enter_context(closing(many)), IN_FLIGHT


def _sample(spy: str, pid: int, generator: Actor, calls: int, seconds: int, view: str) -> tuple[list[Stack], Sample]:
    """Samples the stacks of a process while it is under load."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "stacks.txt"
        command = [spy, "record", "--pid", str(pid), "--duration", str(seconds), "--rate", str(RATE)]
        command += ["--format", "raw", "--output", str(raw), "--nonblocking", "--threads", view]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            sample: Sample = generator.call("closed", calls, float(seconds))
            _, errors = process.communicate(timeout=60 + seconds)
        if not raw.exists():
            raise typer.BadParameter(f"py-spy could not read the server: {errors.decode(errors='replace').strip()}")
        return list(read_stacks(raw.read_text(encoding="utf-8", errors="replace"))), sample


def read_stacks(raw: str) -> Iterator[Stack]:
    """Parses py-spy's raw format: a line is `frame;frame;... count`."""
    for line in raw.splitlines():
        frames, _, samples = line.rpartition(" ")
        if samples.isdigit():  # a stack that changed while py-spy read it may be anything
            yield Stack([FRAME.sub(r"\1 (\2)", frame) for frame in frames.split(";")], int(samples))


def summarize(everything: list[Stack], holders: list[Stack], seconds: int, items_per_second: float) -> dict[str, Any]:
    """Adds up samples.

    Args:
        everything: Stacks of all threads.
        holders: Stacks of the thread that held the lock.
        seconds: Length of each sampling.

    Returns:
        Shares of the engines' time in graphs, at rest, and in Python or waiting for the lock; the share of time in
        which each kind of thread held the lock; and microseconds of it per item, by package.
    """
    engines: Counter[str] = Counter()
    for frames, count in everything:
        if _is_engine(frames):
            inner = frames[-1]
            engines["rest" if REST in inner else "graphs" if GRAPHS in inner else "python"] += count
    lock: Counter[str] = Counter()
    packages: Counter[str] = Counter()
    for frames, count in holders:
        lock["engines" if _is_engine(frames) else "event loop" if _is_loop(frames) else "others"] += count
        packages[_package(frames)] += count
    total, sampled = max(1, engines.total()), seconds * RATE
    return {
        "items_per_second": items_per_second,
        "engines": {name: engines[name] / total for name in ("graphs", "python", "rest")},
        "lock": {name: count / sampled for name, count in lock.most_common()},
        "microseconds": {name: 1e6 * n / sampled / items_per_second for name, n in packages.most_common()},
    }


def _is_engine(frames: list[str]) -> bool:
    return any("dragoman_server/engine/engine.py" in frame for frame in frames)


def _is_loop(frames: list[str]) -> bool:
    return any("asyncio/runners.py" in frame for frame in frames)


def _package(frames: list[str]) -> str:
    """Returns the package of the innermost function of the server that is at work."""
    for frame in reversed(frames):
        found = re.search(r"dragoman_server/(\w+)/", frame)
        if found and found[1] != "process":
            return found[1]
    return OTHER


if __name__ == "__main__":
    typer.run(main)
