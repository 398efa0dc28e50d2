"""The client processes of a soak: some run to the end, some are killed or frozen in mid-call, one misbehaves."""

import asyncio
import contextlib
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from dragoman.local import LOOPBACK, LocalServer

CLIENT, MISBEHAVING = "tests.soak.client", "tests.soak.misbehaving"
STEADY, KILLED, CLIENTS = 2, 2, 40  # processes that run to the end or are killed, clients in each
MISBEHAVING_CLIENTS = 30
LIFE_SECONDS = 1.0, 5.0  # until a process is killed
FREEZE_SECONDS = 0.5, 3.0
FROZEN_SHARE = 0.3  # of the killed processes, frozen first
MAX_FAULTS = 5  # described per process
END_SECONDS = 330.0  # longer than the longest call


class ProcessFailedError(Exception):
    """A client process failed or ended early."""


@dataclass
class Counts:
    """The counts of one process, or of all; those of a killed process date from its last report.

    Attributes:
        right, partial, wrong: Correct answers, answers cut by a time limit, faults.
        outstayed: Silent connections that the server did not close.
        codes: Status codes, by the client's behaviour.
        methods: Calls by method.
        misbehaviours: Connections of the misbehaving clients, by what they did.
        faults: Descriptions of the first faults of each process.
        killed, frozen: Numbers of processes.
    """

    right: int = 0
    partial: int = 0
    wrong: int = 0
    outstayed: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    methods: Counter[str] = field(default_factory=Counter)
    misbehaviours: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    killed: int = 0
    frozen: int = 0

    def add_fault(self, description: str) -> None:
        self.wrong += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(description)

    def report(self) -> None:
        """Writes the counts to standard output, as a line of JSON."""
        print(json.dumps(vars(self)), flush=True)

    def add_report(self, report: dict[str, Any]) -> None:
        for name, value in report.items():
            total = getattr(self, name)
            if isinstance(total, Counter):
                total.update(value)
            else:
                setattr(self, name, total + value)


class ClientProcesses:
    """Starts, kills and freezes client processes.

    Args:
        calls: File with the calls and their expected answers.
    """

    def __init__(self, server: LocalServer, calls: Path, seed: int) -> None:
        self._server, self._calls = server, calls
        self._draw = random.Random(seed)
        self._reports: list[dict[str, Any]] = []  # the last one of each process
        self._reading: set[asyncio.Task[None]] = set()
        self._killed = self._frozen = 0

    @property
    def counts(self) -> Counts:
        counts = Counts(killed=self._killed, frozen=self._frozen)
        for report in self._reports:
            counts.add_report(report)
        return counts

    async def run(self, seconds: float) -> None:
        """Runs all processes.

        Raises:
            ProcessFailedError: A process failed.
        """
        end = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as tasks:
            for _ in range(STEADY):
                tasks.create_task(self._run_until(end, CLIENT, self._server.address, str(self._calls), CLIENTS))
            tasks.create_task(self._run_until(end, MISBEHAVING, LOOPBACK, str(self._server.port), MISBEHAVING_CLIENTS))
            for _ in range(KILLED):
                tasks.create_task(self._kill_repeatedly(end))

    async def vanish(self, connected: Callable[[], set[int]], timeout: float) -> float | None:
        """Freezes a process for good in mid-call, as if its machine had vanished.

        Args:
            connected: Returns the client ports of the server's connections.
            timeout: Longest wait in seconds for the server to notice.

        Returns:
            Seconds until the server has closed the connections; None if it has not.
        """
        loop = asyncio.get_running_loop()
        process = await self._start(CLIENT, self._server.address, str(self._calls), CLIENTS)
        try:
            await self._wait(process, LIFE_SECONDS[1])
            process.send_signal(signal.SIGSTOP)
            self._frozen += 1
            frozen = loop.time()
            ports = {connection.laddr.port for connection in psutil.Process(process.pid).net_connections("tcp")}
            while ports & connected():
                if loop.time() > frozen + timeout:
                    return None
                await asyncio.sleep(1)
            return loop.time() - frozen
        finally:
            process.kill()

    async def _run_until(self, end: float, program: str, *arguments: Any) -> None:
        process = await self._start(program, *arguments)
        try:
            await self._wait(process, end - asyncio.get_running_loop().time())
            process.terminate()
            async with asyncio.timeout(END_SECONDS):
                status = await process.wait()
            if status:
                raise ProcessFailedError(f"{program} ended with status {status}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def _kill_repeatedly(self, end: float) -> None:
        while (left := end - asyncio.get_running_loop().time()) > 0:
            process = await self._start(CLIENT, self._server.address, str(self._calls), CLIENTS)
            try:
                await self._wait(process, min(left, self._draw.uniform(*LIFE_SECONDS)))
                if self._draw.random() < FROZEN_SHARE:
                    process.send_signal(signal.SIGSTOP)
                    self._frozen += 1
                    await asyncio.sleep(min(left, self._draw.uniform(*FREEZE_SECONDS)))
            finally:
                process.kill()
            await process.wait()
            self._killed += 1

    async def _wait(self, process: asyncio.subprocess.Process, seconds: float) -> None:
        """Waits; raises ProcessFailedError if the process ends meanwhile."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0)):
                status = await process.wait()
                raise ProcessFailedError(f"a client process ended early, with status {status}")

    async def _start(self, program: str, *arguments: Any) -> asyncio.subprocess.Process:
        *others, clients = arguments
        seed = self._draw.getrandbits(32)
        command = [sys.executable, "-m", program, *others, str(seed), str(clients)]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        reading = asyncio.create_task(self._read(process))
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)
        return process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        index = len(self._reports)
        self._reports.append({})
        async for line in process.stdout:
            if line.endswith(b"\n"):  # otherwise the process was killed in mid-line
                self._reports[index] = json.loads(line)
